"""Taking records out of a consumer of the library, and what its errors mean for a reader."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import Message as RawMessage

from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import BrokerError, ConfigurationError, GoneError
from stream_dedup.kafka.client import GONE, MOVES, SILENT, WENT_ON, Acl, to_message, translate

# What the client gets over by itself. A partition is unknown to it for a moment when the topic has grown.
_PASSING = MOVES | SILENT | WENT_ON | {KafkaError._MAX_POLL_EXCEEDED, KafkaError._UNKNOWN_PARTITION}


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
