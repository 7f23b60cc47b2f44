"""What Faust calls a stuck partition is, as a rule, one to which nobody has written for five minutes."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP

from stream_dedup.insights import role
from stream_dedup.insights.ledger import HostLedger
from stream_dedup.insights.stream import HostStream
from stream_dedup.service.health import Health
from stream_dedup.settings.settings import Settings

HOUR_SECONDS = 3600.0


def test_a_quiet_hour_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Its detector logs an error every 2.5 s then (faust-streaming #166); what really hangs, the role notices itself."""

    async def look() -> None:
        settings = Settings()
        stream = HostStream(settings, settings.topic_names, "insights-test")
        thread: Any = AIOKafkaConsumerThread.__new__(AIOKafkaConsumerThread)
        thread.consumer = SimpleNamespace(app=stream.app, RebalanceListener=lambda _: None)
        thread.app = stream.app
        thread.__post_init__()
        thread.time_started = 0.0
        state = SimpleNamespace(timestamp=1000, highwater=5, position=3)  # the last record came an hour ago
        assignment = SimpleNamespace(active=True, state_value=lambda _: state)
        fetcher = SimpleNamespace(_subscriptions=SimpleNamespace(subscription=SimpleNamespace(assignment=assignment)))
        thread._consumer = SimpleNamespace(_fetcher=fetcher)
        thread.log = logging.getLogger("faust.seen")
        for topic in ("insights", "insights-changelog"):
            thread.verify_event_path(HOUR_SECONDS, TP(topic, 0))
        stream._folder.cleanup()

    asyncio.run(look())

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


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
