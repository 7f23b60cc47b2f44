"""Each unreadable record is reported, and the partition is read on; unreadable headers are reported
too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, TopicPartition
from confluent_kafka import Message as RawMessage

from stream_dedup.domain.document import Message, Unreadable, UnreadableHeaders
from stream_dedup.domain.errors import BrokerError, ConfigurationError
from stream_dedup.kafka import LogReader, SourceConsumer, client, readers, spans
from stream_dedup.kafka import source as source_module
from stream_dedup.settings.settings import Settings
from tests.kafka.scripted import Scripted, record

BAD = KafkaError(KafkaError._BAD_MSG, "failed CRC32C check")


class Partition(Scripted):
    """A partition with batches that cannot be read, each a range of offsets; fetches like
    librdkafka."""

    def __init__(self, end: int, *bad: range) -> None:
        super().__init__()
        self._end, self._bad = end, bad
        self._at = 0
        self._position = -1001

    def consume(self, most: int, timeout: float) -> list[RawMessage]:
        del most, timeout
        for bad in self._bad:
            if self._at in bad:
                return [
                    record(bad.start, error=BAD),
                    record(bad.start, error=BAD),
                ]  # the error comes again and again
        if self._at >= self._end:
            return []
        self._at += 1
        self._position = self._at
        return [record(self._at - 1)]

    def poll(self, timeout: float) -> None:
        """Return nothing: the client for committed offsets reads no records."""

    def position(self, _: Any) -> list[TopicPartition]:
        return [TopicPartition("documents", 0, self._position)]

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self._at, self._position = partitions[0].offset, -1001

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.incremental_assign(partitions)


def read_messages(monkeypatch: pytest.MonkeyPatch, partition: Any, turns: int = 60) -> list[Any]:
    monkeypatch.setattr(source_module, "make_consumer", lambda _: partition)
    source = SourceConsumer(Settings(), "documents", "test", None)  # type: ignore[arg-type]
    source.restart_at({("documents", 0): 0})
    return [message for _ in range(turns) for message in source.take_messages(10, 0.0)]


@pytest.mark.parametrize(
    "bad",
    [(range(3, 4),), (range(3, 7),), (range(1),), (range(9, 10),), (range(2, 4), range(4, 6))],
)
def test_every_offset_is_read_once(monkeypatch: pytest.MonkeyPatch, bad: tuple[range, ...]) -> None:
    """Every offset is read once and in order; unreadable ones are marked, with the client's reason.
    The reader of `audit` returns the same, and ends."""
    monkeypatch.setattr(readers, "make_consumer", lambda _: Partition(10, *bad))
    reader = spans.BoundsReader(Settings(), "documents", {0: spans.Bounds(0, 10)})
    lost = {offset for batch in bad for offset in batch}

    for found in (
        read_messages(monkeypatch, Partition(10, *bad)),
        [message for messages in reader.read_messages() for message in messages],
    ):
        assert [message.offset for message in found] == list(range(10))
        assert {message.offset for message in found if isinstance(message, Unreadable)} == lost
        assert {message.why for message in found if isinstance(message, Unreadable)} == {
            "failed CRC32C check"
        }
    assert reader.open_transactions == {}


def test_a_temporary_error_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that was damaged on the way, and is whole when it is fetched again, is read."""
    partition = Partition(5, range(2, 4))
    fetches = []
    consume = partition.consume

    def consume_one(most: int, timeout: float) -> list[RawMessage]:
        fetches.append(partition._at)
        if fetches.count(2) > 1:
            partition._bad = ()
        return consume(most, timeout)[:1]

    partition.consume = consume_one  # type: ignore[method-assign]

    assert [
        (message.offset, isinstance(message, Unreadable))
        for message in read_messages(monkeypatch, partition)
    ] == [(offset, False) for offset in range(5)]


