"""Admin requests: topics, their ids and settings, and a group's committed offsets.

Invariant: only `topics apply` and `rewind` change anything; the roles only read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from stream_dedup.domain.connection import address_and_reason
from stream_dedup.domain.document import TopicPartitionKey
from stream_dedup.domain.errors import (
    BrokerError,
    ConfigurationError,
    NoAnswerError,
    StreamDedupError,
    TopicExistsError,
)
from stream_dedup.domain.topics import TopicState
from stream_dedup.kafka.client import LOGGER, NO_ANSWER, admin_config, translate
from stream_dedup.kafka.retries import retry_request
from stream_dedup.settings.settings import Settings

_TIMEOUT_SECONDS = 20.0
_EARLIEST, _LATEST = (
    OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
    OffsetSpec.latest(),  # type: ignore[no-untyped-call]
)
_POLL_SECONDS = 0.05
_LOG_AFTER_SECONDS = 3.0
_FIRST_REQUEST_SECONDS = 1.0
_METADATA_SECONDS = 1.0


class Bounds(NamedTuple):
    """The first stored offset of a partition, and the offset of its next record."""

    low: int
    end: int


class ExistingTopic(NamedTuple):
    """The id of a topic, and its number of partitions."""

    topic_id: bytes
    partitions: int


class Admin:
    """An admin client, for a command or a start of a role."""

    def __init__(self, settings: Settings) -> None:
        self._connection_errors = ConnectionErrors(settings)
        config = admin_config(settings) | {"error_cb": self._connection_errors.record}
        try:
            self._client = AdminClient(config, logger=LOGGER)
        except KafkaException as error:
            raise ConfigurationError(
                f"The Kafka client cannot be created: {error.args[0].str()}. Check "
                "STREAM_DEDUP_KAFKA_*."
            ) from error
        self._bootstrap = settings.kafka_bootstrap_servers

    def broker_count(self) -> int:
        """Return the number of brokers of the cluster.

        Raises:
            BrokerError: no broker answered.
        """
        return len(self._metadata("requesting the cluster's brokers").brokers)

    def cluster_id(self) -> str:
        """Return the cluster's id."""
        return str(self._metadata("requesting the cluster's id").cluster_id)

    def find_silence_reason(self, topic: str, seconds: float) -> str:
        """Return the reason why no broker answered a small request about a topic within `seconds`,
        "" if one did.

        Any broker can answer, whether or not the topic exists. A request about the cluster would go to
        the controller: while the controller is down, librdkafka 2.16 reconnects without a pause and
        uses a whole processor.

        Raises:
            ConfigurationError: the brokers refuse the credentials, or their certificate is not
            trusted.
        """
        try:
            self._list_topics(seconds, float("inf"), topic)
        except KafkaException as error:
            # A broker that refuses the request has answered.
            return (
                ""
                if error.args[0].code() not in NO_ANSWER
                else self._connection_errors.last() or "No broker has answered"
            )
        return ""

    def _metadata(self, doing: str) -> Any:
        """Return the cluster's brokers and topics; a long wait is logged."""
        try:
            return self._list_topics(_TIMEOUT_SECONDS, _LOG_AFTER_SECONDS)
        except KafkaException as error:
            raise self._translate(error, doing) from error

    def _list_topics(self, seconds: float, log_after: float, topic: str | None = None) -> Any:
        """Return the metadata of all topics or of one, within `seconds`. Log a warning if no broker
        has answered after `log_after` seconds.

        Each request waits longer than the one before. Between two of them the client's log messages
        and errors are processed.
        """
        began, request_seconds = time.monotonic(), _FIRST_REQUEST_SECONDS
        while True:
            remaining_seconds = began + seconds - time.monotonic()
            is_last = remaining_seconds <= 2 * request_seconds
            try:
                return self._client.list_topics(
                    topic, timeout=max(0.1, remaining_seconds if is_last else request_seconds)
                )
            except KafkaException as error:
                self._client.poll(0)
                self._connection_errors.check()
                if error.args[0].code() not in NO_ANSWER or is_last:
                    raise
            request_seconds *= 2
            if time.monotonic() - began >= log_after:
                log_after = float("inf")
                self._log_silence()

    def _log_silence(self) -> None:
        self._client.poll(0)
        self._connection_errors.check()
        if not self._connection_errors.last():  # otherwise the client has logged the reason
            LOGGER.warning(
                "No answer from Kafka at %s yet; waiting for at most %.0f s.",
                self._bootstrap,
                _TIMEOUT_SECONDS,
            )

    def describe(self, names: Iterable[str]) -> dict[str, TopicState]:
        """Return the state of those of the named topics that exist."""
        descriptions = self._descriptions(names)
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in descriptions]
        settings: dict[str, dict[str, str]] = {}
        if resources:
            for resource, future in self._client.describe_configs(
                resources, request_timeout=_TIMEOUT_SECONDS
            ).items():
                needs = f"DescribeConfigs on topic {resource.name}"
                entries = self._translated_result(
                    future, f"reading the settings of topic {resource.name}", needs
                )
                settings[resource.name] = {
                    name: str(entry.value) for name, entry in entries.items()
                }
        return {
            name: TopicState(
                name,
                topic_id=_uuid_bytes(description.topic_id),
                partitions=len(description.partitions),
                config=settings[name],
                replicas=min(len(partition.replicas) for partition in description.partitions),
            )
            for name, description in descriptions.items()
        }

    def bounds(
        self,
        keys: Sequence[TopicPartitionKey],
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartitionKey, Bounds]:
        """Return the bounds of each partition, as readers with that isolation level see them."""
        low = self._list_offsets(keys, _EARLIEST, level)
        end = self._list_offsets(keys, _LATEST, level)
        return {key: Bounds(int(low[key].offset), int(end[key].offset)) for key in keys}

    def offsets_at_time(
        self, keys: Sequence[TopicPartitionKey], time_ms: int
    ) -> dict[TopicPartitionKey, tuple[int, int | None]]:
        """Return (offset, timestamp) of the first record at `time_ms` or later; (end, None) without
        one.
        """
        offsets = self._list_offsets(keys, OffsetSpec.for_timestamp(time_ms))
        missing = [key for key, offset in offsets.items() if offset.offset < 0]
        ends = self._list_offsets(missing, _LATEST)
        return {
            key: (int(ends[key].offset), None)
            if key in ends
            else (int(offset.offset), int(offset.timestamp))
            for key, offset in offsets.items()
        }

    def _list_offsets(
        self,
        keys: Sequence[TopicPartitionKey],
        spec: Any,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartitionKey, Any]:
        """Return the offset result of each partition. Request all in one call; if a partition's
        leader moves, repeat the request for this partition alone.
        """
        if not keys:
            return {}

        def request_offsets(requested: Iterable[TopicPartitionKey]) -> dict[Any, Any]:
            specs = {TopicPartition(*key): spec for key in requested}
            return dict(
                self._client.list_offsets(
                    specs, isolation_level=level, request_timeout=_TIMEOUT_SECONDS
                )
            )

        first_futures = request_offsets(keys)

        def wait_for_offset(key: TopicPartitionKey) -> Any:
            partition = TopicPartition(*key)
            return self._wait(
                first_futures.pop(partition)
                if partition in first_futures
                else request_offsets([key])[partition]
            )

        return {
            key: self._request(
                partial(wait_for_offset, key), f"requesting offsets of {key[0]}-{key[1]}"
            )
            for key in keys
        }

    def topic_ids(self, names: Iterable[str]) -> dict[str, ExistingTopic]:
        """Return those of the named topics that exist, by name."""
        return {
            name: ExistingTopic(_uuid_bytes(description.topic_id), len(description.partitions))
            for name, description in self._descriptions(names).items()
        }

    def _descriptions(self, names: Iterable[str]) -> dict[str, Any]:
        topics = list(names)
        if not topics:
            return {}
        descriptions = {}
        answers = self._client.describe_topics(
            TopicCollection(topics), request_timeout=_TIMEOUT_SECONDS
        )
        for name, future in answers.items():
            try:
                descriptions[name] = self._wait(future)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise self._translate(
                    error, f"requesting topic {name}", f"Describe on topic {name}"
                ) from error
        return descriptions

    def create(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> None:
        """Create a topic.

        Raises:
            TopicExistsError: it exists, or is being created.
            BrokerError: Kafka refused the request.
        """
        topic = NewTopic(name, partitions, replication_factor, config=dict(config))
        for future in self._client.create_topics(
            [topic], operation_timeout=_TIMEOUT_SECONDS
        ).values():
            self._translated_result(future, f"creating topic {name}")
        self._wait_until_known(name)

    def end_offset(self, topic: str, partition: int) -> int:
        """Return the offset of the next record of a partition, including open transactions."""
        key = (topic, partition)
        return int(self._list_offsets([key], _LATEST, IsolationLevel.READ_UNCOMMITTED)[key].offset)

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        for future in self._client.create_partitions([NewPartitions(name, total)]).values():
            self._translated_result(future, f"adding partitions to topic {name} (total {total})")

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """Set the given settings of a topic and leave the others."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        for future in self._client.incremental_alter_configs([resource]).values():
            self._translated_result(future, f"changing the settings of topic {name}")

    def committed_or_last_known(
        self, group: str
    ) -> dict[TopicPartitionKey, tuple[int, str | None]]:
        """Return the last known (offset, metadata) of every partition with a committed offset of the
        group, ignoring open transactions.
        """
        return _existing_offsets(self._offsets(group, is_stable=False))

    def partitions_committed(self, group: str, topic: str) -> frozenset[int]:
        """Return the partitions of a topic with a committed offset of the group, or with one in an
        open transaction.
        """
        offsets = [entry for entry in self._offsets(group) if entry.topic == topic]
        return frozenset(
            entry.partition for entry in offsets if entry.offset >= 0 or entry.error is not None
        )

    def stable_committed(self, group: str) -> dict[TopicPartitionKey, tuple[int, str | None]]:
        """Return (offset, metadata) of every partition with a committed offset of the group.

        Raises:
            BrokerError: a transaction that changes the offsets is open.
        """
        offsets = self._offsets(group)
        unstable = []
        for entry in offsets:
            if entry.error is not None and entry.error.code() != KafkaError.UNSTABLE_OFFSET_COMMIT:
                raise translate(entry.error, f"reading the committed offsets of group {group}")
            if entry.error is not None:
                unstable.append(f"{entry.topic}-{entry.partition}")
        if unstable:
            raise BrokerError(
                f"An open transaction will change the committed offsets of group {group} for "
                f"{', '.join(sorted(unstable))}: a worker was killed during it. Kafka aborts it "
                "after its timeout (default 30 s), or when that worker starts again. Nothing was "
                "changed. Run this command again afterwards."
            )
        return _existing_offsets(offsets)

    def _offsets(self, group: str, *, is_stable: bool = True) -> list[TopicPartition]:
        """Return a group's committed offsets; with `is_stable`, one in an open transaction has an
        error instead.
        """
        # If the coordinator is starting or has moved, its answer to a request for offsets crashes
        # librdkafka (its issue 5040). A request for members gets an error then, and is retried.
        self.group_members(group)

        def list_offsets() -> Any:
            groups = [ConsumerGroupTopicPartitions(group)]
            return self._wait(
                self._client.list_consumer_group_offsets(groups, require_stable=is_stable)[group]
            )

        return list(
            self._request(
                list_offsets, f"reading the committed offsets of group {group}"
            ).topic_partitions
        )

    def write_committed(
        self, group: str, topic: str, changes: Mapping[int, tuple[int, str]]
    ) -> None:
        """Write the committed (offset, metadata) of partitions of a group without members, in one
        request.
        """
        partitions = [
            TopicPartition(topic, partition, offset, metadata)
            for partition, (offset, metadata) in changes.items()
        ]
        doing = f"writing the committed offsets of {topic} for group {group}"

        def alter_offsets() -> None:
            groups = [ConsumerGroupTopicPartitions(group, partitions)]
            written = self._wait(self._client.alter_consumer_group_offsets(groups)[group])
            for entry in written.topic_partitions:
                if entry.error is not None:
                    raise KafkaException(entry.error)

        self._request(alter_offsets, doing)

    def group_members(self, group: str) -> int:
        """Return the number of members of the group."""
        return len(self._members(group))

    def member_ids(self, group: str) -> frozenset[str]:
        """Return the ids of the group's members; a restarted member has a new id."""
        return frozenset(member.member_id for member in self._members(group))

    def group_topics(self, group: str) -> frozenset[str]:
        """Return the topics of the partitions that are assigned to the group's members."""
        return frozenset(
            partition.topic
            for member in self._members(group)
            for partition in member.assignment.topic_partitions
        )

    def _members(self, group: str) -> Sequence[Any]:
        def describe_group() -> Any:
            return self._wait(
                self._client.describe_consumer_groups([group], request_timeout=_TIMEOUT_SECONDS)[
                    group
                ]
            )

        try:
            return list(self._retry(describe_group).members)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return []
            raise self._translate(error, f"requesting the members of group {group}") from error

    def _request(self, call: Callable[[], Any], doing: str) -> Any:
        try:
            return self._retry(call)
        except KafkaException as error:
            raise self._translate(error, doing) from error

    def _retry(self, call: Callable[[], Any]) -> Any:
        """Return the result of `call`, which must be idempotent; repeat it while the leader or
        coordinator moves or starts.
        """
        return retry_request(lambda _: call(), _TIMEOUT_SECONDS, self._client.poll)

    def _translated_result(self, future: Any, doing: str, needs: str = "") -> Any:
        try:
            return self._wait(future)
        except KafkaException as error:
            raise self._translate(error, doing, needs) from error

    def _wait(self, future: Any) -> Any:
        """Return a future's result; stop waiting once a broker refuses the connection.

        Many requests go to the controller. If it is down, the client learns of the new controller
        only from the cluster's metadata, so this requests the metadata while it waits.

        Raises:
            ConfigurationError: the broker refused the credentials, or its certificate is not
            trusted.
        """
        log_at = time.monotonic() + _LOG_AFTER_SECONDS
        refresh_at = time.monotonic() + _METADATA_SECONDS
        while not futures.wait([future], _POLL_SECONDS).done:
            self._client.poll(0)
            self._connection_errors.check()
            if time.monotonic() >= refresh_at:
                with contextlib.suppress(KafkaException):
                    self._client.list_topics(timeout=_METADATA_SECONDS)
                refresh_at = time.monotonic() + _METADATA_SECONDS
            if time.monotonic() >= log_at:
                log_at = float("inf")
                self._log_silence()
        error = future.exception()
        if error is not None:
            # A copy: the exception itself refers to the future through its traceback, and this cycle
            # would keep the client and its four threads alive until Python collects it.
            raise type(error)(*error.args)
        return future.result()

    def _translate(self, error: KafkaException, doing: str, needs: str = "") -> StreamDedupError:
        """Return the exception for an error. If the cluster does not answer, its message names the
        addresses and the last reason.
        """
        if error.args[0].code() in NO_ANSWER:
            self._client.poll(0)
            reason = self._connection_errors.last()
            no_broker = f"{reason}: no broker" if reason else "No broker"
            return self._connection_errors.refusal() or NoAnswerError(
                f"{no_broker} answered at {self._bootstrap} within {_TIMEOUT_SECONDS:.0f} s while "
                f"{doing}. Is Kafka running there, and do STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS "
                "and the TLS and SASL settings match its listener?"
            )
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return TopicExistsError(
                f"While {doing}, the topic existed but was not listed: it is being created or "
                "deleted. Try again."
            )
        return translate(error, doing, needs)

    def _wait_until_known(self, name: str) -> None:
        """Wait until the connected broker knows the topic: creation returns before all brokers have
        the metadata.
        """
        for _ in range(100):
            if name in self.topic_ids([name]):
                return
            self._client.poll(0.05)


class ReusedAdmin:
    """Reuses an `Admin` for repeated requests, from any thread, and replaces it after a failure.

    A client costs several threads and memory, so it is not created for each request. After a broker's
    restart librdkafka may use the old leader epoch for ever; a new client does not.
    """

    def __init__(self, settings: Settings, make: Callable[[Settings], Admin] = Admin) -> None:
        self._settings = settings
        self._make = make
        self._admin: Admin | None = None

    def ask(self, request: Callable[[Admin], Any]) -> Any:
        """Return `request(admin)`.

        Raises:
            StreamDedupError: the request raised it.
        """
        admin = self._admin = self._admin or self._make(self._settings)
        try:
            return request(admin)
        except BaseException:
            self._admin = None
            raise


def _existing_offsets(
    offsets: Iterable[TopicPartition],
) -> dict[TopicPartitionKey, tuple[int, str | None]]:
    """Return (offset, metadata) of the partitions that have a committed offset."""
    return {
        (entry.topic, entry.partition): (entry.offset, entry.metadata)
        for entry in offsets
        if entry.offset >= 0
    }


def _uuid_bytes(uuid: Any) -> bytes:
    high = uuid.get_most_significant_bits() & 0xFFFFFFFFFFFFFFFF
    low = uuid.get_least_significant_bits() & 0xFFFFFFFFFFFFFFFF
    return int(high).to_bytes(8, "big") + int(low).to_bytes(8, "big")


# A single failed handshake may mean that a broker is starting. A refused client retries for ever,
# so `check` raises after this time.
_REFUSED_SECONDS_MAX = 1.5
_REFUSED = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
)


