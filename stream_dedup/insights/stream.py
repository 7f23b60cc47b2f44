"""Faust: the only file that imports it. Records of `insights` in, a table with its changelog,
records of `host-signals` out.

What is guarded against, because of what Faust 0.15.3 does: it creates no topic (`topics/` is the
one source); it opens no port; everything is raw bytes, so that nothing on a topic is ever
unpickled; a record is acknowledged by us, after what it changed is durable, because Faust
acknowledges one whose handler raised; its transport is aiokafka, because its confluent one does not
work; a group without committed offsets is taken to the first record after each rebalance, because
Faust throws away what it reads meanwhile and goes back to committed offsets only.

Invariants: one partition, so one owner; `take` gives each record of an assignment once, in order;
what was taken under an assignment that is gone is neither written nor acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import faust
from faust.auth import GSSAPICredentials, SASLCredentials, SSLCredentials

from stream_dedup.ground.errors import BrokerError, StreamDedupError
from stream_dedup.ground.topics import TopicNames
from stream_dedup.insights.record import reading_group
from stream_dedup.insights.row import Stamp
from stream_dedup.kafka.security import Security, security_of, ssl_context
from stream_dedup.settings.settings import Settings
from stream_dedup.settings.units import parse_duration

_BUFFERED_MAX = 200
_RETRY_SECONDS = 0.05
_STOP_SECONDS = 15.0
_FLUSH_SECONDS = 180.0
_SESSION_SECONDS = 15.0
_REQUEST_SECONDS = 30.0
_NEVER_SECONDS = 100 * 365 * 86_400.0


class Taken(NamedTuple):
    """One record, where it lies, and Faust's event, to be acknowledged."""

    value: bytes | None
    stamp: Stamp
    event: Any


class _Table(faust.Table[Any, Any]):
    """A table of one partition; Faust would take that of the record in hand, and there is none
    where this is written.
    """

    logger = logging.getLogger("faust.tables")

    def partition_for_key(self, key: Any) -> int:
        del key
        return 0


