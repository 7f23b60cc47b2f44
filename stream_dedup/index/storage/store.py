"""The store on RocksDB; the only user of rocksdict.

Invariants:
 1. Raw mode: no value is ever unpickled.
 2. The write-ahead log is on, so a killed process loses nothing. It is not synced, so a machine that
    loses power may lose the newest writes, each as a whole; the log topic contains the records.
 3. A directory with the remains of a volume is never opened as an empty volume.
 4. A scan that ends early because a file is damaged raises an error (rocksdict's `items()` does not).
 5. A write-ahead log that was truncated by a crash of the machine is read to its end. One with a
    flipped byte is rejected; RocksDB's default would skip all records after the byte, and open a
    young volume as empty.
 6. A volume that lacks a write before the last one is rejected. To detect this, each write adds a key
    with its number and deletes that of the write before; key 0 is never deleted. So a volume has
    exactly two of these keys. It has other keys if a damaged MANIFEST lost writes while the
    write-ahead log contains later ones.

A volume can be opened `read_only` while another process writes to it: this takes no lock and changes
no file (rocksdict writes its `rocksdict-config.json` again, with the same content).
"""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

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
_IGNORED_NAMES: Final = frozenset({"lost+found"})  # in every new file system
_READ_ONLY_TRIES: Final = 5
_NUMBER_PREFIX: Final = b"\xff#"  # prefix of write numbers; after all keys of an index
_MARKER: Final = '{"raw_mode":true,"prefix_extractors":{}}'
_SET_HINT: Final = "name another directory with STREAM_DEDUP_STATE_DIR"
_LOCKED: Final = ("lock hold by current process", "No locks available", "While lock file")
_ERROR_CAUSES: Final[tuple[tuple[tuple[str, ...], str, type[StoreError]], ...]] = (
    (
        ("No space left on device", "Disk quota exceeded", "File too large"),
        "the disk is full; free or add space, then restart",
        StoreError,
    ),
    (
        ("Permission denied", "Read-only file system", "Operation not permitted"),
        "it is not writable; check its owner and its mount",
        VolumeError,
    ),
    (("Not a directory", "File exists"), "it is not a directory; name a directory", VolumeError),
    (
        ("Corruption", "No such file or directory", "checksum mismatch"),
        "one of its files is damaged or missing; start the index with an empty directory",
        VolumeError,
    ),
)


