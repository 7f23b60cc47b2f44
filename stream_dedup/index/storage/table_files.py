"""Table files: copies of rows and tables as they are in memory, so that opening an index is quick.

    FOLDER/NAME                      one column of the rows; it grows at its end
    FOLDER/table-NUMBER.GENERATION   the frozen segment of one table, written once

The volume in RocksDB is the source of truth. It also records which files are valid: a digest of each
column for every 4,096 rows, which of these are removed, and the file and digest of every table. A
file with such a record is called "named" here. Opening reads the files, and from the volume only
the entries after them.

How a table is written to a file:
  1  the table was merged or sorted, and has grown by an eighth since it was last written. If its row
     numbers are in files, the merge has written them to a new file. That file is always completed;
     otherwise opening would merge again
  2  a thread writes the table, or what the merge has not written, to a temporary file, syncs it
     and renames it
  3  the next write of the volume that names all rows of the table also names the file
  4  the previous file is deleted

Invariants: rows are valid up to the first group of 4,096 with a wrong digest, and a table is valid
if all its rows are valid. Other rows and tables are rebuilt from the volume, and `rebuild_reasons`
contains the reasons. Without the folder no data is lost; a full disk delays no verdict. Before rows
move within their files, all names are withdrawn. Entries that an order wiped are wiped here too. No
link is followed, and only a regular file of this user without other hard links is used. The bytes
are frozen in tests/golden/table_files.json: other bytes, or other hashes of a plan, need a new
`FORMAT`.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from stream_dedup.domain.disk import sync
from stream_dedup.domain.errors import StoreError
from stream_dedup.domain.paths import create_file, make_folder, open_file
from stream_dedup.index.storage.columns import REMOVED
from stream_dedup.index.storage.contract import Store, Writes
from stream_dedup.index.storage.layout import (
    KEY_TABLE_FILES,
    PREFIX_FILE_ROWS,
    PREFIX_FILE_TABLE,
    PREFIX_REMOVED,
    file_rows_key,
    file_table_key,
    number_of,
    removed_key,
)

FORMAT: Final = 2
_GROWTH_SHARE: Final = 8  # a table is written again when it has grown by one part in this many
_HEAD: Final = struct.Struct("<HQ")
_TABLE: Final = struct.Struct("<QQQQQQ")

NAME_RANGES: Final = tuple(
    (prefix, bytes([prefix[0] + 1]))
    for prefix in (PREFIX_FILE_ROWS, PREFIX_FILE_TABLE, PREFIX_REMOVED)
)
"""Ranges (first key, key after the last) of the volume's records of table files, besides
`KEY_TABLE_FILES`."""

GROUP_ROWS: Final = 4096
"""Number of rows of a column that have one digest."""
ROW_BYTES: Final = 4
"""Bytes of a row number; the file of a table begins with these."""

Pieces = Callable[[], Iterator[NDArray[np.uint8]]]
"""Returns the memory of a table piece by piece, to read from it or to fill it."""


class Sizes(NamedTuple):
    """The number of rows up to the last in a table, and the number of its entries and buckets."""

    rows: int
    entries: int
    buckets: int


class TableFile(NamedTuple):
    """The volume's record of a table's file: plan of its keys, generation, sizes and digest."""

    plan: int
    generation: int
    rows: int
    entries: int
    buckets: int
    digest: int


class RowsInFiles(NamedTuple):
    """The rows of the column files.

    An entry's number is `base` plus the number in its row. `states` (n,). `digests(group)` returns
    the digest of each column's part of a group of 4,096 rows.
    """

    base: int
    states: NDArray[np.uint8]
    digests: Callable[[int], NDArray[np.uint64]]


@dataclass(slots=True)
class _TableWrite:
    """A table that is being written to a file, which already contains `written_bytes` of it."""

    number: int
    file: TableFile
    pieces: Pieces
    written_bytes: int
    is_cancelled: bool = False
    future: Future[None] | None = None


class TableFiles:
    """The table files of one index, in one folder.

    `rebuild_reasons` says why files are rebuilt; `unwritten` counts tables that could not be written.
    Only the thread that applies the log may call it; another thread writes tables and deletes old
    files.

    Raises:
        StoreError: the folder cannot be created, or the volume failed.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        thread: Executor | None = None,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Open the files: `thread` writes tables; `on_step` is called with the name of each
        step.
        """
        self.folder = folder
        self.rebuild_reasons: list[str] = []
        self.unwritten = 0
        self.base: int | None = None
        self._store = store
        self._thread = thread or ThreadPoolExecutor(1)
        self._on_step = on_step
        self._lock = threading.Lock()
        self._begun_files: dict[int, int] = {}  # generations of files that a merge writes
        self._writes: dict[int, _TableWrite] = {}
        self._unnamed_tables: dict[int, TableFile] = {}
        self._named_tables: dict[int, TableFile] = {}
        self._dropped_tables: set[int] = set()  # tables whose names the next write deletes
        self._obsolete_files: list[Path] = []  # files to delete after that write
        self._groups = 0
        self._stored_groups = 0  # the number of groups that the volume names, valid or not
        self._removed_groups: set[int] = set()
        self._wiped_groups: set[int] = set()
        try:
            make_folder(folder)
        except OSError as error:
            raise StoreError(
                f"The folder {folder} for table files of the index cannot be created "
                f"({error.strerror}). Free space on that disk, check the owner of the folder, and "
                "start the index again."
            ) from error
        self.digests = self._read_names()
        self._generation = max(
            (table.generation for table in self._named_tables.values()), default=0
        )
        named = {self._table_path(number, table) for number, table in self._named_tables.items()}
        for path in folder.glob("table-*"):  # a process may have ended before it named them
            if path not in named:
                _remove(path)

    # -- opening

    def _read_names(self) -> NDArray[np.uint64]:
        """Read the volume's records; return the digests of each 4,096 rows, (groups, columns)."""
        no_digests = np.zeros((0, 0), np.uint64)
        (header,) = self._store.get_many([KEY_TABLE_FILES])
        if header is None:
            return no_digests
        if len(header) != _HEAD.size or _HEAD.unpack(header)[0] != FORMAT:
            self.rebuild_reasons.append(
                "rows and tables were written by another version of the program"
            )
            return no_digests
        _, self.base = _HEAD.unpack(header)
        groups = list(self._store.scan(PREFIX_FILE_ROWS))
        if [number_of(key) for key, _ in groups] != list(range(len(groups))) or len(
            {len(value) for _, value in groups}
        ) > 1:
            self.rebuild_reasons.append("the volume's digests of the rows are damaged")
            return no_digests
        self._groups = self._stored_groups = len(groups)
        for key, value in self._store.scan(PREFIX_FILE_TABLE):
            self._named_tables[number_of(key)] = TableFile(*_TABLE.unpack(value))
        return (
            np.array([np.frombuffer(value, "<u8") for _, value in groups], np.uint64)
            if groups
            else no_digests
        )

    def accept_rows(self, groups: int, valid_groups: int) -> None:
        """Use only the first `valid_groups` of `groups` groups of rows, and tables of only these rows.

        Raises:
            StoreError: the volume failed.
        """
        if valid_groups < groups:
            self.rebuild_reasons.append(
                f"the digest of the rows from number {valid_groups * GROUP_ROWS} differs from the "
                "volume's"
            )
        if not valid_groups:
            self.withdraw_names()
        self._groups = valid_groups
        for number in [
            number
            for number, table in self._named_tables.items()
            if table.rows > valid_groups * GROUP_ROWS
        ]:
            self._drop_table(number)

    def mark_removed(self, states: NDArray[np.uint8]) -> None:
        """Set the states (n,) of rows to REMOVED if the volume records them as removed."""
        for key, value in self._store.scan(PREFIX_REMOVED):
            group = _rows_of(states, number_of(key))
            group[np.unpackbits(np.frombuffer(value, np.uint8), count=len(group)) != 0] = REMOVED

    # -- tables

    def valid_tables(self, plan: str) -> dict[int, TableFile]:
        """Return the valid files of the tables whose keys are derived from `plan`, by number."""
        return {
            number: table
            for number, table in self._named_tables.items()
            if table.plan == _hash_plan(plan)
        }

    def drop_tables(self, first: int) -> None:
        """Stop using the files of all tables from number `first` on, because the plan changed."""
        self.stop_writing([number for number in self._writes if number >= first])
        with self._lock:
            for number in [number for number in self._unnamed_tables if number >= first]:
                _remove(self._table_path(number, self._unnamed_tables.pop(number)))
        for number in [number for number in self._named_tables if number >= first]:
            self._drop_table(number)

    def read_table(self, number: int, pieces: Pieces) -> FileIO | None:
        """Fill a table from its file.

        Return the open file, or None if the table must be rebuilt. Any thread may call it.
        """
        table = self._named_tables[number]
        path, digest = self._table_path(number, table), xxhash.xxh3_64()
        problem = "differs from the volume's digest"
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(FileIO(open_file(path, is_private=True), "rb"))
                for piece in pieces():
                    if file.readinto(piece.data) != len(piece):
                        break
                    digest.update(piece.data)
                else:
                    if digest.intdigest() == table.digest and not file.read(1):
                        stack.pop_all()
                        return file
            except OSError as error:
                problem = f"cannot be read ({error.strerror})"
        with self._lock:
            self.rebuild_reasons.append(f"{path.name} {problem}")
            self._drop_table(number)
        return None

    def stop_writing(self, numbers: Iterable[int]) -> None:
        """Stop writing these tables to files, because they are about to change."""
        for number in numbers:
            write = self._writes.pop(number, None)
            if write is not None and write.future is not None:
                write.is_cancelled = True
                if write.future.cancel():
                    _remove(self._partial_path(number, write.file.generation))
                else:
                    write.future.result()

    def begin_file(self, number: int) -> Path:
        """Return the path for a new file of a table's row numbers; the next `write_table` completes
        it.
        """
        self._generation += 1
        self._begun_files[number] = self._generation
        return self._partial_path(number, self._generation)

    def write_table(self, number: int, plan: str, sizes: Sizes, pieces: Pieces) -> None:
        """Write a table in the background, if it has grown by an eighth. The caller must not change it
        before `stop_writing`.

        A file of `begin_file` is always completed, because little of it is missing.
        """
        plan_hash = _hash_plan(plan)
        previous = self._unnamed_tables.get(number) or self._named_tables.get(number)
        if number not in self._begun_files and previous is not None and previous.plan == plan_hash:
            new_entries = sizes.entries - previous.entries
            if 0 <= new_entries < max(1, previous.entries // _GROWTH_SHARE):
                return
        written_bytes = sizes.entries * ROW_BYTES if number in self._begun_files else 0
        if not written_bytes:
            self.begin_file(number)
        table = TableFile(plan_hash, self._begun_files.pop(number), *sizes, 0)
        write = self._writes[number] = _TableWrite(number, table, pieces, written_bytes)
        write.future = self._thread.submit(self._write, write)

    def _write(self, write: _TableWrite) -> None:
        path = self._table_path(write.number, write.file)
        part = self._partial_path(write.number, write.file.generation)
        digest, position = xxhash.xxh3_64(), 0
        try:
            descriptor = (
                open_file(part, os.O_RDWR, is_private=True)
                if write.written_bytes
                else create_file(part)
            )
            with FileIO(descriptor, "r+b") as file:
                self._on_step("table begun")
                file.seek(write.written_bytes)
                for piece in write.pieces():
                    if write.is_cancelled:
                        break
                    if position >= write.written_bytes:
                        _write_all(file.fileno(), piece)
                    digest.update(piece.data)
                    position += len(piece)
                self._on_step("table written")
                if not write.is_cancelled:
                    os.fsync(file.fileno())
            if write.is_cancelled:
                _remove(part)
                return
            self._on_step("table synced")
            part.rename(path)
            self._on_step("table renamed")
            sync(self.folder)
        except OSError:
            _remove(part)
            _remove(path)
            self.unwritten += 1
            return
        with self._lock:
            replaced = self._unnamed_tables.get(write.number)
            self._unnamed_tables[write.number] = write.file._replace(digest=digest.intdigest())
        if replaced is not None:
            _remove(self._table_path(write.number, replaced))

    def _drop_table(self, number: int) -> None:
        """Stop using a table's file. The next write of the volume withdraws its name, and then the file
        is deleted.
        """
        self._obsolete_files.append(self._table_path(number, self._named_tables.pop(number)))
        self._dropped_tables.add(number)

    def _table_path(self, number: int, table: TableFile) -> Path:
        return self.folder / f"table-{number}.{table.generation}"

    def _partial_path(self, number: int, generation: int) -> Path:
        return self.folder / f"table-{number}.{generation}.part"

    # -- the volume's records

    @property
    def has_unnamed_files(self) -> bool:
        """Whether there are files that the next write will name."""
        return any(
            table.rows <= self._groups * GROUP_ROWS for table in list(self._unnamed_tables.values())
        )

    def withdraw_names(self) -> None:
        """Stop using all files now, before rows move within them.

        Raises:
            StoreError: the volume failed.
        """
        self.stop_writing(list(self._writes))
        files = [
            self._table_path(number, table)
            for tables in (self._unnamed_tables, self._named_tables)
            for number, table in tables.items()
        ]
        if self.base is not None or self.rebuild_reasons:
            self._store.write({}, [KEY_TABLE_FILES], NAME_RANGES)
            self._on_step("names withdrawn")
        for path in (*files, *self._obsolete_files):
            _remove(path)
        self.base, self.digests = None, np.zeros((0, 0), np.uint64)
        self._groups = self._stored_groups = 0
        for pending in (
            self._unnamed_tables,
            self._named_tables,
            self._dropped_tables,
            self._obsolete_files,
            self._removed_groups,
            self._wiped_groups,
        ):
            pending.clear()

    def note_removed(self, rows: NDArray[np.int64]) -> None:
        """Record that rows were removed, for the next write."""
        self._removed_groups.update(np.unique(rows // GROUP_ROWS).tolist())

    def note_wiped(self, rows: NDArray[np.int64]) -> None:
        """Record that rows were wiped, for the next write."""
        self._wiped_groups.update(np.unique(rows // GROUP_ROWS).tolist())
        self._on_step("rows wiped")

    def add_writes(self, writes: Writes, rows: RowsInFiles) -> None:
        """Add the records that changed since the last call."""
        if self.base != rows.base:
            self.base = rows.base
            writes.put(KEY_TABLE_FILES, _HEAD.pack(FORMAT, rows.base))
        if self._stored_groups > self._groups:
            for key_of in (file_rows_key, removed_key):
                writes.delete_range(key_of(self._groups), key_of(self._stored_groups))
        groups = len(rows.states) // GROUP_ROWS
        new = range(self._groups, groups)
        for group in {*new, *(group for group in self._wiped_groups if group < groups)}:
            writes.put(file_rows_key(group), rows.digests(group).astype("<u8").tobytes())
        for group in {*new, *(group for group in self._removed_groups if group < groups)}:
            is_removed = _rows_of(rows.states, group) == REMOVED
            if is_removed.any():
                writes.put(removed_key(group), np.packbits(is_removed).tobytes())
        self._groups, self._stored_groups = groups, 0
        with self._lock:
            written = {
                number: table
                for number, table in self._unnamed_tables.items()
                if table.rows <= groups * GROUP_ROWS
            }
            for number in written:
                del self._unnamed_tables[number]
        for number in self._dropped_tables - written.keys():
            writes.delete(file_table_key(number))
        for number, table in written.items():
            if number in self._named_tables:
                self._drop_table(number)
            self._named_tables[number] = table
            writes.put(file_table_key(number), _TABLE.pack(*table))
        for pending in (self._dropped_tables, self._removed_groups, self._wiped_groups):
            pending.clear()

    def note_written(self) -> None:
        """Delete the files that the writes of `add_writes` replaced; call it once these are done."""
        self._on_step("names written")
        for path in self._obsolete_files:  # in the background: a large file takes long
            self._thread.submit(_remove, path)
        self._obsolete_files.clear()

    # -- the folder

    def size_bytes(self) -> int:
        """Return the bytes of the disk that the files use."""
        total = 0
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # the other thread renames some
                total += path.stat().st_blocks * 512
        return total

    def close(self) -> None:
        """Wait for the thread that writes tables; unfinished ones are dropped."""
        self.stop_writing(list(self._writes))
        self._thread.shutdown()


def _rows_of(column: NDArray[np.uint8], group: int) -> NDArray[np.uint8]:
    """Return the rows of a group; a view."""
    return column[group * GROUP_ROWS : (group + 1) * GROUP_ROWS]


def _hash_plan(plan: str) -> int:
    return int.from_bytes(blake2b(plan.encode(), digest_size=8).digest(), "little")


def _write_all(file: int, piece: NDArray[np.uint8]) -> None:
    remaining = piece.data
    while remaining:
        remaining = remaining[os.write(file, remaining) :]


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # the next opening deletes files that are not named
        path.unlink(missing_ok=True)


def digest_bytes(piece: NDArray[np.uint8]) -> int:
    """Return the digest of some bytes."""
    return xxhash.xxh3_64_intdigest(piece.data)
