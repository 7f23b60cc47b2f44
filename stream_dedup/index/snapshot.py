"""Snapshots: copies of an index's volume in a folder or an object store, each with a manifest.

    PLACE/NAME/snapshot.json   the manifest, written last: without it a snapshot is unfinished
    PLACE/NAME/volume/         the volume's files

PLACE is a folder or an object store's address. NAME is the time and the owner, so names sort by
time.

How a snapshot is taken:

    1  the source is a volume without a writer: a checkpoint of a running index (RocksDB makes it of
       hard links), or the volume of a stopped index, under RocksDB's lock
    2  read the whole source to compute its state digest
    3  hash each file; copy it within the place if an earlier snapshot has it, otherwise upload it
    4  compare the sizes in the place with those of the source, and write the manifest
    5  delete older snapshots of the same log beyond the number to keep, and the snapshots of any log
       that were not finished within a day

How it is restored: check the list of files (names that RocksDB uses, CURRENT and the file it names,
sizes in the place) before the first byte is fetched. Write each file to VOLUME/restoring and check
its digest. Open the volume there and compute its state digest. Then move all files up, CURRENT last.
Table files (`table_files`) are not in a snapshot, because building them is quicker than fetching.

Invariants: a snapshot shares no file with the volume; it is complete within a day or never; an
interrupted writer damages no other snapshot. Names in the manifest cannot open a file outside
VOLUME/restoring, and no more bytes of a file are fetched than the manifest says. A restored volume
has the state digest of the manifest.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any, Final, NamedTuple

import msgspec

from stream_dedup.domain.disk import sync
from stream_dedup.domain.errors import (
    ConfigurationError,
    FormatError,
    InputError,
    OtherFormatError,
    StoreError,
    StreamDedupError,
    VolumeError,
)
from stream_dedup.domain.paths import below, create_file, make_folder
from stream_dedup.domain.printable import printable
from stream_dedup.domain.version import __version__
from stream_dedup.index import contents
from stream_dedup.index.digest import compute_digest
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.index.storage.table_files import NAME_RANGES
from stream_dedup.inputs.fields import parse_json
from stream_dedup.inputs.remote_files import is_address
from stream_dedup.inputs.storage import Storage, storage_at

FORMAT: Final = 1
MANIFEST: Final = "snapshot.json"
VOLUME: Final = "volume"
RESTORING: Final = "restoring"
CHECKPOINT: Final = "checkpoint"
REQUEST_FILE: Final = "snapshot-wanted"
"""A file in the volume of a running index: the index takes a snapshot when it finds the file."""
_PLACE_FILE: Final = "snapshot-place"
"""A file in the volume of a running index that takes snapshots; it contains the place for them."""
_CURRENT: Final = "CURRENT"
_LOCK_OF_ROCKSDB: Final = "LOCK"
_MARKER_FILE: Final = "rocksdict-config.json"
_VOLUME_FILE: Final = re.compile(
    rf"{_CURRENT}|IDENTITY|{re.escape(_MARKER_FILE)}|(MANIFEST|OPTIONS)-\d{{6,20}}|\d{{6,20}}\.(sst|log)",
    re.ASCII,
)
_FILES_MAX: Final = 100_000
_MANIFEST_BYTES_MAX: Final = 32 << 20
_IGNORED_NAMES: Final = ("lost+found",)
_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[\w.-]+")
_NAME_TIME: Final = "%Y%m%dT%H%M%S.%fZ"
_TAKING_TIME_MAX: Final = dt.timedelta(days=1)
_COPIES_AT_ONCE: Final = 3
_OTHER_OWNER_FACTOR: Final = 1.25
_POLL_SECONDS: Final = 0.5

# A manifest may be damaged or forged: these limits keep numbers and texts small.
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]

Advance = Callable[[int], None]
"""Called with the number of copied bytes, by several threads."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a snapshot: the store's name for it, its size, and its digest."""

    name: str
    bytes: _Number
    blake2b: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a snapshot.

    The snapshot contains the log below offset `applied`. `plan` is as in control records, `taken` is
    the time in RFC 3339.
    """

    format: int
    program: _Text
    taken: _Text
    log: _Text | None
    applied: _Number
    recipe: _Text | None
    plan: dict[str, int | list[list[int]]] | None
    volume_format: _Number
    chain: _Text
    state_digest: _Text
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def taken_at(self) -> float:
        """The time at which it was taken, in seconds since 1970."""
        return dt.datetime.fromisoformat(self.taken).timestamp()


class Snapshot(NamedTuple):
    """A complete snapshot, and the bytes that were uploaded for it. `remark` says why older ones
    could not be removed, or is empty.
    """

    name: str
    manifest: Manifest
    sent_bytes: int = 0
    remark: str = ""


# -- taking


def take(
    volume: Path,
    place: Path | str,
    *,
    owner: str = "",
    keep: int | None = None,
    every_seconds: float = 0.0,
    advance: Advance = lambda _: None,
) -> Snapshot:
    """Take a snapshot of the volume of a stopped index, or of a checkpoint of a running one.

    `owner` is a part of the name. The newest `keep` snapshots of the log remain, or all if `keep`
    is None. If none is due yet (`due_at`), return the newest one.

    Raises:
        InputError: there is no index, or `place` is within its volume.
        StoreError: the index runs; `place` cannot be used; the volume is damaged.
    """
    if not (volume / _CURRENT).exists():
        raise InputError(
            f"There is no index volume at {volume}; name the directory of an index (index in STATE_DIR)."
        )
    storage = storage_at(place)
    if volume.resolve() in (Path(storage.where).resolve(), *Path(storage.where).resolve().parents):
        raise InputError(
            f"{storage.where} is inside the index volume, so the snapshot would be lost with the "
            "volume; name another place."
        )
    with _lock_volume(volume):
        earlier = list(complete_snapshots(storage))
        with _contents(volume) as state:
            last = next(
                (snapshot for snapshot in earlier if _follows_log(snapshot.manifest, state.log)),
                None,
            )
            now = dt.datetime.now(dt.UTC).timestamp()
            if last is not None and every_seconds and due_at(last, owner, every_seconds) > now:
                return last
            manifest = _describe(state)
        started = dt.datetime.now(dt.UTC)
        name = f"{started:{_NAME_TIME}}-{_owner(owner)}"
        try:
            sent_bytes, files = _copy_files(storage, volume, name, earlier, advance)
            if dt.datetime.now(dt.UTC) - started > _TAKING_TIME_MAX - dt.timedelta(hours=1):
                raise StoreError(
                    f"Writing a snapshot to {storage.where} took a day and was stopped; use a "
                    "place with a faster connection."
                )
            manifest = replace(manifest, files=tuple(files))
            storage.write(f"{name}/{MANIFEST}", _manifest_bytes(manifest))
        except BaseException:
            with contextlib.suppress(StreamDedupError):
                storage.remove(name)
            raise
    remark = "" if keep is None else _prune(storage, manifest.log, keep)
    return Snapshot(name, manifest, sent_bytes, remark)


def complete_snapshots(storage: Storage) -> Iterator[Snapshot]:
    """Yield the complete snapshots of a place whose manifest this version can read, newest first.

    Raises:
        StoreError: the place cannot be read.
    """
    for name in _names(storage):
        with contextlib.suppress(InputError, FormatError):
            yield Snapshot(name, read_manifest(storage, name))


def _names(storage: Storage) -> list[str]:
    """Return the names of all snapshots of a place, newest first."""
    return sorted(filter(_NAME.fullmatch, storage.folders()), reverse=True)


def due_at(last: Snapshot, owner: str, every_seconds: float) -> float:
    """Return when the next snapshot is due, in seconds since 1970. An owner that did not take the last
    one waits 25 % longer.

    So the same replica usually takes all snapshots, and most files of its volume are in the place
    already.
    """
    return last.manifest.taken_at + every_seconds * (
        1 if last.name.endswith(f"Z-{_owner(owner)}") else _OTHER_OWNER_FACTOR
    )


def _owner(owner: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", owner or os.uname().nodename)


def _follows_log(manifest: Manifest, log: str | None) -> bool:
    return manifest.log == log and manifest.volume_format == layout.VERSION


def is_running(volume: Path) -> bool:
    """Return whether an index has the volume open."""
    with contextlib.suppress(FileNotFoundError), (volume / _LOCK_OF_ROCKSDB).open("r+") as file:
        return not _lock(file)
    return False


def announce_place(volume: Path, place: Path | str | None) -> None:
    """Record in the volume of a running index the place of its snapshots, None if it takes none."""
    if place is None:
        (volume / _PLACE_FILE).unlink(missing_ok=True)
    else:
        (volume / _PLACE_FILE).write_text(_absolute(place), encoding="utf-8")


def _absolute(place: Path | str) -> str:
    where = storage_at(place).where
    return where if is_address(where) else str(Path(where).resolve())


def request_snapshot(volume: Path, place: Path | str, wait_seconds: float) -> Snapshot:
    """Request a snapshot from the running index of a volume, and return it once it is complete.

    Raises:
        ConfigurationError: the index takes no snapshots, or writes them to another place.
        StoreError: the place cannot be read, or no snapshot was complete in time.
    """
    try:
        announced = (volume / _PLACE_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(
            f"The running index of {volume} takes no snapshots. Restart it with "
            f"STREAM_DEDUP_SNAPSHOTS={place}, or stop it and run this command again."
        ) from None
    if announced != _absolute(place):
        raise ConfigurationError(
            f"The running index of {volume} writes its snapshots to {announced}, not to "
            f"{_absolute(place)}. Name that place, or stop the index and run this command again."
        )
    storage = storage_at(place)
    earlier = set(_names(storage))
    (volume / REQUEST_FILE).touch()
    deadline = time.monotonic() + wait_seconds
    try:
        while time.monotonic() < deadline:
            for name in set(_names(storage)) - earlier:
                with contextlib.suppress(InputError):  # unfinished
                    return Snapshot(name, read_manifest(storage, name))
            time.sleep(_POLL_SECONDS)
    finally:
        (volume / REQUEST_FILE).unlink(missing_ok=True)
    raise StoreError(
        f"The running index of {volume} did not complete a snapshot in {storage.where} within "
        f"{wait_seconds:g} s. See the index's log."
    )


def _lock(file: IO[Any]) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the same kind of lock as RocksDB's
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _lock_volume(volume: Path) -> Iterator[None]:
    """Hold RocksDB's lock on a volume."""
    with (volume / _LOCK_OF_ROCKSDB).open("a") as file:
        if not _lock(file):
            raise StoreError(f"The volume {volume} is open in a running index.")
        yield


