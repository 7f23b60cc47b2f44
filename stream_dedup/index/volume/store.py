"""The store on RocksDB; the only user of rocksdict.

Invariants: raw mode, so that no value is ever unpickled; one column family; the write-ahead log is
on, so a killed process loses nothing, and not synced, so a machine that loses power may lose the
newest steps whole (the log topic has them); a directory that holds the remains of a volume is never
opened as an empty one; a scan that ended early because a file is damaged raises instead of looking
complete (rocksdict's own `items()` just stops there); a write-ahead log that was cut short by a
machine's end is read up to there, one with a flipped byte is refused (RocksDB's default would pass
over all that follows the byte, and open a young volume as an empty one); a volume that lacks a write
before the last one is refused. Each write adds a key with its number and removes that of the write
before it, and that of number 0 stays, so exactly two are there: where writes were lost with the end
of a MANIFEST, and later ones are still in the write-ahead log, there is one more, or one less.

Beside a running writer a volume can be opened `read_only`: that takes no lock and changes no file
(rocksdict writes its own `rocksdict-config.json` once more, with the same content).
"""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
)

from stream_dedup.domain.errors import StoreError, VolumeError
from stream_dedup.domain.paths import make_folder

_BLOCK_CACHE_BYTES: Final = 64 << 20
_WRITE_BUFFER_BYTES: Final = 32 << 20
_WAL_BYTES_MAX: Final = 128 << 20
_FOREIGN: Final = frozenset({"lost+found"})  # what a freshly made file system holds
_READ_ONLY_TRIES: Final = 5
_NUMBER: Final = b"\xff#"  # of the last write; behind all keys of an index
_MARKER: Final = '{"raw_mode":true,"prefix_extractors":{}}'
_SET: Final = "name one that can be, with STREAM_DEDUP_STATE_DIR"
_LOCKED: Final = ("lock hold by current process", "No locks available", "While lock file")
_CAUSES: Final[tuple[tuple[tuple[str, ...], str, type[StoreError]], ...]] = (
    (
        ("No space left on device", "Disk quota exceeded", "File too large"),
        "the disk is full; free or add space, then restart",
        StoreError,
    ),
    (
        ("Permission denied", "Read-only file system", "Operation not permitted"),
        "it may not be written; check its owner and its mount",
        VolumeError,
    ),
    (("Not a directory", "File exists"), "it is not a directory; name a directory", VolumeError),
    (
        ("Corruption", "No such file or directory", "checksum mismatch"),
        "a file of it is damaged or missing; give the index an empty directory, and it is rebuilt",
        VolumeError,
    ),
)


