"""How the console asks Kafka, again and again: with one client, of which an outage leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from stream_dedup.console.calls import BoundedCalls
from stream_dedup.console.outputs import OutputRecords, OutputsFollower, lag_of
from stream_dedup.console.recent import Recent
from stream_dedup.ground.document import TopicPartitionKey
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

    def describe(self, names: Sequence[str]) -> dict[str, object]:
        if self.is_away:
            raise BrokerError("away")
        return {name: SimpleNamespace(partitions=1) for name in names}

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
    follower, lag = follower_of(records), lag_of(Settings(), records.kafka)

    for _ in range(OUTAGES):
        follower.turn()
        assert lag() == 0
    assert FakeAdmin.made == 1

    monkeypatch.setattr(FakeAdmin, "is_away", True)
    for asked in (follower.turn, lag):
        with pytest.raises(BrokerError, match="away"):
            asked()
    monkeypatch.setattr(FakeAdmin, "is_away", False)
    follower.turn()
    follower.turn()
    assert FakeAdmin.made == 3


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
    assert [one() for one in clients] == [None] * OUTAGES


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in /proc")
@pytest.mark.usefixtures("without_collector")
def test_ten_outages_leave_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pages that ask for the lag, and of what follows the outputs: no client of librdkafka stays."""
    for name in ("_TIMEOUT_SECONDS", "_FIRST_QUESTION_SECONDS", "_LEARN_SECONDS"):
        monkeypatch.setattr(admin, name, 0.05)
    nobody = Settings(kafka_bootstrap_servers="127.0.0.1:1")
    records = OutputRecords(nobody)
    follower, lag = follower_of(records), lag_of(nobody, records.kafka)
    before = len(list(TASKS.iterdir()))

    for _ in range(OUTAGES):
        for asked in (follower.turn, lag):
            with pytest.raises(BrokerError):
                asked()

    until = time.monotonic() + 10
    while len(list(TASKS.iterdir())) > before and time.monotonic() < until:
        time.sleep(0.02)
    assert len(list(TASKS.iterdir())) <= before
