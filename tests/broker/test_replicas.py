"""A snapshot of a running replica starts another; both give the same answers."""

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


def parse_output(ended: subprocess.CompletedProcess[str]) -> Any:
    assert ended.returncode in (0, 1), ended.stderr
    return json.loads(ended.stdout)


def read_states_at_log_end(crawl: Filter, *volumes: Path) -> list[tuple[bytes, StateDigest]]:
    """Return chain and state digest of volumes, once all have applied the whole log."""
    found: list[tuple[bytes, StateDigest]] = []

    def is_level() -> bool:
        # What was committed is confirmed to the log a little later.
        end = max(message.offset for message in crawl.read(crawl.names.fingerprints)) + 1
        found.clear()
        for volume in volumes:
            with closing(RocksStore(volume, read_only=True)) as store:
                state = contents.read(store)
                found.append((state.state.chain, compute_digest(state)))
        return all(digest.log_offset == end for _, digest in found)

    wait_until(is_level, "all volumes stand at the log's end")
    return found


def test_a_replica_from_a_snapshot_answers_alike(make_filter: MakeFilter) -> None:
    """Snapshot while running: a new replica begins with it and reads on, its answers are byte for
    byte those of the first, its state digest too, and folding the log again finds nothing in
    either. So does the first, killed and without its volume."""
    crawl = make_filter(partitions=2, batch_documents=500)
    first_volume, second_volume, snapshots = (
        crawl.folder / "replica-1" / "index",
        crawl.folder / "replica-2" / "index",
        crawl.folder / "snapshots",
    )
    snapshot_settings = {"STREAM_DEDUP_SNAPSHOTS": str(snapshots)}
    documents = synthetic(8000, 11, partitions=2)
    first = crawl.start("index", **{FOLDER: str(first_volume.parent), **snapshot_settings})
    worker = crawl.start("worker")
    crawl.produce(documents[:3000])
    crawl.wait_until_committed(1000)
    manifest = parse_output(
        crawl.command(
            "index", "checkpoint", snapshots, "--volume", first_volume, "--json", code=None
        )
    )
    crawl.wait_until_committed(3000)
    assert manifest["applied"] > 0
    second = crawl.start("index", **{FOLDER: str(second_volume.parent), **snapshot_settings})
    second.wait_for_log("index started")
    assert "snapshot restored" in second.log
    assert manifest["name"] in second.log
    crawl.produce(documents[3000:])
    crawl.wait_until_committed(6000)
    states = read_states_at_log_end(crawl, first_volume, second_volume)

    assert states[0] == states[1]
    raw_by_offset: dict[int, list[bytes]] = defaultdict(list)
    announced = []
    for message in crawl.read(crawl.names.verdicts):
        answer = answers.decode(message.value)
        if isinstance(answer, answers.Announce):
            announced.append(answer.first_answered_offset)
        else:
            raw_by_offset[answer.log_offset].append(message.value or b"")
    answered_by_both = [found for offset, found in raw_by_offset.items() if offset >= announced[-1]]
    assert (
        manifest["applied"] <= announced[-1] < max(raw_by_offset)
    )  # old questions are not answered again
    assert len(answered_by_both) > 3
    assert all(len(found) == 2 and found[0] == found[1] for found in answered_by_both)
    assert all(len(found) == 1 for offset, found in raw_by_offset.items() if offset < announced[-1])

    kept = crawl.read(crawl.names.unique)[
        0
    ]  # of two copies on two partitions, the one that was judged first
    text = (kept.value or b"").decode()
    by_http = parse_output(
        crawl.command("similar", text, "--index", second.address(), "--json", code=None)
    )
    by_volume = parse_output(
        crawl.command("similar", text, "--volume", first_volume, "--json", code=None)
    )
    assert by_http == by_volume
    assert by_http["found"][0]["id"] == (kept.key or b"").decode()
    explained = parse_output(
        crawl.command(
            "explain", by_http["found"][0]["position"].split("-")[-1], "0@0", "--json", code=None
        )
    )
    assert explained["distance"] >= 0

    for extra in ((), ("--snapshots", snapshots)):
        verified = crawl.command("index", "verify", second_volume, *extra, code=None)
        assert verified.returncode == 0, verified.stderr + verified.stdout
        assert "agrees with the log" in verified.stdout
    first.kill()
    shutil.rmtree(first_volume)
    first = crawl.start("index", **{FOLDER: str(first_volume.parent), **snapshot_settings})
    first.wait_for_log("index started")
    assert "snapshot restored" in first.log
    crawl.produce(documents[6000:])
    crawl.wait_until_committed(8000)
    states = read_states_at_log_end(crawl, first_volume, second_volume)
    assert states[0] == states[1]
    Outcome(crawl).check()
    assert [role.stop() for role in (worker, first, second)] == [0, 0, 0]
