"""What the worker counts after a commit, and that nothing about it can hold up a document."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import pytest

from stream_dedup.ground.document import (
    DeadLetter,
    LogPlace,
    Message,
    Position,
    Reason,
    Representative,
)
from stream_dedup.ground.errors import BrokerError
from stream_dedup.insights import record
from stream_dedup.kafka import InsightsSender
from stream_dedup.log.answers import Judgement
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import insights
from stream_dedup.worker.insights import HostCounter, counter_of
from stream_dedup.worker.prepare import Decided, InFlight

OF = Representative(Position("documents", bytes(16), 0, 1), b"https://a.example/0", 0)
ELSEWHERE = Representative(
    Position("documents", bytes(16), 1, 1), b"https://a.example/elsewhere", 0
)
PLACE = LogPlace(0, 0)


class Sender(InsightsSender):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[record.InsightsRecord] = []
        self.room = True

    @property
    def has_room(self) -> bool:
        return self.room

    def send(self, raw: bytes) -> None:
        self.sent.append(record.decode(raw))

    def poll(self) -> None: ...

    def close(self, seconds: float) -> None: ...


def batch(*records: tuple[int, bytes, Decided, bytes], live: set[int] | None = None) -> InFlight:
    """A batch of (partition, id, what was decided, host header)."""
    messages = [
        Message("documents", part, at, b"key", b"12345", 0, [("site", header)] if header else [])
        for at, (part, _, _, header) in enumerate(records)
    ]
    epochs = {("documents", part): 0 for part, *_ in records}
    found = InFlight(
        messages, [one[2] for one in records], [None] * len(records), [], b"", epochs, set(epochs)
    )
    found.ids = [one[1] for one in records]
    if live is not None:
        found.live = {("documents", part) for part in live}
    return found


def test_what_was_committed_is_counted_by_host() -> None:
    """Verdicts by host of the id; no dead letter, nothing retracted, nothing of a partition that
    went away."""
    sender = Sender()
    counter = HostCounter("w", sender)
    url = b"https://a.example/%d"
    counter.committed(
        [
            batch(
                (0, url % 1, Judgement(Reason.NEW, PLACE), b""),
                (0, url % 2, Judgement(Reason.NEAR, PLACE, 3, OF), b""),
                (0, url % 1, Judgement(Reason.UNCHANGED, PLACE, 0, OF), b""),
                (0, b"no url", Reason.EMPTY, b""),
                (0, url % 3, DeadLetter("decode", "X", "."), b""),
                (0, url % 4, Judgement(Reason.RETRACTED, PLACE), b""),
                (1, url % 5, Judgement(Reason.NEW, PLACE), b""),
                (1, url % 7, Judgement(Reason.NEAR, PLACE, 3, ELSEWHERE), b""),
                live={0},
            )
        ]
    )
    counter.send()
    counter.committed([batch((0, url % 6, Judgement(Reason.NEW, PLACE), b""))])
    counter.send()  # within the same second
    sender.room = False
    counter.close()
    sender.room = True
    counter.close()

    first, last = sender.sent
    assert first.hosts["a.example"].counts == (3, 0, 1, 1, 0, 15, 10, 0)
    assert first.hosts["a.example"].last_change_ms is not None
    assert [page.of for page in first.hosts["a.example"].pages.values()] == ["https://a.example/0"]
    assert first.other.documents == 1
    assert last.hosts["a.example"].counts.documents == 1


def test_a_header_names_the_host() -> None:
    sender = Sender()
    counter = HostCounter("w", sender, "site")
    new = Judgement(Reason.NEW, PLACE)
    counter.committed(
        [
            batch(
                (0, b"7", new, b"B.example"),
                (0, b"https://c.example/", new, b""),
                (0, b"9", new, b"?"),
            )
        ]
    )
    counter.close()

    assert {host: one.counts.documents for host, one in sender.sent[0].hosts.items()} == {
        "b.example": 1,
        "c.example": 1,
    }
    assert sender.sent[0].other.documents == 1


def test_a_fault_costs_counts_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender()
    counter = HostCounter("w", sender)
    broken = batch((0, b"x", Judgement(Reason.NEW, PLACE), b""))
    broken.ids = []
    counter.committed([broken])
    counter.committed([batch((0, b"x", Judgement(Reason.NEW, PLACE), b""))])
    counter.send()
    counter.close()

    assert sender.sent == []


@pytest.mark.parametrize("given", [{"insights": False}, {"mode": "shadow"}])
def test_it_can_be_switched_off(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Then Kafka is not even asked for the topic; a shadow's documents left nowhere."""
    monkeypatch.setattr(insights, "Admin", lambda _: pytest.fail("asked"))

    counter = counter_of(Settings(**given), "w", pytest.fail)
    counter.committed([batch((0, b"x", Judgement(Reason.NEW, PLACE), b""))])
    counter.send()
    counter.close()


@pytest.mark.parametrize("topics", [{}, BrokerError("While asking, Kafka said: denied.")])
def test_without_the_topic_nothing_is_counted(
    topics: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is missing, or may not be seen, is a warning."""

    answer = {"side_effect": topics} if isinstance(topics, Exception) else {"return_value": topics}
    monkeypatch.setattr(insights, "Admin", lambda _: mock.Mock(topic_ids=mock.Mock(**answer)))
    counter = counter_of(Settings(), "w", pytest.fail)
    counter.committed([batch((0, b"x", Judgement(Reason.NEW, PLACE), b""))])
    counter.close()


def test_a_broker_that_is_away_makes_nobody_wait() -> None:
    """Records beyond a few are lost at once, and said to be; the calls return."""
    lost: list[str] = []
    sender = InsightsSender(
        Settings(kafka_bootstrap_servers="127.0.0.1:1"), "insights", "c", lost.append
    )
    done = threading.Event()

    def send() -> None:
        for _ in range(50):
            sender.send(b"{}")
            sender.poll()
        sender.close(0.1)
        done.set()

    threading.Thread(target=send, daemon=True).start()

    assert done.wait(30), "sending waits for the broker"
    assert lost == ["lost"] * 40
    assert not sender.has_room
