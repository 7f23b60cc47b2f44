"""Take and restore snapshots of a running index, in a second process.

The index makes a checkpoint of RocksDB; a child process of lower priority copies it to the store
(`index.snapshot`), so that no verdict waits for the store. Replicas share one place: a replica that
finds a recent snapshot of another takes none.

Invariants: a store that fails or hangs neither stops the index nor delays its reading; the child
exits when the index does.
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

from structlog.typing import FilteringBoundLogger

from stream_dedup.domain.errors import ConfigurationError, StoreError
from stream_dedup.index import snapshot
from stream_dedup.index.index import LogIndex
from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.settings.settings import Settings

CHILD_BYTES: Final = 320 << 20
"""Memory limit of the child: 293 MB measured with 68 MB files on S3, 2026-11-28."""
SNAPSHOTS_KEPT: Final = 2  # for each log; older ones are removed
EVERY_SECONDS = 86_400.0  # the alert on old snapshots fires after twice this time
_RETRY_SECONDS: Final = 300.0
_CHILD_SECONDS_MAX: Final = (
    86_400.0  # a child that runs for longer hangs in its store; it is killed
)
_POLL_SECONDS: Final = 0.2

StartChild = Callable[[dict[str, Any]], "subprocess.Popen[bytes]"]


class Snapshots:
    """Takes and restores snapshots of the volume in `folder`, as configured."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        host: str,
        metrics: IndexMetrics,
        logger: FilteringBoundLogger,
        start: StartChild | None = None,
    ) -> None:
        self._place = str(settings.snapshots)
        self._folder = folder
        self._host = host
        self._metrics = metrics
        self._logger = logger
        self._start_child = start or _start_child
        self._child: subprocess.Popen[bytes] | None = None
        self._started_at = self._due = 0.0
        metrics.set_snapshot(time.time(), 0)

    def restore(self, log: str, report_progress: Callable[[int], None]) -> None:
        """Fill an empty volume from the newest valid snapshot, if there is one. Call
        `report_progress` with the number of bytes received.

        Raises:
            ConfigurationError: the store refuses access, for example without credentials.
        """
        self._logger.info("the volume is empty: looking for a snapshot", place=self._place)
        child = self._start_child(
            {"do": "restore", "place": self._place, "volume": str(self._folder), "log": log}
        )
        started_seconds = time.monotonic()
        while child.poll() is None:
            report_progress(_folder_bytes(self._folder / snapshot.RESTORING))
            time.sleep(_POLL_SECONDS)
        result = _read_result(child)
        snapshot.clear_unfinished(self._folder)
        if result.get("is_refused"):
            raise ConfigurationError(
                "The index's volume is empty, and STREAM_DEDUP_SNAPSHOTS cannot be used: "
                f"{result['failed']} Set the credentials for {self._place} in the index's "
                "environment; or unset STREAM_DEDUP_SNAPSHOTS, and the index is rebuilt from the "
                "log."
            )
        problems = result.get("warnings", [result.get("failed")])
        for sentence in problems:
            self._logger.warning("a snapshot is not used", reason=sentence)
        if "name" in result:
            self._logger.info(
                "snapshot restored",
                seconds=round(time.monotonic() - started_seconds, 1),
                **_figures(result),
            )
        else:
            outcome = "no snapshot can be used" if problems else "there is no snapshot yet"
            self._logger.info(
                f"{outcome}; the log is read from its beginning",
                place=self._place,
            )

    def advance(
        self, index: LogIndex, *, has_caught_up: bool, report_step: Callable[[str], None]
    ) -> None:
        """Process the result of a child that has ended, and start the next one if a snapshot is due
        or requested. Call `report_step` with the name of each step.
        """
        if self._child is not None:
            if self._child.poll() is None:
                if time.time() - self._started_at > _CHILD_SECONDS_MAX:
                    self._child.kill()
                return
            self._process_result(_read_result(self._child))
            self._child = None
        request = self._folder / snapshot.REQUEST_FILE
        is_wanted = request.exists()
        if not is_wanted and (not has_caught_up or time.time() < self._due):
            return
        job = {
            "do": "take",
            "place": self._place,
            "by": self._host,
            "keep": SNAPSHOTS_KEPT,
            "every_seconds": EVERY_SECONDS,
            "volume": str(self._folder / snapshot.CHECKPOINT),
            "is_wanted": is_wanted,
        }
        try:
            report_step("in-flush")
            index.flush()
            index.checkpoint(self._folder / snapshot.CHECKPOINT)
            report_step("in-checkpoint")
        except StoreError as error:
            self._report_failure(str(error))
            return
        finally:
            request.unlink(missing_ok=True)
        self._child, self._started_at = self._start_child(job), time.time()

    def close(self) -> None:
        """Kill a running child, and delete the checkpoint."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        snapshot.clear_checkpoint(self._folder)

    def _process_result(self, result: dict[str, Any]) -> None:
        snapshot.clear_checkpoint(self._folder)
        if "failed" in result:
            self._report_failure(result["failed"])
            return
        for sentence in result["warnings"]:
            self._logger.warning(sentence)
        self._due = result["due_at"]
        self._metrics.set_snapshot(result["taken_at"], result["bytes"])
        self._logger.info(
            "snapshot taken" if result["is_new"] else "the last snapshot", **_figures(result)
        )

    def _report_failure(self, reason: str) -> None:
        self._due = time.time() + min(EVERY_SECONDS, _RETRY_SECONDS)
        self._logger.warning(
            "no snapshot was taken; the index tries again", place=self._place, reason=reason
        )


def _figures(result: dict[str, Any]) -> dict[str, Any]:
    return {
        name: result[name] for name in ("name", "applied", "bytes", "sent_bytes") if name in result
    }


def _folder_bytes(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(file.stat().st_size for file in folder.iterdir())
    return 0


def _start_child(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the child; its standard input is closed when this process exits."""
    command = [sys.executable, "-m", "stream_dedup.indexer.snapshot_child", json.dumps(job)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


def _read_result(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return the result of a child that has ended."""
    out, _ = child.communicate()
    try:
        result: dict[str, Any] = json.loads(out)
    except ValueError:
        result = {
            "failed": f"the copying process exited with status {child.returncode}; was it killed "
            "because of its memory or its time limit of a day?"
        }
    return result
