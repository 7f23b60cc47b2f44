"""The role insights: a Faust application from the headers of the outputs to `host-signals`.

A write has three steps: 1 write rows and signals of the changed hosts, 2 wait until Kafka has
acknowledged them, 3 let Faust commit the records that the rows count.

Workarounds for Faust 0.15.3: it reads records of aborted transactions unless it writes in
transactions itself; it assigns the partitions of different topics to different members, but the
table needs all of them; it commits a record whose handler raised; it creates topics and opens a
port; during a rebalance it drops the records fetched from other topics than the table's, and a new
group has no committed offset to seek back to (`_ConsumerThread`). aiokafka may hang after a broker's
restart (aiokafka #1154): if records wait and none arrives for `_STUCK_SECONDS`, the process ends.

Invariants: one replica counts, and others wait for its partitions; records read under an earlier
assignment are neither written nor committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import faust
import structlog
from aiokafka.errors import IllegalStateError  # type: ignore[import-untyped]
from faust.assignor.client_assignment import ClientAssignment
from faust.assignor.partition_assignor import PartitionAssignor
from faust.auth import GSSAPICredentials, SASLCredentials, SSLCredentials
from faust.transport.drivers import aiokafka
from faust.types import TP

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import BrokerError, ConfigurationError, StreamDedupError
from stream_dedup.domain.hosts import HostNames
from stream_dedup.domain.topics import TopicNames
from stream_dedup.inputs.decoder import ids_of
from stream_dedup.insights.metrics import InsightsMetrics
from stream_dedup.insights.signals import WASTED, HostLedger, Observed, reading_group
from stream_dedup.kafka import Admin, TopicIds, is_recreated, require_topics
from stream_dedup.kafka.security import Security, security_of
from stream_dedup.log import headers
from stream_dedup.serving.kafka_role import RoleFrame, RunningRole, run_role
from stream_dedup.settings.settings import Settings

_logger = structlog.get_logger("stream_dedup.insights")

WRITE_SECONDS = 10.0  # between writes of the signals of hosts with new documents
HOSTS_MAX = 20_000  # at up to 10 kB each
_TURN_SECONDS = 0.1
_CHECK_SECONDS = 5.0
_STUCK_SECONDS = 45.0
_FLUSH_SECONDS = 180.0
_STOP_SECONDS = 15.0
_NEVER_SECONDS = 100 * 365 * 86_400.0
_UNWRITTEN_MAX = 20_000
# The headers with id and position of the page that an event names, by the kind of event.
_OTHER_PAGE = {
    "one-page": (headers.OF_ID, headers.OF_POSITION),
    "template": (headers.SIBLING_ID, headers.SIBLING_POSITION),
    "": ("", ""),
}
_RAW: Any = {
    "key_type": bytes,
    "value_type": bytes,
    "key_serializer": "raw",
    "value_serializer": "raw",
}


class _OneOwner(PartitionAssignor):
    """Assigns all partitions to one member, and keeps them there."""

    def _perform_assignment(self, cluster: Any, member_metadata: Any) -> Any:
        clients = {
            name: self._get_client_metadata(client) for name, client in member_metadata.items()
        }
        owner = min(
            [name for name, client in clients.items() if client.assignment.actives] or clients
        )
        assignment = super()._perform_assignment(cluster, {owner: member_metadata[owner]})
        self._update_member_urls(clients)
        waiting = {name: ClientAssignment(actives={}, standbys={}) for name in clients}
        return {**self._protocol_assignments(waiting, {}, {}, {}), **assignment}


class _ConsumerThread(aiokafka.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"
        return consumer

    async def _fetch_records(
        self,
        consumer: Any,
        active_partitions: set[TP],
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> Any:
        """Fetch only the table's partition during a rebalance, because Faust drops records of the other
        partitions and clears its queues at the end.

        If a rebalance began during the fetch, seek back. Faust also empties `active_partitions`, and
        aiokafka would fetch all partitions for an empty set.
        """
        partitions = {part for part in active_partitions if self._is_read_now(part)}
        if not partitions:
            await asyncio.sleep(_TURN_SECONDS)
            return {}
        records: Any = await super()._fetch_records(consumer, partitions, timeout, max_records)
        for part in [*records]:
            if part not in active_partitions or not self._is_read_now(part):
                with contextlib.suppress(IllegalStateError):  # it is no longer assigned
                    consumer.seek(part, records.pop(part)[0].offset)
        return records

    def _is_read_now(self, partition: TP) -> bool:
        return not self.app.rebalancing or self.consumer._is_changelog_tp(partition)


class _Consumer(aiokafka.Consumer):
    def _new_consumer_thread(self) -> Any:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)


class _Transport(aiokafka.Transport):
    Consumer = _Consumer


class _Table(faust.Table[Any, Any]):
    """A table with one partition; Faust would use the partition of the current record, but rows are
    written outside of record handlers.
    """

    logger = logging.getLogger("faust.tables")

    def partition_for_key(self, key: Any) -> int:
        del key
        return 0


def run(settings: Settings, stop: threading.Event) -> None:
    """Run insights until `stop` is set.

    Raises:
        ConfigurationError: an operator must change a setting (exit 78).
        StreamDedupError: the role cannot continue; a restart continues from its table.
    """
    metrics, names = InsightsMetrics(), settings.topic_names
    frame = RoleFrame(names.unique, "requesting the topics", metrics.registry, _logger)

    def make(role: RunningRole) -> Callable[[], None]:
        ids = role.watch.begin(stop, lambda: check_topics(Admin(settings), names))
        return lambda: asyncio.run(_main(ids, metrics, role))

    run_role(settings, stop, frame, make)


async def _main(ids: TopicIds, metrics: InsightsMetrics, role: RunningRole) -> None:
    await _Insights(ids, metrics, role).run(role.stop)  # Faust needs its event loop at creation


def check_topics(admin: Admin, names: TopicNames) -> TopicIds:
    """Return the ids of the topics that this role reads and writes.

    Raises:
        GoneError: a topic is missing.
        ConfigurationError: a topic that the role writes has more than one partition.
    """
    written = (names.host_signals, names.insights_changelog)
    topics = require_topics(admin, (names.unique, names.duplicates, *written))
    if split := [name for name in written if topics[name].partitions != 1]:
        raise ConfigurationError(
            f"The topic {split[0]} has {topics[split[0]].partitions} partitions and must have one. Delete it, "
            "and create it with: stream-dedup topics apply"
        )
    return topics


class _Insights:
    def __init__(self, ids: TopicIds, metrics: InsightsMetrics, role: RunningRole) -> None:
        self._settings = settings = role.settings
        self._names, self._ids, self._metrics, self._role = settings.topic_names, ids, metrics, role
        self._hosts, self._id_of = HostNames(), ids_of(settings)
        self._ledger = HostLedger(HOSTS_MAX)
        self._unwritten: list[Any] = []
        self._generation = 0
        self._owns = False
        self._folder = tempfile.TemporaryDirectory(prefix="stream-dedup-insights-")
        self._app = app = _application(settings, self._folder.name)
        self._signals: Any = app.topic(self._names.host_signals, **_RAW)
        changelog = app.topic(self._names.insights_changelog, compacting=True, **_RAW)
        self._table: Any = app.Table(
            "hosts", key_type=bytes, value_type=bytes, partitions=1, changelog_topic=changelog
        )
        source = app.topic(self._names.unique, self._names.duplicates, **_RAW)
        app.agent(source, name="hosts")(self._read)
        app.on_partitions_revoked.connect(self._revoked)
        app.on_rebalance_complete.connect(self._recovered)

    async def run(self, stop: threading.Event) -> None:
        self._role.health.set_startup(0.5, "joining the group and reading the table")
        watch_task, write_task, next_write = asyncio.create_task(self._watch_topics()), None, 0.0
        try:
            await self._app.start()
            _logger.info("insights started", signals=self._names.host_signals)
            while not stop.is_set():
                self._role.health.beat()
                if self._app.crashed:
                    raise StreamDedupError(
                        f"Faust ended unexpectedly ({self._app.crash_reason!r}). Restart this "
                        "role; it continues from its table."
                    )
                for task in (watch_task, write_task):
                    if task is not None and task.done():
                        task.result()
                is_due = time.monotonic() >= next_write or len(self._unwritten) >= _UNWRITTEN_MAX
                if self._owns and is_due and (write_task is None or write_task.done()):
                    next_write = time.monotonic() + WRITE_SECONDS
                    write_task = asyncio.create_task(self._write())
                await asyncio.sleep(_TURN_SECONDS)
            if write_task is not None:
                await write_task
            if self._owns:
                await self._write()
            _logger.info("insights stopped", hosts=self._ledger.hosts)
        finally:
            watch_task.cancel()
            with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(self._app.stop(), _STOP_SECONDS)
            self._folder.cleanup()

    async def _read(self, stream: Any) -> None:
        async for event in stream.noack().events():
            while len(self._unwritten) >= 2 * _UNWRITTEN_MAX:
                await asyncio.sleep(_TURN_SECONDS)
            host, observed = self._read_observed(event.message)
            counted = self._ledger.count(host, observed) if host else None
            result = "no-host" if counted is None else "counted" if counted else "repeated"
            self._metrics.read.labels(result).inc()
            event.value = event.message.value = None  # a text may be large
            self._unwritten.append(event)

    def _read_observed(self, record: Any) -> tuple[str, Observed]:
        """Return the host of a record of an output, and the record's facts from its headers."""
        text = partial(headers.text_of, list(record.headers or ()))
        value, time_ms = record.value or b"", round((record.timestamp or 0.0) * 1000)
        message = Message(
            record.topic, record.partition, record.offset, record.key, value, time_ms, []
        )
        identifier = self._id_of(message) or b""
        host = self._hosts.of(identifier)
        reason, is_sibling = text(headers.REASON), bool(text(headers.SIBLING_POSITION))
        kind = "one-page" if reason in WASTED else "template" if is_sibling else ""
        page, position = map(text, _OTHER_PAGE[kind])
        time_ms = min(time_ms, time.time_ns() // 1_000_000)
        part, size = f"{record.topic}-{record.partition}", len(value)
        return host, Observed(
            part, record.offset, time_ms, reason, size, identifier, kind, page, position
        )

    async def _write(self) -> None:
        written, self._unwritten = self._unwritten, []
        generation = self._generation
        changes, begun = self._ledger.changes()
        for host, row, _ in changes:  # without `await`, so that no revocation can interleave
            if row is not None:
                self._table[host.encode()] = row
            elif host.encode() in self._table:
                del self._table[host.encode()]
        try:
            with self._metrics.stage("write"):
                sent = [
                    await self._signals.send(key=host.encode(), value=value, partition=0)
                    for host, _, value in changes
                ]
                await asyncio.wait_for(self._app.producer.flush(), _FLUSH_SECONDS)
                await asyncio.wait_for(asyncio.gather(*sent), _FLUSH_SECONDS)
        except Exception as error:
            raise BrokerError(
                f"Kafka did not accept the signals of {len(changes)} hosts: "
                f"{type(error).__name__}: {error}. See the broker's log, and the ACLs in "
                "topics/users/insights.yaml; a restart continues from its table."
            ) from error
        if generation == self._generation:
            for event in written:
                event.ack()
        self._metrics.signals.inc(len(changes))
        self._metrics.hosts.set(self._ledger.hosts)
        for host, event in begun:
            self._metrics.events.labels(event["event"]).inc()
            _logger.warning("an event of a host began", host=host, begun=event)
        if self._owns:
            self._role.health.set_ready(True, f"counting; {self._ledger.hosts} hosts are known")

    async def _revoked(self, *_: Any, **__: Any) -> None:
        self._owns = False
        self._generation += 1
        self._unwritten = []
        self._ledger.load(())

    async def _recovered(self, *_: Any, **__: Any) -> None:
        assigned = self._app.consumer.assignment()
        self._generation += 1
        self._owns = any(
            str(partition.topic) == self._names.insights_changelog for partition in assigned
        )
        self._unwritten = []
        rows = [(bytes(key), bytes(row)) for key, row in self._table.data.items() if row]
        if unreadable := self._ledger.load(rows if self._owns else ()):
            _logger.error("rows of the table cannot be read and are skipped", rows=unreadable)
        self._role.health.set_startup(1.0, "started")
        if self._owns:
            _logger.info("the partitions were assigned to this replica", hosts=self._ledger.hosts)
        else:
            why = "waiting for the partitions, which another replica reads or is about to release"
            self._role.health.set_ready(False, why)

    async def _watch_topics(self) -> None:
        """Compare the positions with the topics' ends regularly; a thread asks, because the client
        waits for unavailable brokers.
        """
        admin, progressed, last_position = Admin(self._settings), time.monotonic(), -1
        outputs = (self._names.unique, self._names.duplicates)
        keys = [(name, part) for name in outputs for part in range(self._ids[name].partitions)]
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                bounds = await asyncio.to_thread(admin.bounds, keys)
                topic_ids = await asyncio.to_thread(admin.topic_ids, list(self._ids))
            except BrokerError as error:
                # After a broker's restart librdkafka may use the old leader epoch forever; a new
                # client does not.
                admin, progressed = Admin(self._settings), time.monotonic()
                _logger.warning("the ends of the topics could not be read", reason=str(error))
                continue
            if recreated := [
                name
                for name, known in self._ids.items()
                if is_recreated(topic_ids, name, known.topic_id)
            ]:
                raise StreamDedupError(
                    f"{' and '.join(recreated)} were deleted and created again; this role exits, and its restart reads the new ones."
                )
            recovery = self._app.tables.recovery
            is_reading = self._owns or recovery.in_recovery
            if not is_reading or self._role.watch.is_silent():
                progressed = time.monotonic()
                continue
            if self._owns:
                consumer = self._app.consumer
                positions = {key: await consumer.position(TP(*key)) or 0 for key in keys}
                behind = sum(
                    max(0, bounds[key].end - max(positions[key], bounds[key].low)) for key in keys
                )
                self._metrics.lag.set(behind)
                position = sum(positions.values())
            else:
                behind = recovery.active_remaining_total()
                position = sum(offset or 0 for offset in recovery.active_offsets.values())
            if not behind or position != last_position:
                progressed, last_position = time.monotonic(), position
            if time.monotonic() - progressed > _STUCK_SECONDS:
                waiting = outputs if self._owns else (self._names.insights_changelog,)
                raise StreamDedupError(
                    f"{behind} records of {' and '.join(waiting)} wait, but none was received for "
                    f"{_STUCK_SECONDS:.0f} s: the client hangs. This role exits; a restart "
                    "continues from its table."
                )


def _application(settings: Settings, folder: str) -> Any:
    if settings.log_level == "debug":
        for library in ("faust", "mode", "aiokafka"):
            logging.getLogger(library).setLevel(logging.INFO)
    # Faust logs each topic that it did not create, which is intended here.
    logging.getLogger("faust.transport.consumer").setLevel(logging.ERROR)
    brokers = [broker.strip() for broker in settings.kafka_bootstrap_servers.split(",")]
    app: Any = faust.App(
        reading_group(settings.group),
        broker=";".join(f"aiokafka://{broker}" for broker in brokers),
        broker_client_id=f"insights-{os.uname().nodename}",
        broker_credentials=_credentials(security_of(settings.kafka)),
        broker_commit_interval=1.0,
        broker_session_timeout=15.0,
        broker_heartbeat_interval=3.0,
        broker_request_timeout=30.0,
        # Faust reports a partition as stuck if nothing is written to it for that time
        # (faust-streaming #166).
        stream_processing_timeout=_NEVER_SECONDS,
        broker_commit_livelock_soft_timeout=_NEVER_SECONDS,
        consumer_auto_offset_reset="earliest",
        key_serializer="raw",
        value_serializer="raw",
        store="memory://",
        datadir=folder,  # required, but unused
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        Table=_Table,
        PartitionAssignor=_OneOwner,
        web_enabled=False,
        autodiscover=False,
        stream_wait_empty=False,
        loop=asyncio.get_running_loop(),
    )
    app.transport = _Transport(app.conf.broker_consumer, app)
    return app


def _credentials(security: Security) -> Any:
    context = security.ssl_context
    if security.mechanism == "GSSAPI":
        return GSSAPICredentials(
            kerberos_service_name=security.kerberos_service, ssl_context=context, mechanism="GSSAPI"
        )
    if security.mechanism is not None:
        return SASLCredentials(
            username=security.username,
            password=security.password,
            ssl_context=context,
            mechanism=security.mechanism,
        )
    return SSLCredentials(context) if context is not None else None
