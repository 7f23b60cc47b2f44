"""Snapshots: a volume copied while its index runs, with a manifest that tells what it is and what each file must be.

    SNAPSHOT/snapshot.json   the manifest, written last: without it a snapshot is unfinished
    SNAPSHOT/volume/         the volume's files

How a command takes one of a running index, whose volume is locked: nothing is asked over HTTP, which changes nothing;
a user who may write to the volume's directory may ask there.

    1  the command takes DIR/snapshot/lock (one snapshot at a time) and clears what a dead command left
    2  it writes DIR/snapshot/request
    3  the role, between two steps, makes a RocksDB checkpoint DIR/snapshot/taken (a flush and hard links: milliseconds) and
       removes the request; if it cannot, it writes why into DIR/snapshot/failed, and goes on
    4  the command copies the checkpoint, reads the whole copy for its state digest, writes the manifest, and clears up
    5  a command that died leaves the lock free: the role clears up at its next look
    6  when the snapshot is whole, the command touches DIR/snapshot/last, by which the role tells its age

A checkpoint is made by the writer between two writes, so it holds the state after a whole number of log records. Of an
index that does not run, the files themselves are copied, while this process holds RocksDB's own lock on them. What lies
beside the volume is left out (`beside`): the restored index makes it anew.

Invariants: a snapshot never shares bytes with the volume (files are copied, not linked: damage to one must not be damage
to both); a restored directory is either whole or empty again: every byte is the one of which the state digest was made when
the snapshot was taken, and a version that is not the one that took it makes that digest again, because it may read the same
bytes otherwise.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from stream_dedup.ground.errors import ConfigurationError, FormatError, InputError, OtherFormatError, StoreError, VolumeError
from stream_dedup.ground.version import __version__
from stream_dedup.index import contents
from stream_dedup.index.digest import digest_of
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.beside import NAMES
from stream_dedup.index.volume.contract import Store
from stream_dedup.index.volume.store import RocksStore

FORMAT: Final = 1
MANIFEST: Final = "snapshot.json"
VOLUME: Final = "volume"
REQUESTS: Final = "snapshot"  # the folder within a volume
_LOCK_OF_ROCKSDB: Final = "LOCK"
_NOT_COPIED: Final = frozenset({_LOCK_OF_ROCKSDB, REQUESTS, "lost+found"})
_EMPTY: Final = frozenset({"lost+found"})
_CHUNK_BYTES: Final = 4 << 20
_COPIES_AT_ONCE: Final = 3
# In the folder of requests: what a snapshot is taken under, and when the last one was whole.
_KEPT: Final = ("lock", "last")
_LOOK_SECONDS: Final = 0.05

Advance = Callable[[int], None]
"""Told how many bytes more were copied, by several threads."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a snapshot."""

    name: str
    bytes: int
    blake2b: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a snapshot is. `applied`: it holds the log below this offset; `plan` as in control records, `taken` RFC 3339."""

    format: int
    program: str
    taken: str
    log: str | None
    applied: int
    recipe: str | None
    plan: dict[str, Any] | None
    volume_format: int
    chain: str
    state_digest: str
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)


# -- taking


def take(volume: Path, target: Path, *, wait_seconds: float, advance: Advance = lambda _: None) -> Manifest:
    """Take a snapshot of the index at `volume` into `target`, an empty or missing directory, whether it runs or not.

    Raises:
        InputError: there is no index, or `target` is not empty.
        StoreError: the running index did not answer in time, or could not; the disk is full; the volume is damaged.
    """
    if not (volume / "CURRENT").exists():
        raise InputError(f"There is no index volume at {volume}; name the directory of an index (INDEX_DIR).")
    _check_is_empty(target, "A snapshot")
    with _cleared_on_failure(target, "The snapshot could", "Nothing of it was left."):
        target.mkdir(parents=True, exist_ok=True)
        with _files_to_copy(volume, wait_seconds) as source:
            total = _copy_all(source, target / VOLUME, advance)
        manifest = _describe(target / VOLUME, total)
        _write_manifest(target, manifest)
    with contextlib.suppress(OSError):  # the snapshot is whole; only its age is not told
        (volume / REQUESTS).mkdir(exist_ok=True)
        (volume / REQUESTS / "last").touch()
    return manifest


@contextlib.contextmanager
def _files_to_copy(volume: Path, wait_seconds: float) -> Iterator[Path]:
    """Yield a directory whose files nobody changes meanwhile."""
    with _rocksdb_lock(volume) as is_ours:
        if is_ours:
            yield volume
            return
    with _asked(volume / REQUESTS, wait_seconds) as taken:
        yield taken


@contextlib.contextmanager
def _rocksdb_lock(volume: Path) -> Iterator[bool]:
    """Hold the lock that RocksDB takes on a volume; yield False if another process has it."""
    with (volume / _LOCK_OF_ROCKSDB).open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the very kind of lock that RocksDB takes
        except OSError:
            yield False
            return
        yield True


@contextlib.contextmanager
def _asked(folder: Path, wait_seconds: float) -> Iterator[Path]:
    """Ask the running index for a checkpoint, and yield it."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(f"Another snapshot of {folder.parent} is being taken; wait for it to end.") from error
        try:
            _clear(folder, keep=_KEPT)
            (folder / "request").touch()
            until = time.monotonic() + wait_seconds
            while not (folder / "taken").exists():
                if (folder / "failed").exists():
                    raise StoreError((folder / "failed").read_text("utf-8"))
                if time.monotonic() > until:
                    raise StoreError(
                        f"The index that has {folder.parent} open did not answer within {wait_seconds:g} s: it is still "
                        "opening, it hangs (see its /livez), or it is another program. Wait, or give --wait more time."
                    )
                time.sleep(_LOOK_SECONDS)
            yield folder / "taken"
        finally:
            _clear(folder, keep=_KEPT)


