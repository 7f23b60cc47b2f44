"""A storm of questions against `/v1/find`: every one is answered or refused in a sentence, and others are still answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bench.path import BenchCluster
from bench.path_report import PathOptions
from stream_dedup.fingerprinting import Languages
from stream_dedup.search.api import SearchApi
from stream_dedup.search.clue import words_of
from stream_dedup.search.facts import EnginePlace, TextFacts
from stream_dedup.search.finding import Finder, FinderPlace
from stream_dedup.search.texts import TextIndex
from stream_dedup.service.health import Health
from stream_dedup.service.http import HttpServer
from tests.bench.storm import PLAN, QUESTIONS, Storm, StormBench


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpServer]:
    languages, engine = Languages(), TextIndex(tmp_path)
    for number in range(300):
        engine.add(
            TextFacts(f"unique-0@{number}", f"id{number}", number, 9, "unique", "new"),
            words_of(f"the quick brown fox of number {number} that it was", languages),
        )
    engine.commit(EnginePlace({}, {}))
    place = FinderPlace()
    place.serve(Finder(engine, languages, lambda _: {}))
    one = HttpServer("127.0.0.1", 0, Health(), CollectorRegistry(), SearchApi(place).routes())
    one.start()
    yield one
    one.stop()
    engine.close()


def test_a_storm_is_answered_in_sentences_and_others_still_are(server: HttpServer, capfd: pytest.CaptureFixture[str]) -> None:
    """Clients that go away or are too slow are no fault of the program, and nothing is logged of them."""

    async def weather() -> tuple[Storm, int]:
        storm, stopping, answered = Storm(server.port), asyncio.Event(), 0
        running = asyncio.create_task(storm.run(stopping))
        async with asyncio.timeout(120):
            while not {200, 400, 405, 413} <= storm.counts.keys() or storm.counts.total() < 100 or answered < 20:
                status, _, body = await storm.ask("GET", "/v1/find?q=quick+brown+fox&limit=1", b"")
                assert status in (200, 503), body
                if status == 200:
                    answered += len(json.loads(body)["documents"])
                await asyncio.sleep(0)
        stopping.set()
        await running
        return storm, answered

    storm, answered = asyncio.run(weather())

    assert storm.wrong == []
    assert answered >= 20


def test_each_question_of_the_storm_has_its_answer(server: HttpServer) -> None:
    """10 MB are refused as too much, what is no text or no clue as such; signs, letters and common words are questions."""

    storm = Storm(server.port)

    async def status_of(question: tuple[str, str, bytes]) -> int:
        for _ in range(20):
            with contextlib.suppress(ConnectionError):  # cut off in the middle of 10 MB, before the answer was read
                return (await storm.ask(*question))[0]
        raise AssertionError(f"{question[:2]} was cut off each time")

    async def statuses() -> list[int]:
        return [await status_of(question) for question in QUESTIONS]

    assert asyncio.run(statuses()) == [413, 200, 200, 200, 200, 400, 400, 200, 405]


@pytest.mark.broker
def test_a_storm_loses_no_verdict(bootstrap: str, tmp_path: Path) -> None:
    """With a search beside worker and index, and a storm against it, every document comes out once, and the path goes on."""
    bench = StormBench(PathOptions(documents=20_000), BenchCluster(bootstrap), tmp_path, lambda _: None)
    rates = []
    for bench.with_search, bench.with_storm in ((False, False), (True, False), (True, True)):
        sample = bench.throughput(PLAN, 1)
        counted = dict(sample.balance)
        assert counted.pop("in") == 20_000 == sum(counted.values())
        rates.append(sample.documents / sample.seconds)
    print("of it alone:", *(f"{one / rates[0]:.2f}" for one in rates), "answers:", dict(bench.counts))

    assert bench.wrong == []
    assert {200, 413} <= bench.counts.keys()
