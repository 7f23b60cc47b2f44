"""When the role calls its client hung: records wait, and none comes. What Faust calls stuck is, as
a rule, a quiet hour."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP

from stream_dedup.ground.errors import OtherFormatError, StreamDedupError
from stream_dedup.insights import role
from stream_dedup.insights.ledger import HostLedger
from stream_dedup.insights.metrics import InsightsMetrics
from stream_dedup.insights.row import Stamp
from stream_dedup.insights.stream import HostStream
from stream_dedup.service.health import Health
from stream_dedup.service.logs import KAFKA_LOGGER
from stream_dedup.settings.settings import Settings

LOOKS = 20


class Admin:
    """Says where the topic begins and ends, and counts how often it was asked."""

    def __init__(self, low: int, end: int) -> None:
        self.low, self.end = low, end
        self.asked = 0
        self.topic_id = b"before"

    def topic_ids(self, names: Any) -> dict[str, tuple[bytes, int]]:
        return dict.fromkeys(names, (self.topic_id, 1))

    def ends(self, keys: Any) -> dict[Any, tuple[int, int]]:
        self.asked += 1
        return dict.fromkeys(keys, (self.low, self.end))


def watched(admin: Admin, *, owns: bool, begins_at: int) -> role._Insights:
    """Return a role whose client was just given the partition, or not, and gives nothing."""
    it = role._Insights.__new__(role._Insights)
    fields = {
        "_names": SimpleNamespace(insights="insights"),
        "_admin": admin,
        "_ids": {"insights": (b"before", 1)},
        "_watch": SimpleNamespace(is_silent=bool),
        "_metrics": InsightsMetrics(),
        "_health": SimpleNamespace(startup=lambda *_: None, ready=lambda *_: None),
        "_console": SimpleNamespace(HOSTS_MAX=1, show=lambda *_, **__: None),
        "_ledger": HostLedger(60, 60, 10),
        "_stream": SimpleNamespace(
            owns=owns, begins_at=begins_at, waiting=0, rows=lambda: iter(())
        ),
        "_next_offset": None,
        "_seen_before": None,
    }
    for name, value in fields.items():
        setattr(it, name, value)
    it._begin()
    return it


def look(admin: Admin, *, owns: bool = True, begins_at: int) -> int:
    """Let a role look around until it ends, or has looked often enough; return how often it has."""

    async def run() -> None:
        looking = asyncio.create_task(watched(admin, owns=owns, begins_at=begins_at)._look_around())
        while not looking.done() and admin.asked < LOOKS:
            await asyncio.sleep(0.001)
        if looking.done():
            looking.result()
        looking.cancel()

    asyncio.run(run())
    return admin.asked


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(role, "_STUCK_SECONDS", 0.002)


def test_a_topic_created_again_ends_the_role() -> None:
    """What was counted is of the one that is gone, and the client would read on from its offset."""
    admin = Admin(0, 0)
    admin.topic_id = b"after"

    with pytest.raises(StreamDedupError, match="insights were deleted and created again"):
        look(admin, begins_at=0)


def test_a_client_that_gives_nothing_after_a_take_over_hangs() -> None:
    """Records wait behind the offset from which the partition is read on, and not one has come: the
    role ends, and says why."""
    with pytest.raises(StreamDedupError, match="1 records of insights wait"):
        look(Admin(0, 56), begins_at=55)


@pytest.mark.parametrize(
    ("low", "end", "owns", "begins_at"),
    [
        (0, 55, True, 55),  # all was counted before
        (55, 55, True, 12),  # what was not counted, retention has removed
        (0, 56, False, 0),  # another replica has the partition
    ],
)
def test_a_client_that_has_nothing_to_give_does_not_hang(
    low: int, end: int, owns: bool, begins_at: int
) -> None:
    """Nothing waits for this replica, however long nothing comes."""

    assert look(Admin(low, end), owns=owns, begins_at=begins_at) == LOOKS


def test_a_record_of_a_newer_version_ends_the_role_and_a_damaged_one_does_not() -> None:
    """Passed over, what newer workers counted would be missing without a word."""
    it = watched(Admin(0, 0), owns=True, begins_at=0)
    taken = [SimpleNamespace(value=b"{", stamp=Stamp(1, 1))]
    it._stream = SimpleNamespace(take_rows=lambda: taken, generation=1, acknowledge=lambda _: None)  # type: ignore[assignment]
    it._show = lambda: None  # type: ignore[method-assign]
    asyncio.run(it._write())
    assert (
        it._metrics.registry.get_sample_value(
            "stream_dedup_insights_records_total", {"result": "malformed"}
        )
        == 1
    )

    taken[0].value = b'{"format":2}'
    with pytest.raises(
        OtherFormatError, match="insights is of format 2, and this program reads up to 1: upgrade"
    ):
        asyncio.run(it._write())


HOUR_SECONDS = 3600.0


def test_a_quiet_hour_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Its detector logs an error every 2.5 s then (faust-streaming #166); what really hangs, the
    role notices itself."""

    async def look() -> None:
        settings = Settings()
        stream = HostStream(settings, settings.topic_names, "insights-test")
        thread: Any = AIOKafkaConsumerThread.__new__(AIOKafkaConsumerThread)
        thread.consumer = SimpleNamespace(app=stream.app, RebalanceListener=lambda _: None)
        thread.app = stream.app
        thread.__post_init__()
        thread.time_started = 0.0
        state = SimpleNamespace(
            timestamp=1000, highwater=5, position=3
        )  # the last record came an hour ago
        assignment = SimpleNamespace(active=True, state_value=lambda _: state)
        fetcher = SimpleNamespace(
            _subscriptions=SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))
        )
        thread._consumer = SimpleNamespace(_fetcher=fetcher)
        thread.log = logging.getLogger("faust.seen")
        for topic in ("insights", "insights-changelog"):
            thread.verify_event_path(HOUR_SECONDS, TP(topic, 0))
        stream._folder.cleanup()

    asyncio.run(look())

    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    # Clients that other tests have left behind may still say that they reach no broker.
    assert [one.getMessage() for one in errors if one.name != KAFKA_LOGGER] == []


def test_readiness_counts_the_hosts_as_they_are() -> None:
    """It said `0 hosts are known` for ever, because it was told once, when the partition came."""
    it: Any = role._Insights.__new__(role._Insights)
    it._health, it._ledger = Health(), HostLedger(60, 60, 10)
    it._console = SimpleNamespace(HOSTS_MAX=1, show=lambda *_, **__: None)
    it._stream = SimpleNamespace(owns=True, begins_at=0, rows=lambda: iter(()))
    it._begin()
    assert it._health.ready_state().sentence == "counting; 0 hosts are known"

    it._ledger = SimpleNamespace(hosts=17, view=lambda _: ())
    it._show()

    assert it._health.ready_state().sentence == "counting; 17 hosts are known"