class SnapshotDesk:
    """Where a running index is asked for checkpoints: the folder `snapshot` in its volume."""

    def __init__(self, volume: Path) -> None:
        self._folder = volume / REQUESTS

    def look(self, index: LogIndex, reached: Callable[[str], None] = lambda _: None) -> int | None:
        """Serve a request if there is one, and clear up after a command that died; return the log offset of a checkpoint.

        `reached` is told when a checkpoint begins (`in-flush`) and when it lies there unfinished (`in-checkpoint`).
        """
        if not self._folder.exists():
            return None
        if (self._folder / "request").exists():
            return self._serve(index, reached)
        if any((self._folder / name).exists() for name in ("taken", "taking", "failed")):
            self._clear_if_abandoned()
        return None

    def last(self) -> float | None:
        """Return when the last snapshot of this volume was whole, in seconds since 1970; None if none was taken."""
        try:
            return (self._folder / "last").stat().st_mtime
        except OSError:
            return None

    def _serve(self, index: LogIndex, reached: Callable[[str], None]) -> int | None:
        taking, taken = self._folder / "taking", self._folder / "taken"
        done = None
        with contextlib.suppress(OSError):  # a disk that is full, or a command that cleared up meanwhile
            try:
                shutil.rmtree(taking, ignore_errors=True)
                reached("in-flush")
                index.flush()
                index.checkpoint(taking)
                reached("in-checkpoint")
                taking.rename(taken)
                done = index.applied
            except StoreError as error:
                told = self._folder / "failing"
                told.write_text(str(error), "utf-8")
                told.rename(self._folder / "failed")  # who waits for it must not read a beginning of the sentence
            (self._folder / "request").unlink(missing_ok=True)
        return done

    def _clear_if_abandoned(self) -> None:
        with contextlib.suppress(OSError), (self._folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clear(self._folder, keep=_KEPT)


def _copy_all(source: Path, target: Path, advance: Advance) -> dict[str, int]:
    """Copy a volume's files; return their sizes by name."""
    target.mkdir()
    sizes = {}
    for file in sorted(source.iterdir()):
        if file.name in _NOT_COPIED or not file.is_file():
            continue
        sizes[file.name], _ = _copy(file, target / file.name, advance)
    return sizes


def _describe(volume: Path, sizes: Mapping[str, int]) -> Manifest:
    """Read the whole copy, and return its manifest."""
    store = RocksStore(volume, read_only=True)
    try:
        state = _read(store)
        digest = digest_of(state)
    except FormatError as error:
        raise VolumeError(f"The volume is damaged, and its snapshot was thrown away: {error}") from error
    finally:
        store.close()
    files = tuple(File(name, size, _digest(volume / name)) for name, size in sizes.items())
    return Manifest(
        format=FORMAT,
        program=__version__,
        taken=dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        log=state.log,
        applied=digest.log_offset,
        recipe=None if state.declared is None else state.declared.recipe,
        plan=None if state.plan is None else state.plan.to_fields(),
        volume_format=layout.VERSION,
        chain=state.meta.chain.hex(),
        state_digest=digest.digest,
        files=files,
    )


def _read(store: Store) -> contents.Contents:
    state = contents.read(store)
    if state.log is None:
        raise StoreError("The volume follows no log yet, so there is nothing to snapshot; let its index start once.")
    return state


# -- the manifest


def _write_manifest(target: Path, manifest: Manifest) -> None:
    fields = asdict(manifest)
    text = json.dumps({**fields, "checksum": _checksum(fields)}, indent=1, sort_keys=True) + "\n"
    partial = target / f"{MANIFEST}.partial"
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target / MANIFEST)
    _sync_directory(target)


