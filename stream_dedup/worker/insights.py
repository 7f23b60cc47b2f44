"""The worker's counts for `insights`: taken after a commit, sent once a second, never in the way of
a document.

Invariants: only what was committed is counted, once; nothing here waits, and a failure costs counts
and a log line; in shadow mode, where nothing is delivered, nothing is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import structlog

from stream_dedup.ground.document import DeadLetter, Reason
from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.ground.hosts import HostNames, named_host, shown_host
from stream_dedup.insights.record import encode
from stream_dedup.insights.tally import HostTally
from stream_dedup.kafka import Admin, InsightsSender
from stream_dedup.log.answers import Judgement
from stream_dedup.log.frame import table_of
from stream_dedup.settings.settings import Settings
from stream_dedup.worker.prepare import InFlight

_logger = structlog.get_logger("stream_dedup.worker")

_CLOSE_SECONDS = 2.0
_INTERVAL_SECONDS = 1.0
_REASONS = 256


class HostCounter:
    """Counts committed batches by host. `sender` None: it does nothing."""

    def __init__(
        self, worker: str, sender: InsightsSender | None, host_header: str | None = None
    ) -> None:
        self._sender = sender
        self._header = host_header
        self._names = HostNames()
        self._tally = HostTally(worker)
        self._next = 0.0

    def committed(self, batches: Sequence[InFlight]) -> None:
        """Count what a transaction that has committed carried."""
        if self._sender is None:
            return
        try:
            now_ms = time.time_ns() // 1_000_000
            for batch in batches:
                self._count(batch, now_ms)
        except Exception as error:  # noqa: BLE001 - the documents are out already; a fault of a statistic must not undo a worker
            why = f"{type(error).__name__}: {error}"
            _logger.error("counts per host are given up until the next start", reason=why)  # noqa: TRY400 - a statistic
            self._sender = None

    def send(self) -> None:
        """Send what was counted, if a second has passed since the last time."""
        if self._sender is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _INTERVAL_SECONDS
        self._send(self._sender)

    def close(self) -> None:
        """Send the rest, if Kafka takes it soon."""
        if self._sender is not None:
            self._send(self._sender)
            self._sender.close(_CLOSE_SECONDS)

    def _send(self, sender: InsightsSender) -> None:
        sender.poll()
        record = self._tally.take_record() if sender.has_room else None
        if record is not None:
            sender.send(encode(record))

    def _count(self, batch: InFlight, now_ms: int) -> None:
        messages, reasons = batch.messages, batch.reasons()
        for row, decided in batch.decided_here():
            if not isinstance(decided, DeadLetter):
                reasons[row] = decided.reason if isinstance(decided, Judgement) else decided
        counted = (reasons > 0) & (reasons < Reason.STALE)  # what is retracted is a dead letter too
        if not batch.is_whole:
            counted &= messages.of_partitions(batch.live)
        rows = np.flatnonzero(counted)
        hosts = self._hosts_of(batch, rows.tolist())
        # Documents of one host and reason are counted together: adding them one by one took the
        # loop a fifth of its time.
        distinct = list(dict.fromkeys(hosts))
        numbers = {host: number for number, host in enumerate(distinct)}
        kind = (
            np.fromiter(map(numbers.__getitem__, hosts), np.int64, len(hosts)) * _REASONS
            + reasons[rows]
        )
        kinds, which = table_of(kind)
        documents, sizes = (
            np.bincount(which).tolist(),
            np.bincount(which, messages.value_bytes[rows]).tolist(),
        )
        for one, count, size in zip(kinds.tolist(), documents, sizes, strict=True):
            self._tally.add_alike(
                distinct[one // _REASONS], one % _REASONS, count, int(size), now_ms
            )
        counted_as, every = (
            (np.cumsum(counted) * counted).tolist(),
            reasons.tolist(),
        )  # its number among them, from 1, or 0
        for row, of in batch.duplicates():
            if counted_as[row]:
                self._tally.add_named(hosts[counted_as[row] - 1], batch.ids[row], every[row], of)

    def _hosts_of(self, batch: InFlight, rows: Sequence[int]) -> list[str]:
        """Return the hosts of some of a batch's records."""
        ids = batch.ids if len(rows) == len(batch.ids) else [batch.ids[row] for row in rows]
        hosts = self._names.of_many(ids)
        if self._header is None:
            return hosts
        given = batch.messages.headers
        return [
            self._named(given.get(row, ())) or host for row, host in zip(rows, hosts, strict=True)
        ]

    def _named(self, headers: Sequence[tuple[str, bytes | None]]) -> str:
        value = next((value for name, value in headers if name == self._header), None)
        return shown_host(named_host(value)) if value else ""


def counter_of(settings: Settings, worker: str, report: Callable[[str], None]) -> HostCounter:
    """Return the counter that the settings ask for; `report` is told `delivered` or `lost` of each
    record.

    Without the topic, or the ACL to see it, it counts nothing, and a warning says so.
    """
    if not settings.insights or not settings.judging_mode.delivers:
        return HostCounter(worker, None)
    topic = settings.topic_names.insights
    try:
        if topic not in Admin(settings).topic_ids([topic]):
            _logger.warning(
                f"The topic {topic} does not exist, so nothing is counted per host; create it "
                "with: stream-dedup "
                "topics apply, or set STREAM_DEDUP_INSIGHTS=false."
            )
            return HostCounter(worker, None)
        sender = InsightsSender(settings, topic, f"{worker}-insights", report)
    except StreamDedupError as error:
        _logger.warning("nothing is counted per host", reason=str(error))
        return HostCounter(worker, None)
    return HostCounter(worker, sender, settings.insights_host_header)