class RocksStore:
    """A `contract.Store` in a directory, which is made if it is missing.

    With `read_only` the directory must hold a volume, which another process may be writing to; what
    it wrote before this moment is seen, what it writes later is not.

    Raises:
        VolumeError: the directory cannot be used, or what it holds; an operator must act.
        StoreError: it cannot be opened now, because it is in use or the disk is full.
    """

    def __init__(self, path: Path | str, *, read_only: bool = False) -> None:
        self._path = Path(path)
        self._read_only = read_only
        self._failure: StoreError | None = None
        self._database: Rdict | None = None
        try:
            self._check_directory()
        except OSError as error:
            raise VolumeError(
                f"The index volume {self._path} cannot be looked into ({error.strerror}); {_SET}."
            ) from error
        if read_only and not (self._path / "CURRENT").exists():
            raise StoreError(
                f"The directory {self._path} holds no index volume to read; name that of an index."
            )
        had_data = any(
            file.stat().st_size for kind in ("*.sst", "*.log") for file in self._path.glob(kind)
        )
        try:
            if read_only:
                self._database = _open_beside(self._path)
                self._last_number()
                return
            self._make_directory()
            self._database = Rdict(str(self._path), _options())
            self._make_private()
        except StoreError:
            raise
        except Exception as error:
            raise self._error("open", error) from error
        self._number = self._last_number()
        if had_data and next(self.scan(b""), None) is None:
            self.close()
            raise VolumeError(
                f"The index volume {self._path} held data and opens as an empty one: RocksDB's "
                "file MANIFEST is damaged. Give "
                "the index an empty directory, and it is rebuilt, or restore a snapshot."
            )

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `contract.Store`."""
        database = self._open()
        try:
            values: list[bytes | None] = database.get(list(keys)) or []
        except Exception as error:  # noqa: BLE001
            self._fail("read", error)
        return values

    def write(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes],
        ranges: Collection[tuple[bytes, bytes]] = (),
    ) -> None:
        """See `contract.Store`."""
        database = self._open()
        if self._read_only:
            raise StoreError(
                f"The index volume {self._path} was opened to be read only; open it for writing."
            )
        batch = WriteBatch(raw_mode=True)
        if self._number:
            batch.delete(_numbered(self._number))
        else:
            batch.put(_numbered(0), b"")
        batch.put(_numbered(self._number + 1), b"")
        for first, end in ranges:  # before the puts: a batch is carried out in its order
            batch.delete_range(first, end)
        for key, value in puts.items():
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        try:
            database.write(batch)
        except Exception as error:  # noqa: BLE001
            self._fail("write to", error)
        self._number += 1

    def scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See `contract.Store`."""
        database = self._open()
        try:
            iterator = database.iter()
            iterator.seek(max(prefix, first))
            while iterator.valid():
                key = iterator.key()
                if not key.startswith(prefix) or key.startswith(_NUMBER):
                    break
                yield key, iterator.value()
                iterator.next()
            iterator.status()
        except Exception as error:  # noqa: BLE001
            self._fail("read", error)

    def _last_number(self) -> int:
        """Return the number of the last write, 0 before the first one."""
        database = self._open()
        found: list[bytes] = []
        try:
            iterator = database.iter()
            iterator.seek(_NUMBER)
            while iterator.valid():
                found.append(iterator.key())
                iterator.next()
            iterator.status()
        except Exception as error:  # noqa: BLE001
            self._fail("read", error)
        if found and (len(found) != 2 or found[0] != _numbered(0)):
            self.close()
            raise VolumeError(
                f"The index volume {self._path} lacks writes before its last one: RocksDB's file "
                "MANIFEST is damaged. Give the index an empty directory, and it is rebuilt, or "
                "restore a snapshot."
            )
        return int.from_bytes(found[1][len(_NUMBER) :], "big") if found else 0

    def checkpoint(self, directory: Path) -> None:
        """See `contract.Store`."""
        database = self._open()
        try:
            Checkpoint(database).create_checkpoint(str(directory))
        except Exception as error:
            raise StoreError(
                f"Could not copy the index volume {self._path} to {directory} (RocksDB says: "
                f"{error}); name a directory "
                "that does not exist yet, on the same file system and with room."
            ) from error

    def size_bytes(self) -> int:
        """See `contract.Store`."""
        self._open()
        total = 0
        for file in self._path.iterdir():
            try:
                total += file.stat().st_size
            except FileNotFoundError:  # RocksDB removes files in the background
                continue
        return total

    def close(self) -> None:
        """See `contract.Store`."""
        database, self._database = self._database, None
        if database is None:
            return
        try:
            database.close()
            if not self._read_only:
                self._make_private()
        except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception
            if self._failure is None:  # after a failed write RocksDB tells the same once more
                self._fail("close", error)

    def _make_private(self) -> None:
        """Let nobody else read the files, which RocksDB makes with the rights of the umask."""
        for file in self._path.iterdir():
            with contextlib.suppress(
                OSError
            ):  # RocksDB removes some; others' are not ours to change
                if file.is_file() and not file.is_symlink():
                    file.chmod(0o600)

    def _open(self) -> Rdict:
        if self._failure is not None:
            raise type(self._failure)(
                f"{self._failure} Nothing more is read or written until it is opened again."
            )
        if self._database is None:
            raise StoreError(
                f"The index volume {self._path} was closed; open it again before using it."
            )
        return self._database

    def _fail(self, doing: str, error: Exception) -> NoReturn:
        self._failure = self._error(doing, error)
        raise self._failure from error

    def _error(self, doing: str, error: Exception) -> StoreError:
        told = str(error)
        if any(sign in told for sign in _LOCKED):
            return StoreError(
                f"Could not open the index volume {self._path}: another process has it open; stop "
                "that index, or give this one "
                "its own volume with STREAM_DEDUP_STATE_DIR."
            )
        for signs, cause, kind in _CAUSES:
            if any(sign in told for sign in signs):
                return kind(
                    f"Could not {doing} the index volume {self._path}: {cause} (RocksDB says: "
                    f"{told})."
                )
        return StoreError(
            f"Could not {doing} the index volume {self._path}: {told}; restart the index."
        )

    def _make_directory(self) -> None:
        try:
            make_folder(self._path)
        except OSError as error:
            kind = StoreError if error.errno in (errno.ENOSPC, errno.EDQUOT) else VolumeError
            raise kind(
                f"Could not open the index volume {self._path}: the directory cannot be made "
                f"({error.strerror}); {_SET}."
            ) from error

    def _check_directory(self) -> None:
        if not self._path.is_dir():
            if self._path.exists():
                raise VolumeError(
                    f"The index volume {self._path} is not a directory; name a directory."
                )
            return
        names = {file.name for file in self._path.iterdir()} - _FOREIGN
        if not names:
            return
        if "CURRENT" not in names:
            raise VolumeError(
                f"The directory {self._path} is not empty and holds no index volume (RocksDB's "
                "file CURRENT is missing: "
                f"there are {', '.join(sorted(names)[:5])}); name an empty directory, and the "
                "index is "
                "built there."
            )
        marker = self._path / "rocksdict-config.json"
        try:
            text = marker.read_text("utf-8")
            # rocksdict writes this file at every opening, and a process killed meanwhile leaves a
            # beginning of it; whose volume it is, the index tells by its format key.
            raw_mode: Any = _MARKER.startswith(text) or json.loads(text)["raw_mode"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise VolumeError(
                f"The directory {self._path} holds a RocksDB without a readable {marker.name}; it "
                "was not made by this "
                "index, or is damaged. Name an empty directory, and the index is built there."
            ) from error
        if raw_mode is not True:
            raise VolumeError(
                f"The directory {self._path} holds a RocksDB of another program (its values are "
                "pickled, raw_mode is "
                f"{raw_mode!r}); name an empty directory."
            )


def _numbered(number: int) -> bytes:
    return _NUMBER + number.to_bytes(8, "big")


def _open_beside(path: Path) -> Rdict:
    """Open for reading only; anew if the writer replaced a file between our reading its name and
    opening it.
    """
    tries = 0
    while True:
        tries += 1
        try:
            return Rdict(str(path), _options(), access_type=AccessType.read_only())
        except Exception as error:
            if tries == _READ_ONLY_TRIES or "No such file" not in str(error):
                raise
            time.sleep(0.05 * tries)


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_keep_log_file_num(4)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    table.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(table)
    return options
