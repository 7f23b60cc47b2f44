"""Taking records out of a consumer of the library, and what its errors mean for a reader.

Some records no client can read: damaged batches, and any that expands beyond what librdkafka takes. An error on the way here
would pass, a damaged batch is as damaged when it is fetched again, so nothing is given up before the third failure at the same
offset. Each offset of such a batch comes once, in order, and the partition goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import Message as RawMessage

from stream_dedup.ground.document import Message, TopicPartitionKey, Unreadable
from stream_dedup.ground.errors import BrokerError, ConfigurationError, GoneError
from stream_dedup.kafka.client import GONE, MOVES, SILENT, WENT_ON, Acl, consumer_config, make_consumer, to_message, translate
from stream_dedup.settings.settings import Settings

# What the client gets over by itself. A partition is unknown to it for a moment when the topic has grown.
_PASSING = MOVES | SILENT | WENT_ON | {KafkaError._MAX_POLL_EXCEEDED, KafkaError._UNKNOWN_PARTITION}
DAMAGED = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError.INVALID_MSG})
_AFTER = 3


@contextlib.contextmanager
def opened(settings: Settings, client: str, doing: str, fixed: Mapping[str, Any] | None = None) -> Iterator[Consumer]:
    """Yield a consumer that reads by assignment; what the library raises meanwhile is raised as one of ours."""
    consumer = make_consumer(consumer_config(settings, client, f"{settings.group}-{client}", fixed))
    try:
        yield consumer
    except KafkaException as error:
        raise translate(error, doing) from error
    finally:
        consumer.close()


def take_messages(consumer: Consumer, most: int, timeout_seconds: float, topic: str) -> list[Message]:
    """Return up to `most` records: what is there now, or what comes first within the time."""
    return messages_of(take_raw(consumer, most, timeout_seconds, topic), topic)


def take_raw(consumer: Consumer, most: int, timeout_seconds: float, topic: str) -> list[RawMessage]:
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


def messages_of(raws: Iterable[RawMessage], topic: str) -> list[Message]:
    """Return the records among what was taken, and raise what must stop the reader."""
    messages = []
    for raw in raws:
        error = raw.error()
        if error is None:
            messages.append(to_message(raw))
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            # Readers by assignment are members of no group; librdkafka looks for its coordinator all the same.
            raise_unless_passing(error, topic)
    return messages


def raise_unless_passing(error: KafkaError, topic: str, acls: Acl = "") -> None:
    """Raise what must stop the role; what the client gets over by itself passes."""
    code = error.code()
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise GoneError(
            f"An offset to read from is not in {topic} any more ({error.str()}): its retention removed records, or the "
            "topic was created again. Nothing was skipped. Restore the topic, or move on with: stream-dedup rewind"
        )
    if code in GONE:
        raise GoneError(
            f"The topic {topic} does not exist: it was deleted, or never created. Restore it if its records matter, else "
            "create it with: stream-dedup topics apply"
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
    if code in _PASSING or (error.retriable() and not error.fatal()):
        return
    raise BrokerError(f"{topic} cannot be read on: {error.str()} ({error.name()}). A restart begins at the same place.")


class Suspects:
    """Where reading failed, and how often."""

    def __init__(self) -> None:
        self._failures: dict[TopicPartitionKey, tuple[int, int]] = {}

    def fail(self, key: TopicPartitionKey, batch_offset: int, position: int, error: KafkaError) -> Unreadable | None:
        """Note a failure; return the record that cannot be read, once that is certain: its reader goes on behind it.

        librdkafka names the batch's first offset, not the `position` asked for, and would fetch it for ever. Where the
        batch ends nobody can say, so each of its offsets is tried; after the first of them one failure is enough.
        """
        offset = max(batch_offset, position)
        before, count = self._failures.get(key, (-1, 0))
        count = count + 1 if before == offset else _AFTER if before == offset - 1 and count == -1 else 1
        if count < _AFTER:
            self._failures[key] = (offset, count)
            return None
        self._failures[key] = (offset, -1)
        unreadable = Unreadable(*key, offset, None, None, None, [])
        unreadable.why = error.str()
        return unreadable
