"""Insights on a real Apache Kafka: what the workers count arrives, and goes on after kills of the
role and of the broker."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from jsonschema import Draft202012Validator, FormatChecker

from stream_dedup.broker import LocalBroker
from stream_dedup.ground.document import Headers
from stream_dedup.ground.topics import topic_folder
from stream_dedup.insights.stream import HostStream
from tests.broker.harness import Filter, Role, own_filter, wait_until
from tests.broker.test_main_path import LONG

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

HOST = "news.example"
PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "host-signals.md"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[LocalBroker, Filter]]:
    """A broker that may be killed, and a filter on it."""
    with own_filter(tmp_path, partitions=1, insights_interval="1s") as (broker, crawl):
        yield broker, crawl


def signals_of(crawl: Filter) -> dict[str, Any]:
    """Return the latest record of each host, as a frontier reads them."""
    found = crawl.read(crawl.names.host_signals)
    return {
        (one.key or b"").decode(): one.value and json.loads(one.value)
        for one in sorted(found, key=lambda one: one.offset)
    }


def hung(role: Role) -> bool:
    """Tell whether the role ended by itself because Faust's client stood still."""
    return role.process.poll() == 1 and "the client hangs" in role.log


def wait_for(crawl: Filter, documents: int) -> dict[str, Any]:
    """Wait until the signals of the host count that many documents; return them."""

    def there() -> Any:
        roles = [role for role in crawl.roles if role.name == "insights"]
        if all(role.process.poll() is not None for role in roles) and hung(roles[-1]):
            crawl.start("insights")  # as whoever runs it would
        found = signals_of(crawl).get(HOST)
        return found if found and found["documents"] >= documents else None

    try:
        return dict(wait_until(there, f"the signals of {HOST} count {documents} documents"))
    except AssertionError as error:
        records = [(one.offset, one.value) for one in crawl.read(crawl.names.insights)]
        raise AssertionError(
            f"{error}; the workers had sent {records}, the signals are {signals_of(crawl)}"
        ) from None


def pages(first: int, count: int, text: str) -> list[tuple[int, bytes, bytes, Headers]]:
    return [
        (0, f"https://{HOST}/{number}".encode(), text.encode(), [])
        for number in range(first, first + count)
    ]


def as_the_page_says(crawl: Filter) -> str:
    """Return what the page's kcat line prints; without kcat, what its topic and format would."""
    line = next(
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("kcat") and "host-signals" in line
    )
    words = shlex.split(line)
    assert words[words.index("-t") + 1] == "host-signals"
    assert words[words.index("-f") + 1] == "%k %s\\n"
    if shutil.which("kcat") is None:
        found = sorted(crawl.read(crawl.names.host_signals), key=lambda one: one.offset)
        return "".join(
            f"{(one.key or b'').decode()} {(one.value or b'').decode()}\n" for one in found
        )
    words[words.index("-t") + 1] = crawl.names.host_signals
    words[words.index("-b") + 1] = crawl.bootstrap
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout


