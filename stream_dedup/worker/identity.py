"""A worker's stable name, from which its `transactional.id` is derived.

Invariants: a restarted worker has its former name, so that `init_transactions` ends its
predecessor's open transaction at once (a random name would block the outputs' readers until that
transaction times out, up to 30 s); two live workers on one machine never have the same name.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.paths import make_folder
from stream_dedup.settings.settings import Settings

_SLOTS = 1000


class WorkerIdentity:
    """A worker's name, locked until `release`."""

    def __init__(self, name: str, lock: FileLock | None) -> None:
        self.name = name
        self._lock = lock

    def release(self) -> None:
        """Unlock the name for another worker of this machine."""
        if self._lock is not None:
            self._lock.release()


def claim(settings: Settings) -> WorkerIdentity:
    """Return this worker's name: the setting, the pod's name (stable in a StatefulSet), or the
    first free slot of this machine.

    Raises:
        ConfigurationError: the folder of the slots cannot be written, or all slots are taken.
    """
    if settings.worker_id:
        return WorkerIdentity(settings.worker_id, None)
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return WorkerIdentity(socket.gethostname(), None)
    folder = Path(settings.state_dir) / "workers"
    try:
        make_folder(folder)
        host = _persisted_host(folder)
        for slot in range(_SLOTS):
            lock = FileLock(folder / f"{settings.group}-{slot}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            return WorkerIdentity(f"{host}-{slot}", lock)
    except OSError as error:
        raise ConfigurationError(
            f"The worker cannot store its name in {folder}: {error}. Set STREAM_DEDUP_WORKER_ID "
            "to a name that no other worker has, or STREAM_DEDUP_STATE_DIR to a writable folder."
        ) from error
    raise ConfigurationError(
        f"All {_SLOTS} worker slots in {folder} are taken; set STREAM_DEDUP_WORKER_ID."
    )


def _persisted_host(folder: Path) -> str:
    """Return the host name of the first start, because a laptop's changes with its network."""
    path = folder / "host"
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(socket.gethostname() or "worker", encoding="utf-8")
        temporary.replace(path)
    return path.read_text(encoding="utf-8").strip()
