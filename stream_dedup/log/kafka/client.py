"""What all clients share: their configuration, their messages, and the one function that classifies errors.

Invariant: a property that protects documents is set here and refused in the settings (`settings.py` lists them); every
other property of librdkafka is the operator's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import Message as RawMessage

from stream_dedup.document import Headers, Message
from stream_dedup.errors import AbortableError, BrokerError, ConfigurationError, FencedError
from stream_dedup.settings import Settings

SOCKET_TIMEOUT_SECONDS = 10.0

# The operator's properties are given to every client; librdkafka warns of each that is for the other kind.
_CONSUMER_ONLY = re.compile(
    r"group\.|session\.|heartbeat\.|max\.poll|fetch\.|queued\.|auto\.(commit|offset)|check\.crcs|consume\.|partition\.assign"
)
_PRODUCER_ONLY = re.compile(
    r"linger|batch\.|queue\.buffering|compression\.|message\.(send|timeout)|retries|retry\.backoff|delivery\.|transaction"
    r"|partitioner|sticky|request\.timeout"
)

_logger = logging.getLogger("stream_dedup.kafka")


def base_config(settings: Settings, client: str, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's properties: our defaults, then the operator's own, then what the protocol fixes."""
    config: dict[str, Any] = {
        "client.id": f"{settings.group}-{client}",
        "socket.timeout.ms": int(SOCKET_TIMEOUT_SECONDS * 1000),
        # Nagle's algorithm and reconnect back-off of 10 s cost more here than they save.
        "socket.nagle.disable": True,
        "reconnect.backoff.max.ms": 2000,
        "log.connection.close": False,
        "topic.metadata.refresh.interval.ms": 30_000,
    }
    return config | dict(defaults) | settings.kafka | {"bootstrap.servers": settings.kafka_bootstrap_servers} | dict(fixed)


def consumer_config(settings: Settings, client: str, group: str, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the properties of a consumer that commits nothing by itself and never guesses where to begin."""
    defaults = {
        "session.timeout.ms": 45_000,
        "max.poll.interval.ms": 300_000,
        # After its queue was full librdkafka waits this long before it fetches again; the default is one second.
        "fetch.queue.backoff.ms": 20,
        "fetch.error.backoff.ms": 100,
        "queued.max.messages.kbytes": 32_768,
    }
    protocol = {
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "enable.partition.eof": False,
        "allow.auto.create.topics": False,
    }
    return _without(_PRODUCER_ONLY, base_config(settings, client, defaults, protocol | dict(fixed or {})))


def producer_config(settings: Settings, client: str, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a producer that writes each record once, to all in-sync replicas."""
    # The topic's own limit decides on sizes, not the client's.
    defaults = {"linger.ms": 1, "message.max.bytes": 100_000_000, "compression.type": "lz4"} | dict(defaults)
    config = base_config(settings, client, defaults, {"enable.idempotence": True, "acks": "all"} | dict(fixed))
    return _without(_CONSUMER_ONLY, config)


def _without(unfit: re.Pattern[str], config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if not unfit.match(name)}


def make_consumer(config: dict[str, Any]) -> Consumer:
    """Return a consumer, or a sentence that says which property librdkafka does not accept."""
    try:
        return Consumer(config, logger=_logger)
    except KafkaException as error:
        raise ConfigurationError(f"The Kafka consumer cannot be made: {_text(error)}. Check STREAM_DEDUP_KAFKA_*.") from error


def make_producer(config: dict[str, Any]) -> Producer:
    """Return a producer, or a sentence that says which property librdkafka does not accept."""
    try:
        return Producer(config, logger=_logger)
    except KafkaException as error:
        raise ConfigurationError(f"The Kafka producer cannot be made: {_text(error)}. Check STREAM_DEDUP_KAFKA_*.") from error


def to_message(raw: RawMessage) -> Message:
    """Return a record of the library as ours."""
    kind, timestamp = raw.timestamp()
    return Message(
        cast("str", raw.topic()),  # a record without an error has all three
        cast("int", raw.partition()),
        cast("int", raw.offset()),
        raw.key(),
        raw.value(),
        timestamp if kind else None,
        cast("Headers", raw.headers() or []),  # the library's stubs also allow what only producers may pass
    )


def translate(error: KafkaError | KafkaException, doing: str) -> BrokerError:
    """Return the error of ours that stands for a librdkafka error met while `doing` something.

    The four classes are librdkafka's (INTRODUCTION.md, "Error handling"): retriable, abortable, fatal, and none of
    them, which counts as fatal. Being fenced, and FENCED_INSTANCE_ID though it comes as abortable, always ends the
    process: another instance is alive, and a loop of retries would fight it.
    """
    kafka_error = error.args[0] if isinstance(error, KafkaException) else error
    text = f"While {doing}, Kafka said: {_text(kafka_error)}."
    code = kafka_error.code()
    if code in _FENCED:
        return FencedError(
            f"{text} Another worker uses the same transactional id, or a transaction took longer than its timeout; "
            "this process ends, and a restart takes over cleanly. Give each worker its own STREAM_DEDUP_WORKER_ID."
        )
    if kafka_error.fatal():
        return BrokerError(f"{text} The client cannot go on; a restart begins again from the committed offsets.")
    if kafka_error.txn_requires_abort() or kafka_error.retriable():
        return AbortableError(f"{text} The transaction is aborted and its documents are read again.")
    return BrokerError(f"{text} See the broker's log, and check the connection and the ACLs.")


def wait_for(call: Callable[[float], Any], doing: str, seconds: float = 30.0) -> Any:
    """Return `call(timeout)`, or raise what it raised as one of ours."""
    try:
        return call(seconds)
    except KafkaException as error:
        raise translate(error, doing) from error


def is_retriable(error: KafkaException) -> bool:
    """Return whether the same call may simply be made again."""
    kafka_error = error.args[0]
    return bool(kafka_error.retriable()) and not kafka_error.fatal() and not kafka_error.txn_requires_abort()


def _text(error: KafkaError | KafkaException) -> str:
    kafka_error = error.args[0] if isinstance(error, KafkaException) else error
    return f"{kafka_error.str()} ({kafka_error.name()})" if isinstance(kafka_error, KafkaError) else str(kafka_error)


_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
