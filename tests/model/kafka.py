"""A Kafka in memory: brokers, group coordinator and transaction coordinator as one object, and
librdkafka's two clients.

What it has, because exactly-once depends on it:

    partitions      offsets, LogAppendTime, transaction markers that take offsets, last stable offset, aborted records
    groups          joining, generations, cooperative assignment, sessions; the client's thread learns of a generation before
                    the callback runs, and a member that was thrown out has generation -1, which no
                    coordinator checks
    transactions    ids, epochs, fencing, offsets that are pending until the end, time-outs, an EndTxn that comes late and
                    ends any transaction of the same producer is open then (KAFKA-17754)
    appends         of idempotent producers: in order, acknowledged late, arriving after their process died

The clients have the methods that `stream_dedup.kafka` calls, and raise what librdkafka raises.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.model.scheduler import Process, Scheduler

Key = tuple[str, int]
_RETRY_MS_LEAST = 400  # librdkafka's back-off, of 500 ms as the worker sets it, less a fifth


def failure(code: int, text: str, **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, text, **flags))


@dataclass(eq=False, slots=True)
class Txn:
    """A transaction: `state` is open, committed or aborted."""

    state: str = "open"
    touched: set[Key] = field(default_factory=set)
    offsets: dict[Key, tuple[int, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    """A record of a partition; a marker has no value."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]
    txn: Txn | None = None
    is_marker: bool = False


@dataclass(slots=True)
class Topic:
    """A topic; one that is deleted and created again is another object."""

    name: str
    id: bytes
    partitions: list[list[Record]]


@dataclass(slots=True)
class Producing:
    """What the transaction coordinator knows of a transactional id."""

    number: int
    epoch: int = 0
    txn: Txn | None = None
    process: Process | None = None


@dataclass(eq=False, slots=True)
class Member:
    """A member as the group coordinator knows it."""

    consumer: Consumer
    joined: bool = False
    claims: frozenset[Key] = frozenset()
    assigned: frozenset[Key] = frozenset()
    seen: bool = False
    synced: bool = True


class Group:
    def __init__(self, chance: random.Random) -> None:
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.is_joining = False
        self.offsets: dict[Key, tuple[int, str]] = {}
        self.moves = "balance"
        self._chance = chance
        self._numbers = 0

    def enter(self, consumer: Consumer) -> str:
        """Take in a new member, which makes all join again."""
        self._numbers += 1
        name = f"m{self._numbers}"
        self.members[name] = Member(consumer)
        self.rebalance()
        return name

    def leave(self, name: str) -> None:
        """Remove a member."""
        if self.members.pop(name, None) is not None:
            self.rebalance()

    def rebalance(self, moves: str | None = None) -> None:
        """Make all members join again. `moves`: everything, something or nothing."""
        self.moves = moves or self.moves
        self.is_joining = bool(self.members)
        for member in self.members.values():
            member.joined = False

    def join(self, name: str, claims: frozenset[Key], keys: Sequence[Key]) -> None:
        """Let a member join with the partitions it owns; the last makes the next generation."""
        member = self.members[name]
        member.joined, member.claims = True, claims
        if not all(group_member.joined for group_member in self.members.values()):
            return
        self.generation += 1
        self.is_joining = False
        self._assign(keys)
        for group_member in self.members.values():
            group_member.seen = group_member.synced = False

    def _assign(self, keys: Sequence[Key]) -> None:
        names = sorted(self.members)
        owners = {key: name for name in names for key in self.members[name].claims}
        wanted: dict[str, list[Key]] = {name: [] for name in names}
        for key in keys:
            if key in owners and self.moves != "everything":
                wanted[owners[key]].append(key)
        for key in keys:
            if key not in owners or self.moves == "everything":
                others = [name for name in names if name != owners.get(key)] or names
                wanted[
                    min(others, key=lambda name: (len(wanted[name]), self._chance.random()))
                ].append(key)
        if self.moves == "balance":
            while True:
                fewest, most = (
                    min(names, key=lambda n: len(wanted[n])),
                    max(names, key=lambda n: len(wanted[n])),
                )
                if len(wanted[most]) - len(wanted[fewest]) < 2:
                    break
                wanted[fewest].append(wanted[most].pop(self._chance.randrange(len(wanted[most]))))
        for name in names:
            # A partition is not assigned before the member that owns it has given it up.
            self.members[name].assigned = frozenset(
                key for key in wanted[name] if owners.get(key, name) == name
            )
        if self.moves == "everything":
            self.moves = "nothing"


