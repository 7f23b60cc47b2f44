"""Reading: the source topic in a group, the log and the verdicts by assignment.

Invariants: one thread owns a consumer, and rebalance callbacks run inside its `take`; the group's metadata is read
together with the records it belongs to (`SourceConsumer.stamp`), never at commit; committed offsets are asked for by a
client that is no member, because a member's question waits behind its JoinGroup until all others have joined; a source
record that no client can read comes as `Unreadable`, one for each offset, and never stops its partition; the log and the
verdicts are read with `assign()`, without a group and without commits, because their readers keep their own offsets.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as RawMessage

from stream_dedup.ground.document import Message, TopicPartitionKey, Unreadable
from stream_dedup.ground.errors import BrokerError, ConfigurationError
from stream_dedup.ground.messages import Messages
from stream_dedup.kafka.client import (
    GONE,
    Acl,
    ask,
    ask_anew,
    consumer_config,
    is_denied,
    make_consumer,
    to_message,
    to_messages,
    translate,
    wait_for,
)
from stream_dedup.kafka.patience import IMPATIENT, Patience
from stream_dedup.kafka.unreadable import CODES, Suspects
from stream_dedup.settings.settings import Settings

_ANSWER_SECONDS = 20.0
_SAMPLE_SECONDS = 30.0
_QUESTION_SECONDS = 8.0
_QUESTIONS = 8
_SILENCE_SECONDS = 60.0
_GENERATION = struct.Struct("<i")
_GENERATION_AT = len(b"CGMDv2:")


class OwnedOffset(NamedTuple):
    """A committed offset as the broker has it; offset None means that there is none."""

    offset: int | None
    metadata: str | None


class RebalanceListener(Protocol):
    """What a role does when its partitions change; called inside `SourceConsumer.take`, and must not wait."""

    def assigned(self, keys: Sequence[TopicPartitionKey]) -> Mapping[TopicPartitionKey, int]:
        """Return the offset to start from for each newly assigned partition."""

    def revoked(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Give up the partitions; commits for them are still possible inside this call only."""

    def lost(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Give up the partitions; somebody else may own them already."""

    def settled(self, stamp: bytes) -> None:
        """Learn the group's metadata after a callback, also after one that moved nothing."""


class SourceConsumer:
    """The source topic, read as a member of the worker's group."""

    def __init__(
        self, settings: Settings, topic: str, client: str, listener: RebalanceListener, patience: Patience = IMPATIENT
    ) -> None:
        config = consumer_config(settings, client, settings.group, {"partition.assignment.strategy": "cooperative-sticky"})
        self._consumer = make_consumer(config)
        self._asker = make_consumer(consumer_config(settings, f"{client}-offsets", settings.group))
        self._listener = listener
        self._patience = patience
        self._topic = topic
        # The group's coordinator asks for both.
        self._acls = {
            KafkaError.GROUP_AUTHORIZATION_FAILED: f"Read on group {settings.group}",
            KafkaError.TOPIC_AUTHORIZATION_FAILED: f"Read on topic {topic}",
        }
        self._paused: set[TopicPartitionKey] = set()
        self._starts: dict[TopicPartitionKey, int] = {}
        self._suspects = Suspects()
        self._given_up: set[TopicPartitionKey] = set()
        self._is_leaving = False
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def take(self, most: int, timeout_seconds: float) -> Messages:
        """Return up to `most` records: what is there now, or what comes first within the time.

        Raises:
            ConfigurationError: the topic is missing, or a committed offset lies outside the topic.
            BrokerError: the consumer cannot go on.
        """
        self._asker.poll(0)  # it is assigned nothing: this serves its log and its tokens
        self._given_up.clear()
        raws = _take_raw(self._consumer, most, timeout_seconds, self._topic)
        if self._given_up:
            raws = self._without_given_up(raws)
        if raws and any(map(type(raws[0]).error, raws)):
            return Messages.of(self._one_by_one(raws))
        return to_messages(self._topic, raws)

    def _without_given_up(self, raws: Sequence[RawMessage]) -> list[RawMessage]:
        """Return what was taken of partitions that were ours all the while.

        A callback runs between two records, and what came before it of a partition that it took away is nobody's here. If the
        partition came back meanwhile, what came after it may be among them too: it is read again from where it was given.
        """
        back = {key: start for key, start in self._starts.items() if key in self._given_up}
        self.restart_at(back)
        return [raw for raw in raws if (self._topic, raw.partition()) not in self._given_up]

    def _one_by_one(self, raws: Sequence[RawMessage]) -> list[Message]:
        """Return the records among what was taken, and deal with the errors."""
        messages: list[Message] = []
        skipped: set[TopicPartitionKey] = set()
        for raw in raws:
            error = raw.error()
            if error is None:
                messages.append(to_message(raw))
            elif error.code() in CODES and raw.partition() is not None:
                key = (self._topic, cast("int", raw.partition()))
                unreadable = None if key in skipped else self._unreadable(key, raw.offset() or 0, error)
                if unreadable is not None:
                    skipped.add(key)  # what else came of it was fetched before it was restarted behind this record
                    messages.append(unreadable)
            else:
                _raise_unless_passing(error, self._topic, self._acls)
        return messages

    def _unreadable(self, key: TopicPartitionKey, batch_offset: int, error: KafkaError) -> Unreadable | None:
        """Return the record that cannot be read, once that is certain, and go on behind it."""
        (position,) = self._consumer.position([TopicPartition(*key)])
        at = position.offset if position.offset >= 0 else self._starts.get(key, 0)
        unreadable = self._suspects.fail(key, batch_offset, at, error)
        if unreadable is not None:
            self.restart_at({key: unreadable.offset + 1})
        return unreadable

    def stamp(self) -> bytes:
        """Return the group's metadata as of now: member, generation."""
        return bytes(self._consumer.consumer_group_metadata())

    def committed(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, OwnedOffset]:
        """Return the committed offset and metadata of each partition, once no transaction on them is open.

        Raises:
            BrokerError: the coordinator did not answer in time.
        """
        wanted = [TopicPartition(topic, partition) for topic, partition in keys]
        return ask_committed(self._asker, wanted, f"of {self._topic}", self._acls, self._patience) if wanted else {}

    def commit_start(self, starts: Mapping[TopicPartitionKey, tuple[int, str]]) -> None:
        """Commit (offset, metadata) of partitions that had no committed offset, before anything of them is read."""
        offsets = [TopicPartition(topic, part, offset, text) for (topic, part), (offset, text) in starts.items()]
        doing = f"committing the first offsets of {self._topic}"
        for one in wait_for(lambda _: self._consumer.commit(offsets=offsets, asynchronous=False), doing, needs=self._acls):
            if one.error is not None:
                raise translate(one.error, doing, self._acls)

    def low_watermark(self, key: TopicPartitionKey) -> int:
        """Return the first offset that the partition still holds."""
        return self._watermarks(key)[0]

    def lag(self, key: TopicPartitionKey, offset: int) -> int | None:
        """Return how many records lie behind `offset`, from the last fetch; None before the first."""
        try:
            _, high = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
        except KafkaException:
            return None
        return max(0, high - offset) if high >= 0 else None

    def _watermarks(self, key: TopicPartitionKey) -> tuple[int, int]:
        partition = TopicPartition(*key)
        doing = f"reading the first and last offset of {key[0]}-{key[1]}"
        low, high = ask(
            lambda seconds: self._consumer.get_watermark_offsets(partition, timeout=seconds),
            doing,
            _ANSWER_SECONDS,
            f"Describe on topic {key[0]}",
        )
        return int(low), int(high)

    def restart_at(self, starts: Mapping[TopicPartitionKey, int]) -> None:
        """Read each partition again from the given offset; whatever was fetched of it is thrown away."""
        partitions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in starts.items()]
        if not partitions:
            return
        try:
            # Taking it off and on again works in every state of the fetcher; seek() fails before the first fetch.
            self._consumer.incremental_unassign([TopicPartition(one.topic, one.partition) for one in partitions])
            self._consumer.incremental_assign(partitions)
        except KafkaException as error:
            raise translate(error, f"going back in {self._topic}") from error
        self._starts.update(starts)
        self._set_paused(starts)

    def pause(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Stop fetching the partitions while membership is kept; what was fetched ahead is fetched again later."""
        fresh = [key for key in keys if key not in self._paused]
        self._paused.update(fresh)
        self._pause(fresh)

    def resume(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Fetch the partitions again."""
        known = [key for key in keys if key in self._paused]
        self._paused.difference_update(known)
        if known:
            self._consumer.resume([TopicPartition(*key) for key in known])

    def close(self) -> None:
        """Leave the group."""
        # The last callback runs in here, when the group's metadata may be gone; what it raised would hide what ended the role.
        self._is_leaving = True
        self._consumer.close()
        self._asker.close()

    def _pause(self, keys: Sequence[TopicPartitionKey]) -> None:
        if keys:
            self._consumer.pause([TopicPartition(*key) for key in keys])

    def _set_paused(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Tell librdkafka of partitions just assigned which are paused; it remembers a pause from before they went away."""
        wanted = list(keys)
        resumed = [TopicPartition(*key) for key in wanted if key not in self._paused]
        if resumed:
            self._consumer.resume(resumed)
        self._pause([key for key in wanted if key in self._paused])

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._is_leaving:
            return  # given while we leave, and taken again at once
        keys = [(one.topic, one.partition) for one in partitions]
        starts = self._listener.assigned(keys)
        consumer.incremental_assign([TopicPartition(topic, part, starts[topic, part]) for topic, part in keys])
        self._starts.update(starts)
        self._set_paused(keys)
        self._listener.settled(self.stamp())

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._give_up(consumer, partitions, self._listener.revoked)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._give_up(consumer, partitions, self._listener.lost)

    def _give_up(
        self, consumer: Consumer, partitions: list[TopicPartition], tell: Callable[[Sequence[TopicPartitionKey]], None]
    ) -> None:
        keys = [(one.topic, one.partition) for one in partitions]
        tell(keys)
        self._paused.difference_update(keys)
        self._given_up.update(keys)
        for key in keys:
            self._starts.pop(key, None)
        consumer.incremental_unassign(partitions)
        if not self._is_leaving:
            self._listener.settled(self.stamp())


def ask_committed(
    consumer: Consumer, wanted: list[TopicPartition], whose: str, needs: Acl = "", patience: Patience = IMPATIENT
) -> dict[TopicPartitionKey, OwnedOffset]:
    """Return the committed offset and metadata of each partition, once no transaction on them is open.

    Asked anew when no answer comes: after a broker's restart one question can hang while the next is answered. The consumer is
    of the group, and no member of it.

    Raises:
        BrokerError: the coordinator did not answer in time, or not for this user; `whose` stands in its sentence.
    """
    doing = f"reading the committed offsets {whose}, which a transaction that is left open can hold back"
    lasts = patience.begin(_QUESTIONS)
    while True:
        try:
            found = ask_anew(lambda seconds: consumer.committed(wanted, timeout=seconds), _QUESTION_SECONDS)
        except KafkaException as error:
            if is_denied(error) or not lasts():
                raise translate(error, doing, needs) from error
        else:
            return _owned_offsets(found, doing, needs)


def _owned_offsets(found: Iterable[TopicPartition], doing: str, needs: Acl) -> dict[TopicPartitionKey, OwnedOffset]:
    result = {}
    for one in found:
        if one.error is not None:
            raise translate(one.error, doing, needs)
        result[one.topic, one.partition] = OwnedOffset(one.offset if one.offset >= 0 else None, one.metadata)
    return result


def generation(stamp: bytes) -> int | None:
    """Return the group's generation in a stamp, or None if librdkafka writes stamps in a form we do not know.

    librdkafka serialises the metadata as "CGMDv2:" and the generation in native byte order
    (rd_kafka_consumer_group_metadata_write). It serves to notice a generation that passed without a callback.
    """
    if not stamp.startswith(b"CGMDv2:") or len(stamp) < _GENERATION_AT + _GENERATION.size:
        return None
    (number,) = _GENERATION.unpack_from(stamp, _GENERATION_AT)
    return int(number)


class LogReader:
    """One partition read by assignment from an offset of the reader's own: the log, or any other."""

    def __init__(self, settings: Settings, topic: str, client: str, partition: int = 0) -> None:
        # librdkafka asks for a group; nothing is ever committed to it.
        config = consumer_config(settings, client, f"{settings.group}-{client}")
        self._consumer = make_consumer(config)
        self._topic = topic
        self._partition = partition

    def watermarks(self) -> tuple[int, int]:
        """Return (first offset held, offset of the next record)."""
        partition = TopicPartition(self._topic, self._partition)
        low, high = ask(
            lambda seconds: self._consumer.get_watermark_offsets(partition, timeout=seconds),
            f"reading the first and last offset of {self._topic}",
            _ANSWER_SECONDS,
            f"Describe on topic {self._topic}",
        )
        return int(low), int(high)

    def start(self, offset: int) -> None:
        """Read from `offset` on."""
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])

    def take(self, most: int, timeout_seconds: float) -> list[Message]:
        """Return up to `most` records: what is there now, or what comes first within the time.

        Raises:
            ConfigurationError: the offset is not in the topic any more, or the topic is missing.
            BrokerError: the consumer cannot go on.
        """
        return _take(self._consumer, most, timeout_seconds, self._topic)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