def read_manifest(snapshot: Path) -> Manifest:
    """Return the manifest of a snapshot.

    Raises:
        InputError: there is no snapshot, or it was never finished.
        FormatError: the manifest is damaged.
        OtherFormatError: it was written by a newer version.
    """
    path = snapshot / MANIFEST
    try:
        fields = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"{snapshot} holds no finished snapshot ({MANIFEST} is missing); name the directory that `index snapshot` wrote."
        ) from error
    except (OSError, ValueError) as error:
        raise FormatError(f"The manifest {path} cannot be read: {error}. Take another snapshot.") from error
    form = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(form, int) and form > FORMAT:
        raise OtherFormatError(
            f"The snapshot {snapshot} is of format {form}, and this program reads up to {FORMAT}; restore it with the version "
            f"that took it ({fields.get('program')!s:.40}) or a newer one."
        )
    if not isinstance(fields, dict) or fields.pop("checksum", None) != _checksum(fields):
        raise FormatError(f"The manifest {path} does not match its checksum: it was damaged or edited. Take another snapshot.")
    try:
        return Manifest(**{**fields, "files": tuple(File(**one) for one in fields["files"])})
    except (TypeError, KeyError) as error:
        raise FormatError(f"The manifest {path} lacks what a manifest says ({error}); take another snapshot.") from error


def _checksum(fields: Mapping[str, Any]) -> str:
    raw = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("utf-8")
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


# -- restoring


def restore(snapshot: Path, volume: Path, *, log: str | None = None, advance: Advance = lambda _: None) -> Manifest:
    """Make an index volume of a snapshot; the index goes on from there, and tells from where it answers when it has caught up.

    `log`, where it is given, is the log that the volume must follow. The directory is left empty if anything is wrong.

    Raises:
        InputError: `snapshot` holds none, or `volume` is not empty.
        ConfigurationError: the snapshot follows another log.
        OtherFormatError: it was written by a newer version.
        FormatError: a file of it is missing, cut or changed.
        StoreError: the volume cannot be written, or does not hold the state that was taken.
    """
    manifest = read_manifest(snapshot)
    if manifest.volume_format != layout.VERSION:
        raise OtherFormatError(
            f"The volume in {snapshot} is of format version {manifest.volume_format}, and this program reads {layout.VERSION}; "
            f"restore it with a version that writes it, such as {manifest.program}, or let the index read the log."
        )
    if log is not None and manifest.log != log:
        raise ConfigurationError(
            f"The snapshot {snapshot} follows the log {manifest.log!r}, and this is {log!r}: the topic was made anew, or the "
            "snapshot belongs to another cluster. Take a snapshot of an index of this log, or let the new one read the log."
        )
    _check_is_empty(volume, "An index")
    _check_files(snapshot, manifest)
    with _cleared_on_failure(volume, "The index could", "The directory is empty again."):
        volume.mkdir(parents=True, exist_ok=True)
        # CURRENT last: without it a directory is never taken for a volume.
        *others, current = sorted(manifest.files, key=lambda one: (one.name == "CURRENT", -one.bytes))
        _copy_checked(snapshot, others, volume, advance)
        _copy_checked(snapshot, [current], volume, advance)
        _sync_directory(volume)
        _open_once(volume, manifest)
    return manifest


