"""How the console asks Kafka, again and again: with one client, of which an outage leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from stream_dedup.console import outputs
from stream_dedup.console.calls import BoundedCalls
from stream_dedup.console.outputs import OutputRecords, OutputsFollower, waiting
from stream_dedup.console.recent import KEEP, Recent
from stream_dedup.ground.document import Message, TopicPartitionKey
from stream_dedup.ground.errors import BrokerError
from stream_dedup.kafka import KeptAdmin, admin
from stream_dedup.service.kept import KeptAnswer
from stream_dedup.settings.settings import Settings

OUTAGES = 10
TASKS = Path("/proc/self/task")


class FakeAdmin:
    """Knows topics of one partition that hold nothing; each that is made is counted."""

    made = 0
    is_away = False

    def __init__(self, _: Settings) -> None:
        type(self).made += 1

    def topic_ids(self, names: Sequence[str]) -> dict[str, tuple[bytes, int]]:
        if self.is_away:
            raise BrokerError("away")
        return dict.fromkeys(names, (b"", 1))

    def ends(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, tuple[int, int]]:
        return dict.fromkeys(keys, (0, 0))

    def committed(self, _: str) -> dict[TopicPartitionKey, tuple[int, str | None]]:
        return {}


def follower_of(records: OutputRecords) -> OutputsFollower:
    return OutputsFollower(records._settings, records, Recent(), threading.Event())


def test_one_client_asks_until_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has threads and memory of its own; after a failure another one asks."""
    records = OutputRecords(Settings())
    records.kafka = KeptAdmin(Settings(), FakeAdmin)  # type: ignore[arg-type]
    follower, lag = follower_of(records), partial(records.kafka.ask, partial(waiting, Settings()))

    for _ in range(OUTAGES):
        follower.turn()
        assert set(lag().values()) == {0}
    assert FakeAdmin.made == 1

    monkeypatch.setattr(FakeAdmin, "is_away", True)
    for asked in (follower.turn, lag):
        with pytest.raises(BrokerError, match="away"):
            asked()
    monkeypatch.setattr(FakeAdmin, "is_away", False)
    follower.turn()
    follower.turn()
    assert FakeAdmin.made == 3


def test_records_that_were_passed_over_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start and in a flood, of each partition; from when on all were seen is the time of the oldest that was."""
    ends = {("unique", 0): (0, 30), ("duplicates", 0): (0, 5000)}
    told: list[int] = []

    def read(_: Settings, spans: dict[TopicPartitionKey, list[tuple[int, int]]]) -> Iterator[Message]:
        for (topic, part), [(first, last)] in spans.items():
            yield from (Message(topic, part, offset, b"k", b"{}", 1_000 + offset, []) for offset in range(first, last))

    records = OutputRecords(Settings())
    monkeypatch.setattr(records.kafka, "ask", lambda _: ends)
    monkeypatch.setattr(outputs, "sample", read)
    follower = follower_of(records)
    monkeypatch.setattr(follower._recent, "saw", lambda _, whole_since_ms: told.append(whole_since_ms))

    before_ms = int(time.time() * 1000)
    follower.turn()
    ends["duplicates", 0] = (0, 5100)
    follower.turn()
    ends["duplicates", 0] = (0, 9000)
    follower.turn()

    assert told[:2] == [1_000 + 5_000 - KEEP // 2, 0]
    assert told[2] >= before_ms


def test_a_broker_that_is_away_is_told_within_two_seconds() -> None:
    """Nobody listens there; a page that asks first has its sentence, and the client stays for the next question."""
    records = OutputRecords(Settings(kafka_bootstrap_servers="127.0.0.1:1"))

    assert outputs.ANSWER_SECONDS < 2
    assert records.silence() == "Kafka at 127.0.0.1:1 does not answer (Connection refused)."
    client = records.kafka._admin
    assert records.silence()
    assert client is records.kafka._admin is not None


@pytest.fixture
def without_collector() -> Iterator[None]:
    """A role has cycles looked for rarely, so what is only in a cycle is as good as kept."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("asking", [BoundedCalls(1, 60, "?"), lambda call: KeptAnswer(call).get()])
def test_what_a_failed_question_had_in_its_hands_goes(asking: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
    """Its error crosses a thread and a task, and is told by its own kind; what it met on its way is not kept with it."""
    clients: list[weakref.ref[FakeAdmin]] = []

    def fail() -> None:
        client = FakeAdmin(Settings())
        clients.append(weakref.ref(client))
        raise BrokerError("away")

    async def ask() -> None:
        for _ in range(OUTAGES):
            with pytest.raises(BrokerError, match="away"):
                await asking(fail)

    asyncio.run(ask())
    until = time.monotonic() + 10
    while any(one() for one in clients) and time.monotonic() < until:
        time.sleep(0.01)  # the thread that gave the last answer lets go of it a moment later
    assert [one() for one in clients] == [None] * OUTAGES


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in /proc")
@pytest.mark.usefixtures("without_collector")
def test_ten_outages_leave_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pages that ask for the lag, and of what follows the outputs: no client of librdkafka stays."""
    for name in ("_TIMEOUT_SECONDS", "_FIRST_QUESTION_SECONDS", "_LEARN_SECONDS"):
        monkeypatch.setattr(admin, name, 0.05)
    nobody = Settings(kafka_bootstrap_servers="127.0.0.1:1")
    records = OutputRecords(nobody)
    follower, lag = follower_of(records), partial(records.kafka.ask, partial(waiting, nobody))
    before = len(list(TASKS.iterdir()))

    for _ in range(OUTAGES):
        for asked in (follower.turn, lag):
            with pytest.raises(BrokerError):
                asked()

    until = time.monotonic() + 10
    while len(list(TASKS.iterdir())) > before and time.monotonic() < until:
        time.sleep(0.02)
    assert len(list(TASKS.iterdir())) <= before