class VerdictReader(LogReader):
    """The verdicts, from their end as it was before anything was asked."""

    def __init__(self, settings: Settings, topic: str, client: str) -> None:
        super().__init__(settings, topic, client)
        self.start(self.watermarks()[1])


def reader(
    settings: Settings, topics: Sequence[str], *, from_beginning: bool, partition: int | None = None
) -> Iterator[Message | None]:
    """Yield the records of all partitions of some topics, or of one of each, as they come; None when nothing came for a moment.

    Raises:
        ConfigurationError: a topic is missing.
        BrokerError: the consumer cannot go on.
    """
    config = consumer_config(settings, "reader", f"{settings.group}-reader", {"auto.offset.reset": "earliest"})
    consumer = make_consumer(config)
    try:
        known = consumer.list_topics(timeout=_ANSWER_SECONDS).topics
        missing = [topic for topic in topics if topic not in known]
        if missing:
            raise ConfigurationError(f"The topic {missing[0]} does not exist; create it with: stream-dedup topics apply")
        start = OFFSET_BEGINNING if from_beginning else OFFSET_END
        chosen = {topic: known[topic].partitions if partition is None else [partition] for topic in topics}
        consumer.assign([TopicPartition(topic, part, start) for topic in topics for part in chosen[topic]])
        while True:
            raws = _take_raw(consumer, 1000, 0.2, ", ".join(topics))
            if not raws:
                yield None
            yield from _messages(raws, ", ".join(topics))
    except KafkaException as error:
        raise translate(error, f"reading {', '.join(topics)}") from error
    finally:
        consumer.close()