class Broker:
    """All topics, the group, and the transactional ids. `now_ms` is moved by the world."""

    def __init__(
        self, scheduler: Scheduler, chance: random.Random, now_ms: int, group: str
    ) -> None:
        self.scheduler = scheduler
        self.chance = chance
        self.now_ms = now_ms
        self.skew_ms = 0
        self.group_name = group
        self.group = Group(chance)
        self.topics: dict[str, Topic] = {}
        self.producing: dict[str, Producing] = {}
        self.late: list[Callable[[], None]] = []
        self.consumers: list[Consumer] = []
        self.appenders: list[Producer] = []
        self.refuses: Callable[[str, bytes | None], bool] = lambda _topic, _value: False
        self.faults: dict[str, list[str]] = {}
        self.checks_generation = True
        self._ids = 0

    def create(self, name: str, partitions: int) -> Topic:
        """Create a topic, or create it again: then with another id, and without committed
        offsets."""
        self._ids += 1
        topic = self.topics[name] = Topic(
            name, self._ids.to_bytes(16, "big"), [[] for _ in range(partitions)]
        )
        for key in [key for key in self.group.offsets if key[0] == name]:
            del self.group.offsets[key]
        self.changed()
        return topic

    def changed(self) -> None:
        """Note a change that an idle process may wait for."""
        self.scheduler.version += 1

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        txn: Txn | None = None,
    ) -> int:
        """Append a record; without a timestamp it gets the broker's."""
        records = self.topics[topic].partitions[partition]
        stamp = self.now_ms + self.skew_ms if timestamp_ms is None else timestamp_ms
        records.append(Record(len(records), key, value, stamp, list(headers), txn))
        self.changed()
        return len(records) - 1

    def end(self, topic: str, partition: int) -> int:
        """Return the last stable offset: nothing from the first open transaction on is readable."""
        records = self.topics[topic].partitions[partition]
        return next(
            (
                record.offset
                for record in records
                if record.txn is not None and record.txn.state == "open"
            ),
            len(records),
        )

    def read(self, topic: str, partition: int, start: int = 0) -> Iterator[Record]:
        """Yield what a reader of committed records sees."""
        for record in self.topics[topic].partitions[partition][start : self.end(topic, partition)]:
            if not record.is_marker and (record.txn is None or record.txn.state == "committed"):
                yield record

    # -- transactions

    def begin_producing(self, name: str, process: Process | None) -> tuple[int, int]:
        """Abort the open transaction of the transactional id, and fence its producer."""
        found = self.producing.setdefault(name, Producing(len(self.producing) + 1))
        if found.txn is not None:
            self._finish(found, "aborted")
        found.epoch += 1
        found.process = process
        self.changed()
        return found.number, found.epoch

    def txn_of(self, name: str, epoch: int) -> Txn:
        """Return the open transaction of a producer, opened if need be; raise if it is fenced."""
        found = self.producing[name]
        if found.epoch != epoch:
            raise failure(
                KafkaError._FENCED, "a newer producer has this transactional id", fatal=True
            )
        if found.txn is None:
            found.txn = Txn()
        return found.txn

    def add_offsets(
        self, name: str, epoch: int, offsets: Mapping[Key, tuple[int, str]], stamp: bytes
    ) -> None:
        """Stage offsets in a transaction, if the group still knows the stamp."""
        txn = self.txn_of(name, epoch)
        (generation,) = struct.unpack_from("<i", stamp, 7)
        member = stamp[11:].decode()
        # Consumers by assignment have a generation below 0 and no member, which is not checked.
        if self.checks_generation and (generation >= 0 or member):
            if member not in self.group.members:
                raise failure(
                    KafkaError.UNKNOWN_MEMBER_ID, "the member is gone", txn_requires_abort=True
                )
            if generation != self.group.generation:
                raise failure(
                    KafkaError.ILLEGAL_GENERATION, "another generation", txn_requires_abort=True
                )
        txn.offsets.update(offsets)
        self.changed()

    def end_txn(self, name: str, epoch: int, state: str) -> None:
        """End the transaction of a producer, whichever is open."""
        found = self.producing[name]
        if found.epoch != epoch:
            raise failure(
                KafkaError._FENCED, "a newer producer has this transactional id", fatal=True
            )
        if found.txn is not None:
            self._finish(found, state)

    def end_txn_late(self, name: str, epoch: int, state: str) -> None:
        """Carry out a delayed EndTxn, which nothing answers."""
        if self.producing[name].epoch == epoch and self.producing[name].txn is not None:
            self._finish(self.producing[name], state)

    def add_offsets_late(
        self, name: str, epoch: int, offsets: Mapping[Key, tuple[int, str]]
    ) -> None:
        """Carry out a delayed TxnOffsetCommit, which nothing answers."""
        found = self.producing[name]
        if found.epoch == epoch and found.txn is not None:
            found.txn.offsets.update(offsets)
            self.changed()

    def time_out(self, name: str) -> None:
        """Abort a transaction that took too long; its producer is fenced."""
        found = self.producing[name]
        if found.txn is not None:
            self._finish(found, "aborted")
            found.epoch += 1

    def _finish(self, found: Producing, state: str) -> None:
        txn, found.txn = found.txn, None
        assert txn is not None
        txn.state = state
        if state == "committed":
            self.group.offsets.update(txn.offsets)
        for topic, partition in sorted(txn.touched):
            records = self.topics[topic].partitions[partition]
            records.append(Record(len(records), None, None, self.now_ms, [], is_marker=True))
        self.changed()

    def pending(self, keys: Sequence[Key]) -> bool:
        """Return whether an open transaction contains offsets of these partitions."""
        return any(
            not txn.offsets.keys().isdisjoint(keys)
            for producing in self.producing.values()
            if (txn := producing.txn)
        )

    def fault(self, name: str) -> str | None:
        """Return the fault planned for the running process's next call of this kind, once."""
        process = self.scheduler.current
        if process is None:
            return None
        planned = self.faults.get(f"{process.slot} {name}")
        return planned.pop(0) if planned else None


