"""Configuration, message conversion and error classification of all clients.

Invariant: a property that protects documents is set here and refused in the settings (`FIXED_PROPERTIES`
lists them); operators may set every other librdkafka property.
"""

from __future__ import annotations

import difflib
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
# A killed worker's partitions wait for the end of its session. Kafka's default of 45 s avoids costly
# rebalances; here a rebalance costs a second and loses no document. librdkafka's thread sends the
# heartbeats, so a long batch does not end the session: only a machine or a broker that is suspended
# for ten heartbeats does.
SESSION_MS = 10_000
HEARTBEAT_MS = 1_000
POLL_MS = 45_000

Acl = str | Mapping[int, str]

# The leader of a partition or the coordinator of a group has just started or moved; a retry succeeds
# moments later.
LEADER_MOVES = frozenset(
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

# A topic was deleted, and perhaps created again.
TOPIC_GONE = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID, KafkaError._UNKNOWN_TOPIC}
)
# No broker answered.
NO_ANSWER = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
# The group rebalanced without this member, and the client joins again automatically.
GROUP_MOVED = frozenset(
    {KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID}
)
RESTORE_TOPIC = (
    "A topic of this filter was deleted. Find it with: stream-dedup topics plan. Restore it if "
    "you need its records; otherwise create it with: stream-dedup topics apply"
)

# The operator's properties are for all clients. Those for the other kind of client are removed,
# because librdkafka warns of them.
_CONSUMER_ONLY = re.compile(
    r"group\.|session\.|heartbeat\.|max\.poll|fetch\.|queued\.|auto\.(commit|offset)|check\.crcs|consume\.|partition\.assign"
)
_PRODUCER_ONLY = re.compile(
    r"linger|batch\.|queue\.buffering|compression\.|message\.(send|timeout)|retries|retry\.backoff|delivery\.|transaction"
    r"|partitioner|sticky|request\.timeout"
)

_message = maker_of(Message)
LOGGER = logging.getLogger("stream_dedup.kafka")
# The logger of clients that are created only to check their properties.
_MUTED = logging.getLogger("stream_dedup.kafka.silent")
_MUTED.addHandler(logging.NullHandler())
_MUTED.propagate = False


