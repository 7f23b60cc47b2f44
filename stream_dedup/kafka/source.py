"""The consumer of the source topic, a member of the worker's group.

Invariants: one thread owns a consumer, and rebalance callbacks run inside its `take_messages`; the
group's metadata is read together with the records it belongs to (`SourceConsumer.group_metadata`),
never at commit; a source record that librdkafka cannot read is returned as `Unreadable`, and does
not stop its partition.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as RawMessage

from stream_dedup.domain.document import Message, TopicPartitionKey, Unreadable
from stream_dedup.domain.messages import Messages
from stream_dedup.kafka.client import (
    GROUP_MOVED,
    LEADER_MOVES,
    NO_ANSWER,
    consumer_config,
    make_consumer,
    to_message,
    to_messages,
    translate,
)
from stream_dedup.kafka.readers import DAMAGED, ReadFailures, raise_unless_transient, take_raw
from stream_dedup.kafka.retries import (
    ANSWER_SECONDS,
    ATTEMPTS_ONLY,
    CommittedOffset,
    RetryPolicy,
    fetch_committed,
    retry_request,
)
from stream_dedup.settings.settings import Settings

_ATTEMPTS_MAX = 3
# For a moment the client or a broker does not know a new partition.
_NOT_KNOWN_YET = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART})
_GENERATION = struct.Struct("<i")
_GENERATION_AT = len(b"CGMDv2:")


class RebalanceListener(Protocol):
    """Callbacks for partition changes; called inside `SourceConsumer.take_messages`, and must not
    block.
    """

    def assigned(self, keys: Sequence[TopicPartitionKey]) -> Mapping[TopicPartitionKey, int]:
        """Return the offset to start from for each newly assigned partition."""

    def revoked(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Give up the partitions; commits for them are still possible inside this call only."""

    def lost(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Give up the partitions; another member may own them already."""

    def group_metadata_changed(self, group_metadata: bytes) -> None:
        """Store the group's metadata; called after each of the other callbacks, also after one
        without partitions.
        """


class SourceConsumer:
    """Consumes the source topic as a member of the worker's group."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        client: str,
        listener: RebalanceListener,
        retry_policy: RetryPolicy = ATTEMPTS_ONLY,
    ) -> None:
        config = consumer_config(
            settings,
            client,
            settings.group,
            {"partition.assignment.strategy": "cooperative-sticky"},
        )
        self._consumer = make_consumer(config)
        self._offsets_consumer = make_consumer(
            consumer_config(settings, f"{client}-offsets", settings.group)
        )
        self._listener = listener
        self._retry_policy = retry_policy
        self._topic = topic
        # The group's coordinator requires both.
        self._acls = {
            KafkaError.GROUP_AUTHORIZATION_FAILED: f"Read on group {settings.group}",
            KafkaError.TOPIC_AUTHORIZATION_FAILED: f"Read on topic {topic}",
        }
        self._paused: set[TopicPartitionKey] = set()
        self._starts: dict[TopicPartitionKey, int] = {}
        self._read_failures = ReadFailures()
        self._revoked: set[TopicPartitionKey] = set()
        self._is_leaving = False
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def take_messages(self, records_max: int, timeout_seconds: float) -> Messages:
        """Return at most `records_max` records: the available ones, or the first within the timeout.

        Raises:
            ConfigurationError: the topic is missing, or a committed offset is outside the topic.
            BrokerError: the consumer cannot continue.
        """
        self._offsets_consumer.poll(0)  # runs its callbacks for log messages and OAuth tokens
        self._revoked.clear()
        raws = take_raw(self._consumer, records_max, timeout_seconds, self._topic)
        if self._revoked:
            raws = self._without_revoked(raws)
        if raws and any(map(type(raws[0]).error, raws)):
            return Messages.of(self._convert_one_by_one(raws))
        return to_messages(self._topic, raws)

    def _without_revoked(self, raws: Sequence[RawMessage]) -> list[RawMessage]:
        """Return the records of partitions that were assigned during the whole call.

        A rebalance callback may run between two records of one call. Records of a partition that it
        revoked are dropped. If the partition was assigned again in the same call, its later records
        are dropped too, and read again from its start offset.
        """
        reassigned = {key: start for key, start in self._starts.items() if key in self._revoked}
        self.restart_at(reassigned)
        return [raw for raw in raws if (self._topic, raw.partition()) not in self._revoked]

    def _convert_one_by_one(self, raws: Sequence[RawMessage]) -> list[Message]:
        """Return the records among `raws`, with damaged ones as `Unreadable`; raise an error that must
        stop the worker.
        """
        messages: list[Message] = []
        skipped: set[TopicPartitionKey] = set()
        for raw in raws:
            error = raw.error()
            if error is None:
                messages.append(to_message(raw))
            elif error.code() in DAMAGED and raw.partition() is not None:
                key = (self._topic, cast("int", raw.partition()))
                unreadable = (
                    None if key in skipped else self._skip_if_damaged(key, raw.offset() or 0, error)
                )
                if unreadable is not None:
                    # Further errors of this partition are from before the restart.
                    skipped.add(key)
                    messages.append(unreadable)
            else:
                raise_unless_transient(error, self._topic, self._acls)
        return messages

    def _skip_if_damaged(
        self, key: TopicPartitionKey, batch_offset: int, error: KafkaError
    ) -> Unreadable | None:
        """Count a failed read; after the last attempt return the unreadable record, and read on after
        it.
        """
        (position,) = self._consumer.position([TopicPartition(*key)])
        offset = position.offset if position.offset >= 0 else self._starts.get(key, 0)
        unreadable = self._read_failures.record(key, batch_offset, offset, error)
        if unreadable is not None:
            self.restart_at({key: unreadable.offset + 1})
        return unreadable

    def group_metadata(self) -> bytes:
        """Return the group's current metadata: member and generation."""
        return bytes(self._consumer.consumer_group_metadata())

    def committed(
        self, keys: Iterable[TopicPartitionKey]
    ) -> dict[TopicPartitionKey, CommittedOffset]:
        """Return the committed offset and metadata of each partition, once no transaction on them
        is open.

        Raises:
            BrokerError: the coordinator did not answer in time.
        """
        requested = [TopicPartition(topic, partition) for topic, partition in keys]
        if not requested:
            return {}
        return fetch_committed(
            self._offsets_consumer, requested, f"of {self._topic}", self._acls, self._retry_policy
        )

    def commit_start(self, starts: Mapping[TopicPartitionKey, tuple[int, str]]) -> bool:
        """Commit (offset, metadata) of partitions that had no committed offset, before they are read.

        Return False if the group rebalanced meanwhile: the caller must read the committed offsets
        again and retry.
        """
        offsets = [
            TopicPartition(topic, partition, offset, metadata)
            for (topic, partition), (offset, metadata) in starts.items()
        ]

        def commit(_: float) -> list[TopicPartition]:
            partitions: list[TopicPartition] = self._consumer.commit(
                offsets=offsets, asynchronous=False
            )
            for partition in partitions:
                if partition.error is not None:
                    raise KafkaException(partition.error)
            return partitions

        try:
            self._retry(commit)
        except KafkaException as error:
            if error.args[0].code() in GROUP_MOVED:
                return False
            raise translate(
                error, f"committing the first offsets of {self._topic}", self._acls
            ) from error
        return True

    def low_watermark(self, key: TopicPartitionKey) -> int:
        """Return the first offset that the partition still contains."""
        partition = TopicPartition(*key)
        try:
            low, _ = self._retry(
                lambda seconds: self._offsets_consumer.get_watermark_offsets(
                    partition, timeout=seconds
                )
            )
        except KafkaException as error:
            doing = f"reading the first offset of {key[0]}-{key[1]}"
            raise translate(error, doing, f"Describe on topic {key[0]}") from error
        return int(low)

    def lag(self, key: TopicPartitionKey, offset: int) -> int | None:
        """Return the number of offsets from `offset` to the end that the last fetch reported; None
        before the first fetch.
        """
        try:
            _, high = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
        except KafkaException:
            return None
        return max(0, high - offset) if high >= 0 else None

    def _retry(self, call: Callable[[float], Any]) -> Any:
        """Return the result of `call`. Retry it while Kafka is unavailable, and a few times after
        other transient errors, such as for a partition that is not known yet.
        """
        return self._retry_policy.retry(
            _ATTEMPTS_MAX,
            lambda: retry_request(
                self._refreshing_topics(call),
                ANSWER_SECONDS,
                codes=LEADER_MOVES | _NOT_KNOWN_YET,
            ),
            lambda error: error.args[0].code() in NO_ANSWER | LEADER_MOVES | _NOT_KNOWN_YET,
        )

    def _refreshing_topics(self, call: Callable[[float], Any]) -> Callable[[float], Any]:
        """Return `call`, extended by a refresh of the topic's metadata if a partition is unknown: the
        client itself refreshes it only twice a minute.
        """
        # `_offsets_consumer` sends the request, because it is not a member of the group: in a
        # rebalance callback of a member this request crashes the process (confluent_kafka 2.16).

        def call_and_refresh(seconds: float) -> Any:
            try:
                return call(seconds)
            except KafkaException as error:
                if error.args[0].code() in _NOT_KNOWN_YET:
                    with contextlib.suppress(KafkaException):
                        self._offsets_consumer.list_topics(self._topic, timeout=seconds)
                raise

        return call_and_refresh

    def restart_at(self, starts: Mapping[TopicPartitionKey, int]) -> None:
        """Read each partition again from the given offset, and drop its prefetched records."""
        partitions = [
            TopicPartition(topic, partition, offset)
            for (topic, partition), offset in starts.items()
        ]
        if not partitions:
            return
        try:
            # Instead of seek(), which fails before the first fetch.
            self._consumer.incremental_unassign(
                [TopicPartition(entry.topic, entry.partition) for entry in partitions]
            )
            self._consumer.incremental_assign(partitions)
        except KafkaException as error:
            raise translate(error, f"seeking in {self._topic}") from error
        self._starts.update(starts)
        self._set_paused(starts)

    def pause(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Stop fetching the partitions, which stay assigned; prefetched records are dropped, and
        fetched again later.
        """
        not_paused = [key for key in keys if key not in self._paused]
        self._paused.update(not_paused)
        self._pause(not_paused)

    def resume(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Fetch the partitions again."""
        paused = [key for key in keys if key in self._paused]
        self._paused.difference_update(paused)
        if paused:
            self._consumer.resume([TopicPartition(*key) for key in paused])

    def close(self) -> None:
        """Leave the group."""
        # close() runs a last callback, in which the group's metadata may be missing. The error of
        # that callback would hide the error that ended the role.
        self._is_leaving = True
        self._consumer.close()
        self._offsets_consumer.close()

    def _pause(self, keys: Sequence[TopicPartitionKey]) -> None:
        if keys:
            self._consumer.pause([TopicPartition(*key) for key in keys])

    def _set_paused(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Pause or resume partitions that were just assigned: librdkafka still applies the pause of
        their last assignment.
        """
        assigned = list(keys)
        resumed = [TopicPartition(*key) for key in assigned if key not in self._paused]
        if resumed:
            self._consumer.resume(resumed)
        self._pause([key for key in assigned if key in self._paused])

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._is_leaving:
            return  # these partitions are revoked at once
        keys = [(partition.topic, partition.partition) for partition in partitions]
        starts = self._listener.assigned(keys)
        consumer.incremental_assign(
            [
                TopicPartition(topic, partition, starts[topic, partition])
                for topic, partition in keys
            ]
        )
        self._starts.update(starts)
        self._set_paused(keys)
        self._listener.group_metadata_changed(self.group_metadata())

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._give_up(consumer, partitions, self._listener.revoked)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._give_up(consumer, partitions, self._listener.lost)

    def _give_up(
        self,
        consumer: Consumer,
        partitions: list[TopicPartition],
        notify: Callable[[Sequence[TopicPartitionKey]], None],
    ) -> None:
        keys = [(partition.topic, partition.partition) for partition in partitions]
        notify(keys)
        self._paused.difference_update(keys)
        self._revoked.update(keys)
        for key in keys:
            self._starts.pop(key, None)
        consumer.incremental_unassign(partitions)
        if not self._is_leaving:
            self._listener.group_metadata_changed(self.group_metadata())


def generation_of(group_metadata: bytes) -> int | None:
    """Return the group's generation in its metadata, or None if the metadata has an unknown format.

    librdkafka serialises the metadata as "CGMDv2:" and the generation in native byte order
    (rd_kafka_consumer_group_metadata_write). The worker uses it to notice that it missed a generation.
    """
    if (
        not group_metadata.startswith(b"CGMDv2:")
        or len(group_metadata) < _GENERATION_AT + _GENERATION.size
    ):
        return None
    (number,) = _GENERATION.unpack_from(group_metadata, _GENERATION_AT)
    return int(number)