class Report:
    """A record as a client gives it to a callback or a reader."""

    def __init__(
        self, topic: str, partition: int, record: Record | None, error: KafkaError | None = None
    ) -> None:
        self._topic, self._partition, self._record, self._error = topic, partition, record, error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return -1001 if self._record is None else self._record.offset

    def key(self) -> bytes | None:
        return None if self._record is None else self._record.key

    def value(self) -> bytes | None:
        return None if self._record is None else self._record.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [] if self._record is None else self._record.headers

    def timestamp(self) -> tuple[int, int]:
        return (1, 0 if self._record is None else self._record.timestamp_ms)


class Client:
    """What both clients share: their process, and that a killed process sends nothing."""

    def __init__(self, broker: Broker, config: Mapping[str, Any]) -> None:
        self._broker = broker
        self._config = config
        self.process = broker.scheduler.current

    def _step(self, idle_ms: int | None = None) -> None:
        self._broker.scheduler.step(idle_ms=idle_ms)


class Consumer(Client):
    """A consumer: member of the group once it subscribed, or by assignment."""

    def __init__(self, broker: Broker, config: Mapping[str, Any]) -> None:
        super().__init__(broker, config)
        self.member: str | None = None
        self.generation = -1
        self.is_closed = False
        self.callbacks: deque[tuple[str, list[Key]]] = deque()
        self._topic: Topic | None = None
        self._on: dict[str, Callable[[Any, list[TopicPartition]], None]] = {}
        self._positions: dict[Key, int] = {}
        self._ends: dict[Key, int] | None = {} if config.get("enable.partition.eof") else None
        self._owned: frozenset[Key] = frozenset()
        self._paused: set[Key] = set()
        self._must_rejoin = self._was_member = self._is_serving = False

    # -- as a member

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self._topic = self._broker.topics[topics[0]]
        self._on = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._broker.consumers.append(self)

    def has_work(self) -> bool:
        if (
            self.is_closed
            or self._topic is None
            or self.process is None
            or not self.process.can_run
        ):
            return False
        member = None if self.member is None else self._broker.group.members.get(self.member)
        is_busy = (
            bool(self.callbacks) or self._is_serving
        )  # then a rebalance is under way, and the next one waits
        if member is None:
            return not is_busy
        if self._must_rejoin and not is_busy:
            return True
        if self._broker.group.is_joining:
            return not member.joined and not is_busy
        return not member.seen or not member.synced

    def background(self) -> None:
        """Do one step of the client's own thread: a heartbeat, JoinGroup, or SyncGroup."""
        group = self._broker.group
        assert self._topic is not None
        keys = [(self._topic.name, number) for number in range(len(self._topic.partitions))]
        member = None if self.member is None else group.members.get(self.member)
        self._broker.changed()
        if member is None:
            self.member, self.generation, self._must_rejoin = None, -1, False
            if self._was_member and self._owned:
                self._was_member = False
                self.callbacks.append(("lost", sorted(self._owned)))
                return
            self._was_member = True
            self.member = group.enter(self)
            group.join(self.member, frozenset(), keys)
        elif self._must_rejoin:
            self._must_rejoin = False
            group.rebalance()
        elif group.is_joining:
            group.join(self.member or "", self._owned, keys)
        elif not member.seen:
            member.seen = True
            self.generation = group.generation
        else:
            member.synced = True
            revoked, added = (
                sorted(self._owned - member.assigned),
                sorted(member.assigned - self._owned),
            )
            if revoked:
                self.callbacks.append(("revoke", revoked))
            if added or not revoked:
                self.callbacks.append(("assign", added))

    def consumer_group_metadata(self) -> bytes:
        return b"CGMDv2:" + struct.pack("<i", self.generation) + (self.member or "").encode()

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        keys = [(partition.topic, partition.partition) for partition in partitions]
        self._step()
        for _ in range(200):
            if not self._broker.pending(keys):
                break
            self._step(idle_ms=50)
        else:
            raise failure(KafkaError._TIMED_OUT, "the offsets are not stable", retriable=True)
        offsets = self._broker.group.offsets
        return [TopicPartition(*key, *offsets.get(key, (-1001, ""))) for key in keys]

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        self._step()
        group = self._broker.group
        if self.member not in group.members or self.generation != group.generation:
            raise failure(KafkaError.ILLEGAL_GENERATION, "another generation")
        for position in offsets:
            group.offsets[position.topic, position.partition] = (
                position.offset,
                position.metadata or "",
            )
        self._broker.changed()
        self._step()
        return offsets

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._positions[partition.topic, partition.partition] = partition.offset
        self._owned |= {(partition.topic, partition.partition) for partition in partitions}

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        revoked = {(partition.topic, partition.partition) for partition in partitions}
        self._owned -= revoked
        for key in revoked:
            self._positions.pop(key, None)

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused |= {(partition.topic, partition.partition) for partition in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused -= {(partition.topic, partition.partition) for partition in partitions}

    def _serve(self) -> None:
        while self.callbacks:
            kind, keys = self.callbacks.popleft()
            self._is_serving = True
            self._on[kind](self, [TopicPartition(*key) for key in keys])
            self._is_serving = False
            if kind == "revoke":
                self._must_rejoin = True
            self._broker.changed()

    # -- by assignment

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._positions = {
            (partition.topic, partition.partition): partition.offset for partition in partitions
        }
        if self._ends is not None:
            self._ends = {}

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = 0, cached: bool = False
    ) -> tuple[int, int]:
        return 0, self._broker.end(partition.topic, partition.partition)

    # -- reading

    def consume(self, most: int, timeout: float) -> list[Report]:
        self._serve()
        if (
            self._topic is not None
            and self._broker.topics[self._topic.name] is not self._topic
            and self._positions
        ):
            error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "the topic has another id")
            return [Report(self._topic.name, 0, None, error)]
        keys = sorted(self._positions.keys() - self._paused)
        self._broker.chance.shuffle(keys)
        found: list[Report] = []
        for key in keys:
            room = most - len(found)
            if room and self._topic is not None:
                room = self._broker.chance.randint(1, room)  # what a fetch happened to bring
            for record in self._broker.read(*key, self._positions[key]):
                if not room:
                    break
                found.append(Report(*key, record))
                self._positions[key] = record.offset + 1
                room -= 1
            end = self._broker.end(*key)
            if room and self._ends is not None and self._ends.get(key) != end:
                self._ends[key] = end
                marks = Record(end, None, None, 0, [])
                found.append(
                    Report(*key, marks, KafkaError(KafkaError._PARTITION_EOF, "the end is reached"))
                )
        return found

    @property
    def _only_asks(self) -> bool:
        """Return whether it reads nothing and is no member, so that its polls do not matter."""
        return self._topic is None and not self._positions

    def poll(self, timeout: float) -> Report | None:
        if self._only_asks:
            return None
        found = self.consume(1, 0)
        if not found:
            self._step(idle_ms=max(1, int(timeout * 1000)))
            found = self.consume(1, 0)
        return found[0] if found else None

    def close(self) -> None:
        if not self._only_asks:
            self._step()
        if self._topic is not None and self.member is not None:
            # The last callback runs in here, and the partitions go with it.
            if self._owned:
                self._on["revoke"](self, [TopicPartition(*key) for key in sorted(self._owned)])
            self._broker.group.leave(self.member)
        self.is_closed = True