class RocksStore:
    """A `contract.Store` in a directory, which is created if it is missing.

    With `read_only` the directory must contain a volume. Another process may write to it: the writes
    before this opening are visible, later ones are not.

    Raises:
        VolumeError: the directory or its content cannot be used; an operator must act.
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
                f"The index volume {self._path} cannot be read ({error.strerror}); {_SET_HINT}."
            ) from error
        if read_only and not (self._path / "CURRENT").exists():
            raise StoreError(
                f"The directory {self._path} contains no index volume; name the directory of an "
                "index."
            )
        had_data = any(
            file.stat().st_size
            for pattern in ("*.sst", "*.log")
            for file in self._path.glob(pattern)
        )
        try:
            if read_only:
                self._database = _open_read_only(self._path)
                self._last_number()  # raises if writes are missing
                return
            self._make_directory()
            self._database = Rdict(str(self._path), _options())
            self._make_private()
        except StoreError:
            raise
        except Exception as error:
            raise self._make_error("open", error) from error
        self._number = self._last_number()
        if had_data and next(self.scan(b""), None) is None:
            self.close()
            raise VolumeError(
                f"The index volume {self._path} contained data but opened empty: RocksDB's file "
                "MANIFEST is damaged. Start the index with an empty directory, and it is rebuilt "
                "from the log; or restore a snapshot."
            )

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `contract.Store`."""
        with self._fail_for_good("read") as database:
            values: list[bytes | None] = database.get(list(keys)) or []
        return values

    def write(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes],
        ranges: Collection[tuple[bytes, bytes]] = (),
    ) -> None:
        """See `contract.Store`."""
        if self._read_only:
            raise StoreError(
                f"The index volume {self._path} is open for reading only; open it for writing."
            )
        batch = WriteBatch(raw_mode=True)
        if self._number:
            batch.delete(_number_key(self._number))
        else:
            batch.put(_number_key(0), b"")
        batch.put(_number_key(self._number + 1), b"")
        for first, end in ranges:  # before the puts: a batch is applied in order
            batch.delete_range(first, end)
        for key, value in puts.items():
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        with self._fail_for_good("write to") as database:
            database.write(batch)
        self._number += 1

    def scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See `contract.Store`."""
        for key, value in self._iterate(max(prefix, first)):
            if not key.startswith(prefix) or key.startswith(_NUMBER_PREFIX):
                break
            yield key, value

    def _iterate(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield every (key, value) from `first` on."""
        with self._fail_for_good("read") as database:
            iterator = database.iter()
            iterator.seek(first)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()

    def _last_number(self) -> int:
        """Return the number of the last write, 0 before the first one."""
        keys = [key for key, _ in self._iterate(_NUMBER_PREFIX)]
        if keys and (len(keys) != 2 or keys[0] != _number_key(0)):
            self.close()
            raise VolumeError(
                f"The index volume {self._path} lost writes before its last one: RocksDB's file "
                "MANIFEST is damaged. Start the index with an empty directory, and it is rebuilt "
                "from the log; or restore a snapshot."
            )
        return int.from_bytes(keys[1][len(_NUMBER_PREFIX) :], "big") if keys else 0

    def checkpoint(self, directory: Path) -> None:
        """See `contract.Store`."""
        database = self._require_database()
        try:
            Checkpoint(database).create_checkpoint(str(directory))
        except Exception as error:
            raise StoreError(
                f"The index volume {self._path} could not be copied to {directory} (RocksDB: "
                f"{error}). Name a directory that does not exist yet, on the same file system and "
                "with enough free space."
            ) from error

    def size_bytes(self) -> int:
        """See `contract.Store`."""
        self._require_database()
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
        except Exception as error:
            if self._failure is None:  # after a failed write RocksDB raises the same error again
                self._failure = self._make_error("close", error)
                raise self._failure from error

    def _make_private(self) -> None:
        """Make the files unreadable for other users: RocksDB creates them with the umask's rights."""
        for file in self._path.iterdir():
            # RocksDB deletes some meanwhile, and other users' files cannot be changed.
            with contextlib.suppress(OSError):
                if file.is_file() and not file.is_symlink():
                    file.chmod(0o600)

    def _require_database(self) -> Rdict:
        if self._failure is not None:
            raise type(self._failure)(
                f"{self._failure} The index cannot read or write until it is restarted."
            )
        if self._database is None:
            raise StoreError(f"The index volume {self._path} is closed; open it again.")
        return self._database

    @contextlib.contextmanager
    def _fail_for_good(self, action: str) -> Iterator[Rdict]:
        """Yield the open database. After an error in the body, every call but `close` fails."""
        database = self._require_database()
        try:
            yield database
        except Exception as error:  # rocksdict raises bare Exception
            self._failure = self._make_error(action, error)
            raise self._failure from error

    def _make_error(self, action: str, error: Exception) -> StoreError:
        message = str(error)
        if any(fragment in message for fragment in _LOCKED):
            return StoreError(
                f"The index volume {self._path} could not be opened: another process has it open; "
                "stop that process, or set another STREAM_DEDUP_STATE_DIR for this index."
            )
        for fragments, cause, error_class in _ERROR_CAUSES:
            if any(fragment in message for fragment in fragments):
                return error_class(
                    f"Could not {action} the index volume {self._path}: {cause} (RocksDB: "
                    f"{message})."
                )
        return StoreError(
            f"Could not {action} the index volume {self._path}: {message}; restart the index."
        )

    def _make_directory(self) -> None:
        try:
            make_folder(self._path)
        except OSError as error:
            error_class = StoreError if error.errno in (errno.ENOSPC, errno.EDQUOT) else VolumeError
            raise error_class(
                f"Could not open the index volume {self._path}: the directory cannot be created "
                f"({error.strerror}); {_SET_HINT}."
            ) from error

    def _check_directory(self) -> None:
        if not self._path.is_dir():
            if self._path.exists():
                raise VolumeError(
                    f"The index volume {self._path} is not a directory; name a directory."
                )
            return
        names = {file.name for file in self._path.iterdir()} - _IGNORED_NAMES
        if not names:
            return
        if "CURRENT" not in names:
            raise VolumeError(
                f"The directory {self._path} is not empty, but contains no index volume: it "
                f"contains {', '.join(sorted(names)[:5])}, and not RocksDB's file CURRENT. Start "
                "the index with an empty directory; it is rebuilt from the log."
            )
        marker = self._path / "rocksdict-config.json"
        try:
            text = marker.read_text("utf-8")
            # rocksdict writes this file at every opening, so a killed process may leave a part of it.
            # Whether an index wrote the volume is checked later, by its format key.
            raw_mode: Any = _MARKER.startswith(text) or json.loads(text)["raw_mode"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise VolumeError(
                f"The directory {self._path} contains a RocksDB database without a readable "
                f"{marker.name}: another program wrote it, or it is damaged. Start the index with "
                "an empty directory; it is rebuilt from the log."
            ) from error
        if raw_mode is not True:
            raise VolumeError(
                f"The directory {self._path} contains a RocksDB database of another program (its "
                f"values are pickled, raw_mode is {raw_mode!r}); name an empty directory."
            )


def _number_key(number: int) -> bytes:
    return _NUMBER_PREFIX + number.to_bytes(8, "big")


def _open_read_only(path: Path) -> Rdict:
    """Open a volume for reading only. Try again if its writer replaced a file meanwhile."""
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
