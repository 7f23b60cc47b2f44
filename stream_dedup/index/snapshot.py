"""Snapshots: copies of an index's volume in a folder or an object store, each with a manifest of
what it is and must be.

    PLACE/NAME/snapshot.json   the manifest, written last: without it a snapshot is unfinished
    PLACE/NAME/volume/         the volume's files

NAME is the time, so that names in their order are snapshots in theirs, and whose it is.

    1  a volume that nobody writes to: RocksDB's checkpoint of a running index (hard links, made between two steps), or that of
       an index which does not run, under RocksDB's own lock
    2  it is read whole for its state digest
    3  each file is digested; one that an earlier snapshot has is copied within the place, another one is put there
    4  what lies there is held against what was sent, and the manifest is written
    5  older snapshots of the same log go but for the number kept, and what others left unfinished a day ago

Restoring: the list of files is checked (names that RocksDB gives, CURRENT and the file it names,
sizes in the place) before the first byte is fetched; each file goes into VOLUME/restoring, against
its digest; what came is opened there, and its state digest made anew; then all goes up, CURRENT
last. What lies beside the volume (`beside`) is left out: the restored index makes it anew, sooner
than it would be fetched.

Invariants: a snapshot never shares bytes with the volume; one is whole within a day of its name, or
never; an interrupted writer harms no other snapshot; nothing outside VOLUME/restoring is opened for
a name of the manifest, and of no file more bytes are fetched than it names; a restored volume has
the state digest of the manifest.
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
from stream_dedup.index.digest import digest_of
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.beside import NAMES
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.inputs.fields import parse_json
from stream_dedup.inputs.storage import Storage, storage_at

FORMAT: Final = 1
MANIFEST: Final = "snapshot.json"
VOLUME: Final = "volume"
RESTORING: Final = "restoring"
CHECKPOINT: Final = "checkpoint"
WANTED: Final = "snapshot-wanted"
"""A file in the volume of a running index, which takes a snapshot when it finds it."""
_CURRENT: Final = "CURRENT"
_LOCK_OF_ROCKSDB: Final = "LOCK"
_MARKER: Final = "rocksdict-config.json"
_STORED: Final = re.compile(
    rf"{_CURRENT}|IDENTITY|{re.escape(_MARKER)}|(MANIFEST|OPTIONS)-\d{{6,20}}|\d{{6,20}}\.(sst|log)",
    re.ASCII,
)
_FILES_MAX: Final = 100_000
_MANIFEST_BYTES_MAX: Final = 32 << 20
_KEPT: Final = ("lost+found",)
_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[\w.-]+")
_NAME_TIME: Final = "%Y%m%dT%H%M%S.%fZ"
_UNFINISHED: Final = dt.timedelta(days=1)
_COPIES_AT_ONCE: Final = 3
_LATE: Final = 1.25
_LOOK_SECONDS: Final = 0.5

# Bounds of what sentences quote.
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]

Advance = Callable[[int], None]
"""Told how many bytes more were copied, by several threads."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a snapshot: a name that the store gives to its files, size, and digest."""

    name: str
    bytes: _Number
    blake2b: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a snapshot is. `applied`: it holds the log below this offset; `plan` as in control
    records, `taken` RFC 3339.
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
        """When it was taken, in seconds since 1970."""
        return dt.datetime.fromisoformat(self.taken).timestamp()


