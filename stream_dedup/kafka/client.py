"""What all clients share: their configuration, their messages, and the one function that classifies
errors.

Invariant: a property that protects documents is set here and refused in the settings (`settings.py`
lists them); every other property of librdkafka is the operator's.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import Message as RawMessage
from confluent_kafka.admin import AdminClient

from stream_dedup.domain.document import Headers, Message, UnreadableHeaders, maker_of
from stream_dedup.domain.errors import (
    AbortableError,
    BrokerError,
    ConfigurationError,
    FencedError,
    NoAnswerError,
)
from stream_dedup.domain.messages import NO_TIMESTAMP, Messages
from stream_dedup.settings.properties import MASK, environment_name, is_secret
from stream_dedup.settings.settings import Settings, ValueOrigin

SOCKET_TIMEOUT_SECONDS = 10.0
# A killed worker's partitions wait for its session to end. Kafka's own 45 s are for those to whom a
# rebalance is dear; here it costs a second, and no document. librdkafka's thread sends the
# heartbeats, so that no batch is too long for it: only a machine or a broker that stands still for
# ten of them in a row costs a rebalance.
SESSION_MS = 10_000
HEARTBEAT_MS = 1_000
POLL_MS = 45_000
STATISTICS_EVENT = "librdkafka statistics"

Acl = str | Mapping[int, str]

# The leader of a partition or a group has just started or moved; the same question is answered
# moments later.
MOVES = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
_NAME_BYTES_MAX = 60

# A topic was deleted, and perhaps created again, behind the client's back.
GONE = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID, KafkaError._UNKNOWN_TOPIC}
)
# Nobody answered.
SILENT = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
# The group has gone on without this member, which joins it again by itself.
WENT_ON = frozenset(
    {KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID}
)
RESTORE = (
    "A topic of this filter is gone: it was deleted. `stream-dedup topics plan` says which; "
    "restore it if its records matter, "
    "else create it with: stream-dedup topics apply"
)

# The operator's properties are given to every client; librdkafka warns of each that is for the
# other kind.
_CONSUMER_ONLY = re.compile(
    r"group\.|session\.|heartbeat\.|max\.poll|fetch\.|queued\.|auto\.(commit|offset)|check\.crcs|consume\.|partition\.assign"
)
_PRODUCER_ONLY = re.compile(
    r"linger|batch\.|queue\.buffering|compression\.|message\.(send|timeout)|retries|retry\.backoff|delivery\.|transaction"
    r"|partitioner|sticky|request\.timeout"
)

_message = maker_of(Message)
LOGGER = logging.getLogger("stream_dedup.kafka")
# For clients that are made to see whether they can be; what they say of themselves is of no
# interest.
_SILENT = logging.getLogger("stream_dedup.kafka.silent")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def base_config(
    settings: Settings, client: str, defaults: Mapping[str, Any], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a client's properties: our defaults, then the operator's own, then what the protocol
    fixes.
    """
    config: dict[str, Any] = {
        "client.id": f"{settings.group}-{client}",
        "socket.timeout.ms": int(SOCKET_TIMEOUT_SECONDS * 1000),
        "socket.nagle.disable": True,  # Nagle's algorithm costs more here than it saves
        # A role has eight clients. While no broker is there each tries some broker at half of the
        # least wait, and once a second at most: with librdkafka's 100 ms that were twenty times.
        # (Without `enable.sparse.connections` it waits longer and longer, but tries fifty times a
        # second where somebody accepts and closes, as a proxy does.)
        "reconnect.backoff.ms": 2000,
        "reconnect.backoff.max.ms": 2000,
        "log.connection.close": False,
        "topic.metadata.refresh.interval.ms": 30_000,
    }
    return (
        config
        | dict(defaults)
        | settings.kafka
        | {"bootstrap.servers": settings.kafka_bootstrap_servers}
        | dict(fixed)
    )


def admin_config(settings: Settings) -> dict[str, Any]:
    """Return the properties of an administrator's client: it neither reads nor writes records, nor
    makes a topic by asking.
    """
    fixed = {"allow.auto.create.topics": False}
    return _without(
        _PRODUCER_ONLY, _without(_CONSUMER_ONLY, base_config(settings, "admin", {}, fixed))
    )


