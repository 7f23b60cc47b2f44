"""Readers of spans count as silence only the time that they wait for Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import Message as RawMessage

from stream_dedup.domain.errors import BrokerError
from stream_dedup.kafka import BoundsReader, read_partition, read_spans, readers, spans
from stream_dedup.settings.settings import Settings
from tests.kafka.scripted import Scripted, record

KEY = ("documents", 0)
END = 4


class Clock:
    """A clock that the tests move."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


def reads_by_span() -> Iterable[object]:
    for messages in BoundsReader(
        Settings(), "documents", {0: spans.Bounds(0, END)}
    ).read_messages():
        yield from messages


READERS: dict[str, Callable[[], Iterable[object]]] = {
    "BoundsReader": reads_by_span,
    "read_partition": lambda: read_partition(Settings(), *KEY),
    "sample": lambda: read_spans(Settings(), {KEY: [(0, END)]}),
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(spans, "time", clock)
    admin = SimpleNamespace(bounds=lambda keys: dict.fromkeys(keys, (0, END)))
    monkeypatch.setattr(spans, "Admin", lambda _: admin)
    return clock


def patch_consumer(
    monkeypatch: pytest.MonkeyPatch, consume: Callable[..., list[RawMessage]]
) -> None:
    monkeypatch.setattr(readers, "make_consumer", lambda _: Scripted(consume=consume))


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_slow_caller_is_no_silence(
    read: Callable[[], Iterable[object]], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller may take an hour between two records, and Kafka a moment before each."""
    answers = iter([piece for offset in range(END) for piece in ([], [record(offset)])])
    patch_consumer(monkeypatch, lambda *_: next(answers))
    count = 0
    for count, _message in enumerate(read(), 1):  # noqa: B007 - the count is read after the loop
        clock.now += 3_600

    assert count == END


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_stopped_process_is_no_silence(
    read: Callable[[], Iterable[object]], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that took an hour, though it was to take a moment, is a process that was stopped."""
    answers = iter([[], *([record(offset)] for offset in range(END))])

    def consume(*_: object) -> list[RawMessage]:
        clock.now += 3_600
        return next(answers)

    patch_consumer(monkeypatch, consume)

    assert len(list(read())) == END


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_silent_broker_is_reported(
    read: Callable[[], Iterable[object]], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its waiting time the reader raises an error with the offset that it has reached."""
    first = iter([[record(0)]])

    def consume(_most: int, seconds: float) -> list[RawMessage]:
        clock.now += seconds
        return next(first, [])

    patch_consumer(monkeypatch, consume)
    began = clock.now

    with pytest.raises(BrokerError, match=r"documents-0 could not be read beyond offset 1 of 4: n"):
        list(read())
    assert 30 <= clock.now - began < 70


def test_an_open_transaction_is_no_silence(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open transaction before the end of the span is reported by a reader that needs all of
    it."""

    def first_reads() -> Iterator[list[RawMessage]]:
        yield [record(0), record(1, error=KafkaError(KafkaError._PARTITION_EOF))]

    first = first_reads()

    def consume(_most: int, seconds: float) -> list[RawMessage]:
        clock.now += seconds
        return next(first, [])

    patch_consumer(monkeypatch, consume)

    with pytest.raises(BrokerError, match="a transaction at offset 1 has been open"):
        list(read_partition(Settings(), *KEY))
