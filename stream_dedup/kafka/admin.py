"""Questions to and orders for the cluster: topics, their ids and settings, a group's committed
offsets.

Invariant: only `topics apply` and `rewind` change anything; the roles only ask.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import Any

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
from stream_dedup.kafka.asking import ask_anew
from stream_dedup.kafka.client import LOGGER, SILENT, admin_config, translate
from stream_dedup.settings.settings import Settings

_TIMEOUT_SECONDS = 20.0
_EARLIEST, _LATEST, _MAX_TIMESTAMP = (
    OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
    OffsetSpec.latest(),  # type: ignore[no-untyped-call]
    OffsetSpec.max_timestamp(),  # type: ignore[no-untyped-call]
)
_LOOK_SECONDS = 0.05
_SAID_AFTER_SECONDS = 3.0
_FIRST_QUESTION_SECONDS = 1.0
_LEARN_SECONDS = 1.0


class Admin:
    """The cluster's administrator's view, for one command or one start of a role."""

    def __init__(self, settings: Settings) -> None:
        self._trouble = Trouble(settings)
        config = admin_config(settings) | {"error_cb": self._trouble.hear}
        try:
            self._client = AdminClient(config, logger=LOGGER)
        except KafkaException as error:
            raise ConfigurationError(
                f"The Kafka client cannot be made: {error.args[0].str()}. Check "
                "STREAM_DEDUP_KAFKA_*."
            ) from error
        self._bootstrap = settings.kafka_bootstrap_servers

    def broker_count(self) -> int:
        """Return how many brokers the cluster has.

        Raises:
            BrokerError: no broker answered.
        """
        return len(self._metadata("asking for the cluster's brokers").brokers)

    def cluster_id(self) -> str:
        """Return the cluster's own id."""
        return str(self._metadata("asking for the cluster's id").cluster_id)

    def silence(self, topic: str, seconds: float) -> str:
        """Return why no broker has answered a small question about a topic within `seconds`;
        nothing if one has.

        Any broker may answer, whether or not the topic is there. A question to the cluster itself
        would go to its controller: while that is away librdkafka 2.16 connects to it over and over,
        without a pause, which takes a processor.

        Raises:
            ConfigurationError: the brokers refuse the credentials, or their certificate cannot be
            trusted.
        """
        try:
            self._list(seconds, float("inf"), topic)
        except KafkaException as error:
            # A broker that says no is there.
            return (
                ""
                if error.args[0].code() not in SILENT
                else self._trouble.last() or "No broker has answered"
            )
        return ""

    def _metadata(self, doing: str) -> Any:
        """Return the cluster's brokers and topics; who waits for longer than a moment is told what
        for.
        """
        try:
            return self._list(_TIMEOUT_SECONDS, _SAID_AFTER_SECONDS)
        except KafkaException as error:
            raise self._translate(error, doing) from error

    def _list(self, seconds: float, say_after: float, topic: str | None = None) -> Any:
        """Ask for at most `seconds`, in questions that take longer and longer: what the client logs
        comes out in between.

        Asked for all topics, or for one.
        """
        began, asked = time.monotonic(), _FIRST_QUESTION_SECONDS
        while True:
            left = began + seconds - time.monotonic()
            is_last = left <= 2 * asked
            try:
                return self._client.list_topics(topic, timeout=max(0.1, left if is_last else asked))
            except KafkaException as error:
                self._client.poll(0)
                self._trouble.check()
                if error.args[0].code() not in SILENT or is_last:
                    raise
            asked *= 2
            if time.monotonic() - began >= say_after:
                say_after = float("inf")
                self._say()

    def _say(self) -> None:
        self._client.poll(0)
        self._trouble.check()
        if not self._trouble.last():  # or the client has said why already
            LOGGER.warning(
                "No answer from Kafka at %s yet; it is waited for %.0f s at most.",
                self._bootstrap,
                _TIMEOUT_SECONDS,
            )

    def describe(self, names: Iterable[str]) -> dict[str, TopicState]:
        """Return the state of those of the named topics that exist."""
        found = self._descriptions(names)
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in found]
        settings: dict[str, dict[str, str]] = {}
        if resources:
            for resource, future in self._client.describe_configs(
                resources, request_timeout=_TIMEOUT_SECONDS
            ).items():
                needs = f"DescribeConfigs on topic {resource.name}"
                entries = self._result(
                    future, f"reading the settings of topic {resource.name}", needs
                )
                settings[resource.name] = {
                    name: str(entry.value) for name, entry in entries.items()
                }
        return {
            name: TopicState(
                name,
                _uuid_bytes(one.topic_id),
                len(one.partitions),
                settings[name],
                min(len(partition.replicas) for partition in one.partitions),
            )
            for name, one in found.items()
        }

    def ends(
        self,
        keys: Sequence[TopicPartitionKey],
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartitionKey, tuple[int, int]]:
        """Return (first offset held, offset of the next record that readers of that level will
        see): the committed, or all.
        """
        low = self._list_offsets(keys, _EARLIEST, level)
        high = self._list_offsets(keys, _LATEST, level)
        return {key: (int(low[key].offset), int(high[key].offset)) for key in keys}

    def at_time(
        self, keys: Sequence[TopicPartitionKey], time_ms: int
    ) -> dict[TopicPartitionKey, tuple[int, int | None]]:
        """Return (offset, timestamp) of the first record of that time or later; (end, None) where
        there is none.
        """
        found = self._list_offsets(keys, OffsetSpec.for_timestamp(time_ms))
        lacking = [key for key, one in found.items() if one.offset < 0]
        ends = self._list_offsets(lacking, _LATEST)
        return {
            key: (int(ends[key].offset), None)
            if key in ends
            else (int(one.offset), int(one.timestamp))
            for key, one in found.items()
        }

    def last_timestamp_ms(self, key: TopicPartitionKey) -> int | None:
        """Return the highest timestamp of a partition's records; None if it holds none."""
        found = self._list_offsets([key], _MAX_TIMESTAMP)[key]
        return int(found.timestamp) if found.offset >= 0 and found.timestamp >= 0 else None

    def _list_offsets(
        self,
        keys: Sequence[TopicPartitionKey],
        spec: Any,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartitionKey, Any]:
        """Ask for all partitions at once, then anew for those whose leader moves."""
        if not keys:
            return {}

        def asked(wanted: Iterable[TopicPartitionKey]) -> dict[Any, Any]:
            specs = {TopicPartition(*key): spec for key in wanted}
            return dict(
                self._client.list_offsets(
                    specs, isolation_level=level, request_timeout=_TIMEOUT_SECONDS
                )
            )

        first = asked(keys)

        def answer(key: TopicPartitionKey) -> Any:
            one = TopicPartition(*key)
            return self._wait(first.pop(one) if one in first else asked([key])[one])

        return {
            key: self._ask(partial(answer, key), f"asking for offsets of {key[0]}-{key[1]}")
            for key in keys
        }

    def topic_ids(self, names: Iterable[str]) -> dict[str, tuple[bytes, int]]:
        """Return (topic id, number of partitions) of those of the named topics that exist."""
        return {
            name: (_uuid_bytes(one.topic_id), len(one.partitions))
            for name, one in self._descriptions(names).items()
        }

    def _descriptions(self, names: Iterable[str]) -> dict[str, Any]:
        wanted = list(names)
        if not wanted:
            return {}
        found = {}
        asked = self._client.describe_topics(
            TopicCollection(wanted), request_timeout=_TIMEOUT_SECONDS
        )
        for name, future in asked.items():
            try:
                found[name] = self._wait(future)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise self._translate(
                    error, f"asking for topic {name}", f"Describe on topic {name}"
                ) from error
        return found

    def create(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> None:
        """Create a topic.

        Raises:
            TopicExistsError: it is there, or on its way.
            BrokerError: Kafka refused it.
        """
        topic = NewTopic(name, partitions, replication_factor, config=dict(config))
        for future in self._client.create_topics(
            [topic], operation_timeout=_TIMEOUT_SECONDS
        ).values():
            self._result(future, f"creating topic {name}")
        self._wait_until_known(name)

    def end_offset(self, topic: str, partition: int) -> int:
        """Return the offset that the next record of a partition gets, also where transactions are
        open.
        """
        key = (topic, partition)
        return int(self._list_offsets([key], _LATEST, IsolationLevel.READ_UNCOMMITTED)[key].offset)

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        for future in self._client.create_partitions([NewPartitions(name, total)]).values():
            self._result(future, f"growing topic {name} to {total} partitions")

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """Set the given settings of a topic and leave the others."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        for future in self._client.incremental_alter_configs([resource]).values():
            self._result(future, f"changing the settings of topic {name}")

    def committed_or_last_known(
        self, group: str
    ) -> dict[TopicPartitionKey, tuple[int, str | None]]:
        """Return (offset, metadata) of every partition for which the group has a committed offset:
        the last committed one where an open transaction is about to move it.
        """
        return _owned(self._offsets(group, is_stable=False))

    def partitions_committed(self, group: str, topic: str) -> frozenset[int]:
        """Return the partitions of a topic for which the group has a committed offset, or is about
        to.
        """
        offsets = [one for one in self._offsets(group) if one.topic == topic]
        return frozenset(
            one.partition for one in offsets if one.offset >= 0 or one.error is not None
        )

    def stable_committed(self, group: str) -> dict[TopicPartitionKey, tuple[int, str | None]]:
        """Return the same as `committed_or_last_known`, of a group that no transaction is about to
        move.

        Raises:
            BrokerError: such a transaction is open.
        """
        offsets = self._offsets(group)
        unstable = []
        for one in offsets:
            if one.error is not None and one.error.code() != KafkaError.UNSTABLE_OFFSET_COMMIT:
                raise translate(one.error, f"reading the committed offsets of group {group}")
            if one.error is not None:
                unstable.append(f"{one.topic}-{one.partition}")
        if unstable:
            raise BrokerError(
                f"A transaction is open that will move the committed offsets of group {group} for "
                f"{', '.join(sorted(unstable))}. A worker left it when it was "
                "killed; Kafka ends it at its timeout (30 s unless set otherwise) or when that "
                "worker starts again. "
                "Nothing was changed; run this again then."
            )
        return _owned(offsets)

    def _offsets(self, group: str, *, is_stable: bool = True) -> list[TopicPartition]:
        """Return a group's committed offsets as Kafka lists them; with `is_stable`, one that is
        about to change has an error instead.

        The coordinator is asked for the members first, because one that is not there yet or has
        moved crashes librdkafka with this question (its issue 5040), and answers that one with an
        error.
        """
        self.group_members(group)

        def question() -> Any:
            wanted = [ConsumerGroupTopicPartitions(group)]
            return self._wait(
                self._client.list_consumer_group_offsets(wanted, require_stable=is_stable)[group]
            )

        return list(
            self._ask(question, f"reading the committed offsets of group {group}").topic_partitions
        )

    def write_committed(
        self, group: str, topic: str, changes: Mapping[int, tuple[int, str]]
    ) -> None:
        """Write the committed (offset, metadata) of partitions for a group that has no members: all
        in one request.
        """
        partitions = [
            TopicPartition(topic, part, offset, metadata)
            for part, (offset, metadata) in changes.items()
        ]
        doing = f"writing the committed offsets of {topic} for group {group}"

        def order() -> None:
            wanted = [ConsumerGroupTopicPartitions(group, partitions)]
            written = self._wait(self._client.alter_consumer_group_offsets(wanted)[group])
            for found in written.topic_partitions:
                if found.error is not None:
                    raise KafkaException(found.error)

        # Written twice it is the same, so it may be asked anew like a question.
        self._ask(order, doing)

    def group_members(self, group: str) -> int:
        """Return how many members the group has now."""
        return len(self._members(group))

    def member_ids(self, group: str) -> frozenset[str]:
        """Return the ids of its members; one that restarts gets another."""
        return frozenset(member.member_id for member in self._members(group))

    def group_topics(self, group: str) -> frozenset[str]:
        """Return the topics of which members of the group have partitions now."""
        return frozenset(
            one.topic
            for member in self._members(group)
            for one in member.assignment.topic_partitions
        )

    def _members(self, group: str) -> Sequence[Any]:
        def question() -> Any:
            return self._wait(
                self._client.describe_consumer_groups([group], request_timeout=_TIMEOUT_SECONDS)[
                    group
                ]
            )

        try:
            return list(self._answer(question).members)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return []
            raise self._translate(error, f"asking for the members of group {group}") from error

    def _ask(self, question: Callable[[], Any], doing: str) -> Any:
        try:
            return self._answer(question)
        except KafkaException as error:
            raise self._translate(error, doing) from error

    def _answer(self, question: Callable[[], Any]) -> Any:
        """Return what is asked of a leader or a coordinator, asking anew while that is elsewhere or
        not ready.
        """
        return ask_anew(lambda _: question(), _TIMEOUT_SECONDS, self._client.poll)

    def _result(self, future: Any, doing: str, needs: str = "") -> Any:
        try:
            return self._wait(future)
        except KafkaException as error:
            raise self._translate(error, doing, needs) from error

    def _wait(self, future: Any) -> Any:
        """Return a future's result; a broker that refuses us ends the waiting, because it will not
        change its mind.

        What a future raises holds the frames that it passed, and they hold the future. So what is
        raised here is another error: else each failed question would leave its client behind, with
        four threads, until Python looks for cycles.

        Much is asked of the controller. Where that went away, the client learns which node is the
        controller now only from what the brokers say of the cluster, so that is asked for
        meanwhile.

        Raises:
            ConfigurationError: the broker refused the credentials, or its certificate cannot be
            trusted.
        """
        say_at = time.monotonic() + _SAID_AFTER_SECONDS
        learn_at = time.monotonic() + _LEARN_SECONDS
        while not futures.wait([future], _LOOK_SECONDS).done:
            self._client.poll(0)
            self._trouble.check()
            if time.monotonic() >= learn_at:
                with contextlib.suppress(KafkaException):
                    self._client.list_topics(timeout=_LEARN_SECONDS)
                learn_at = time.monotonic() + _LEARN_SECONDS
            if time.monotonic() >= say_at:
                say_at = float("inf")
                self._say()
        failed = future.exception()
        if failed is not None:
            raise type(failed)(*failed.args)
        return future.result()

    def _translate(self, error: KafkaException, doing: str, needs: str = "") -> StreamDedupError:
        """Return what an error means; of a cluster that does not answer, say which addresses were
        tried.
        """
        if error.args[0].code() in SILENT:
            self._client.poll(0)
            why = self._trouble.last()
            no_broker = f"{why}: no broker" if why else "No broker"
            return self._trouble.refusal() or NoAnswerError(
                f"{no_broker} answered at {self._bootstrap} within {_TIMEOUT_SECONDS:.0f} s while "
                f"{doing}. Is Kafka up there, "
                "and do STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS and the TLS and SASL settings fit "
                "its listener?"
            )
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return TopicExistsError(
                f"While {doing}, it was there, though it was in no list: somebody is making or "
                "deleting it. Try again."
            )
        return translate(error, doing, needs)

    def _wait_until_known(self, name: str) -> None:
        """Wait until the broker that answers us knows the topic: creation returns before its
        metadata has spread.
        """
        for _ in range(100):
            if name in self.topic_ids([name]):
                return
            self._client.poll(0.05)


class KeptAdmin:
    """One `Admin` for questions that come again and again, from any thread, and another after a
    failure.

    A client has a handful of threads, and takes memory of its own: one for each question would be
    made all the time. After a broker's restart librdkafka may ask with the old leader epoch for
    ever; a new client does not.
    """

    def __init__(self, settings: Settings, make: Callable[[Settings], Admin] = Admin) -> None:
        self._settings = settings
        self._make = make
        self._admin: Admin | None = None

    def ask(self, question: Callable[[Admin], Any]) -> Any:
        """Return what `question` asks of it.

        Raises:
            StreamDedupError: as the question does.
        """
        admin = self._admin = self._admin or self._make(self._settings)
        try:
            return question(admin)
        except BaseException:
            self._admin = None
            raise


def _owned(
    offsets: Iterable[TopicPartition],
) -> dict[TopicPartitionKey, tuple[int, str | None]]:
    """Return (offset, metadata) of the partitions that have a committed offset."""
    return {
        (found.topic, found.partition): (found.offset, found.metadata)
        for found in offsets
        if found.offset >= 0
    }


def _uuid_bytes(uuid: Any) -> bytes:
    high = uuid.get_most_significant_bits() & 0xFFFFFFFFFFFFFFFF
    low = uuid.get_least_significant_bits() & 0xFFFFFFFFFFFFFFFF
    return int(high).to_bytes(8, "big") + int(low).to_bytes(8, "big")


# One failed handshake may be a broker that is just starting; a client that was refused for good
# goes on trying.
_PATIENCE_SECONDS = 1.5
_HANDSHAKE_SECONDS = 3.0
_REFUSED = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
)


class Trouble:
    """What a client's error callback has heard."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._first: float | None = None
        self._refused: KafkaError | None = None
        self._last: KafkaError | None = None

    def hear(self, error: KafkaError) -> None:
        """Take note of an error; the client's error callback."""
        # A server that asks for a certificate says so only after the handshake: then librdkafka
        # calls it a transport error.
        if error.code() in _REFUSED or _is_tls(error):
            self._refused = error
            self._first = self._first or time.monotonic()
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    def check(self) -> None:
        """End a wait that is in vain.

        Raises:
            ConfigurationError: brokers have been refusing us for a while.
        """
        if self._first is not None and time.monotonic() - self._first > _PATIENCE_SECONDS:
            refusal = self.refusal()
            if refusal is not None:
                raise refusal

    def last(self) -> str:
        """Return why the last connection failed, as in `Connection refused`; empty if none has."""
        return "" if self._last is None else address_and_reason(self._last.str())[1]

    def refusal(self) -> ConfigurationError | None:
        """Return why the brokers refuse us, or None if none did."""
        if self._refused is None:
            return None
        servers = self._settings.kafka_bootstrap_servers
        if _is_tls(self._refused):
            return ConfigurationError(f"No TLS connection to {servers}: {self._why_tls()}")
        mechanism = self._settings.kafka.get("sasl.mechanism") or self._settings.kafka.get(
            "sasl.mechanisms", "none"
        )
        return ConfigurationError(
            f"Kafka at {servers} refused the user name, the password or the mechanism {mechanism} "
            f"({self._refused.str()}). "
            "Check STREAM_DEDUP_KAFKA_SASL_USERNAME, STREAM_DEDUP_KAFKA_SASL_PASSWORD_FILE and "
            "STREAM_DEDUP_KAFKA_SASL_MECHANISM."
        )

    def _why_tls(self) -> str:
        text = self._refused.str() if self._refused is not None else ""
        for server in self._settings.kafka_bootstrap_servers.split(","):
            host, _, port = server.strip().rpartition(":")
            try:
                why = self._shake_hands(host.strip("[]"), int(port))
            except ssl.SSLCertVerificationError as error:
                if "ostname" in error.verify_message or "IP address" in error.verify_message:
                    return (
                        f"the broker's certificate is not for {host} ({error.verify_message}). "
                        "Name the broker in "
                        "STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS as its certificate does, or give the "
                        "broker a certificate "
                        "with this name; verification is not to be switched off."
                    )
                return (
                    f"the broker's certificate cannot be trusted ({error.verify_message}). Let "
                    "STREAM_DEDUP_KAFKA_SSL_CA_LOCATION name the file with the certificate of the "
                    "CA that signed it."
                )
            except (OSError, ValueError) as error:
                why = str(error)
            if why:
                text = f"{text}; {why}"
        return (
            f"{text}. Is the port a TLS listener, and does STREAM_DEDUP_KAFKA_SECURITY_PROTOCOL "
            "(SSL or SASL_SSL) fit it? "
            "If it asks for a certificate of the client, set "
            "STREAM_DEDUP_KAFKA_SSL_CERTIFICATE_LOCATION and "
            "STREAM_DEDUP_KAFKA_SSL_KEY_LOCATION to one that the broker trusts."
        )

    def _shake_hands(self, host: str, port: int) -> str:
        given = self._settings.kafka
        context = ssl.create_default_context(
            cafile=given.get("ssl.ca.location"), cadata=given.get("ssl.ca.pem")
        )
        if given.get("ssl.certificate.location") and given.get("ssl.key.location"):
            with contextlib.suppress(OSError, ssl.SSLError):
                context.load_cert_chain(
                    given["ssl.certificate.location"],
                    given["ssl.key.location"],
                    given.get("ssl.key.password", ""),
                )
        with (
            socket.create_connection((host, port), _HANDSHAKE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return ""


def _is_tls(error: KafkaError) -> bool:
    return error.code() == KafkaError._SSL or "SSL alert" in error.str()
