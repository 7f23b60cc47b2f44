"""Whole topics read from a first to a last offset, as they were at one moment: what `audit`,
`replay` and `dlq` need.

Invariants: only what was committed is read; a span ends where the partition ended when it was asked
for, with everything of transactions that were open then, so a reader waits until those have ended,
and says which did not; nothing is committed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition

from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import BrokerError
from stream_dedup.kafka.admin import Admin
from stream_dedup.kafka.asking import OwnedOffset, ask_committed
from stream_dedup.kafka.client import consumer_config, make_consumer, to_message
from stream_dedup.kafka.readers import DAMAGED, Suspects, messages_of, opened
from stream_dedup.settings.settings import Settings

# A worker's transactions are ended by Kafka after 30 s; after this time it is not one of them that
# is waited for.
_PATIENCE_SECONDS = 60.0
_RECORDS_AT_ONCE = 2000


class Bounds(NamedTuple):
    """The first offset that a partition holds, and its end, open transactions included."""

    low: int
    end: int


def topic_bounds(settings: Settings, topic: str, partitions: int) -> dict[int, Bounds]:
    """Return the bounds of each partition of a topic.

    Raises:
        BrokerError: a leader did not answer.
    """
    ends = Admin(settings).ends(
        [(topic, part) for part in range(partitions)], IsolationLevel.READ_UNCOMMITTED
    )
    return {part: Bounds(*found) for (_, part), found in ends.items()}


def group_offsets(
    settings: Settings, group: str, topic: str, partitions: int
) -> dict[int, OwnedOffset]:
    """Return the committed offset and metadata of each partition, once no transaction that moves
    them is open.

    Asked through a consumer that joins nothing, because the administrator's question can crash
    librdkafka when the group's coordinator moves (librdkafka #5040).

    Raises:
        BrokerError: such a transaction stays open, or the coordinator does not answer.
    """
    with contextlib.closing(make_consumer(consumer_config(settings, "offsets", group))) as consumer:
        wanted = [TopicPartition(topic, part) for part in range(partitions)]
        found = ask_committed(consumer, wanted, f"of group {group}")
    return {part: owned for (_, part), owned in found.items()}


class SpanReader:
    """Reads partitions of a topic, each within its bounds; after that `open_at` has those that
    could not be read to their end.

    `open_at` maps a partition to the offset at which a transaction is open that nobody ended while
    the reader waited.
    """

    def __init__(self, settings: Settings, topic: str, bounds: Mapping[int, Bounds]) -> None:
        self.open_at: dict[int, int] = {}
        self._settings = settings
        self._topic = topic
        self._bounds = {part: one for part, one in bounds.items() if one.low < one.end}

    def read_messages(self) -> Iterator[list[Message]]:
        """Yield the records as they come, in order within each partition; as `Unreadable` what no
        client can read.

        Raises:
            BrokerError: a partition cannot be read.
        """
        if not self._bounds:
            return
        with opened(
            self._settings, "span", f"reading {self._topic}", {"enable.partition.eof": True}
        ) as consumer:
            consumer.assign(
                [TopicPartition(self._topic, part, one.low) for part, one in self._bounds.items()]
            )
            yield from self._read(consumer)

    def _read(self, consumer: Consumer) -> Iterator[list[Message]]:
        reached = {part: one.low for part, one in self._bounds.items()}
        at_end: set[int] = set()
        left = set(reached)
        suspects = Suspects()
        heard = time.monotonic()
        while left:
            raws = consumer.consume(_RECORDS_AT_ONCE, 0.2)
            good: list[Message] = []
            passed: set[int] = set()
            for raw in raws:
                error, part, offset = raw.error(), raw.partition(), raw.offset()
                if error is None and part is not None and offset is not None:
                    at_end.discard(part)
                    reached[part] = offset + 1
                    if offset < self._bounds[part].end:
                        good.append(to_message(raw))
                elif (
                    error is not None
                    and error.code() == KafkaError._PARTITION_EOF
                    and part is not None
                ):
                    at_end.add(part)
                    if offset is not None and offset > reached[part]:
                        reached[part] = offset
                elif error is not None and error.code() in DAMAGED and part is not None:
                    if part in passed or part not in left:
                        continue  # fetched before the partition was restarted behind its record
                    unreadable = suspects.fail(
                        (self._topic, part), offset or 0, reached[part], error
                    )
                    if unreadable is None:
                        continue
                    passed.add(part)
                    good.append(unreadable)
                    reached[part] = unreadable.offset + 1
                    consumer.incremental_unassign([TopicPartition(self._topic, part)])
                    consumer.incremental_assign([TopicPartition(self._topic, part, reached[part])])
                else:
                    list(messages_of([raw], self._topic))  # raises what must not pass
                    continue
                heard = time.monotonic()
                if reached[part] >= self._bounds[part].end and part in left:
                    left.discard(part)
                    consumer.incremental_unassign([TopicPartition(self._topic, part)])
            if good:
                yield good
            if left and time.monotonic() - heard > _PATIENCE_SECONDS:
                self._give_up(left, reached, at_end)
                return

    def _give_up(self, left: set[int], reached: Mapping[int, int], at_end: set[int]) -> None:
        if left - at_end:
            part = min(left - at_end)
            raise BrokerError(
                f"{self._topic}-{part} could not be read beyond offset {reached[part]} of "
                f"{self._bounds[part].end}: "
                f"nothing came for {_PATIENCE_SECONDS:.0f} s. Is its leader up?"
            )
        self.open_at = {part: reached[part] for part in sorted(left)}


class GroupStamp:
    """The metadata of a group that nobody is a member of, for a transaction that moves its
    committed offsets.
    """

    def __init__(self, settings: Settings, group: str) -> None:
        self._consumer = make_consumer(consumer_config(settings, "stamp", group))

    def read_metadata(self) -> bytes:
        """Return the group's metadata."""
        return bytes(self._consumer.consumer_group_metadata())

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()