def read_partition(
    settings: Settings, topic: str, partition: int, start: int = 0, *, since_ms: int | None = None, until: int = 0
) -> Iterator[Message]:
    """Yield the committed records of a partition from an offset on, or from the first still held, to its end.

    With `since_ms` it begins at the first record with that timestamp or a later one. If the end lies below `until`, because
    a transaction is open there, it waits until that has ended.

    Raises:
        ConfigurationError: the topic is missing.
        BrokerError: nothing came for a while, or the consumer cannot go on.
    """
    config = consumer_config(settings, "partition", f"{settings.group}-partition", {"enable.partition.eof": True})
    consumer = make_consumer(config)
    doing = f"reading {topic}-{partition}"
    try:
        low, high = ask(
            lambda seconds: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=seconds), doing
        )
        if since_ms is not None:
            wanted = [TopicPartition(topic, partition, since_ms)]
            (found,) = ask(lambda seconds: consumer.offsets_for_times(wanted, timeout=seconds), doing)
            start = int(found.offset) if found.offset >= 0 else int(high)
        consumer.assign([TopicPartition(topic, partition, max(int(low), start))])
        heard = time.monotonic()
        while True:
            for raw in consumer.consume(1000, 0.2):
                error = raw.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    if (raw.offset() or 0) >= until:
                        return
                else:
                    heard = time.monotonic()
                    yield from _messages([raw], topic)
            if time.monotonic() - heard > _SILENCE_SECONDS:
                raise BrokerError(
                    f"{topic}-{partition} could not be read to its end at {max(until, int(high))}: nothing came for "
                    f"{_SILENCE_SECONDS:.0f} s. Is its leader up, or a transaction open that nobody ends?"
                )
    except KafkaException as error:
        raise translate(error, doing) from error
    finally:
        consumer.close()