class Snapshot(NamedTuple):
    """One that is whole, how many of its bytes were brought to its place for it, and why older ones
    could not be removed.
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
    by: str = "",
    keep: int | None = None,
    every_seconds: float = 0.0,
    advance: Advance = lambda _: None,
) -> Snapshot:
    """Take a snapshot of the volume of an index that does not run, or of a checkpoint of one that
    does.

    `by` says in its name who took it. Of the same log `keep` snapshots stay, all if it is None. If
    none is `due_at` yet, the newest is returned, and nothing is taken.

    Raises:
        InputError: there is no index, or `place` lies within its volume.
        StoreError: the index runs; `place` cannot be used; the volume is damaged.
    """
    if not (volume / _CURRENT).exists():
        raise InputError(
            f"There is no index volume at {volume}; name the directory of an index (index in STATE_DIR)."
        )
    storage = storage_at(place)
    if volume.resolve() in (Path(storage.where).resolve(), *Path(storage.where).resolve().parents):
        raise InputError(
            f"{storage.where} lies within the volume, and would be lost with it; name another "
            "place."
        )
    with _at_rest(volume):
        earlier = list(whole(storage))
        with _contents(volume) as state:
            last = next((one for one in earlier if _is_of(one.manifest, state.log)), None)
            if (
                last is not None
                and every_seconds
                and due_at(last, by, every_seconds) > dt.datetime.now(dt.UTC).timestamp()
            ):
                return last
            manifest = _describe(state)
        begun = dt.datetime.now(dt.UTC)
        name = f"{begun:{_NAME_TIME}}-{_owner(by)}"
        try:
            sent, files = _put(storage, volume, name, earlier, advance)
            if dt.datetime.now(dt.UTC) - begun > _UNFINISHED - dt.timedelta(hours=1):
                raise StoreError(
                    f"A snapshot took a day on its way to {storage.where}, and was given up; see "
                    "to a faster way there."
                )
            manifest = replace(manifest, files=tuple(files))
            storage.write(f"{name}/{MANIFEST}", _manifest_bytes(manifest))
        except BaseException:
            with contextlib.suppress(StreamDedupError):
                storage.remove(name)
            raise
    try:
        if keep is not None:
            _prune(storage, manifest.log, keep)
    except StoreError as error:
        return Snapshot(
            name, manifest, sent, f"The snapshot is whole, and older ones were not removed. {error}"
        )
    return Snapshot(name, manifest, sent)


def whole(storage: Storage) -> Iterator[Snapshot]:
    """Yield the snapshots of a place that are whole and of which this version can tell what they
    are, the newest first.

    Raises:
        StoreError: the place cannot be read.
    """
    for name in _names(storage):
        with contextlib.suppress(InputError, FormatError):
            yield Snapshot(name, read_manifest(storage, name))


def _names(storage: Storage) -> list[str]:
    """Return the names of the snapshots of a place, whole or not, the newest first."""
    return sorted(filter(_NAME.fullmatch, storage.folders()), reverse=True)


def due_at(last: Snapshot, by: str, every_seconds: float) -> float:
    """Return when the next one is due, in seconds since 1970: where another one than `by` takes
    them, a quarter later.

    So as a rule the same replica goes on, and finds most files of its volume in the place.
    """
    return last.manifest.taken_at + every_seconds * (
        1 if last.name.endswith(f"Z-{_owner(by)}") else _LATE
    )


def _owner(by: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", by or os.uname().nodename)


def newest(place: str, log: str) -> Snapshot | None:
    """Return the newest whole snapshot of a log in this version's layout.

    Raises:
        StoreError: the place cannot be read.
    """
    return next((one for one in whole(storage_at(place)) if _is_of(one.manifest, log)), None)


def _is_of(manifest: Manifest, log: str | None) -> bool:
    return manifest.log == log and manifest.volume_format == layout.VERSION


def is_running(volume: Path) -> bool:
    """Return whether an index has the volume open."""
    with contextlib.suppress(FileNotFoundError), (volume / _LOCK_OF_ROCKSDB).open("r+") as file:
        return not _lock(file)
    return False


def ask(volume: Path, place: Path | str, wait_seconds: float) -> Snapshot:
    """Ask the index that runs on a volume for a snapshot, and return it once it is whole.

    Raises:
        StoreError: the place cannot be read, or none came in time.
    """
    storage = storage_at(place)
    before = set(_names(storage))
    (volume / WANTED).touch()
    until = time.monotonic() + wait_seconds
    while time.monotonic() < until:
        for name in set(_names(storage)) - before:
            with contextlib.suppress(InputError):  # it is on its way
                return Snapshot(name, read_manifest(storage, name))
        time.sleep(_LOOK_SECONDS)
    (volume / WANTED).unlink(missing_ok=True)
    raise StoreError(
        f"The index that has {volume} open brought no snapshot to {storage.where} within "
        f"{wait_seconds:g} s; its log says why. "
        "Does it run with STREAM_DEDUP_SNAPSHOTS as it stands here?"
    )


def _lock(file: IO[Any]) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the very kind of lock that RocksDB takes
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _at_rest(volume: Path) -> Iterator[None]:
    """Hold the lock that RocksDB takes on a volume."""
    with (volume / _LOCK_OF_ROCKSDB).open("a") as file:
        if not _lock(file):
            raise StoreError(f"The volume {volume} is open in an index that runs.")
        yield


@contextlib.contextmanager
def _contents(volume: Path) -> Iterator[contents.Contents]:
    store = RocksStore(volume, read_only=True)
    try:
        state = contents.read(store)
        if state.log is None:
            raise StoreError(
                "The volume follows no log yet, so there is nothing to snapshot; let its index "
                "start once."
            )
        yield state
    except OtherFormatError:
        raise
    except FormatError as error:
        raise VolumeError(
            f"The volume is damaged, and no snapshot of it was taken: {error}"
        ) from error
    finally:
        store.close()


def _describe(found: contents.Contents) -> Manifest:
    """Return the manifest of a volume, which is read whole, without its files."""
    digest, state = digest_of(found), found.state
    return Manifest(
        format=FORMAT,
        program=__version__,
        taken=dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        log=found.log,
        applied=digest.log_offset,
        recipe=None if state.declared is None else state.declared.recipe,
        plan=None if state.plan is None else state.plan.to_fields(),
        volume_format=layout.VERSION,
        chain=state.chain.hex(),
        state_digest=digest.digest,
        files=(),
    )


def _put(
    storage: Storage, volume: Path, name: str, earlier: list[Snapshot], advance: Advance
) -> tuple[int, list[File]]:
    """Bring a volume's files into the snapshot `name`; return how many bytes had to be sent, and
    what the files are.
    """
    current = (volume / _CURRENT).read_text("ascii").strip()
    paths = [
        one
        for one in sorted(volume.iterdir())
        if _STORED.fullmatch(one.name) and (one.name == current or one.name[0] != "M")
    ]
    there = {
        (file.bytes, file.blake2b): f"{one.name}/{VOLUME}/{file.name}"
        for one in reversed(earlier)
        for file in one.manifest.files
        if _STORED.fullmatch(file.name)
    }

    def put(path: Path) -> tuple[int, File]:
        file = File(path.name, path.stat().st_size, _digest(path))
        target = f"{name}/{VOLUME}/{path.name}"
        advance(file.bytes)
        found = there.get((file.bytes, file.blake2b))
        if found is not None and path.suffix == ".sst":  # the others are small, and change
            with contextlib.suppress(
                StoreError, FileNotFoundError
            ):  # another writer may have removed that snapshot
                storage.copy(found, target)
                return 0, file
        storage.put(path, target)
        return file.bytes, file

    # One by one: a library of a store may hold a whole file in memory.
    done = [put(path) for path in paths]
    _check_list([file for _, file in done], str(volume))
    found = storage.sizes(f"{name}/{VOLUME}")
    for _, file in done:
        if found.get(file.name) != file.bytes:
            raise StoreError(
                f"{storage.where} holds {found.get(file.name, 0)} bytes of {file.name}, and was "
                f"given {file.bytes}; no "
                "snapshot was taken."
            )
    return sum(sent for sent, _ in done), [file for _, file in done]


def _prune(storage: Storage, log: str | None, keep: int) -> None:
    """Remove what is older than the snapshots kept of a log, and what nobody will finish."""
    kept = 0
    limit = f"{dt.datetime.now(dt.UTC) - _UNFINISHED:{_NAME_TIME}}"
    for name in _names(storage):
        try:
            manifest = read_manifest(storage, name)
        except OtherFormatError:
            continue  # of a newer version, which prunes it
        except (InputError, FormatError):
            if name < limit:
                storage.remove(name)
            continue
        kept += manifest.log == log
        if manifest.log == log and kept > keep:
            storage.remove(name)


# -- the manifest


def _manifest_bytes(manifest: Manifest) -> bytes:
    fields = asdict(manifest)
    return (
        json.dumps({**fields, "checksum": _checksum(fields)}, indent=1, sort_keys=True) + "\n"
    ).encode("utf-8")


def read_manifest(storage: Storage, name: str) -> Manifest:
    """Return the manifest of a snapshot; the name is empty where it lies in the place itself.

    Raises:
        InputError: there is no snapshot, or it was never finished.
        FormatError: the manifest is damaged.
        OtherFormatError: it was written by a newer version.
        StoreError: it cannot be read now.
    """
    path, file = f"{storage.where}/{name}".rstrip("/"), f"{name}/{MANIFEST}".lstrip("/")
    size = storage.sizes(name).get(MANIFEST)
    if size is None:
        raise InputError(
            f"{path} holds no finished snapshot ({MANIFEST} is missing); name a place that `index "
            "snapshot` wrote to."
        )
    try:
        if size > _MANIFEST_BYTES_MAX:
            raise ValueError(f"it has {size} bytes, and {_MANIFEST_BYTES_MAX} is the most")
        fields = parse_json(b"".join(storage.parts(file, size)))
        is_whole = isinstance(fields, dict) and fields.pop("checksum", None) == _checksum(fields)
    except FileNotFoundError as error:
        raise InputError(f"The snapshot {path} was removed meanwhile; name another.") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"The manifest {path}/{MANIFEST} cannot be read: {error}. Take another snapshot."
        ) from error
    form = fields.get("format") if isinstance(fields, dict) else None
    if isinstance(form, int) and form > FORMAT:
        raise OtherFormatError(
            f"The snapshot {path} is of format {printable(str(form), 40)}, and this program reads "
            f"up to {FORMAT}; restore it with the version "
            f"that took it ({printable(str(fields.get('program')), 40)}) or a newer one."
        )
    if not is_whole:
        raise FormatError(
            f"The manifest {path}/{MANIFEST} does not match its checksum: it was damaged or "
            "edited. Take another snapshot."
        )
    try:
        found = msgspec.convert(fields, Manifest)
        found.taken_at  # noqa: B018 - raises if it is no time
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise FormatError(
            f"The manifest {path}/{MANIFEST} lacks what a manifest says ({error}); take another "
            "snapshot."
        ) from error
    return found


def _check_list(files: Sequence[File], where: str) -> None:
    """Check that a list of files is that of a volume: names of the store, each once, and CURRENT
    with the one file that it names.

    Raises:
        FormatError: it is not.
    """
    listed = {file.name: file for file in files}
    foreign = next((name for name in listed if not _STORED.fullmatch(name)), None)
    manifests = [name for name in listed if name.startswith("MANIFEST-")]
    current = f"{manifests[0]}\n".encode() if len(manifests) == 1 else b""
    if foreign is not None:
        why = f"{printable(foreign)!r} is no name of a file of the index"
    elif len(listed) < len(files):
        why = "a name is there twice"
    elif len(files) > _FILES_MAX:
        why = f"it has {len(files)} entries, and {_FILES_MAX} are the most"
    elif _MARKER not in listed or listed.get(_CURRENT) != File(
        _CURRENT, len(current), _blake2b(current).hexdigest()
    ):
        why = f"it lacks {_MARKER}, or {_CURRENT} with the one MANIFEST that it names"
    else:
        return
    raise FormatError(
        f"The list of files of {where} is not that of an index volume: {why}. Take another "
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
    """Make an index volume of a snapshot, the newest if none is named; the index goes on from
    there.

    `log`, where it is given, is the log that the volume must follow. The directory is left empty if
    anything is wrong.

    Raises:
        InputError: there is no finished snapshot, or `volume` is not empty. ConfigurationError: the
        snapshot follows another log. FormatError: a file of it is missing, cut or changed. The
        sentence names the snapshot before it. OtherFormatError: it was written by a newer version,
        or this one reads its bytes otherwise. StoreError: the place or the volume cannot be used.
    """
    storage = storage_at(place)
    if name and not _NAME.fullmatch(name):
        raise InputError(f"{printable(name)!r} is no name of a snapshot; {storage.where} has some.")
    names = _finished(storage)
    if name is None and not names:
        read_manifest(storage, "")
    chosen = names[0] if name is None else name
    try:
        return _restore(storage, chosen, volume, log, advance)
    except (FormatError, ConfigurationError) as error:
        before = next((one for one in names if one < chosen), None)
        if before is None:
            raise
        raise type(error)(f"{error} The one before it: --snapshot {before}") from error


def restore_any(
    place: str,
    volume: Path,
    log: str,
    tell: Callable[[str], None],
    advance: Advance = lambda _: None,
) -> Snapshot | None:
    """Make an index volume of the newest snapshot that is good; `tell` is told what is wrong with
    each that is not.

    Returns None, with an empty `volume`, if there is none.
    """
    try:
        storage = storage_at(place)
        names = _finished(storage)
    except StreamDedupError as error:
        tell(str(error))
        return None
    for name in names:
        try:
            return _restore(storage, name, volume, log, advance)
        except StreamDedupError as error:
            tell(str(error))
    return None


def clear_unfinished(volume: Path) -> None:
    """Remove what a process left that died while it took or restored a snapshot; a volume that is
    whole stays.
    """
    clear_checkpoint(volume)
    if not (volume / RESTORING).exists():
        return
    if (volume / _CURRENT).exists():
        shutil.rmtree(volume / RESTORING)
    else:
        _clear(volume)


def clear_checkpoint(volume: Path) -> None:
    """Remove the checkpoint that lies in a volume, which holds files that RocksDB has replaced."""
    for path in volume.glob(f"{CHECKPOINT}*"):  # RocksDB makes one under another name first
        shutil.rmtree(path, ignore_errors=True)


def _finished(storage: Storage) -> list[str]:
    """Return the names of snapshots that have a manifest, good or not, the newest first; "" is one
    that is the place itself.
    """
    found = [name for name in _names(storage) if MANIFEST in storage.sizes(name)]
    return found or ([""] if MANIFEST in storage.sizes("") else [])


def _restore(
    storage: Storage, name: str, volume: Path, log: str | None, advance: Advance
) -> Snapshot:
    manifest, where = read_manifest(storage, name), f"{storage.where}/{name}".rstrip("/")
    if manifest.volume_format != layout.VERSION:
        raise OtherFormatError(
            f"The volume in {where} is of format version {manifest.volume_format}, and this "
            f"program reads {layout.VERSION}; restore it with a version that writes it, such as "
            f"{printable(manifest.program, 40)}, or let the index read the log."
        )
    if log is not None and manifest.log != log:
        raise ConfigurationError(
            f"The snapshot {where} follows the log {printable(str(manifest.log))!r}, and this is "
            f"{log!r}: the "
            "topic was made anew, or the "
            "snapshot belongs to another cluster. Take a snapshot of an index of this log, or let "
            "the new one read the log."
        )
    _check_list(manifest.files, where)
    files = f"{name}/{VOLUME}".lstrip("/")
    _check_sizes(manifest.files, storage.sizes(files), where)
    _check_is_empty(volume)
    restoring = volume / RESTORING

    def get(file: File) -> None:
        digest = _blake2b()
        try:
            with os.fdopen(create_file(below(restoring, file.name)), "wb") as target:
                for part in storage.parts(f"{files}/{file.name}", file.bytes):
                    digest.update(part)
                    target.write(part)
                target.flush()
                os.fsync(target.fileno())
        except FileNotFoundError as error:
            raise _lacks(where, file.name) from error
        if digest.hexdigest() != file.blake2b:
            raise _changed(f"{where}/{VOLUME}/{file.name}", "its checksum differs")
        advance(file.bytes)

    try:
        make_folder(volume)
        make_folder(restoring)
        with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            for _ in pool.map(get, sorted(manifest.files, key=lambda one: -one.bytes)):
                pass
        _prove(restoring, manifest, where)
        # CURRENT last: without it a directory is never taken for a volume.
        for path in sorted(restoring.iterdir(), key=lambda one: one.name == _CURRENT):
            if path.name == _CURRENT:
                sync(volume)
            path.rename(volume / path.name)
        sync(volume)
        restoring.rmdir()
    except OSError as error:
        _clear(volume)
        raise StoreError(
            f"The index could not be written to {volume}: {error.strerror or error}. The directory "
            "is empty again."
        ) from error
    except BaseException:
        _clear(volume)
        raise
    return Snapshot(name, manifest)


def _check_sizes(files: Sequence[File], sizes: Mapping[str, int], where: str) -> None:
    """Check that the place has all files of a list, with the sizes that the list names.

    Raises:
        FormatError: it has not.
    """
    for file in files:
        if file.name not in sizes:
            raise _lacks(where, file.name)
        if sizes[file.name] != file.bytes:
            raise _changed(f"{where}/{VOLUME}/{file.name}", f"it has {sizes[file.name]} bytes")


def _lacks(where: str, name: str) -> FormatError:
    return FormatError(
        f"The snapshot {where} lacks its file {name}; take another one, or copy it again."
    )


def _changed(path: str, why: str) -> FormatError:
    return FormatError(
        f"The file {path} is not what it was when the snapshot was taken ({why}); take another "
        "snapshot, or copy it again."
    )


def _prove(volume: Path, manifest: Manifest, where: str) -> None:
    """Prove that a new volume holds the state that the manifest names, and mark it as restored."""
    try:
        store = RocksStore(volume)
        try:
            state = contents.read(store)
            found, named = asdict(_describe(state)), asdict(manifest)
            for field in sorted(found.keys() - {"program", "taken", "files"}):
                if found[field] != named[field]:
                    raise FormatError(
                        f"the state read from them is not the one that was taken: its {field} is "
                        f"{printable(str(found[field]))}, and the manifest says "
                        f"{printable(str(named[field]))}"
                    )
            # Others gave those answers long ago; the restored index announces from where it
            # answers. It has no files beside it.
            answers = [layout.answer_key(offset) for offset in state.unanswered]
            store.write({layout.KEY_RESTORED: b""}, [*answers, layout.KEY_BESIDE], NAMES)
        finally:
            store.close()
    except OtherFormatError:
        raise
    except (FormatError, VolumeError) as error:
        kind, hint = FormatError, "let the index read the log"
        if manifest.program != __version__:
            kind = OtherFormatError
            hint += f", or restore it with version {printable(manifest.program, 40)}"
        raise kind(
            f"The files of the snapshot {where} are those of its list, and do not hold what its "
            f"manifest says: {error}. Restore another one, or {hint}."
        ) from error


# -- files


def _check_is_empty(directory: Path) -> None:
    if directory.is_dir():
        clear_unfinished(directory)
        names = sorted({file.name for file in directory.iterdir()} - set(_KEPT))
        if names:
            raise InputError(
                f"An index is only put into an empty directory, and {directory} holds "
                f"{', '.join(names[:3])}; name another, or "
                "empty this one first."
            )
    elif directory.exists():
        raise InputError(f"{directory} is not a directory; name an empty or a new one.")


def _digest(path: Path) -> str:
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, _blake2b).hexdigest()


def _blake2b(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=32)


def _clear(folder: Path) -> None:
    """Remove all that lies in a folder, but not the folder: it may be where a file system is
    mounted.
    """
    for one in folder.iterdir() if folder.is_dir() else ():
        if one.name in _KEPT:
            continue
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)