@contextlib.contextmanager
def _contents(volume: Path) -> Iterator[contents.Contents]:
    store = RocksStore(volume, read_only=True)
    try:
        state = contents.read(store)
        if state.log is None:
            raise StoreError(
                "The index volume contains no log records yet, so there is nothing to copy. "
                "Start its index once."
            )
        yield state
    except OtherFormatError:
        raise
    except FormatError as error:
        raise VolumeError(
            f"The index volume is damaged, so no snapshot was taken: {error}"
        ) from error
    finally:
        store.close()


def _describe(volume: contents.Contents) -> Manifest:
    """Return the manifest of a volume without its files; reads the whole volume."""
    digest, state = compute_digest(volume), volume.state
    return Manifest(
        format=FORMAT,
        program=__version__,
        taken=dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        log=volume.log,
        applied=digest.log_offset,
        recipe=None if state.declared is None else state.declared.recipe,
        plan=None if state.plan is None else state.plan.to_fields(),
        volume_format=layout.VERSION,
        chain=state.chain.hex(),
        state_digest=digest.digest,
        files=(),
    )


def _copy_files(
    storage: Storage, volume: Path, name: str, earlier: list[Snapshot], advance: Advance
) -> tuple[int, list[File]]:
    """Copy a volume's files to the snapshot `name`; return (uploaded bytes, the files)."""
    current = (volume / _CURRENT).read_text("ascii").strip()
    paths = [
        path
        for path in sorted(volume.iterdir())
        # Of the MANIFEST files, only the one that CURRENT names.
        if _VOLUME_FILE.fullmatch(path.name) and (path.name == current or path.name[0] != "M")
    ]
    stored_paths = {
        (file.bytes, file.blake2b): f"{snapshot.name}/{VOLUME}/{file.name}"
        for snapshot in reversed(earlier)
        for file in snapshot.manifest.files
        if _VOLUME_FILE.fullmatch(file.name)
    }

    def copy_file(path: Path) -> tuple[int, File]:
        file = File(path.name, path.stat().st_size, _digest(path))
        target = f"{name}/{VOLUME}/{path.name}"
        advance(file.bytes)
        stored_path = stored_paths.get((file.bytes, file.blake2b))
        if stored_path is not None and path.suffix == ".sst":  # the others are small, and change
            # Another writer may have removed that snapshot.
            with contextlib.suppress(StoreError, FileNotFoundError):
                storage.copy(stored_path, target)
                return 0, file
        storage.put(path, target)
        return file.bytes, file

    # One by one: a store's library may load a whole file into memory.
    copied = [copy_file(path) for path in paths]
    _check_file_list([file for _, file in copied], str(volume))
    stored_sizes = storage.sizes(f"{name}/{VOLUME}")
    for _, file in copied:
        if stored_sizes.get(file.name) != file.bytes:
            raise StoreError(
                f"{storage.where} contains {stored_sizes.get(file.name, 0)} bytes of {file.name}, "
                f"but {file.bytes} were written; no snapshot was taken."
            )
    return sum(sent_bytes for sent_bytes, _ in copied), [file for _, file in copied]


