"""Roles wait for Kafka and for each other; another worker takes over from a killed one."""

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
from tests.broker.harness import MakeFilter, Role, run_broker_and_filter, synthetic
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

# The worker reports a silent index after 10 s; each wait is logged once, and again a minute later.
LINES_MAX = 40
# A session of 10 s, a heartbeat that brings the new assignment, and the time for the documents.
TAKEN_OVER_SECONDS = 20.0


def readiness(role: Role) -> str:
    """Return `ready: ` or `not ready: ` and the sentence."""
    try:
        return f"ready: {json.loads(role.get('/readyz'))['text']}"
    except urllib.error.HTTPError as error:
        return f"not ready: {json.load(error)['text']}"


def find_ids(search: Role, document: tuple[int, bytes, bytes, Headers]) -> list[str]:
    """Return the ids that a search finds by the beginning of a document."""
    clue = "+".join(document[2].decode().split()[:8])
    return [result["id"] for result in json.loads(search.get(f"/v1/find?q={clue}"))["documents"]]


def wait_for_readiness(role: Role, *words: str) -> None:
    wait_until(
        lambda: all(word in readiness(role) for word in words),
        f"{role.name} says {words}; it says {readiness(role)}",
    )


def test_roles_wait_for_kafka_and_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No role ends, and each reports what it waits for and the end of the wait."""
    documents = synthetic(3000, 5, partitions=2)
    with run_broker_and_filter(tmp_path, partitions=2) as (broker, crawl):
        sent = crawl.produce(documents[:1000])
        broker.kill()
        worker = crawl.start("worker")
        wait_for_readiness(worker, "not ready: ", "waiting for Kafka", "Connection refused")
        broker.start()
        wait_for_readiness(worker, "not ready: ", "waiting for an index", "without a verdict")
        for name, value in crawl.environment.items():
            monkeypatch.setenv(name, value)
        found = {
            (finding.check, finding.state.value): finding.sentence
            for finding in examine(load_settings())
        }
        assert "run index" in found["roles", "warning"]

        index = crawl.start("index")
        crawl.wait_until_committed(sent)
        wait_for_readiness(worker, "ready: 2 partitions")
        wait_for_readiness(index, "ready: applied")
        assert ("roles", "ok") in {
            (finding.check, finding.state.value) for finding in examine(load_settings())
        }
        search = crawl.start("search")
        wait_until(
            lambda: readiness(search).startswith("ready: ") and find_ids(search, documents[0]),
            "it has what left",
        )
        ids_before = find_ids(search, documents[0])
        assert search.stop() == 0

        broker.kill()
        search = crawl.start("search")
        for role in (worker, index, search):
            wait_for_readiness(role, "not ready: ", "waiting for Kafka")
        assert find_ids(search, documents[0]) == ids_before, "it finds the same documents as before"
        time.sleep(2 * 3.0)  # the session ends meanwhile
        assert (worker.process.poll(), index.process.poll()) == (None, None)
        broker.start()
        sent += crawl.produce(documents[1000:])
        crawl.wait_until_committed(sent)
        wait_until(lambda: find_ids(search, documents[-1]), "it continues")
        for role in (worker, index, search):
            wait_for_readiness(role, "ready: ")
            log = re.sub(r"\x1b\[\d*m", "", role.log)
            assert "no longer waiting for Kafka" in log
            assert "FAIL [" not in log
            assert len(log.splitlines()) < LINES_MAX, log
        assert [role.stop() for role in (worker, index, search)] == [0, 0, 0]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_workers_partitions_are_taken_over_in_seconds(make_filter: MakeFilter, how: str) -> None:
    """With default settings; a worker that stops in order leaves its group at once."""
    crawl = make_filter(partitions=4)
    for name in ("SESSION_TIMEOUT_MS", "HEARTBEAT_INTERVAL_MS"):
        crawl.environment.pop(f"STREAM_DEDUP_KAFKA_{name}")
    documents = synthetic(2000, 6, partitions=4)
    crawl.start("index")
    first, second = crawl.start("worker"), crawl.start("worker")
    sent = crawl.produce(documents[:1000])
    crawl.wait_until_committed(sent)
    for worker in (first, second):
        wait_for_readiness(worker, "ready: 2 partitions")

    first.kill() if how == "killed" else first.stop()
    began = time.monotonic()
    sent += crawl.produce(documents[1000:])
    crawl.wait_until_committed(sent)

    expected = TAKEN_OVER_SECONDS if how == "killed" else TAKEN_OVER_SECONDS / 2
    assert time.monotonic() - began < expected
    wait_for_readiness(second, "ready: 4 partitions")