class Producer(Client):
    """A producer: idempotent, or with a transactional id."""

    def __init__(self, broker: Broker, config: Mapping[str, Any]) -> None:
        super().__init__(broker, config)
        self._txn_id: str | None = config.get("transactional.id")
        self._epoch = 0
        self._buffer: list[tuple[str, int, bytes | None, bytes | None, int, Any, Any]] = []
        self._is_abortable = self._is_hung = False
        self.network: deque[tuple[str, int, bytes | None, bytes | None, Any]] = deque()
        self.acks: list[tuple[Any, str, int, int | None]] = []
        self._heard: list[tuple[Any, str, int, int | None]] = []
        self.fails: str | None = None
        if self._txn_id is None:
            broker.appenders.append(self)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int = 0,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        on_delivery = callback or on_delivery
        if self._txn_id is not None:
            self._buffer.append(
                (topic, partition, key, value, timestamp, headers or [], on_delivery)
            )
        else:
            self.fails = self.fails or self._broker.fault("append")
            self.network.append((topic, partition, key, value, on_delivery))
            self._broker.changed()

    # -- appends

    def deliver(self) -> None:
        """Let the first record that is in flight arrive."""
        topic, partition, key, value, report = self.network.popleft()
        self.acks.append(
            (report, topic, partition, self._broker.append(topic, partition, key, value))
        )

    def acknowledge(self) -> None:
        """Let the process learn of the records that arrived."""
        self._heard += self.acks
        self.acks = []
        self._broker.changed()

    def poll(self, timeout: float = 0.0) -> int:
        if self.fails is not None and (self.network or self.acks):
            # The client gives up; the records may have arrived, may arrive later, or never.
            error = KafkaError(KafkaError._MSG_TIMED_OUT, "no acknowledgement came")
            reports = [append[-1] for append in self.network] + [ack[0] for ack in self.acks]
            if self.fails == "never":
                self.network.clear()
            self.acks, self.fails = [], None
            for report in reports:
                report(error, None)
        heard, self._heard = self._heard, []
        for report, topic, partition, offset in heard:
            report(None, Report(topic, partition, Record(offset or 0, None, None, 0, [])))
        return len(heard)

    def flush(self, timeout: float) -> int:
        if self._txn_id is not None:
            return self._write()
        for _ in range(400):
            self.poll()
            if not (self.network or self.acks or self._heard):
                return 0
            self._step(idle_ms=20)
        return len(self.network) + len(self.acks)

    # -- transactions

    def init_transactions(self, timeout: float) -> None:
        self._step()
        assert self._txn_id is not None
        _, self._epoch = self._broker.begin_producing(self._txn_id, self.process)
        self._step()

    def begin_transaction(self) -> None:
        self._buffer.clear()
        self._is_abortable = False

    def _write(self) -> int:
        assert self._txn_id is not None
        buffer, self._buffer = self._buffer, []
        beside: tuple[str, int] | None = None
        for topic, partition, key, value, timestamp, headers, report in buffer:
            self._step()
            is_beside = beside == (topic, partition) and self._broker.chance.random() < 0.5
            if self._broker.refuses(topic, value) or is_beside:
                # The broker refuses a whole batch, so a neighbour may be named too.
                beside, self._is_abortable = (topic, partition), True
                report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large"), None)
                continue
            try:
                txn = self._broker.txn_of(self._txn_id, self._epoch)
            except KafkaException as error:
                report(error.args[0], None)
                continue
            txn.touched.add((topic, partition))
            self._broker.append(topic, partition, key, value, timestamp or None, headers, txn)
        return 0

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], stamp: bytes, timeout: float
    ) -> None:
        assert self._txn_id is not None
        self._step()
        fault = self._broker.fault("offsets")
        if self._is_abortable or fault == "abort":
            self._is_abortable = True
            raise failure(
                KafkaError._STATE, "the transaction must be aborted", txn_requires_abort=True
            )
        self._hang(fault)
        offsets = {
            (position.topic, position.partition): (position.offset, position.metadata or "")
            for position in positions
        }
        broker, txn_id, epoch = self._broker, self._txn_id, self._epoch
        if fault == "resent":
            self._send_again(lambda: broker.add_offsets_late(txn_id, epoch, offsets))
        try:
            self._broker.add_offsets(self._txn_id, self._epoch, offsets, stamp)
        except KafkaException:
            self._is_abortable = True
            raise
        self._step()

    def commit_transaction(self, timeout: float) -> None:
        self._end("committed", "commit")

    def abort_transaction(self, timeout: float) -> None:
        self._buffer.clear()
        self._end("aborted", "abort")

    def _end(self, state: str, name: str) -> None:
        """Send EndTxn. Planned faults: it is lost, comes late, or is sent again; its answer is
        lost; it is slow, or fails."""
        assert self._txn_id is not None
        self._step()
        broker, txn_id, epoch = self._broker, self._txn_id, self._epoch
        fault = broker.fault(name)
        if fault == "late":
            broker.late.append(lambda: broker.end_txn_late(txn_id, epoch, state))
        elif fault == "resent":
            self._send_again(lambda: broker.end_txn_late(txn_id, epoch, state))
        elif fault == "unheard":
            broker.end_txn(txn_id, epoch, state)
        elif fault == "abort" and state == "committed":
            self._is_abortable = True
            raise failure(
                KafkaError._STATE, "the transaction must be aborted", txn_requires_abort=True
            )
        if fault in ("late", "unheard", "lost"):
            self._is_hung = True
        self._hang(None)
        broker.end_txn(txn_id, epoch, state)
        if fault == "slow":
            broker.now_ms += 11_000
        self._step()

    def _send_again(self, late: Callable[[], None]) -> None:
        """Leave a copy on its way: the connection broke, and the client waits for its back-off
        before it asks again."""
        self._broker.late.append(late)
        self._broker.now_ms += _RETRY_MS_LEAST

    def _hang(self, fault: str | None) -> None:
        """Time out now and later: librdkafka waits for the first answer, even if asked again."""
        self._is_hung = self._is_hung or fault in ("late", "unheard", "lost")
        if self._is_hung:
            # In reality five seconds; less here, because the worker's loop takes some turns for
            # each 3 ms.
            self._step(idle_ms=500)
            raise failure(KafkaError._TIMED_OUT, "no answer came", retriable=True)