def sample(settings: Settings, spans: Mapping[TopicPartitionKey, tuple[int, int]]) -> Iterator[Message]:
    """Yield the committed records of each span (from offset, to before offset), in order within a partition.

    Little is fetched beyond a span's end. Offsets that hold no record (a transaction's marker, a removed one) are passed over.

    Raises:
        BrokerError: the records do not come.
    """
    left = {key: span for key, span in spans.items() if span[1] > span[0]}
    if not left:
        return
    fixed = {
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "max.partition.fetch.bytes": 262_144,
        "queued.min.messages": 100,
    }
    topics = ", ".join(sorted({topic for topic, _ in left}))
    consumer = make_consumer(consumer_config(settings, "sample", f"{settings.group}-sample", fixed))
    try:
        consumer.assign([TopicPartition(topic, part, span[0]) for (topic, part), span in left.items()])
        heard = time.monotonic()
        while left:
            for raw in consumer.consume(500, 0.1):
                heard = time.monotonic()
                key = (str(raw.topic()), int(raw.partition() or 0))
                if key not in left:
                    continue
                error = raw.error()
                if error is None and (raw.offset() or 0) < left[key][1]:
                    yield to_message(raw)
                elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                    _raise_unless_passing(error, topics)
                    continue
                if error is not None or (raw.offset() or 0) >= left[key][1] - 1:
                    del left[key]
                    consumer.incremental_unassign([TopicPartition(*key)])
            # A span may end with markers, behind which nothing comes until somebody writes.
            positions = consumer.position([TopicPartition(*key) for key in left]) if left else []
            for one in positions:
                if one.offset >= left[one.topic, one.partition][1]:
                    del left[one.topic, one.partition]
            if time.monotonic() - heard > _SAMPLE_SECONDS:
                raise BrokerError(f"Nothing came of {topics} for {_SAMPLE_SECONDS:.0f} s; are its leaders up?")
    except KafkaException as error:
        raise translate(error, f"reading {topics}") from error
    finally:
        consumer.close()