def _prune(storage: Storage, log: str | None, keep: int) -> str:
    """Remove a log's snapshots beyond the number to keep, and unfinished ones older than a day; return
    why that failed, or "".
    """
    kept_count = 0
    oldest_unfinished = f"{dt.datetime.now(dt.UTC) - _TAKING_TIME_MAX:{_NAME_TIME}}"
    try:
        for name in _names(storage):
            try:
                manifest = read_manifest(storage, name)
            except OtherFormatError:
                continue  # the newer version that wrote it removes it
            except (InputError, FormatError):
                if name < oldest_unfinished:
                    storage.remove(name)
                continue
            kept_count += manifest.log == log
            if manifest.log == log and kept_count > keep:
                storage.remove(name)
    except StoreError as error:
        return f"The snapshot is complete, but older ones were not removed. {error}"
    return ""


# -- the manifest


def _manifest_bytes(manifest: Manifest) -> bytes:
    fields = asdict(manifest)
    return (
        json.dumps({**fields, "checksum": _checksum(fields)}, indent=1, sort_keys=True) + "\n"
    ).encode("utf-8")


def read_manifest(storage: Storage, name: str) -> Manifest:
    """Return the manifest of a snapshot; with an empty name, of a snapshot in the place itself.

    Raises:
        InputError: there is no snapshot, or it is unfinished.
        FormatError: the manifest is damaged.
        OtherFormatError: it is of a newer version.
        StoreError: it cannot be read now.
    """
    path, file = f"{storage.where}/{name}".rstrip("/"), f"{name}/{MANIFEST}".lstrip("/")
    size = storage.sizes(name).get(MANIFEST)
    if size is None:
        raise InputError(
            f"{path} contains no complete snapshot ({MANIFEST} is missing); name a place that "
            "`index checkpoint` wrote to."
        )
    try:
        if size > _MANIFEST_BYTES_MAX:
            raise ValueError(f"it has {size} bytes; the limit is {_MANIFEST_BYTES_MAX}")
        fields = parse_json(b"".join(storage.parts(file, size)))
        is_intact = isinstance(fields, dict) and fields.pop("checksum", None) == _checksum(fields)
    except FileNotFoundError as error:
        raise InputError(
            f"The snapshot {path} was removed while it was read; name another."
        ) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"The manifest {path}/{MANIFEST} cannot be read: {error}. Take another snapshot."
        ) from error
    format_number = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(format_number, int) and format_number > FORMAT:
        raise OtherFormatError(
            f"The snapshot {path} has the format {printable(str(format_number), 40)}, but this "
            f"version reads up to {FORMAT}. Restore it with the version that took it "
            f"({printable(str(fields.get('program')), 40)}) or a newer one."
        )
    if not is_intact:
        raise FormatError(
            f"The manifest {path}/{MANIFEST} does not match its checksum: it was damaged or "
            "edited. Take another snapshot."
        )
    try:
        manifest = msgspec.convert(fields, Manifest)
        manifest.taken_at  # noqa: B018 - raises if it is not a time
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise FormatError(
            f"The manifest {path}/{MANIFEST} has a missing or invalid field ({error}). Take "
            "another snapshot."
        ) from error
    return manifest


