"""Files beside the volume: rows and tables as they lie in memory, so that opening costs what came
since, not what is held.

    FOLDER/NAME                      one column of the rows, appended to
    FOLDER/table-NUMBER.GENERATION   the frozen segment of one table, written once

The truth stays in the volume. It also says which files count, and what must be in them: of every
4,096 rows a digest of each column, of every table its file and its digest, of every entry whether
it was removed since the rows were laid out. Opening reads the files, and from the volume only the
entries that came after them.

How a table comes to be kept:
  1  it was merged, or sorted anew, and has grown by an eighth since it was last kept; or its row numbers lie in files: then the
     merge wrote them to a new one, and is kept always, or opening would have to merge again what
     was merged
  2  a thread beside the index writes it, or the rest of it, to a file of another name, syncs it and renames it
  3  the next write of the volume that names all rows which the table covers also names the file
  4  the file before it goes

Invariants: rows count up to the first 4,096 that are not what the volume says, tables while all the
rows that they cover count; what does not count is made anew from the volume, and `refused` says
why; losing all of the folder loses nothing; a disk that is too full for a table stops no verdict.
Before rows are laid out anew in place, all names are withdrawn. What an order has wiped is wiped
here too. No link is followed, and only a
regular file of this user with one name counts. Frozen in tests/golden/beside.json: other bytes, or other keys of a text, are a new
`FORMAT`.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from stream_dedup.domain.disk import sync
from stream_dedup.domain.errors import StoreError
from stream_dedup.domain.paths import create_file, make_folder, open_file
from stream_dedup.index.tables.kept import (
    GROUP_ROWS,
    ROW_BYTES,
    Pieces,
    RowsAsKept,
    Sizes,
    TableFile,
)
from stream_dedup.index.tables.rows import REMOVED
from stream_dedup.index.volume.contract import Store, Writes
from stream_dedup.index.volume.layout import (
    KEY_BESIDE,
    PREFIX_BESIDE_ROWS,
    PREFIX_BESIDE_TABLE,
    PREFIX_REMOVED,
    SEGMENT_ENTRIES,
    beside_rows_key,
    beside_table_key,
    number_of,
    removed_key,
)

FORMAT: Final = 1
_GROWN: Final = 8  # a table is kept again when it has grown by such a part
_HEAD: Final = struct.Struct("<HQ")
_TABLE: Final = struct.Struct("<QQQQQQ")

NAMES: Final = tuple(
    (one, bytes([one[0] + 1])) for one in (PREFIX_BESIDE_ROWS, PREFIX_BESIDE_TABLE, PREFIX_REMOVED)
)
"""The keys of all that a volume says of files beside it, apart from `KEY_BESIDE`: (first, the one
after the last)."""


@dataclass(slots=True)
class _Writing:
    """A table on its way into a file, of which the first bytes may be there."""

    number: int
    file: TableFile
    pieces: Pieces
    bytes_there: int
    is_cancelled: bool = False
    done: Future[None] | None = None


class KeptFiles:
    """The files of one index, in a folder of their own.

    `refused` says what did not fit and is made anew, `unwritten` counts tables that could not be
    written. For the thread that applies; another one writes the tables, and removes what they
    replace.

    Raises:
        StoreError: the folder cannot be made, or the volume failed.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        thread: Executor | None = None,
        reached: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`thread` writes tables; `reached` is told each step."""
        self.folder = folder
        self.refused: list[str] = []
        self.unwritten = 0
        self.base: int | None = None
        self._store = store
        self._thread = thread or ThreadPoolExecutor(1)
        self._reached = reached
        self._lock = threading.Lock()
        self._begun: dict[
            int, int
        ] = {}  # generations of files whose first bytes another one writes
        self._writing: dict[int, _Writing] = {}
        self._done: dict[int, TableFile] = {}
        self._tables: dict[int, TableFile] = {}
        self._stale: set[int] = set()  # tables whose names are to be taken back
        self._gone: list[Path] = []  # files that go when that is written
        self._groups = 0
        self._surplus = 0  # groups from there on were named and do not count
        self._removed: set[int] = set()
        self._wiped: set[int] = set()
        try:
            make_folder(folder)
        except OSError as error:
            raise StoreError(
                f"The folder {folder} for rows and tables beside the index volume cannot be made "
                f"({error.strerror}); make room "
                "on that disk, see who owns it, and start the index again."
            ) from error
        self.digests = self._read_names()
        self._generation = max((one.generation for one in self._tables.values()), default=0)
        named = {self._path(number, table) for number, table in self._tables.items()}
        for path in folder.glob("table-*"):  # of a process that died before it had named them
            if path not in named:
                _remove(path)

    # -- opening

    def _read_names(self) -> NDArray[np.uint64]:
        """Read what the volume names; return what the columns of each 4,096 rows must be, (groups,
        columns).
        """
        nothing = np.zeros((0, 0), np.uint64)
        (head,) = self._store.get_many([KEY_BESIDE])
        if head is None:
            return nothing
        if len(head) != _HEAD.size or _HEAD.unpack(head)[0] != FORMAT:
            self.refused.append("rows and tables were written by another version of the program")
            return nothing
        _, self.base = _HEAD.unpack(head)
        found = list(self._store.scan(PREFIX_BESIDE_ROWS))
        if [number_of(key) for key, _ in found] != list(range(len(found))) or len(
            {len(value) for _, value in found}
        ) > 1:
            self.refused.append("the volume does not say what the rows must be")
            return nothing
        self._groups = self._surplus = len(found)
        for key, value in self._store.scan(PREFIX_BESIDE_TABLE):
            self._tables[number_of(key)] = TableFile(*_TABLE.unpack(value))
        return (
            np.array([np.frombuffer(value, "<u8") for _, value in found], np.uint64)
            if found
            else nothing
        )

    def take_rows(self, groups: int, good: int) -> None:
        """Take note that of all groups of rows only the `good` first ones are what they must be.

        Tables that cover more do not count; without any, nothing does.

        Raises:
            StoreError: the volume failed.
        """
        if good < groups:
            self.refused.append(
                f"rows from number {good * GROUP_ROWS} on are not what the volume says"
            )
        if not good:
            self.begin()
        self._groups = good
        for number in [
            number for number, table in self._tables.items() if table.rows > good * GROUP_ROWS
        ]:
            self._drop(number)

    def mark_removed(self, numbers: NDArray[np.uint32], states: NDArray[np.uint8]) -> None:
        """Set `states` (n,) of the rows with `numbers` (n,) that were removed since they were laid
        out.
        """
        for key, value in self._store.scan(PREFIX_REMOVED):
            begin, end, places = self._places(numbers, number_of(key))
            bits = np.unpackbits(np.frombuffer(value, np.uint8), count=SEGMENT_ENTRIES)
            states[begin:end][bits[places] != 0] = REMOVED

    # -- tables

    def kept(self, plan: str) -> dict[int, TableFile]:
        """Return the files that count of the tables whose keys follow from `plan`."""
        return {
            number: table
            for number, table in self._tables.items()
            if table.plan == _number_of_plan(plan)
        }

    def drop(self, first: int) -> None:
        """Let the files of all tables from number `first` on count no more: they are made anew for
        another plan.
        """
        self.changing([number for number in self._writing if number >= first])
        with self._lock:
            for number in [number for number in self._done if number >= first]:
                _remove(self._path(number, self._done.pop(number)))
        for number in [number for number in self._tables if number >= first]:
            self._drop(number)

    def read(self, number: int, pieces: Pieces) -> FileIO | None:
        """Fill a table from its file, and return it, still open; None if it has to be made anew.
        From any thread.
        """
        table = self._tables[number]
        path, digest = self._path(number, table), xxhash.xxh3_64()
        why = "is not what the volume says"
        with contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context(FileIO(open_file(path, own=True), "rb"))
                for piece in pieces():
                    if file.readinto(piece.data) != len(piece):
                        break
                    digest.update(piece.data)
                else:
                    if digest.intdigest() == table.digest and not file.read(1):
                        opened.pop_all()
                        return file
            except OSError as error:
                why = f"cannot be read ({error.strerror})"
        with self._lock:
            self.refused.append(f"{path.name} {why}")
            self._drop(number)
        return None

    def changing(self, numbers: Iterable[int]) -> None:
        """Let nobody write these tables any more: they are about to change."""
        for number in numbers:
            writing = self._writing.pop(number, None)
            if writing is not None and writing.done is not None:
                writing.is_cancelled = True
                if writing.done.cancel():
                    _remove(self._part(number, writing.file.generation))
                else:
                    writing.done.result()

    def new_file(self, number: int) -> Path:
        """Return where a file for the row numbers of a table is to be made; the next `keep` of this
        table completes it.
        """
        self._generation += 1
        self._begun[number] = self._generation
        return self._part(number, self._generation)

    def keep(self, number: int, plan: str, sizes: Sizes, pieces: Pieces) -> None:
        """Write a table beside what the caller does, if it has grown; it does not change before
        `changing` is called.

        One whose file was begun is written always: little is left to write of it.
        """
        last, of_plan = self._done.get(number) or self._tables.get(number), _number_of_plan(plan)
        if number not in self._begun and last is not None and last.plan == of_plan:
            grown = sizes.entries - last.entries
            if 0 <= grown < max(1, last.entries // _GROWN):
                return
        there = sizes.entries * ROW_BYTES if number in self._begun else 0
        if not there:
            self.new_file(number)
        table = TableFile(of_plan, self._begun.pop(number), *sizes, 0)
        writing = self._writing[number] = _Writing(number, table, pieces, there)
        writing.done = self._thread.submit(self._write, writing)

    def _write(self, writing: _Writing) -> None:
        path, part = (
            self._path(writing.number, writing.file),
            self._part(writing.number, writing.file.generation),
        )
        digest, at = xxhash.xxh3_64(), 0
        try:
            begun = (
                open_file(part, os.O_RDWR, own=True) if writing.bytes_there else create_file(part)
            )
            with FileIO(begun, "r+b") as file:
                self._reached("table begun")
                file.seek(writing.bytes_there)
                for piece in writing.pieces():
                    if writing.is_cancelled:
                        break
                    if at >= writing.bytes_there:
                        _write_all(file.fileno(), piece)
                    digest.update(piece.data)
                    at += len(piece)
                self._reached("table written")
                if not writing.is_cancelled:
                    os.fsync(file.fileno())
            if writing.is_cancelled:
                _remove(part)
                return
            self._reached("table synced")
            part.rename(path)
            self._reached("table renamed")
            sync(self.folder)
        except OSError:
            _remove(part)
            _remove(path)
            self.unwritten += 1
            return
        with self._lock:
            replaced = self._done.get(writing.number)
            self._done[writing.number] = writing.file._replace(digest=digest.intdigest())
        if replaced is not None:
            _remove(self._path(writing.number, replaced))

    def _drop(self, number: int) -> None:
        """Let a table's file count no more; the next write says so, and then it goes."""
        self._gone.append(self._path(number, self._tables.pop(number)))
        self._stale.add(number)

    def _path(self, number: int, table: TableFile) -> Path:
        return self.folder / f"table-{number}.{table.generation}"

    def _part(self, number: int, generation: int) -> Path:
        return self.folder / f"table-{number}.{generation}.part"

    # -- what the volume says

    @property
    def is_behind(self) -> bool:
        """Whether there are files that the next write will name."""
        return any(table.rows <= self._groups * GROUP_ROWS for table in list(self._done.values()))

    def begin(self) -> None:
        """Let nothing that is there count any more, at once: rows are about to be laid out anew.

        Raises:
            StoreError: the volume failed.
        """
        self.changing(list(self._writing))
        files = [
            self._path(number, table)
            for tables in (self._done, self._tables)
            for number, table in tables.items()
        ]
        if self.base is not None or self.refused:
            self._store.write({}, [KEY_BESIDE], NAMES)
            self._reached("names withdrawn")
        for path in (*files, *self._gone):
            _remove(path)
        self.base, self.digests, self._groups, self._surplus = (
            None,
            np.zeros((0, 0), np.uint64),
            0,
            0,
        )
        for some in (self._done, self._tables, self._stale, self._gone, self._removed, self._wiped):
            some.clear()

    def removed(self, entries: NDArray[np.int64]) -> None:
        """Take note of entries that were removed."""
        self._removed.update(np.unique(entries // SEGMENT_ENTRIES).tolist())

    def wiped(self, rows: NDArray[np.int64]) -> None:
        """Take note of rows of which nothing is left."""
        self._wiped.update(np.unique(rows // GROUP_ROWS).tolist())
        self._reached("rows wiped")

    def add_writes(self, writes: Writes, rows: RowsAsKept) -> None:
        """Add what changed since the last call."""
        base, numbers, states, digests = rows
        if self.base != base:
            self.base = base
            writes.put(KEY_BESIDE, _HEAD.pack(FORMAT, base))
        if self._surplus > self._groups:
            writes.delete_range(beside_rows_key(self._groups), beside_rows_key(self._surplus))
        groups = len(numbers) // GROUP_ROWS
        for group in {*range(self._groups, groups), *(one for one in self._wiped if one < groups)}:
            writes.put(beside_rows_key(group), digests(group).astype("<u8").tobytes())
        self._groups, self._surplus = groups, 0
        for segment in self._removed:
            begin, end, places = self._places(numbers, segment)
            bits = np.zeros(SEGMENT_ENTRIES, np.uint8)
            bits[places] = states[begin:end] == REMOVED
            writes.put(removed_key(segment), np.packbits(bits).tobytes())
        with self._lock:
            done = {
                number: table
                for number, table in self._done.items()
                if table.rows <= groups * GROUP_ROWS
            }
            for number in done:
                del self._done[number]
        for number in self._stale - done.keys():
            writes.delete(beside_table_key(number))
        for number, table in done.items():
            if number in self._tables:
                self._drop(number)
            self._tables[number] = table
            writes.put(beside_table_key(number), _TABLE.pack(*table))
        for some in (self._stale, self._removed, self._wiped):
            some.clear()

    def written(self) -> None:
        """Take note that what `add_writes` added is written."""
        self._reached("names written")
        for path in self._gone:  # beside the applying: a large file takes long
            self._thread.submit(_remove, path)
        self._gone.clear()

    def _places(
        self, numbers: NDArray[np.uint32], segment: int
    ) -> tuple[int, int, NDArray[np.int64]]:
        """Return (first row, end) of those whose entries lie in a segment, and their places in
        it.
        """
        first = segment * SEGMENT_ENTRIES - (self.base or 0)
        ends = np.clip([first, first + SEGMENT_ENTRIES], 0, 0xFFFFFFFF).astype(
            np.uint32
        )  # of their kind, or all are converted
        begin, end = np.searchsorted(numbers, ends).tolist()
        return begin, end, numbers[begin:end].astype(np.int64) - first

    # -- the folder

    def size_bytes(self) -> int:
        """Return how many bytes of the disk the files take."""
        total = 0
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # the other thread renames some
                total += path.stat().st_blocks * 512
        return total

    def close(self) -> None:
        """Wait for the thread that writes tables, which leaves what it has not finished."""
        self.changing(list(self._writing))
        self._thread.shutdown()


def _number_of_plan(plan: str) -> int:
    return int.from_bytes(blake2b(plan.encode(), digest_size=8).digest(), "little")


def _write_all(file: int, piece: NDArray[np.uint8]) -> None:
    left = piece.data
    while left:
        left = left[os.write(file, left) :]


def _remove(path: Path) -> None:
    with contextlib.suppress(
        OSError
    ):  # it is in nobody's way: the next opening removes what is not named
        path.unlink(missing_ok=True)
