"""Role three, insights: a loop from `insights` through `ledger.Ledger` to `host-signals`. No
decisions here.

The steps of a turn that writes: 1 take what was read, 2 count it, 3 write the rows and signals that
changed, 4 acknowledge.

Invariants: one replica does the work, a second waits for its partition; a record that cannot be
read is passed over; if records wait and none comes for `_STUCK_SECONDS`, be it the first one after
a take-over, the process ends, because a client that hangs after a broker's restart or a rebalance
says so nowhere (aiokafka #1154).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine

import structlog

from stream_dedup.ground.errors import (
    BrokerError,
    ConfigurationError,
    FormatError,
    GoneError,
    OtherFormatError,
    StreamDedupError,
)
from stream_dedup.ground.topics import TopicNames
from stream_dedup.insights import record
from stream_dedup.insights.ledger import BegunEvent, HostLedger, rfc3339
from stream_dedup.insights.metrics import InsightsMetrics
from stream_dedup.insights.page import Console
from stream_dedup.insights.stream import HostStream
from stream_dedup.kafka import Admin, Lives, is_another
from stream_dedup.service.running import RoleFrame, RunningRole, run_role
from stream_dedup.settings.settings import Settings

_logger = structlog.get_logger("stream_dedup.insights")

_TURN_SECONDS = 0.1
_LOOK_SECONDS = 5.0
_STUCK_SECONDS = 45.0
_EARLY_RECORDS = 100


def run(settings: Settings, stop: threading.Event) -> None:
    """Run insights until `stop` is set.

    Raises:
        ConfigurationError: something must be changed by an operator (exit 78).
        StreamDedupError: the role cannot go on; a restart goes on where its table stands.
    """
    metrics = InsightsMetrics()
    console = Console()
    frame = RoleFrame(
        settings.topic_names.insights,
        "asking for the topics",
        metrics.registry,
        _logger,
        console.routes(),
    )

    def make(role: RunningRole) -> Callable[[], None]:
        ids = role.watch.begin(stop, lambda: check_topics(Admin(settings), settings.topic_names))
        return lambda: asyncio.run(_main(ids, metrics, console, role))

    run_role(settings, stop, frame, make)


async def _main(ids: Lives, metrics: InsightsMetrics, console: Console, role: RunningRole) -> None:
    # Faust's parts want the loop that they will run in, so they are made inside it.
    await _Insights(ids, metrics, console, role).run(role.stop)


def check_topics(admin: Admin, names: TopicNames) -> Lives:
    """Return the ids of the topics that this role reads and writes.

    Raises:
        GoneError: one is missing.
        ConfigurationError: one has more than one partition.
    """
    wanted = (names.insights, names.host_signals, names.insights_changelog)
    found = admin.topic_ids(wanted)
    missing = [name for name in wanted if name not in found]
    many = [name for name in wanted if name in found and found[name][1] != 1]
    if missing:
        raise GoneError(
            f"{' and '.join(missing)} do not exist; create them with: stream-dedup topics apply"
        )
    if many:
        raise ConfigurationError(
            f"The topic {many[0]} has {found[many[0]][1]} partitions and must have one. Delete it, "
            "and create it with: "
            "stream-dedup topics apply"
        )
    return found


class _Insights:
    def __init__(
        self, ids: Lives, metrics: InsightsMetrics, console: Console, role: RunningRole
    ) -> None:
        self._settings = settings = role.settings
        self._names = names = settings.topic_names
        self._admin = Admin(settings)
        self._health = role.health
        self._watch = role.watch
        self._ids = ids
        self._metrics = metrics
        self._console = console
        self._interval_seconds = settings.insights_interval.total_seconds()
        self._ledger = HostLedger(
            round(settings.insights_window.total_seconds()),
            round(settings.insights_keep.total_seconds()),
            settings.insights_hosts,
        )
        self._stream = HostStream(settings, names, f"insights-{os.uname().nodename}")
        self._generation = 0
        self._next_offset: int | None = None
        self._waiting_since: float | None = None
        self._seen_before: int | None = None
        self._next_write = 0.0

    async def run(self, stop: threading.Event) -> None:
        self._health.startup(0.5, "joining the group and reading the table")
        looking = asyncio.create_task(self._look_around())
        try:
            await self._stream.start()
            _logger.info(
                "insights started", topic=self._names.insights, signals=self._names.host_signals
            )
            while not stop.is_set():
                self._health.beat()
                self._stream.raise_failure()
                if looking.done():
                    looking.result()
                await self._turn()
                await asyncio.sleep(_TURN_SECONDS)
            if self._stream.owns:
                await self._write()
            _logger.info("insights stopped", hosts=self._ledger.hosts)
        finally:
            looking.cancel()
            await self._stream.stop()

    async def _turn(self) -> None:
        if self._generation != self._stream.generation:
            self._generation = self._stream.generation
            self._begin()
        if not self._stream.owns:
            return
        now = time.monotonic()
        if now >= self._next_write or self._stream.waiting >= _EARLY_RECORDS:
            self._next_write = now + self._interval_seconds
            await self._write()

    def _begin(self) -> None:
        """The partition came or went: what is known is what the table says."""
        unreadable = self._ledger.load(self._stream.rows() if self._stream.owns else ())
        self._next_offset = self._stream.begins_at if self._stream.owns else None
        self._waiting_since = None
        self._next_write = 0.0
        if unreadable:
            _logger.error("rows of the table cannot be read and are left out", rows=unreadable)
        if self._stream.owns:
            _logger.info("the partition is ours", hosts=self._ledger.hosts)
            self._health.startup(1.0, "started")
        else:
            self._health.startup(1.0, "started")
            self._health.ready(
                False,
                "waiting for the partition, which another replica has, or which is being taken "
                "over",
            )
        self._show()

    async def _write(self) -> None:
        taken = self._stream.take_rows()  # 1
        for one in taken:  # 2
            try:
                counted = self._ledger.apply(record.decode(one.value), one.stamp)
            except FormatError as error:
                if isinstance(error, OtherFormatError):
                    raise
                self._metrics.read.labels("malformed").inc()
                what = "a record of insights was passed over"
                _logger.error(what, offset=one.stamp.offset, reason=str(error))  # noqa: TRY400 - its sender is at fault
            else:
                self._metrics.read.labels("counted" if counted else "repeated").inc()
            self._next_offset = one.stamp.offset + 1
        changes, begun = self._ledger.changes()
        rows = [(one.host.encode(), one.row) for one in changes]
        signals = [
            (one.host.encode(), one.signals) for one in changes if one.signals or one.row is None
        ]
        generation = self._stream.generation
        if changes:
            with self._metrics.stage("write"):
                await self._patiently(self._stream.write(rows, signals))  # 3
        if generation == self._stream.generation:
            self._stream.acknowledge(taken)  # 4
        self._metrics.signals.inc(len(signals))
        self._metrics.hosts.set(self._ledger.hosts)
        for new in begun:
            self._tell(new)
        self._show()

    async def _patiently(self, writing: Coroutine[None, None, None]) -> None:
        """Wait for a broker that is away; the loop is alive meanwhile."""
        task = asyncio.ensure_future(writing)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=1.0)
                self._health.beat()
                self._stream.raise_failure()
            task.result()
        finally:
            task.cancel()

    def _tell(self, begun: BegunEvent) -> None:
        event = begun.event
        self._metrics.events.labels(event.kind).inc()
        if event.kind == "one-page":
            _logger.warning(
                "many ids of one host fell on one document: a template, a login wall, a page that "
                "says not found?",
                event_kind=event.kind,
                host=begun.host,
                ids=event.ids,
                of=event.of,
                position=event.position,
            )
        else:
            _logger.warning(
                "nearly all documents of a host were dropped in favour of other ids: a mirror, or "
                "a template judged as text?",
                event_kind=event.kind,
                host=begun.host,
                documents=event.ids,
                since=rfc3339(event.since_ms),
            )

    def _show(self) -> None:
        if self._stream.owns:
            self._health.ready(True, f"counting; {self._ledger.hosts} hosts are known")
        self._console.show(self._ledger.view(Console.HOSTS_MAX), owns=self._stream.owns)

    async def _look_around(self) -> None:
        """Compare with the topic's end, now and then; a thread asks, because the client waits for
        brokers that are away.
        """
        key = (self._names.insights, 0)
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._watch.is_silent():
                self._waiting_since = None
                continue
            try:
                low, end = (await asyncio.to_thread(self._admin.ends, [key]))[key]
                found = await asyncio.to_thread(self._admin.topic_ids, list(self._ids))
            except BrokerError as error:
                self._waiting_since = None
                # After a broker's restart librdkafka may ask with the old leader epoch for ever; a
                # new client does not.
                self._admin = Admin(self._settings)
                _logger.warning("the end of the topic could not be asked for", reason=str(error))
                continue
            if anew := [
                name
                for name, (topic_id, _) in self._ids.items()
                if is_another(found, name, topic_id)
            ]:
                raise StreamDedupError(
                    f"{' and '.join(anew)} were deleted and created again; this role ends so that "
                    "a restart begins with them."
                )
            seen = self._next_offset
            behind = 0 if seen is None else max(0, end - max(seen, low) - self._stream.waiting)
            if self._stream.owns:
                self._metrics.lag.set(behind)
            moved, self._seen_before = seen != self._seen_before, seen
            if not behind or moved:
                self._waiting_since = None
                continue
            self._waiting_since = self._waiting_since or time.monotonic()
            if time.monotonic() - self._waiting_since > _STUCK_SECONDS:
                raise StreamDedupError(
                    f"{behind} records of {self._names.insights} wait, and none has come for "
                    f"{_STUCK_SECONDS:.0f} s: the "
                    "client hangs. This role ends; a restart goes on where its table stands."
                )