def consumer_config(
    settings: Settings, client: str, group: str, fixed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the properties of a consumer that commits nothing by itself and never guesses where to
    begin.
    """
    session_ms = settings.kafka.get("session.timeout.ms", "")
    defaults = {
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        # A broker that comes back may wait this long for dead members. The loop polls many times a
        # second; what keeps it longest is a killed worker's transaction, which holds its offsets
        # back for 30 s, and Kafka looks every 10. librdkafka takes no interval that is shorter than
        # an operator's session.
        "max.poll.interval.ms": max(POLL_MS, int(session_ms) if session_ms.isdigit() else 0),
        # After its queue was full librdkafka waits this long before it fetches again; the default
        # is one second.
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
    fixed = protocol | dict(fixed or {}) | _statistics(settings)
    return _without(_PRODUCER_ONLY, base_config(settings, client, defaults, fixed))


def producer_config(
    settings: Settings, client: str, defaults: Mapping[str, Any], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the properties of a producer that writes each record once, to all in-sync replicas."""
    # The topic's own limit decides on sizes, not the client's.
    defaults = {"linger.ms": 1, "message.max.bytes": 100_000_000, "compression.type": "lz4"} | dict(
        defaults
    )
    config = base_config(
        settings,
        client,
        defaults,
        {"enable.idempotence": True, "acks": "all"} | dict(fixed) | _statistics(settings),
    )
    return _without(_CONSUMER_ONLY, config)


def _without(unfit: re.Pattern[str], config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if not unfit.match(name)}


def make_consumer(config: dict[str, Any], logger: logging.Logger = LOGGER) -> Consumer:
    """Return a consumer, or a sentence that says which property librdkafka does not accept."""
    try:
        return Consumer(config, logger=logger)
    except KafkaException as error:
        raise ConfigurationError(
            f"The Kafka consumer cannot be made: {_text(error)}. Check STREAM_DEDUP_KAFKA_*."
        ) from error


def make_producer(config: dict[str, Any], logger: logging.Logger = LOGGER) -> Producer:
    """Return a producer, or a sentence that says which property librdkafka does not accept."""
    try:
        return Producer(config, logger=logger)
    except KafkaException as error:
        raise ConfigurationError(
            f"The Kafka producer cannot be made: {_text(error)}. Check STREAM_DEDUP_KAFKA_*."
        ) from error


def property_problems(settings: Settings) -> list[str]:
    """Return, as sentences, every Kafka property of the settings that librdkafka does not know or
    take, without connecting.

    An unknown one is named with the nearest of those that are commonly set. What only shows when a
    client is made (a certificate that cannot be read, two properties that contradict each other)
    follows if each is good by itself.
    """
    problems = each_property(settings.kafka, settings.origins)
    producer, consumer = (
        producer_config(settings, "check", {}, {}),
        consumer_config(settings, "check", settings.group),
    )
    attempts: tuple[Callable[[], object], ...] = (
        lambda: make_producer(_unconnected(producer), _SILENT),
        lambda: make_consumer(_unconnected(consumer), _SILENT).close(),
    )
    for attempt in () if problems else attempts:
        try:
            attempt()
        except ConfigurationError as error:
            problems.append(str(error))
    return problems


def each_property(kafka: Mapping[str, str], origins: Mapping[str, ValueOrigin]) -> list[str]:
    """Return, as sentences, what is wrong with each Kafka property by itself."""
    problems = []
    for name, value in kafka.items():
        try:
            AdminClient({name: value}, logger=_SILENT)
        except KafkaException as error:
            text = str(error.args[0].str()) if isinstance(error.args[0], KafkaError) else str(error)
            if text.startswith("No such configuration"):
                near = difflib.get_close_matches(name, _COMMON, n=1, cutoff=0.6)
                hint = (
                    f"did you mean {near[0]}?"
                    if near
                    else "librdkafka's CONFIGURATION.md lists those there are."
                )
                problems.append(
                    f"{_origin(origins, name)} would be the Kafka property {name}, which does not "
                    f"exist; {hint}"
                )
            elif not text.startswith(
                "Failed to create"
            ):  # which may be only because the others are missing here
                shown, why = (MASK, "") if is_secret(name) else (repr(value), f": {text}")
                problems.append(
                    f"{_origin(origins, name)} is {shown}, which the Kafka property {name} cannot "
                    f"be{why}."
                )
    return problems


def _statistics(settings: Settings) -> dict[str, Any]:
    """Return what has librdkafka's statistics logged, if they are asked for; not for
    administrators, who rarely poll.
    """
    return (
        {"stats_cb": _log_statistics}
        if settings.kafka.get("statistics.interval.ms", "0") != "0"
        else {}
    )


def _log_statistics(text: str) -> None:
    LOGGER.info(STATISTICS_EVENT, extra={"statistics": json.loads(text)})


def _unconnected(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "bootstrap.servers"}


def _origin(origins: Mapping[str, ValueOrigin], name: str) -> str:
    return origins.get(f"kafka.{name}", ValueOrigin("default")).where or environment_name(
        f"kafka.{name}"
    )


def headers_of(
    raws: Sequence[RawMessage],
) -> tuple[list[Headers | None], dict[int, UnicodeDecodeError]]:
    """Return the headers of each record, None if it has none, and by place why those of some cannot
    be read.

    A header's name is bytes to Kafka and a `str` to the client, which fails at a name that is not
    UTF-8: it gives back a result and an error at once. Python makes a SystemError of that, behind
    which the UnicodeDecodeError stands, one more SystemError for each further such name.

    `headers` is called through `map`, which looks at both; Python's own code for a call of a
    method, once it has seen the call a few times, takes the result and raises the error somewhere
    later. A record that failed is never asked again: what the client then gives holds tuples with
    nothing in the place of the name, and Python crashes when it looks there (confluent_kafka.c,
    `c_headers_to_py`, 2.16).
    """
    given: list[Headers | None] = []
    failed: dict[int, UnicodeDecodeError] = {}
    asked: Any = map(type(raws[0]).headers, raws)
    for _ in raws:
        try:
            given.append(next(asked))
        except SystemError as error:
            why = _behind(error)
            if why is None:
                raise
            failed[len(given)] = why
            given.append(None)
    return given, failed


def _behind(error: BaseException) -> UnicodeDecodeError | None:
    """Return the error in a name that an error of the client comes from; None if it comes from
    something else.
    """
    cause: BaseException | None = error
    while isinstance(cause, SystemError):
        cause = cause.__cause__
    return cause if isinstance(cause, UnicodeDecodeError) else None


def shown_name(error: UnicodeDecodeError) -> str:
    r"""Return the name at which the client failed as ASCII, as Python writes bytes: `r\xe9f\xe9rent`; a long one is cut."""
    name = ascii(bytes(error.object[:_NAME_BYTES_MAX]))[2:-1]
    return name if len(error.object) <= _NAME_BYTES_MAX else name + "..."


def to_message(raw: RawMessage) -> Message:
    """Return a record of the library as ours."""
    kind, timestamp = raw.timestamp()
    (headers,), failed = headers_of([raw])
    has_time = kind != TIMESTAMP_NOT_AVAILABLE and timestamp > 0
    message = _message(
        (
            raw.topic(),
            raw.partition(),
            raw.offset(),
            raw.key(),
            raw.value(),
            timestamp if has_time else None,
            headers or [],
        )
    )
    return _without_headers(message, failed[0]) if failed else message


def _without_headers(message: Message, error: UnicodeDecodeError) -> UnreadableHeaders:
    """Return a record whose headers the client could not read."""
    unreadable = UnreadableHeaders(*message)
    unreadable.why, unreadable.name = str(error), shown_name(error)
    return unreadable


def to_messages(topic: str, raws: Sequence[RawMessage]) -> Messages:
    """Return records of one topic as columns: field by field, which takes a third of the time of
    record by record.
    """
    if not raws:
        return Messages.of([])
    raw: Any = type(raws[0])  # its methods, looked up once
    kinds, times = zip(*map(raw.timestamp, raws), strict=True)
    timestamps_ms = np.array(times, np.int64)
    timestamps_ms[timestamps_ms <= 0] = NO_TIMESTAMP
    if TIMESTAMP_NOT_AVAILABLE in kinds:
        timestamps_ms[np.array(kinds) == TIMESTAMP_NOT_AVAILABLE] = NO_TIMESTAMP
    given, failed = headers_of(raws)
    messages = Messages(
        topic,
        np.fromiter(map(raw.partition, raws), np.int32, len(raws)),
        np.fromiter(map(raw.offset, raws), np.int64, len(raws)),
        list(map(raw.key, raws)),
        list(map(raw.value, raws)),
        timestamps_ms,
        {place: headers for place, headers in enumerate(given) if headers} if any(given) else {},
        {},
    )
    if failed:
        messages.unreadable = {
            place: _without_headers(messages[place], error) for place, error in failed.items()
        }
    return messages


def translate(error: KafkaError | KafkaException, doing: str, needs: Acl = "") -> BrokerError:
    """Return the error of ours that stands for a librdkafka error met while `doing` something.

    `needs` is the ACL without which Kafka denies it, as in `Read on topic documents`; by error code
    where it asks for several.

    The four classes are librdkafka's (INTRODUCTION.md, "Error handling"): retriable, abortable,
    fatal, and none of them, which counts as fatal. Being fenced, and FENCED_INSTANCE_ID though it
    comes as abortable, always ends the process: another instance is alive, and a loop of retries
    would fight it.
    """
    kafka_error = error.args[0] if isinstance(error, KafkaException) else error
    text = f"While {doing}, Kafka said: {_text(kafka_error)}."
    code = kafka_error.code()
    if code in _DENIED:
        acl = needs if isinstance(needs, str) else needs.get(code)
        return BrokerError(
            f"{text} The user of this client needs the ACL {acl or _DENIED[code]}. The files in "
            "topics/users hold "
            "all that each role needs; grant it and start again."
        )
    if code in _FENCED:
        return FencedError(
            f"{text} Another worker uses the same transactional id, or a transaction took longer "
            "than its timeout; "
            "this process ends, and a restart takes over cleanly. Give each worker its own "
            "STREAM_DEDUP_WORKER_ID."
        )
    if code in GONE:
        kind = (
            AbortableError
            if kafka_error.txn_requires_abort() or kafka_error.retriable()
            else BrokerError
        )
        return kind(f"{text} {RESTORE}")
    if code == KafkaError._UNKNOWN_PARTITION:
        return AbortableError(
            f"{text} The topic has grown, and this client learns of it in a moment."
        )
    if kafka_error.fatal():
        return BrokerError(
            f"{text} The client cannot go on; a restart begins again from the committed offsets."
        )
    if kafka_error.txn_requires_abort() or kafka_error.retriable():
        return AbortableError(
            f"{text} The transaction is aborted and its documents are read again."
        )
    if code in SILENT | MOVES:
        return NoAnswerError(f"{text} Kafka is away, or on its way back; is its broker up?")
    return BrokerError(f"{text} See the broker's log, and check the connection and the ACLs.")


def is_denied(error: Exception) -> bool:
    """Whether an ACL is missing, which waiting does not mend."""
    return error.args[0].code() in _DENIED


def is_retriable(error: Exception) -> bool:
    """Return whether the same call may simply be made again."""
    kafka_error = error.args[0]
    return (
        bool(kafka_error.retriable())
        and not kafka_error.fatal()
        and not kafka_error.txn_requires_abort()
    )


def _text(error: KafkaError | KafkaException) -> str:
    kafka_error = error.args[0] if isinstance(error, KafkaException) else error
    return (
        f"{kafka_error.str()} ({kafka_error.name()})"
        if isinstance(kafka_error, KafkaError)
        else str(kafka_error)
    )


# What people set; for "did you mean", not a list of what is allowed.
_COMMON = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.kerberos.service.name",
    "sasl.kerberos.principal",
    "sasl.kerberos.keytab",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.crl.location",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "client.rack",
    "client.dns.lookup",
    "debug",
    "broker.address.family",
    "broker.address.ttl",
    "socket.timeout.ms",
    "socket.keepalive.enable",
    "socket.connection.setup.timeout.ms",
    "socket.send.buffer.bytes",
    "socket.receive.buffer.bytes",
    "connections.max.idle.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "metadata.max.age.ms",
    "topic.metadata.refresh.interval.ms",
    "statistics.interval.ms",
    "message.max.bytes",
    "receive.message.max.bytes",
    "max.in.flight.requests.per.connection",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "fetch.min.bytes",
    "fetch.max.bytes",
    "fetch.wait.max.ms",
    "max.partition.fetch.bytes",
    "queued.min.messages",
    "queued.max.messages.kbytes",
    "linger.ms",
    "batch.size",
    "batch.num.messages",
    "compression.type",
    "compression.level",
    "queue.buffering.max.messages",
    "queue.buffering.max.kbytes",
    "request.timeout.ms",
    "delivery.timeout.ms",
    "message.timeout.ms",
    "retries",
    "retry.backoff.ms",
    "transaction.timeout.ms",
    "log_level",
)

# What Kafka denied for want of an ACL, and what to grant where the call does not say it more
# precisely.
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "on that topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Read on the consumer group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write on the transactionalId",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "on the cluster",
}
_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