@pytest.mark.parametrize(
    ("code", "error", "pattern"),
    [
        (KafkaError._NOT_IMPLEMENTED, ConfigurationError, "Nothing was skipped. Upgrade"),
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            BrokerError,
            "needs the ACL Read on topic documents",
        ),
        (
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            BrokerError,
            "needs the ACL Read on group stream-dedup",
        ),
    ],
)
def test_permanent_errors_end_the_role_and_skip_nothing(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception], pattern: str
) -> None:
    """An unknown format or a missing ACL ends the role with the remedy."""
    partition = Partition(1)
    monkeypatch.setattr(
        partition,
        "consume",
        lambda *_, **__: [record(0, error=KafkaError(code, "as the library says it"))],
    )

    with pytest.raises(error, match=pattern):
        read_messages(monkeypatch, partition)


def test_a_reader_by_assignment_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka looks for the coordinator of a group that a reader never joins; being denied that
    stops nothing."""
    partition = Partition(1)
    consume = partition.consume
    denied = [
        record(0, error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "as the library says it"))
    ]
    monkeypatch.setattr(partition, "consume", lambda *_, **__: denied + consume(1, 0.0))
    monkeypatch.setattr(readers, "make_consumer", lambda _: partition)

    assert [
        message.offset
        for message in LogReader(Settings(), "fingerprints", "test").take_messages(10, 0.0)
    ] == [0]


def make_headers_error(names: Sequence[bytes]) -> BaseException:
    """Return the error for a record with these names: the first one's, wrapped once for each
    name."""
    try:
        names[0].decode()
    except UnicodeDecodeError as error:
        found: BaseException = error
    for _ in names:
        outer = SystemError("returned a result with an exception set")
        outer.__cause__, found = found, outer
    return found


class Raw:
    """A record of the client. With `bad` names `headers` fails, and must not be called again."""

    def __init__(self, offset: int, *bad: bytes, headers: Any = None) -> None:
        self._offset, self._bad, self._headers, self._asked = offset, bad, headers, False

    def headers(self) -> Any:
        assert not (self._bad and self._asked), (
            "the client was asked again, and Python crashes on what it gives then"
        )
        self._asked = True
        if self._bad:
            raise make_headers_error(self._bad)
        return self._headers

    def topic(self) -> str:
        return "documents"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k%d" % self._offset

    def value(self) -> bytes | None:
        return b"v%d" % self._offset if self._offset % 2 else None

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 1_790_000_000_000


CONVERSIONS: dict[str, Callable[[list[Any]], list[Message]]] = {
    "columns": lambda raws: list(client.to_messages("documents", raws)),
    "one by one, as all readers but the worker's own": lambda raws: [
        client.to_message(raw) for raw in raws
    ],
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_name_that_is_not_utf8_costs_the_headers_only(
    convert: Callable[[list[Any]], list[Message]],
) -> None:
    """Key, value and timestamp are unchanged, the name is reported, and the other records are
    whole."""
    found = convert(
        [
            Raw(0, headers=[("a", b"1")]),
            Raw(1, "référent".encode("latin-1")),
            Raw(2),
            Raw(3, b"\xff", b"\x80", b"\x81"),
            Raw(4, b"\xfe" * 1000),
            Raw(5, headers=[("", None)]),
        ]
    )

    assert [message.offset for message in found] == [0, 1, 2, 3, 4, 5]
    assert [message.key for message in found] == [b"k%d" % offset for offset in range(6)]
    assert [message.value for message in found] == [None, b"v1", None, b"v3", None, b"v5"]
    assert {message.timestamp_ms for message in found} == {1_790_000_000_000}
    assert [message.headers for message in found] == [[("a", b"1")], [], [], [], [], [("", None)]]
    names = {
        message.offset: message.name for message in found if isinstance(message, UnreadableHeaders)
    }
    assert names == {1: r"r\xe9f\xe9rent", 3: r"\xff", 4: r"\xfe" * 60 + "..."}
    assert all(
        "utf-8" in message.why for message in found if isinstance(message, UnreadableHeaders)
    )


def test_another_fault_of_the_client_is_not_hidden() -> None:
    """Only this cause is known to leave the record as it is."""

    class Broken(Raw):
        def headers(self) -> Any:
            raise SystemError("error return without exception set")

    with pytest.raises(SystemError):
        client.to_messages("documents", [Broken(0)])  # type: ignore[list-item]