@contextlib.contextmanager
def _cleared_on_failure(folder: Path, what: str, left: str) -> Iterator[None]:
    """Leave nothing in a folder that could not be written whole; an OSError becomes a sentence of `what` and `left`."""
    try:
        yield
    except OSError as error:
        _clear(folder)
        raise StoreError(f"{what} not be written to {folder}: {_why(error)}. {left}") from error
    except BaseException:
        _clear(folder)
        raise


def _copy_checked(snapshot: Path, files: Sequence[File], volume: Path, advance: Advance) -> None:
    """Copy files of a snapshot, some at once: while one waits for the disk, another one's bytes are digested."""

    def copy(file: File) -> None:
        _, digest = _copy(snapshot / VOLUME / file.name, volume / file.name, advance)
        if digest != file.blake2b:
            raise _changed(snapshot, file.name)

    with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
        for _ in pool.map(copy, files):
            pass


def _check_files(snapshot: Path, manifest: Manifest) -> None:
    """Check names and sizes before anything is copied; what the bytes are is checked while they are."""
    folder = snapshot / VOLUME
    found = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    known = {file.name for file in manifest.files}
    if added := sorted(found - known):
        raise FormatError(f"{folder / added[0]} is no part of the snapshot; remove it, or take another snapshot.")
    for file in manifest.files:
        path = folder / file.name
        if file.name not in found:
            raise FormatError(f"The snapshot {snapshot} lacks its file {file.name}; take another snapshot, or copy it again.")
        size = path.stat().st_size
        if size != file.bytes:
            raise FormatError(
                f"The file {path} has {size} bytes, and had {file.bytes} when the snapshot was taken: it was cut, or changed. "
                "Take another snapshot, or copy it again."
            )


def _open_once(volume: Path, manifest: Manifest) -> None:
    """Prove that the new volume holds the state that was taken, and mark it as restored."""
    store = RocksStore(volume)
    try:
        state = contents.read(store)
        if manifest.program != __version__:
            digest = digest_of(state)
            if digest.digest != manifest.state_digest:
                raise StoreError(
                    f"The files of the snapshot are whole, and the state read from them is not the one that was taken "
                    f"({digest.digest} at log offset {digest.log_offset}, and {manifest.state_digest} at {manifest.applied}): "
                    f"this version of the program reads them otherwise. Restore with version {manifest.program}, or let the "
                    "index read the log."
                )
        # Others gave those answers long ago; the restored index announces from where it answers. It has no files beside it.
        answers = [layout.answer_key(offset) for offset in state.unanswered]
        store.write({layout.KEY_RESTORED: b""}, [*answers, layout.KEY_BESIDE], NAMES)
    finally:
        store.close()


def _changed(snapshot: Path, name: str) -> FormatError:
    return FormatError(
        f"The file {snapshot / VOLUME / name} is not what it was when the snapshot was taken (its checksum differs); take "
        "another snapshot, or copy it again."
    )


# -- files


def _check_is_empty(directory: Path, what: str) -> None:
    if directory.is_dir():
        names = sorted({file.name for file in directory.iterdir()} - _EMPTY)
        if names:
            raise InputError(
                f"{what} is only put into an empty directory, and {directory} holds {', '.join(names[:3])}; name another, or "
                "empty this one first."
            )
    elif directory.exists():
        raise InputError(f"{directory} is not a directory; name an empty or a new one.")


def _copy(source: Path, target: Path, advance: Advance) -> tuple[int, str]:
    """Copy a file durably; return its size and digest."""
    digest = hashlib.blake2b(digest_size=32)
    size = 0
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            advance(len(chunk))
        writer.flush()
        os.fsync(writer.fileno())
    return size, digest.hexdigest()


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb") as reader:
        while chunk := reader.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _clear(folder: Path, keep: tuple[str, ...] = ("lost+found",)) -> None:
    """Remove all that lies in a folder, but not the folder: it may be where a file system is mounted."""
    if not folder.is_dir():
        return
    for one in folder.iterdir():
        if one.name in keep:
            continue
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)


def _why(error: OSError) -> str:
    return error.strerror or str(error)
