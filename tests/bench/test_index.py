"""The bench of the index, over a few thousand documents: what it checks, and what it holds ours against."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.__main__ import main
from bench.index import IndexOptions, IndexReport, _complain, run_index
from bench.index_peers import SortedArrays, ValuePerKey, run_layouts
from bench.index_truth import Truth
from bench.nearness import candidates, generated
from bench.stream import BEGIN_MS, PrintStream, StreamRecord
from stream_dedup.ground.document import Reason
from stream_dedup.ground.errors import InvariantError
from stream_dedup.ground.plan import PLANS, Plan
from stream_dedup.index.index import LogIndex
from stream_dedup.index.memory import MemoryStore
from stream_dedup.log.answers import Judgement, LogAnswer, Rejected, decode, encode


def test_a_stream_is_a_function_of_its_numbers() -> None:
    """The same bytes again, also from the middle; copies are of earlier originals, and so many bits off."""
    stream = PrintStream(PLANS["wide"], 6000, 0.3, 15, seed=4)
    records = list(stream.records())

    assert [record.raw for record in stream.records(3)] == [record.raw for record in records[3:]]
    originals = np.concatenate([record.originals for record in records])
    prints = np.concatenate([record.prints for record in records])
    copies = np.flatnonzero(originals >= 0)
    assert 0.15 * 6000 < len(copies) < 0.3 * 6000
    assert (originals[copies] < copies).all()
    assert (originals[originals[copies]] < 0).all()
    assert set(np.bitwise_count(prints[copies] ^ prints[originals[copies]]).sum(axis=1).tolist()) == {15}


@pytest.mark.parametrize("plan", [*PLANS.values(), Plan(64, 4, 1, 7), Plan(64, 5, 0, 3, key_blocks=2)])
def test_the_other_layouts_find_every_planted_copy(plan: Plan, tmp_path: Path) -> None:
    """They are held to the same truth, or their rates would say nothing."""
    stream = PrintStream(plan, 3000, 0.3, plan.distance_guaranteed)
    for layout in (SortedArrays(plan), ValuePerKey(plan, tmp_path / "values")):
        for record in stream.records():
            assert layout.judge(record).tolist() == record.originals.tolist()
        layout.close()


def test_layouts_say_over_how_many_documents(tmp_path: Path) -> None:
    """Each runs over what it can do; a plan without tables has no other layout."""
    runs = run_layouts(Plan(64, 4, 2, 3), 10**7, 0.1, 1, tmp_path, lambda _: None)

    assert [run.found == run.planted for run in runs] == [True, True]
    assert {run.documents for run in runs} == {2000}
    assert [run.durable for run in runs] == [False, True]
    assert run_layouts(Plan(64, 0, 0, 3), 3000, 0.1, 1, tmp_path / "none", lambda _: None) == []


def test_a_run_measures_restarts_a_snapshot_and_a_rebuild(tmp_path: Path) -> None:
    """All copies found, the same volume after each; a copy that was not found would be a complaint."""
    target = tmp_path / "figures.json"
    code = main(["index", "--documents", "6000", "--plan", "classic", "--folder", str(tmp_path), "--json", str(target)])
    (said,) = json.loads(target.read_text(encoding="utf-8"))["runs"]

    assert code == 0
    assert said["planted_found"] > 300
    assert (said["planted_missed"], said["complaints"]) == (0, [])
    steps = [said[step] for step in ("filled", "open_after_kill", "open_after_close", "restored", "rebuilt")]
    assert len({step["chain"] for step in steps}) == 1
    assert {step["statistics"]["entries"] for step in steps} == {6000 - said["planted_found"]}
    assert said["disk_bytes_per_representative"]["total"] > 50
    assert said["restored_entries_per_second"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


def judged(stream: PrintStream) -> Iterator[tuple[StreamRecord, bytes]]:
    """Yield each record of a stream with what an index answers to it."""
    index = LogIndex(MemoryStore())
    index.apply([(0, BEGIN_MS, stream.declare())])
    for record in stream.records():
        ((_, raw),) = index.apply([(record.offset, record.append_ms, record.raw)])
        yield record, raw


def test_strangers_that_are_near_by_chance_are_told_from_faults() -> None:
    """Of 12,000 prints of 32 bits some are near a stranger; each verdict on them is right, and none of what is planted."""
    stream = PrintStream(Plan(32, 4, 0, 3), 12_000, 0.1, 3, seed=2)
    truth = Truth(stream)
    counted = [truth.compare(record, raw) for record, raw in judged(stream)]
    planted, found, by_chance = (sum(one) for one in zip(*counted, strict=True))

    assert 900 < found == planted < 1200
    assert 60 < by_chance < 600


def test_a_wrong_answer_is_no_chance() -> None:
    """A verdict on an original that names what it is not near to ends the run; on a copy it counts as missed."""
    stream = PrintStream(PLANS["classic"], 3000, 0.3, 3)
    (first, _), (record, raw), *_ = judged(stream)
    answer = decode(raw)
    assert isinstance(answer, LogAnswer)
    right = answer.judgements
    copies = [place for place, judgement in enumerate(right) if judgement.of is not None]
    other = right[copies[1]].of

    def told(place: int, judgement: Judgement) -> bytes:
        changed = (*right[:place], judgement, *right[place + 1 :])
        return encode(replace(answer, judgements=changed), bytes(16))[0]

    for wrong in (
        right[copies[0]]._replace(of=other),
        right[copies[0]]._replace(distance=2),
        Judgement(Reason.NEW, right[copies[0]].decided),
    ):
        planted, found, by_chance = Truth(stream).compare(record, told(copies[0], wrong))
        assert (planted - found, by_chance) == (1, 0)
    new = next(place for place in range(len(right)) if place not in copies)
    with pytest.raises(InvariantError, match="was judged NEAR"):
        Truth(stream).compare(record, told(new, right[copies[0]]))
    with pytest.raises(InvariantError, match="did not judge"):
        Truth(stream).compare(first, encode(Rejected(1, bytes(16), 0, "why"), bytes(16))[0])


# `python -m bench index --corpus CORPORA --plan bands --plan wide --plan classic`, 2026-11-26, 2,318 distinct texts.
REAL = {"bands": 0.003, "wide": 3.460, "classic": 0.112}


@pytest.mark.parametrize("name", REAL)
def test_documents_are_as_near_as_real_texts(name: str) -> None:
    """As many entries are looked up for each as for real ones, within a fifth."""
    assert candidates(PLANS[name], generated(PLANS[name], 2_318, seed=1)) == pytest.approx(REAL[name], rel=0.2, abs=0.003)


def test_a_bucket_that_all_share_costs_no_more_than_its_cap() -> None:
    """Of each block of a template so many are asked, and no more when there are twice as many pages; without a cap, all."""
    bands = PLANS["bands"]
    entries = {
        (plan, count): candidates(plan, generated(plan, count, 1, template=True))
        for plan in (replace(bands, asked=8), replace(bands, asked=0, crowd=0))
        for count in (4_000, 8_000)
    }
    few, more, all_few, all_more = entries.values()

    assert few < more < 1.2 * few < 8 * bands.tables
    assert all_more > 1.8 * all_few > 10 * more


def test_plans_of_one_run_are_shown_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One page of a template after another, with two plans; nothing but judging."""
    target = str(tmp_path / "figures.json")
    plans = ["--plan", "bands", "--plan", "classic"]
    code = main(["index", "--documents", "4000", *plans, "--template", "--judging-only", "--json", target])
    runs = json.loads(Path(target).read_text(encoding="utf-8"))["runs"]

    assert code == 0
    assert [(run["plan"], run["planted_missed"], run["template"]) for run in runs] == [
        (PLANS[name].id, 0, True) for name in ("bands", "classic")
    ]
    assert runs[0]["candidates_per_document"] > 30
    assert "rebuilt" not in runs[0]
    assert re.search(r"^classic +\S+ +1\.00 ", capsys.readouterr().out, re.MULTILINE)


