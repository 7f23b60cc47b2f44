"""Snapshots of a running index: when one is due, and the process beside it that takes or fetches
one.

The index makes RocksDB's checkpoint between two steps; a process of lower priority copies it
(`index.snapshot`), so that no verdict waits for a store. Replicas share one place: one that finds a
young snapshot of another takes none.

Invariants: nothing that a store does ends the index or keeps it from its log; a process that is
left alone ends itself.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stream_dedup.domain.errors import ConfigurationError, StoreError
from stream_dedup.index import snapshot
from stream_dedup.index.index import LogIndex
from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.settings.settings import Settings

CHILD_BYTES: Final = 320 << 20
"""What the process takes at most: 293 MB with files of 68 MB and S3, 2026-11-28."""
KEPT: Final = 2  # snapshots of a log; older ones are removed
EVERY_SECONDS = 86_400.0  # the alert on old snapshots fires after two such
_AGAIN_SECONDS: Final = 300.0
_DAY_SECONDS: Final = 86_400.0  # a store that hangs: what is not whole by then never is
_POLL_SECONDS: Final = 0.2

Child = Callable[[dict[str, Any]], "subprocess.Popen[bytes]"]


class Snapshots:
    """Those that the settings ask for, of the volume in `folder`."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        host: str,
        metrics: IndexMetrics,
        logger: Any,
        start: Child | None = None,
    ) -> None:
        self._place = str(settings.snapshots)
        self._folder = folder
        self._host = host
        self._metrics = metrics
        self._logger = logger
        self._start = start or _start
        self._child: subprocess.Popen[bytes] | None = None
        self._begun = self._due = 0.0
        self._looked = False
        metrics.snapshot(time.time(), 0)

    def restore(self, log: str, turn: Callable[[int], None]) -> None:
        """Fill an empty volume from the newest good snapshot, if there is one; `turn` is told how
        many bytes have come.

        Raises:
            ConfigurationError: the place refuses the index, as where credentials are missing.
        """
        self._logger.info("the volume is empty: looking for a snapshot", place=self._place)
        child = self._start(
            {"do": "restore", "place": self._place, "volume": str(self._folder), "log": log}
        )
        begun = time.monotonic()
        while child.poll() is None:
            turn(_size(self._folder / snapshot.RESTORING))
            time.sleep(_POLL_SECONDS)
        found = _answer(child)
        snapshot.clear_unfinished(self._folder)
        if found.get("is_refused"):
            raise ConfigurationError(
                f"The index's volume is empty, and STREAM_DEDUP_SNAPSHOTS cannot be used: "
                f"{found['failed']} Give the index the credentials of {self._place}, or unset "
                "STREAM_DEDUP_SNAPSHOTS to have it rebuilt from the log."
            )
        problems = found.get("told", [found.get("failed")])
        for sentence in problems:
            self._logger.warning("a snapshot is not used", why=sentence)
        if "name" in found:
            self._logger.info(
                "snapshot restored", seconds=round(time.monotonic() - begun, 1), **_told(found)
            )
        else:
            what = "no snapshot can be used" if problems else "there is no snapshot to begin with"
            self._logger.info(
                f"{what}; the log is read from its beginning",
                place=self._place,
            )

    def turn(self, index: LogIndex, *, has_caught_up: bool, reached: Callable[[str], None]) -> None:
        """Start what is due, and take note of what has ended."""
        if self._child is not None:
            if self._child.poll() is None:
                if time.time() - self._begun > _DAY_SECONDS:
                    self._child.kill()
                return
            self._ended(_answer(self._child))
            self._child = None
        wanted = self._folder / snapshot.WANTED
        is_wanted = wanted.exists()
        if not is_wanted and (not has_caught_up or time.time() < self._due):
            return
        job = {
            "do": "take",
            "place": self._place,
            "by": self._host,
            "keep": KEPT,
            "every_seconds": EVERY_SECONDS,
        }
        if not self._looked and not is_wanted:
            job["do"], job["log"] = "look", index.log
        else:
            try:
                reached("in-flush")
                index.flush()
                index.checkpoint(self._folder / snapshot.CHECKPOINT)
                reached("in-checkpoint")
            except StoreError as error:
                self._failed(str(error))
                return
            finally:
                wanted.unlink(missing_ok=True)
            job |= {"volume": str(self._folder / snapshot.CHECKPOINT), "is_wanted": is_wanted}
        self._child, self._begun = self._start(job), time.time()

    def close(self) -> None:
        """End what runs."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        snapshot.clear_checkpoint(self._folder)

    def _ended(self, found: dict[str, Any]) -> None:
        snapshot.clear_checkpoint(self._folder)
        if "failed" in found:
            self._failed(found["failed"])
            return
        self._looked = True
        for sentence in found["told"]:
            self._logger.warning(sentence)
        if "name" not in found:  # there is none yet
            return
        self._due = found["due_at"]
        self._metrics.snapshot(found["taken_at"], found["bytes"])
        self._logger.info(
            "snapshot taken" if found["is_new"] else "the last snapshot", **_told(found)
        )

    def _failed(self, why: str) -> None:
        self._due = time.time() + min(EVERY_SECONDS, _AGAIN_SECONDS)
        self._logger.warning("no snapshot was taken; it is tried again", place=self._place, why=why)


def _told(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: found[name] for name in ("name", "applied", "bytes", "sent_bytes") if name in found
    }


def _size(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(one.stat().st_size for one in folder.iterdir())
    return 0


def _start(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the process; its input stays open as long as ours does."""
    command = [sys.executable, "-m", "stream_dedup.indexer.snapshot_child", json.dumps(job)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


def _answer(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return what a process that has ended said."""
    out, _ = child.communicate()
    try:
        found: dict[str, Any] = json.loads(out)
    except ValueError:
        found = {
            "failed": f"the process that copies it ended with {child.returncode}; was it killed, for its memory or after a day?"
        }
    return found
