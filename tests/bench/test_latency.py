"""What the sender of the latency's records hands over: each once, in turn, with the time at which it was due."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from bench.latency import _Sender
from stream_dedup.demo.crawl import CrawledPage, endless

PER_SECOND = 2000.0
PARTITIONS = 3


class Writer:
    """What hands records over in bulk; a full queue takes `room` of them at a time."""

    def __init__(self, columns: Any, room: int) -> None:
        self.columns = columns
        self.room = room
        self.taken: list[int] = []

    def write(self, start: int, stop: int) -> int:
        stop = min(stop, start + self.room)
        self.taken += range(start, stop)
        return stop


class Producer:
    """A producer that keeps what it is given; `room` None is one that has no bulk writer."""

    def __init__(self, room: int | None) -> None:
        self.room = room
        self.writer: Writer | None = None
        self.sent: list[tuple[Any, ...]] = []
        self.first_failure = ""

    def in_bulk(self, columns: Any) -> Writer | None:
        self.writer = None if self.room is None else Writer(columns, self.room)
        return self.writer

    def send(self, topic: str, key: Any, value: Any, timestamp_ms: Any = None, partition: Any = None) -> None:
        self.sent.append((topic, partition, key, value, timestamp_ms))

    def poll(self) -> None:
        if self.writer is not None:
            columns = self.writer.columns
            for place in self.writer.taken:
                topic = columns.topics[columns.topic[place]]
                at, time_ms = columns.partitions[place], columns.timestamps_ms[place]
                self.sent.append((topic, at, columns.keys[place], columns.values[place], time_ms))
                assert columns.packed[place]
                assert columns.headers.stops[place] == 0
            self.writer.taken.clear()

    def flush(self) -> None:
        self.poll()


def sent_by(producer: Producer, pages: list[CrawledPage]) -> tuple[_Sender, float, float]:
    sender: Any = _Sender(producer, "documents", pages, PER_SECOND, PARTITIONS)  # type: ignore[arg-type]
    began = time.time() * 1000
    sender.start()
    sender.join()
    return sender, began, time.time() * 1000


@pytest.mark.parametrize("room", [None, 1000, 3], ids=["one by one", "in bulk", "in bulk, into a queue that is full"])
def test_every_page_is_sent_once_in_turn_with_the_time_it_was_due(room: int | None) -> None:
    pages = list(endless(1, 100))
    producer = Producer(room)

    sender, began, ended = sent_by(producer, pages)

    assert [(topic, partition) for topic, partition, *_ in producer.sent] == [("documents", n % 3) for n in range(100)]
    assert [(key, value) for _, _, key, value, _ in producer.sent] == [(page.key, page.value) for page in pages]
    times_ms = [time_ms for *_, time_ms in producer.sent]
    apart = [round(time_ms - times_ms[0]) for time_ms in times_ms]
    assert all(abs(found - n * 1000 / PER_SECOND) <= 1 for n, found in enumerate(apart))
    assert began - 1 <= times_ms[0] <= ended
    assert sender.observed == sum(1 for _, partition, *_ in producer.sent if partition == 0)


@pytest.mark.parametrize("room", [None, 1000])
def test_no_page_is_sent_before_it_is_due(room: int | None) -> None:
    """A record that came early would be younger in the figures than it is."""
    producer = Producer(room)
    early: list[float] = []
    look: Callable[[], None] = producer.poll

    def poll() -> None:
        before = len(producer.sent) if room is not None else 0
        look()
        now = time.time() * 1000
        early.extend(time_ms - now for *_, time_ms in producer.sent[before:] if time_ms > now + 1)

    producer.poll = poll  # type: ignore[method-assign]

    sent_by(producer, list(endless(1, 60)))

    assert early == []


def test_what_could_not_be_written_is_told() -> None:
    producer = Producer(None)
    producer.flush = lambda: setattr(producer, "first_failure", "no room")  # type: ignore[method-assign]

    sender, _, _ = sent_by(producer, list(endless(1, 3)))

    assert sender.failure == "no room"