def _take(consumer: Consumer, most: int, timeout_seconds: float, topic: str) -> list[Message]:
    return _messages(_take_raw(consumer, most, timeout_seconds, topic), topic)


def _take_raw(consumer: Consumer, most: int, timeout_seconds: float, topic: str) -> list[RawMessage]:
    """Take what is there now; if that is nothing, wait for the first record, and take what came with it."""
    try:
        raws = consumer.consume(most, timeout=0)
        if not raws and timeout_seconds > 0:
            first = consumer.poll(timeout_seconds)
            if first is None:
                return []
            raws = [first, *consumer.consume(most - 1, timeout=0)] if most > 1 else [first]
    except KafkaException as error:
        raise translate(error, f"reading {topic}", f"Read on topic {topic}") from error
    return raws


def _messages(raws: Iterable[RawMessage], topic: str) -> list[Message]:
    messages = []
    for raw in raws:
        error = raw.error()
        if error is None:
            messages.append(to_message(raw))
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            # Readers by assignment are members of no group; librdkafka looks for its coordinator all the same.
            _raise_unless_passing(error, topic)
    return messages


def _raise_unless_passing(error: KafkaError, topic: str, acls: Acl = "") -> None:
    """Raise what must stop the role; what the client gets over by itself passes."""
    code = error.code()
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise ConfigurationError(
            f"An offset to read from is not in {topic} any more ({error.str()}): its retention removed records, or the "
            "topic was created again. Nothing was skipped. Restore the topic, or move on with: stream-dedup rewind"
        )
    if code in GONE:
        raise ConfigurationError(
            f"The topic {topic} does not exist, or lacks a partition that it had: it was deleted, or never created. Restore it "
            "if its records matter, else create it with: stream-dedup topics apply"
        )
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise translate(error, f"reading {topic}", f"Read on topic {topic}")
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        raise translate(error, f"reading {topic} as a member of a group", acls)
    if code == KafkaError._NOT_IMPLEMENTED:
        raise ConfigurationError(
            f"A batch in {topic} has a format that this client does not know ({error.str()}): it is damaged, or newer than the "
            "client. Nothing was skipped. Upgrade confluent-kafka, or move past the batch with: stream-dedup rewind"
        )
    if code == KafkaError._MAX_POLL_EXCEEDED or (error.retriable() and not error.fatal()):
        return
    raise BrokerError(f"{topic} cannot be read on: {error.str()} ({error.name()}). A restart begins at the same place.")