def test_signals_survive_kills_of_the_role_and_of_the_broker(
    own: tuple[LocalBroker, Filter],
) -> None:
    """Each document counts once: before, after a SIGKILL of the role, after a take-over by a second
    one, and after a SIGKILL of the broker; the records follow their schemas, the console shows
    them, and metrics name no host."""
    broker, crawl = own
    index, worker, first = crawl.start("index"), crawl.start("worker"), crawl.start("insights")
    crawl.produce([*pages(0, 40, LONG), *pages(0, 10, LONG), (0, b"no-url", b"some words", [])])
    signals = wait_for(crawl, 50)

    assert signals["bytes_wasted"] == signals["bytes"] - len(LONG)
    assert (signals["exact"], signals["unchanged"], signals["duplicate_ratio"]) == (48, 1, 0.98)
    # Page 0 is kept; the other 39 fall on it, nine of them twice.
    assert [one["event"] for one in signals["events"]] == ["one-page", "vanishing"]
    assert signals["events"][0]["of"] == f"https://{HOST}/0"
    first.says("fell on one document")
    page = first.get("/")
    assert f"<td>{HOST}</td><td>50</td><td>98.0 %</td>" in page
    assert json.loads(first.get("/v1/hosts"))["other"]["documents"] == 1
    metrics = first.get("/metrics")
    assert 'stream_dedup_host_events_total{event="one-page"} 1.0' in metrics
    assert HOST not in metrics
    assert "\nfaust" not in metrics
    assert json.loads(first.get("/readyz"))["ready"] is True

    host, _, value = as_the_page_says(crawl).splitlines()[-1].partition(" ")
    assert (host, json.loads(value)) == (HOST, signals)

    first.kill()
    crawl.produce(pages(40, 5, LONG))
    second = crawl.start("insights")
    assert wait_for(crawl, 55)["documents"] == 55

    third = crawl.start("insights")
    third.says("insights started")
    assert second.stop() == 0 or hung(second)
    crawl.produce(pages(45, 5, LONG))
    assert wait_for(crawl, 60)["documents"] == 60

    broker.kill()
    broker.start()
    crawl.produce(pages(50, 5, LONG))
    assert wait_for(crawl, 65)["documents"] == 65
    assert [role.process.poll() for role in (index, worker)] == [None, None]
    assert third.process.poll() is None or hung(third)
    assert any(role.name == "insights" and role.process.poll() is None for role in crawl.roles)

    folder = topic_folder() / "schemas"
    for topic, name in (
        (crawl.names.insights, "insights"),
        (crawl.names.host_signals, "host-signals"),
    ):
        check = Draft202012Validator(
            json.loads((folder / f"{name}.schema.json").read_text()), format_checker=FormatChecker()
        )
        found = crawl.read(topic)
        assert found
        for one in found:
            check.validate(json.loads(one.value or b""))
    counted = Counter[str]()
    for one in crawl.read(crawl.names.insights):
        counted.update(
            {
                host: body["documents"]
                for host, body in json.loads(one.value or b"")["hosts"].items()
            }
        )
    assert counted == {HOST: 65}


RECORDS = 3


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)  # the streams go on meanwhile


@pytest.mark.parametrize("committed", [0, 1])
def test_what_faust_threw_away_is_read_again(
    make_filter: Callable[..., Filter], committed: int
) -> None:
    """What Faust reads while partitions move it throws away, and goes back to the committed offset:
    it must do so too while the group has none, or these records wait until the next start."""
    crawl = make_filter(partitions=1)
    producer = Producer({"bootstrap.servers": crawl.bootstrap})
    for number in range(RECORDS):
        producer.produce(crawl.names.insights, b"%d" % number, partition=0)
    assert producer.flush(20) == 0

    async def run() -> list[int]:
        first, second = (
            HostStream(crawl.settings, crawl.names, name) for name in ("first", "second")
        )

        async def throw_away(_app: Any, assigned: Any, **_: Any) -> None:
            await first.app.consumer.seek_wait(
                {one: RECORDS for one in assigned if one.topic == crawl.names.insights}
            )

        try:
            await first.start()
            await until(lambda: first.owns and first.waiting == RECORDS, "all records are read")
            if committed:
                first.acknowledge(first.take_rows()[:committed])
                await until(
                    lambda: committed in first.app.consumer._committed_offset.values(),
                    "Faust commits",
                )
            connect: Any = first.app.on_partitions_assigned.connect
            connect(throw_away)
            generation = first.generation
            await second.start()
            await until(lambda: first.generation > generation + 1, "the other one joins")
            await second.stop()
            await until(
                lambda: first.owns and first.waiting == RECORDS - committed,
                "what was read comes again",
            )
            return [one.stamp.offset for one in first.take_rows()]
        finally:
            await first.stop()
            await second.stop()

    assert asyncio.run(run()) == list(range(committed, RECORDS))