def _check_file_list(files: Sequence[File], where: str) -> None:
    """Check that files are those of a volume: valid unique names, one MANIFEST, and a CURRENT that
    names it.

    Raises:
        FormatError: they are not.
    """
    listed = {file.name: file for file in files}
    unknown_name = next((name for name in listed if not _VOLUME_FILE.fullmatch(name)), None)
    manifests = [name for name in listed if name.startswith("MANIFEST-")]
    current = f"{manifests[0]}\n".encode() if len(manifests) == 1 else b""
    if unknown_name is not None:
        problem = f"{printable(unknown_name)!r} is not a file name of an index"
    elif len(listed) < len(files):
        problem = "a name is listed twice"
    elif len(files) > _FILES_MAX:
        problem = f"it has {len(files)} entries; the limit is {_FILES_MAX}"
    elif _MARKER_FILE not in listed or listed.get(_CURRENT) != File(
        _CURRENT, len(current), _blake2b(current).hexdigest()
    ):
        problem = (
            f"it does not contain {_MARKER_FILE}, exactly one MANIFEST, and a {_CURRENT} "
            "that names this MANIFEST"
        )
    else:
        return
    raise FormatError(
        f"The list of files in the manifest of {where} is invalid: {problem}. Take another "
        "snapshot."
    )


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.blake2b(
        json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("utf-8"), digest_size=16
    ).hexdigest()