def test_a_missed_copy_and_another_volume_are_complaints() -> None:
    """What is wrong is said in sentences."""
    same = {"statistics": {"applied": 3}, "chain": "00"}
    report = IndexReport(IndexOptions(2000, PLANS["classic"], 0.1, seed=3), curve=[{"wrong": 2}], rebuild_curve=[{"wrong": 0}])
    report.filled = report.after_kill = report.after_close = report.restored = same
    report.rebuilt = {"statistics": {"applied": 3}, "chain": "11"}

    _complain(report)

    assert len(report.complaints) == 2
    assert "2 planted copies" in report.complaints[0]


def test_what_a_kill_left_is_opened_with_other_memory_and_judged_on(tmp_path: Path) -> None:
    """Every copy planted in what comes then is found, of originals from before the kill too."""
    said: list[str] = []
    options = IndexOptions(4_000, PLANS["bands"], 0.3, seed=4, folder=tmp_path, judging_only=True, reopen_bytes=600 << 20)
    report = run_index(options, said.append)
    found = report.as_json()

    assert report.complaints == []
    assert report.representatives < report.reopened["statistics"]["entries"] < 5_000
    assert sum(one["documents"] for one in report.reopened_curve) == 1_000
    assert sum(one["planted_found"] for one in report.reopened_curve) > 200
    assert found["reopened_documents_per_second"] > 0
    assert found["reopen_seconds"] > 0
    assert found["reopen_memory_bytes_allowed"] == 600 << 20
    assert list(tmp_path.iterdir()) == []
