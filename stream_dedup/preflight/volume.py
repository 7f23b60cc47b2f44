"""Check the index's volume, while an index may be writing to it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from stream_dedup.domain.errors import FormatError, OtherFormatError, StreamDedupError
from stream_dedup.domain.memory_limit import limit_of_group, machine_bytes
from stream_dedup.index import contents
from stream_dedup.index.storage.place import volume_in
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.preflight.finding import CheckFinding, not_checked, ok, refused, warning
from stream_dedup.settings.settings import Settings

_BASE_BYTES = 350_000_000
_ENTRY_BYTES = 190
_SHARE_MAX = 0.85


def other_log_message(folder: Path, topic: str) -> str:
    """Return the message about an index of another cluster's log, with both remedies."""
    return (
        f"The index in {folder} does not belong to this cluster's log {topic}: it belongs to "
        "another cluster, such as an earlier local broker, or the topic was created again. If "
        "you do not need it, delete it, and the index is rebuilt from this log: rm -r "
        f"{shlex.quote(str(folder))}. Otherwise set another STREAM_DEDUP_STATE_DIR for this "
        "filter."
    )


def check_volume(
    settings: Settings, log: str | None, ask_log_end: Callable[[], int | None]
) -> Iterator[CheckFinding]:
    """Check that the volume can be read, belongs to the log (named as in `LogIndex.bind`), and fits
    into memory.

    `log` is None if the cluster does not answer. `ask_log_end` is called after the volume was read,
    because a running index follows the growing log meanwhile.
    """
    folder = settings.index_dir
    try:
        has_files = os.path.isdir(folder) and bool(os.listdir(folder))  # noqa: PTH112, PTH208 - is_dir() raises if a parent is unreadable
    except OSError as error:
        yield not_checked("volume", f"The folder {folder} cannot be read: {error.strerror}.")
        return
    if not has_files:
        yield not_checked("volume", f"There is no index in {folder} on this machine.")
        return
    try:
        folder = volume_in(folder)
        with closing(RocksStore(folder, read_only=True)) as store:
            volume = contents.read(store)
    except OtherFormatError as error:
        yield refused("volume", str(error))
        return
    except FormatError as error:
        yield refused("volume", f"The volume {folder} cannot be read: {error}")
        return
    except StreamDedupError as error:
        yield refused("volume", str(error))
        return
    if folder != settings.index_dir:
        files = shlex.quote(str(settings.index_dir))
        yield warning(
            "volume",
            f"{settings.index_dir} was created by a version with another layout; its files are "
            f"kept for a rollback, and this version's volume is {folder}. To remove them: find "
            f"{files} -maxdepth 1 -type f -delete",
        )
    applied, log_end = volume.meta.applied, ask_log_end()
    if log is not None and volume.log is not None and volume.log != log:
        yield refused("volume", other_log_message(folder, settings.topic_names.fingerprints))
    elif log_end is not None and applied > log_end:
        yield refused(
            "volume",
            f"The volume {folder} has applied the log up to offset {applied}, but the log ends at "
            f"{log_end}, so the log lost records. Restore the topic; if the topic is correct, "
            "delete the folder, and the index is rebuilt.",
        )
    else:
        behind = "" if log_end is None else f", {log_end - applied:,} records behind the log"
        yield ok("volume", f"{folder} contains {volume.meta.live:,} representatives{behind}.")
    yield _check_memory(volume.meta.live)


def _check_memory(representatives: int) -> CheckFinding:
    """Check that the representatives fit into the memory of this machine or control group."""
    needed = _BASE_BYTES + _ENTRY_BYTES * representatives
    limit = limit_of_group() or machine_bytes()
    requirement = f"{representatives:,} representatives need about {needed / 1e9:.1f} GB of memory"
    if needed <= _SHARE_MAX * limit:
        return ok("memory", f"{requirement}.")
    return warning(
        "memory",
        f"{requirement}, but the limit is {limit / 1e9:.1f} GB. Raise it, or the index may be killed.",
    )