# -- restoring


def restore(
    place: Path | str,
    volume: Path,
    *,
    name: str | None = None,
    log: str | None = None,
    advance: Advance = lambda _: None,
) -> Snapshot:
    """Restore a snapshot, by default the newest, to an index volume. An index that opens it reads the
    log from the snapshot's offset on.

    If `log` is given, the snapshot must follow this log. The directory is empty after any error.

    Raises:
        InputError: there is no finished snapshot, or `volume` is not empty.
        ConfigurationError: the snapshot follows another log.
        FormatError: a file is missing, truncated or changed; the message names the previous
        snapshot.
        OtherFormatError: it is of a newer version, or of another layout.
        StoreError: the place or the volume cannot be used.
    """
    storage = storage_at(place)
    if name and not _NAME.fullmatch(name):
        raise InputError(
            f"{printable(name)!r} is not the name of a snapshot; list the folders of "
            f"{storage.where} for the names."
        )
    names = _finished_names(storage)
    if name is None and not names:
        read_manifest(storage, "")  # raises the error
    restored_name = names[0] if name is None else name
    try:
        return _restore(storage, restored_name, volume, log, advance)
    except (FormatError, ConfigurationError) as error:
        previous = next((earlier for earlier in names if earlier < restored_name), None)
        if previous is None:
            raise
        raise type(error)(
            f"{error} To restore the previous snapshot, use --snapshot {previous}"
        ) from error


