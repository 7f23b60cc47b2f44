"""Replicas on a real Kafka: a snapshot of a running one makes another, both answer alike, and one
that differs is noticed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.index import contents
from stream_dedup.index.digest import StateDigest, compute_digest
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.log import answers
from tests.broker.harness import Filter, MakeFilter, Outcome, synthetic
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

FOLDER = "STREAM_DEDUP_STATE_DIR"


def json_of(ended: subprocess.CompletedProcess[str]) -> Any:
    assert ended.returncode in (0, 1), ended.stderr
    return json.loads(ended.stdout)


def states_when_level(crawl: Filter, *volumes: Path) -> list[tuple[bytes, StateDigest]]:
    """Return chain and state digest of volumes, beside the roles that write them, once all stand at
    the log's end."""
    found: list[tuple[bytes, StateDigest]] = []

    def level() -> bool:
        # What was committed is confirmed to the log a little later.
        end = max(message.offset for message in crawl.read(crawl.names.fingerprints)) + 1
        found.clear()
        for volume in volumes:
            with closing(RocksStore(volume, read_only=True)) as store:
                state = contents.read(store)
                found.append((state.state.chain, compute_digest(state)))
        return all(digest.log_offset == end for _, digest in found)

    wait_until(level, "all volumes stand at the log's end")
    return found


def test_a_replica_from_a_snapshot_answers_alike(make_filter: MakeFilter) -> None:
    """Snapshot while running: a new replica begins with it and reads on, its answers are byte for
    byte those of the first, its state digest too, and folding the log again finds nothing in
    either. So does the first, killed and without its volume."""
    crawl = make_filter(partitions=2, batch_documents=500)
    one, two, taken = (
        crawl.folder / "replica-1" / "index",
        crawl.folder / "replica-2" / "index",
        crawl.folder / "snapshots",
    )
    keeps = {"STREAM_DEDUP_SNAPSHOTS": str(taken)}
    documents = synthetic(8000, 11, partitions=2)
    first = crawl.start("index", **{FOLDER: str(one.parent), **keeps})
    worker = crawl.start("worker")
    crawl.produce(documents[:3000])
    crawl.wait_until_committed(1000)
    manifest = json_of(
        crawl.command("index", "checkpoint", taken, "--volume", one, "--json", code=None)
    )
    crawl.wait_until_committed(3000)
    assert manifest["applied"] > 0
    second = crawl.start("index", **{FOLDER: str(two.parent), **keeps})
    second.says("index started")
    assert "snapshot restored" in second.log
    assert manifest["name"] in second.log
    crawl.produce(documents[3000:])
    crawl.wait_until_committed(6000)
    states = states_when_level(crawl, one, two)

    assert states[0] == states[1]
    given: dict[int, list[bytes]] = defaultdict(list)
    announced = []
    for message in crawl.read(crawl.names.verdicts):
        answer = answers.decode(message.value)
        if isinstance(answer, answers.Announce):
            announced.append(answer.first_answered_offset)
        else:
            given[answer.log_offset].append(message.value or b"")
    both = [found for offset, found in given.items() if offset >= announced[-1]]
    assert (
        manifest["applied"] <= announced[-1] < max(given)
    )  # nothing that was answered long ago is answered again
    assert len(both) > 3
    assert all(len(found) == 2 and found[0] == found[1] for found in both)
    assert all(len(found) == 1 for offset, found in given.items() if offset < announced[-1])

    kept = crawl.read(crawl.names.unique)[
        0
    ]  # of two alike on two partitions, the one that was judged first
    text = (kept.value or b"").decode()
    by_http = json_of(
        crawl.command("similar", text, "--index", second.address(), "--json", code=None)
    )
    by_volume = json_of(crawl.command("similar", text, "--volume", one, "--json", code=None))
    assert by_http == by_volume
    assert by_http["found"][0]["id"] == (kept.key or b"").decode()
    explained = json_of(
        crawl.command(
            "explain", by_http["found"][0]["position"].split("-")[-1], "0@0", "--json", code=None
        )
    )
    assert explained["distance"] >= 0

    for extra in ((), ("--snapshots", taken)):
        verified = crawl.command("index", "verify", two, *extra, code=None)
        assert verified.returncode == 0, verified.stderr + verified.stdout
        assert "agrees with the log" in verified.stdout
    first.kill()
    shutil.rmtree(one)
    first = crawl.start("index", **{FOLDER: str(one.parent), **keeps})
    first.says("index started")
    assert "snapshot restored" in first.log
    crawl.produce(documents[6000:])
    crawl.wait_until_committed(8000)
    states = states_when_level(crawl, one, two)
    assert states[0] == states[1]
    Outcome(crawl).check()
    assert [role.stop() for role in (worker, first, second)] == [0, 0, 0]