class HostStream:
    """A Faust application in the running event loop. While `owns`, records come from the offset
    `begins_at` on.
    """

    def __init__(self, settings: Settings, names: TopicNames, client: str) -> None:
        """Take the connection from the settings.

        Raises:
            ConfigurationError: the security settings ask for what aiokafka cannot do.
        """
        if settings.log_level == "debug":
            for library in ("faust", "mode", "aiokafka"):
                logging.getLogger(library).setLevel(logging.INFO)
        # Faust tells of each topic that it did not create; we know.
        logging.getLogger("faust.transport.consumer").setLevel(logging.ERROR)
        # It wants a folder, and keeps nothing in it.
        self._folder = tempfile.TemporaryDirectory(prefix="stream-dedup-insights-")
        raw: dict[str, Any] = {
            "key_type": bytes,
            "value_type": bytes,
            "key_serializer": "raw",
            "value_serializer": "raw",
            "partitions": 1,
            "allow_empty": True,
        }
        self.app: Any = faust.App(
            reading_group(settings.group),
            broker=";".join(
                f"aiokafka://{one.strip()}" for one in settings.kafka_bootstrap_servers.split(",")
            ),
            broker_client_id=client,
            broker_credentials=_credentials(security_of(settings.kafka)),
            broker_commit_interval=1.0,
            broker_session_timeout=_seconds(settings, "session.timeout.ms", _SESSION_SECONDS),
            broker_heartbeat_interval=_seconds(settings, "heartbeat.interval.ms", 3.0),
            broker_request_timeout=_REQUEST_SECONDS,
            # It calls a partition stuck to which nobody has written for that time (faust-streaming
            # #166). What really hangs is noticed by the role, which compares with the topic's end.
            stream_processing_timeout=_NEVER_SECONDS,
            broker_commit_livelock_soft_timeout=_NEVER_SECONDS,
            consumer_auto_offset_reset="earliest",
            key_serializer="raw",
            value_serializer="raw",
            store="memory://",
            datadir=self._folder.name,
            table_standby_replicas=0,
            topic_allow_declare=False,
            topic_disable_leader=True,
            topic_partitions=1,
            Table=_Table,
            web_enabled=False,
            autodiscover=False,
            stream_wait_empty=False,
            loop=asyncio.get_running_loop(),
        )
        source = self.app.topic(names.insights, **raw)
        self._source = names.insights
        self._signals: Any = self.app.topic(names.host_signals, **raw)
        self._table: Any = self.app.Table(
            "hosts",
            key_type=bytes,
            value_type=bytes,
            partitions=1,
            changelog_topic=self.app.topic(names.insights_changelog, compacting=True, **raw),
        )
        self._buffer: list[Taken] = []
        self._failure: BaseException | None = None
        self.generation = 0
        self.owns = False
        self.begins_at = 0
        self.app.agent(source, name="hosts")(self._read)
        connect: Any = self.app.on_partitions_revoked.connect
        connect(self._revoked)
        connect = self.app.on_rebalance_complete.connect
        connect(self._recovered)

    async def start(self) -> None:
        """Connect and join the group. Whether the partition is ours is `owns`, once its table was
        read.
        """
        await self.app.start()

    async def stop(self) -> None:
        """Leave the group; a client that does not come back is left behind."""
        with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(self.app.stop(), _STOP_SECONDS)
        self._folder.cleanup()

    def raise_failure(self) -> None:
        """Raise what stopped Faust.

        Raises:
            StreamDedupError: it has crashed; a restart goes on from the table.
        """
        reason = self._failure or (self.app.crash_reason if self.app.crashed else None)
        if reason is not None or self.app.crashed:
            raise StreamDedupError(
                f"Faust ended by itself ({type(reason).__name__}: {reason}); a restart goes on "
                "where the table stands."
            )

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Give the table's rows, as far as it was recovered."""
        return iter(
            [
                (bytes(key), bytes(value))
                for key, value in self._table.data.items()
                if value is not None
            ]
        )

    @property
    def waiting(self) -> int:
        """How many records were read and not taken yet."""
        return len(self._buffer)

    def take_rows(self) -> list[Taken]:
        """Return what has been read since the last time."""
        taken, self._buffer = self._buffer, []
        return taken

    async def write(
        self,
        rows: Sequence[tuple[bytes, bytes | None]],
        signals: Sequence[tuple[bytes, bytes | None]],
    ) -> None:
        """Change the table, write the signals, and return once both are durable.

        Raises:
            BrokerError: Kafka did not take them.
        """
        for (
            key,
            row,
        ) in rows:  # without waiting in between: a revocation cannot come into the middle of it
            if row is None:
                if key in self._table:
                    del self._table[key]
            else:
                self._table[key] = row
        try:
            waiting = [
                await self._signals.send(key=key, value=value, partition=0)
                for key, value in signals
            ]
            await asyncio.wait_for(self.app.producer.flush(), _FLUSH_SECONDS)
            for one in waiting:
                await asyncio.wait_for(one, _FLUSH_SECONDS)
        except Exception as error:
            raise BrokerError(
                f"Kafka did not take the signals of {len(signals)} hosts: {type(error).__name__}: "
                f"{error}. See the broker's "
                "log, and the ACLs in topics/users/insights.yaml; a restart goes on where the "
                "table stands."
            ) from error

    def acknowledge(self, taken: Sequence[Taken]) -> None:
        """Let Faust commit past these records."""
        for one in taken:
            one.event.ack()

    async def _read(self, stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            while len(self._buffer) >= _BUFFERED_MAX:
                await asyncio.sleep(_RETRY_SECONDS)
            self._buffer.append(
                Taken(
                    event.value,
                    Stamp(round((message.timestamp or 0.0) * 1000), message.offset),
                    event,
                )
            )

    async def _revoked(self, _app: Any, revoked: Any = None, **_: Any) -> None:
        del revoked
        self.owns = False
        self.generation += 1
        self._buffer.clear()

    async def _recovered(self, _app: Any, **_: Any) -> None:
        self.generation += 1
        assigned = self.app.consumer.assignment()
        self.owns = any(str(one.topic) == self._table.changelog_topic_name for one in assigned)
        # Faust has read the group's offsets by now, and tells them nowhere else.
        offsets = self.app.consumer._committed_offset
        found = {one: offsets.get(one) for one in assigned if str(one.topic) == self._source}
        self.begins_at = next((offset for offset in found.values() if offset is not None), 0)
        new = [one for one, offset in found.items() if offset is None]
        if new:
            # What it threw away meanwhile would wait for the next start.
            await self.app.consumer.seek_wait(await self.app.consumer.earliest_offsets(*new))


def _credentials(security: Security) -> Any:
    context = ssl_context(security)
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


def _seconds(settings: Settings, prop: str, default: float) -> float:
    value = settings.kafka.get(prop)
    if value is None:
        return default
    return float(value) / 1000 if value.isdigit() else parse_duration(value).total_seconds()