def restore_any(
    place: str,
    volume: Path,
    log: str,
    on_problem: Callable[[str], None],
    advance: Advance = lambda _: None,
) -> Snapshot | None:
    """Restore the newest valid snapshot to an index volume. Call `on_problem` with the error of each
    invalid one.

    Return None, and leave `volume` empty, if there is no valid one.
    """
    try:
        storage = storage_at(place)
        names = _finished_names(storage)
    except StreamDedupError as error:
        on_problem(str(error))
        return None
    for name in names:
        try:
            return _restore(storage, name, volume, log, advance)
        except StreamDedupError as error:
            on_problem(str(error))
    return None


def clear_unfinished(volume: Path) -> None:
    """Remove the files of a process that ended while it took or restored a snapshot. A complete volume
    is kept.
    """
    clear_checkpoint(volume)
    if not (volume / RESTORING).exists():
        return
    if (volume / _CURRENT).exists():
        shutil.rmtree(volume / RESTORING)
    else:
        _remove_contents(volume)


def clear_checkpoint(volume: Path) -> None:
    """Remove the checkpoint in a volume, which contains files that RocksDB has replaced."""
    for path in volume.glob(f"{CHECKPOINT}*"):  # RocksDB creates it under a temporary name
        shutil.rmtree(path, ignore_errors=True)


def _finished_names(storage: Storage) -> list[str]:
    """Return the names of snapshots with a manifest, newest first; [""] if there are none, and the
    place itself is a snapshot.
    """
    names = [name for name in _names(storage) if MANIFEST in storage.sizes(name)]
    return names or ([""] if MANIFEST in storage.sizes("") else [])


def _restore(
    storage: Storage, name: str, volume: Path, log: str | None, advance: Advance
) -> Snapshot:
    manifest, where = read_manifest(storage, name), f"{storage.where}/{name}".rstrip("/")
    _check_manifest(manifest, log, where)
    _check_file_list(manifest.files, where)
    files = f"{name}/{VOLUME}".lstrip("/")
    _check_sizes(manifest.files, storage.sizes(files), where)
    _check_is_empty(volume)
    restoring = volume / RESTORING

    def fetch(file: File) -> None:
        digest = _blake2b()
        try:
            with os.fdopen(create_file(below(restoring, file.name)), "wb") as target:
                for part in storage.parts(f"{files}/{file.name}", file.bytes):
                    digest.update(part)
                    target.write(part)
                target.flush()
                os.fsync(target.fileno())
        except FileNotFoundError as error:
            raise _missing_file_error(where, file.name) from error
        if digest.hexdigest() != file.blake2b:
            raise _changed_file_error(f"{where}/{VOLUME}/{file.name}", "its checksum differs")
        advance(file.bytes)

    try:
        make_folder(volume)
        make_folder(restoring)
        with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            for _ in pool.map(fetch, sorted(manifest.files, key=lambda item: -item.bytes)):
                pass
        _check_state(restoring, manifest, where)
        # CURRENT last: without it no program opens the directory as a volume.
        for path in sorted(restoring.iterdir(), key=lambda item: item.name == _CURRENT):
            if path.name == _CURRENT:
                sync(volume)
            path.rename(volume / path.name)
        sync(volume)
        restoring.rmdir()
    except OSError as error:
        _remove_contents(volume)
        raise StoreError(
            f"The index could not be written to {volume}: {error.strerror or error}. The directory "
            "is empty again."
        ) from error
    except BaseException:
        _remove_contents(volume)
        raise
    return Snapshot(name, manifest)