def base_config(
    settings: Settings, client: str, defaults: Mapping[str, Any], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a client's properties: our defaults, then the operator's properties, then the fixed
    ones.
    """
    config: dict[str, Any] = {
        "client.id": f"{settings.group}-{client}",
        "socket.timeout.ms": int(SOCKET_TIMEOUT_SECONDS * 1000),
        "socket.nagle.disable": True,  # Nagle's algorithm costs more here than it saves
        # A role has eight clients. While no broker is available, each tries to connect after half of
        # the minimum backoff: once a second here, and twenty times a second with librdkafka's default
        # of 100 ms. (Without `enable.sparse.connections` the backoff grows, but a proxy that accepts
        # and closes connections is tried fifty times a second.)
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
    """Return the properties of an admin client; it never creates topics automatically."""
    fixed = {"allow.auto.create.topics": False}
    return _without(
        _PRODUCER_ONLY, _without(_CONSUMER_ONLY, base_config(settings, "admin", {}, fixed))
    )


def consumer_config(
    settings: Settings, client: str, group: str, fixed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the properties of a consumer without automatic commits and without a default start
    offset.
    """
    session_ms = settings.kafka.get("session.timeout.ms", "")
    defaults = {
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        # The loop polls many times a second. Its longest wait is for the transaction of a killed
        # worker, which blocks the committed offsets for 30 s, and Kafka checks every 10 s. The
        # interval is not longer, because a restarted broker may wait this long for dead members.
        # librdkafka requires at least the session timeout.
        "max.poll.interval.ms": max(POLL_MS, int(session_ms) if session_ms.isdigit() else 0),
        # The pause of librdkafka before it fetches again after a full queue; the default is 1 s.
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
    config = base_config(settings, client, defaults, protocol | dict(fixed or {}))
    return _without(_PRODUCER_ONLY, config)


def producer_config(
    settings: Settings, client: str, defaults: Mapping[str, Any], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the properties of a producer that writes each record once, to all in-sync replicas."""
    # The topic limits the sizes of records, not the client.
    defaults = {"linger.ms": 1, "message.max.bytes": 100_000_000, "compression.type": "lz4"} | dict(
        defaults
    )
    config = base_config(
        settings,
        client,
        defaults,
        {"enable.idempotence": True, "acks": "all"} | dict(fixed),
    )
    return _without(_CONSUMER_ONLY, config)


def _without(pattern: re.Pattern[str], config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if not pattern.match(name)}


def make_consumer(config: dict[str, Any], logger: logging.Logger = LOGGER) -> Consumer:
    """Return a consumer.

    Raises:
        ConfigurationError: librdkafka does not accept a property; the message names it.
    """
    try:
        return Consumer(config, logger=logger)
    except KafkaException as error:
        raise ConfigurationError(
            f"The Kafka consumer cannot be created: {_describe_error(error)}. Check STREAM_DEDUP_KAFKA_*."
        ) from error


def make_producer(config: dict[str, Any], logger: logging.Logger = LOGGER) -> Producer:
    """Return a producer.

    Raises:
        ConfigurationError: librdkafka does not accept a property; the message names it.
    """
    try:
        return Producer(config, logger=logger)
    except KafkaException as error:
        raise ConfigurationError(
            f"The Kafka producer cannot be created: {_describe_error(error)}. Check STREAM_DEDUP_KAFKA_*."
        ) from error


def property_problems(settings: Settings) -> list[str]:
    """Return a sentence for every Kafka property of the settings that librdkafka does not accept,
    without connecting.

    An unknown property is reported with the most similar common one. If each property is valid,
    clients are created to find further problems (an unreadable certificate, two properties that
    contradict each other).
    """
    problems = check_each_property(settings.kafka, settings.origins)
    producer, consumer = (
        producer_config(settings, "check", {}, {}),
        consumer_config(settings, "check", settings.group),
    )
    attempts: tuple[Callable[[], object], ...] = (
        lambda: make_producer(_unconnected(producer), _MUTED),
        lambda: make_consumer(_unconnected(consumer), _MUTED).close(),
    )
    for attempt in () if problems else attempts:
        try:
            attempt()
        except ConfigurationError as error:
            problems.append(str(error))
    return problems


def check_each_property(kafka: Mapping[str, str], origins: Mapping[str, ValueOrigin]) -> list[str]:
    """Return a sentence for each invalid Kafka property, checked one at a time."""
    problems = []
    for name, value in kafka.items():
        try:
            AdminClient({name: value}, logger=_MUTED)
        except KafkaException as error:
            text = str(error.args[0].str()) if isinstance(error.args[0], KafkaError) else str(error)
            if text.startswith("No such configuration"):
                near = difflib.get_close_matches(name, _COMMON, n=1, cutoff=0.6)
                hint = (
                    f"did you mean {near[0]}?"
                    if near
                    else "librdkafka's CONFIGURATION.md lists all properties."
                )
                problems.append(
                    f"{_origin(origins, name)} would be the Kafka property {name}, which does not "
                    f"exist; {hint}"
                )
            # Creating a client with this property alone may fail because others are missing.
            elif not text.startswith("Failed to create"):
                shown, reason = (MASK, "") if is_secret(name) else (repr(value), f": {text}")
                problems.append(
                    f"{_origin(origins, name)} is {shown}, which the Kafka property {name} cannot "
                    f"be{reason}."
                )
    return problems


def _unconnected(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "bootstrap.servers"}


def _origin(origins: Mapping[str, ValueOrigin], name: str) -> str:
    return origins.get(f"kafka.{name}", ValueOrigin("default")).where or environment_name(
        f"kafka.{name}"
    )


def headers_of(
    raws: Sequence[RawMessage],
) -> tuple[list[Headers | None], dict[int, UnicodeDecodeError]]:
    """Return the headers of each record (None if it has none), and by place the errors of records
    whose headers cannot be read.

    Kafka stores a header's name as bytes, and the client returns a `str`. For a name that is not
    UTF-8 the client wrongly returns a result and sets an error as well. Python then raises a
    SystemError, caused by the UnicodeDecodeError (with one SystemError more for each further such
    name).
    """
    # `headers` is called through `map`, which checks for an error at once; a plain method call would
    # use the result, and raise the error somewhere later. Never call it twice for a failed record:
    # the client then returns tuples with a null pointer as the name, and Python crashes when it reads
    # them (confluent_kafka.c, `c_headers_to_py`, 2.16).
    headers: list[Headers | None] = []
    errors: dict[int, UnicodeDecodeError] = {}
    results: Any = map(type(raws[0]).headers, raws)
    for _ in raws:
        try:
            headers.append(next(results))
        except SystemError as error:
            name_error = _name_error(error)
            if name_error is None:
                raise
            errors[len(headers)] = name_error
            headers.append(None)
    return headers, errors


def _name_error(error: BaseException) -> UnicodeDecodeError | None:
    """Return the UnicodeDecodeError that caused an error of the client; None if there is none."""
    cause: BaseException | None = error
    while isinstance(cause, SystemError):
        cause = cause.__cause__
    return cause if isinstance(cause, UnicodeDecodeError) else None


def shown_name(error: UnicodeDecodeError) -> str:
    r"""Return in ASCII the name of a header that is not UTF-8, such as `r\xe9f\xe9rent`; cut a long
    one.
    """
    name = ascii(bytes(error.object[:_NAME_BYTES_MAX]))[2:-1]
    return name if len(error.object) <= _NAME_BYTES_MAX else name + "..."


def to_message(raw: RawMessage) -> Message:
    """Convert a record of the library."""
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
    """Convert records of one topic to columns."""
    if not raws:
        return Messages.of([])
    # Field by field takes a third of the time of record by record. Methods are looked up once.
    raw_class: Any = type(raws[0])
    kinds, times = zip(*map(raw_class.timestamp, raws), strict=True)
    timestamps_ms = np.array(times, np.int64)
    timestamps_ms[timestamps_ms <= 0] = NO_TIMESTAMP
    if TIMESTAMP_NOT_AVAILABLE in kinds:
        timestamps_ms[np.array(kinds) == TIMESTAMP_NOT_AVAILABLE] = NO_TIMESTAMP
    record_headers, errors = headers_of(raws)
    messages = Messages(
        topic,
        np.fromiter(map(raw_class.partition, raws), np.int32, len(raws)),
        np.fromiter(map(raw_class.offset, raws), np.int64, len(raws)),
        list(map(raw_class.key, raws)),
        list(map(raw_class.value, raws)),
        timestamps_ms,
        {place: headers for place, headers in enumerate(record_headers) if headers}
        if any(record_headers)
        else {},
        {},
    )
    if errors:
        messages.unreadable = {
            place: _without_headers(messages[place], error) for place, error in errors.items()
        }
    return messages


def translate(error: KafkaError | KafkaException, doing: str, needs: Acl = "") -> BrokerError:
    """Return the exception for a librdkafka error that occurred while `doing` something.

    `needs` is the ACL that the request requires, such as `Read on topic documents`; a mapping by
    error code if it requires several.

    librdkafka has four classes of errors (INTRODUCTION.md, "Error handling"): retriable, abortable,
    fatal, and the rest, which counts as fatal here. Fencing always ends the process, because another
    instance is alive and a retry would fence it in turn; this includes FENCED_INSTANCE_ID, which
    librdkafka reports as abortable.
    """
    kafka_error = error.args[0] if isinstance(error, KafkaException) else error
    text = f"While {doing}, Kafka reported: {_describe_error(kafka_error)}."
    code = kafka_error.code()
    if code in _DENIED:
        acl = needs if isinstance(needs, str) else needs.get(code)
        return BrokerError(
            f"{text} The user of this client needs the ACL {acl or _DENIED[code]}. Grant it, and "
            "start this role again; the files in topics/users contain the ACLs of each role."
        )
    if code in _FENCED:
        return FencedError(
            f"{text} Another worker uses the same transactional id, or a transaction exceeded its "
            "timeout. This process exits; a restart loses nothing. Set a different "
            "STREAM_DEDUP_WORKER_ID for each worker."
        )
    if code in TOPIC_GONE:
        is_abortable = kafka_error.txn_requires_abort() or kafka_error.retriable()
        error_class = AbortableError if is_abortable else BrokerError
        return error_class(f"{text} {RESTORE_TOPIC}")
    if code == KafkaError._UNKNOWN_PARTITION:
        return AbortableError(
            f"{text} Partitions were added to the topic; the client refreshes its metadata shortly."
        )
    if kafka_error.fatal():
        return BrokerError(
            f"{text} The client cannot continue; a restart continues from the committed offsets."
        )
    if kafka_error.txn_requires_abort() or kafka_error.retriable():
        return AbortableError(
            f"{text} The transaction is aborted, and its documents are read again."
        )
    if code in NO_ANSWER | LEADER_MOVES:
        return NoAnswerError(f"{text} Kafka is unavailable or restarting. Are its brokers running?")
    return BrokerError(f"{text} See the broker's log, and check the connection and the ACLs.")


def is_denied(error: Exception) -> bool:
    """Return whether an ACL is missing, so that a retry is useless."""
    return error.args[0].code() in _DENIED


def is_retriable(error: Exception) -> bool:
    """Return whether the same call may be repeated."""
    kafka_error = error.args[0]
    return (
        bool(kafka_error.retriable())
        and not kafka_error.fatal()
        and not kafka_error.txn_requires_abort()
    )


def _describe_error(error: KafkaError | KafkaException) -> str:
    kafka_error = error.args[0] if isinstance(error, KafkaException) else error
    return (
        f"{kafka_error.str()} ({kafka_error.name()})"
        if isinstance(kafka_error, KafkaError)
        else str(kafka_error)
    )


# Common properties, for "did you mean"; others are allowed too.
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

# The errors of missing ACLs, and the ACL to grant if the caller names none.
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
