"""Faust's client on a real Apache Kafka: what was read and not acknowledged comes again with the partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from stream_dedup.insights.stream import HostStream
from tests.broker.harness import Filter, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

RECORDS = 3


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)  # the streams go on meanwhile


@pytest.mark.parametrize("committed", [0, 1])
def test_what_faust_threw_away_is_read_again(make_filter: Callable[..., Filter], committed: int) -> None:
    """What Faust reads while partitions move it throws away, and goes back to the committed offset: it must do so too while
    the group has none, or these records wait until the next start."""
    crawl = make_filter(partitions=1)
    producer = Producer({"bootstrap.servers": crawl.bootstrap})
    for number in range(RECORDS):
        producer.produce(crawl.names.insights, b"%d" % number, partition=0)
    assert producer.flush(20) == 0

    async def run() -> list[int]:
        first, second = (HostStream(crawl.settings, crawl.names, name) for name in ("first", "second"))

        async def throw_away(_app: Any, assigned: Any, **_: Any) -> None:
            await first.app.consumer.seek_wait({one: RECORDS for one in assigned if one.topic == crawl.names.insights})

        try:
            await first.start()
            await until(lambda: first.owns and first.waiting == RECORDS, "all records are read")
            if committed:
                first.acknowledge(first.take_rows()[:committed])
                await until(lambda: committed in first.app.consumer._committed_offset.values(), "Faust commits")
            connect: Any = first.app.on_partitions_assigned.connect
            connect(throw_away)
            generation = first.generation
            await second.start()
            await until(lambda: first.generation > generation + 1, "the other one joins")
            await second.stop()
            await until(lambda: first.owns and first.waiting == RECORDS - committed, "what was read comes again")
            return [one.stamp.offset for one in first.take_rows()]
        finally:
            await first.stop()
            await second.stop()

    assert asyncio.run(run()) == list(range(committed, RECORDS))