def _check_manifest(manifest: Manifest, log: str | None, where: str) -> None:
    """Check that this program can read the volume of a snapshot, and that it follows `log`, unless that
    is None.

    Raises:
        OtherFormatError: the volume has another format.
        ConfigurationError: it follows another log.
    """
    if manifest.volume_format != layout.VERSION:
        raise OtherFormatError(
            f"The volume in {where} has the format {manifest.volume_format}, but this version "
            f"reads {layout.VERSION}. Restore it with a version that writes this format, such as "
            f"{printable(manifest.program, 40)}; or start the index with an empty volume, and it "
            "is rebuilt from the log."
        )
    if log is not None and manifest.log != log:
        raise ConfigurationError(
            f"The snapshot {where} belongs to the log {printable(str(manifest.log))!r}, but the "
            f"log of this cluster is {log!r}: the topic was created again, or the snapshot "
            "belongs to another cluster. Take a snapshot of an index of this log; or start the "
            "index with an empty volume, and it is rebuilt from the log."
        )


def _check_sizes(files: Sequence[File], sizes: Mapping[str, int], where: str) -> None:
    """Check that the place contains all files of a list, with these sizes.

    Raises:
        FormatError: it does not.
    """
    for file in files:
        if file.name not in sizes:
            raise _missing_file_error(where, file.name)
        if sizes[file.name] != file.bytes:
            raise _changed_file_error(
                f"{where}/{VOLUME}/{file.name}",
                f"it has {sizes[file.name]} bytes instead of {file.bytes}",
            )


def _missing_file_error(where: str, name: str) -> FormatError:
    return FormatError(
        f"The snapshot {where} does not contain its file {name}. Take another snapshot, or copy "
        "this one again."
    )


def _changed_file_error(path: str, problem: str) -> FormatError:
    return FormatError(
        f"The file {path} has changed since the snapshot was taken ({problem}). Take another "
        "snapshot, or copy this one again."
    )


def _check_state(volume: Path, manifest: Manifest, where: str) -> None:
    """Check that a new volume has the state in the manifest, and mark it as restored."""
    try:
        store = RocksStore(volume)
        try:
            state = contents.read(store)
            state_fields, expected_fields = asdict(_describe(state)), asdict(manifest)
            for field in sorted(state_fields.keys() - {"program", "taken", "files"}):
                if state_fields[field] != expected_fields[field]:
                    raise FormatError(
                        f"their {field} is {printable(str(state_fields[field]))}, but that of the "
                        f"manifest is {printable(str(expected_fields[field]))}"
                    )
            # Delete the stored answers: other replicas delivered them, and the restored index announces
            # the first offset that it answers. Delete the names of table files: a snapshot has none.
            answers = [layout.answer_key(offset) for offset in state.unanswered]
            store.write({layout.KEY_RESTORED: b""}, [*answers, layout.KEY_TABLE_FILES], NAME_RANGES)
        finally:
            store.close()
    except OtherFormatError:
        raise
    except (FormatError, VolumeError) as error:
        error_class, hint = (
            FormatError,
            ("start the index with an empty volume; it is rebuilt from the log"),
        )
        if manifest.program != __version__:
            error_class = OtherFormatError
            hint += (
                f". Version {printable(manifest.program, 40)}, which took the snapshot, can "
                "also restore it"
            )
        raise error_class(
            f"The files of the snapshot {where} match its list, but do not contain the state in "
            f"its manifest: {error}. Restore another one, or {hint}."
        ) from error


# -- files


def _check_is_empty(directory: Path) -> None:
    if directory.is_dir():
        clear_unfinished(directory)
        names = sorted({file.name for file in directory.iterdir()} - set(_IGNORED_NAMES))
        if names:
            raise InputError(
                f"An index can only be restored to an empty directory, but {directory} contains "
                f"{', '.join(names[:3])}. Name another directory, or empty this one."
            )
    elif directory.exists():
        raise InputError(f"{directory} is not a directory; name an empty directory or a new one.")


def _digest(path: Path) -> str:
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, _blake2b).hexdigest()


def _blake2b(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=32)


def _remove_contents(folder: Path) -> None:
    """Remove the contents of a folder, but not the folder: it may be a mount point."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name in _IGNORED_NAMES:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
