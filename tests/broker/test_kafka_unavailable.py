"""Roles wait for a Kafka that is away, and for each other, and say so; what a killed worker had is
taken over in seconds."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from stream_dedup.domain.document import Headers
from stream_dedup.preflight.doctor import examine
from stream_dedup.settings.layers import load_settings
from tests.broker.harness import MakeFilter, Role, own_filter, synthetic
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

# The worker says that no index answers after 10 s; each wait is told once, and once more a minute
# later.
LINES_MAX = 40
# A session of 10 s, a heartbeat to learn of the new assignment in, and the documents themselves.
TAKEN_OVER_SECONDS = 20.0


def readiness(role: Role) -> str:
    """Return `ready: ` or `not ready: ` and the sentence."""
    try:
        return f"ready: {json.loads(role.get('/readyz'))['text']}"
    except urllib.error.HTTPError as error:
        return f"not ready: {json.load(error)['text']}"


def found_by(search: Role, document: tuple[int, bytes, bytes, Headers]) -> list[str]:
    """Return the ids that a search finds by the beginning of a document."""
    clue = "+".join(document[2].decode().split()[:8])
    return [one["id"] for one in json.loads(search.get(f"/v1/find?q={clue}"))["documents"]]


def says(role: Role, *words: str) -> None:
    wait_until(
        lambda: all(word in readiness(role) for word in words),
        f"{role.name} says {words}; it says {readiness(role)}",
    )


def test_roles_wait_for_kafka_and_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody ends, each says what it waits for and that it is over, and documents flow as soon as
    they can."""
    documents = synthetic(3000, 5, partitions=2)
    with own_filter(tmp_path, partitions=2) as (broker, crawl):
        sent = crawl.produce(documents[:1000])
        broker.kill()
        worker = crawl.start("worker")
        says(worker, "not ready: ", "waiting for Kafka", "Connection refused")
        broker.start()
        says(worker, "not ready: ", "waiting for an index", "without a verdict")
        for name, value in crawl.environment.items():
            monkeypatch.setenv(name, value)
        found = {(one.check, one.state.value): one.sentence for one in examine(load_settings())}
        assert "run index" in found["roles", "warning"]

        index = crawl.start("index")
        crawl.wait_until_committed(sent)
        says(worker, "ready: 2 partitions")
        says(index, "ready: applied")
        assert ("roles", "ok") in {(one.check, one.state.value) for one in examine(load_settings())}
        search = crawl.start("search")
        wait_until(
            lambda: readiness(search).startswith("ready: ") and found_by(search, documents[0]),
            "it has what left",
        )
        held = found_by(search, documents[0])
        assert search.stop() == 0

        broker.kill()
        search = crawl.start("search")
        for role in (worker, index, search):
            says(role, "not ready: ", "waiting for Kafka")
        assert found_by(search, documents[0]) == held, "it finds what it held before"
        time.sleep(2 * 3.0)  # the session ends meanwhile
        assert (worker.process.poll(), index.process.poll()) == (None, None)
        broker.start()
        sent += crawl.produce(documents[1000:])
        crawl.wait_until_committed(sent)
        wait_until(lambda: found_by(search, documents[-1]), "it goes on where it stood")
        for role in (worker, index, search):
            says(role, "ready: ")
            log = re.sub(r"\x1b\[\d*m", "", role.log)
            assert "no longer waiting for Kafka" in log
            assert "FAIL [" not in log
            assert len(log.splitlines()) < LINES_MAX, log
        assert [role.stop() for role in (worker, index, search)] == [0, 0, 0]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_workers_partitions_are_taken_over_in_seconds(make_filter: MakeFilter, how: str) -> None:
    """With the settings that a worker has unless told otherwise; one that stops in good order
    leaves its group at once."""
    crawl = make_filter(partitions=4)
    for name in ("SESSION_TIMEOUT_MS", "HEARTBEAT_INTERVAL_MS"):
        crawl.environment.pop(f"STREAM_DEDUP_KAFKA_{name}")
    documents = synthetic(2000, 6, partitions=4)
    crawl.start("index")
    first, second = crawl.start("worker"), crawl.start("worker")
    sent = crawl.produce(documents[:1000])
    crawl.wait_until_committed(sent)
    for worker in (first, second):
        says(worker, "ready: 2 partitions")

    first.kill() if how == "killed" else first.stop()
    began = time.monotonic()
    sent += crawl.produce(documents[1000:])
    crawl.wait_until_committed(sent)

    expected = TAKEN_OVER_SECONDS if how == "killed" else TAKEN_OVER_SECONDS / 2
    assert time.monotonic() - began < expected
    says(second, "ready: 4 partitions")