class ConnectionErrors:
    """Records the errors of a client's error callback."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._refused_since: float | None = None
        self._refused_error: KafkaError | None = None
        self._last_error: KafkaError | None = None

    def record(self, error: KafkaError) -> None:
        """Record an error; this is the client's error callback."""
        # A server reports a missing client certificate after the handshake, and librdkafka calls
        # this a transport error.
        if error.code() in _REFUSED or _is_tls(error):
            self._refused_error = error
            self._refused_since = self._refused_since or time.monotonic()
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error

    def check(self) -> None:
        """Raise if the brokers have refused the connection for too long; call this while waiting.

        Raises:
            ConfigurationError: they have.
        """
        if (
            self._refused_since is not None
            and time.monotonic() - self._refused_since > _REFUSED_SECONDS_MAX
        ):
            refusal = self.refusal()
            if refusal is not None:
                raise refusal

    def last(self) -> str:
        """Return the reason of the last failed connection, such as `Connection refused`; "" if none
        failed.
        """
        return "" if self._last_error is None else address_and_reason(self._last_error.str())[1]

    def refusal(self) -> ConfigurationError | None:
        """Return the exception for a refused connection, or None if no broker refused it."""
        if self._refused_error is None:
            return None
        servers = self._settings.kafka_bootstrap_servers
        if _is_tls(self._refused_error):
            return ConfigurationError(
                f"No TLS connection to {servers}: {self._refused_error.str()}. Check that the "
                "port is a TLS listener (STREAM_DEDUP_KAFKA_SECURITY_PROTOCOL); that the CA in "
                "STREAM_DEDUP_KAFKA_SSL_CA_LOCATION signed the broker's certificate, and for the "
                "names in STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS; and, if the broker requires a "
                "client certificate, that it trusts the one in "
                "STREAM_DEDUP_KAFKA_SSL_CERTIFICATE_LOCATION and "
                "STREAM_DEDUP_KAFKA_SSL_KEY_LOCATION."
            )
        mechanism = self._settings.kafka.get("sasl.mechanism") or self._settings.kafka.get(
            "sasl.mechanisms", "none"
        )
        return ConfigurationError(
            f"Kafka at {servers} refused the user name, the password or the mechanism {mechanism} "
            f"({self._refused_error.str()}). "
            "Check STREAM_DEDUP_KAFKA_SASL_USERNAME, STREAM_DEDUP_KAFKA_SASL_PASSWORD_FILE and "
            "STREAM_DEDUP_KAFKA_SASL_MECHANISM."
        )


def _is_tls(error: KafkaError) -> bool:
    return error.code() == KafkaError._SSL or "SSL alert" in error.str()
