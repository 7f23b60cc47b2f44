"""Check this machine: disk space, open files, writable folders, the address of the probes."""

from __future__ import annotations

import ipaddress
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from stream_dedup.domain.extras import missing_packages
from stream_dedup.preflight.finding import CheckFinding, not_checked, ok, refused, warning
from stream_dedup.settings.settings import Settings

_OPEN_FILES_MIN = 1024
_FREE_BYTES_MIN = 1 << 30


def check_machine(
    settings: Settings, role: Literal["worker", "index"] | None
) -> list[CheckFinding]:
    """Return the findings for a role; None means both roles and a search."""
    findings = [*_open_files(), *_probes(settings)]
    if role != "worker":
        findings += _folder("index folder", settings.index_dir, "STREAM_DEDUP_STATE_DIR")
        findings += _disk(
            "disk",
            settings.index_dir,
            "an index",
            "RocksDB needs the same amount again during compaction",
            "the index",
        )
    if (
        role != "index"
        and settings.worker_id is None
        and "KUBERNETES_SERVICE_HOST" not in os.environ
    ):
        findings += _folder("state folder", settings.state_dir, "STREAM_DEDUP_STATE_DIR")
    if role is None:
        findings += _search_folder(settings.search_dir)
    return findings


def _search_folder(folder: Path) -> Iterator[CheckFinding]:
    if problem := missing_packages("search"):
        yield not_checked("search folder", problem)
        return
    yield from _folder("search folder", folder, "STREAM_DEDUP_STATE_DIR")
    if _nearest(folder) == folder:
        engine = "the engine needs the same amount again while it merges segments"
        yield from _disk("search disk", folder, "a full-text engine", engine, "the search")


def _open_files() -> Iterator[CheckFinding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _OPEN_FILES_MIN:
        yield warning(
            "open files",
            f"A process may open {soft} files (at most {hard}): RocksDB keeps all its files open, "
            "and the Kafka client a connection to each broker. Allow 65536 (ulimit -n, "
            "LimitNOFILE).",
        )
    else:
        yield ok(
            "open files",
            "A process may open any number of files."
            if soft < 0
            else f"A process may open {soft:,} files.",
        )


def _probes(settings: Settings) -> Iterator[CheckFinding]:
    if is_local_host(settings.http_host) and "KUBERNETES_SERVICE_HOST" in os.environ:
        yield warning(
            "probes",
            f"Probes and metrics are served on {settings.http_host} only, where the kubelet and "
            "Prometheus cannot reach "
            "them. Set STREAM_DEDUP_HTTP_HOST=0.0.0.0 (or ::).",
        )
    else:
        yield ok(
            "probes",
            f"Probes and metrics are served on {settings.http_host} port {settings.http_port}.",
        )


def is_local_host(host: str) -> bool:
    """Return whether only this machine can connect to a host, by its name or address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _folder(check: str, folder: Path, setting: str) -> Iterator[CheckFinding]:
    existing = _nearest(folder)
    if not existing.is_dir():
        yield refused(
            check,
            f"{existing} is not a folder, so {folder} cannot be created. Set {setting} to a "
            "writable folder.",
        )
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield refused(
            check,
            f"{existing} is not writable by this user. Set {setting} to a writable folder.",
        )
    else:
        yield ok(check, f"{folder} is writable.")


def _disk(check: str, folder: Path, contents: str, why: str, role: str) -> Iterator[CheckFinding]:
    try:
        free = shutil.disk_usage(_nearest(folder)).free
        used = (
            sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
            if _nearest(folder) == folder
            else 0
        )
    except OSError as error:
        yield not_checked(check, f"The free space of {folder} is not known: {error.strerror}.")
        return
    needed = max(_FREE_BYTES_MIN, used)
    text = (
        f"{_gigabytes(free)} are free on the volume of {folder}, which contains {contents} of "
        f"{_gigabytes(used)}"
    )
    if free < needed:
        yield warning(
            check,
            f"{text}: {why}, and at zero {role} stops (nothing is lost). Expand the volume, or "
            "rebuild on a larger one.",
        )
    else:
        yield ok(check, f"{text}.")


def _nearest(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists and this user can see."""
    # Not Path.exists(), which raises if a parent cannot be read or a name is too long.
    existing = (
        path
        for path in (folder, *folder.absolute().parents)
        if os.path.exists(path)  # noqa: PTH110
    )
    return next(existing, Path("/"))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
