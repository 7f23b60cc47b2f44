"""The bench of the index, over a few thousand documents: what it checks and compares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.__main__ import main
from bench.index import IndexOptions, run_index
from bench.index_truth import AnswerChecker
from bench.log_stream import BEGIN_MS, PrintStream, StreamRecord
from bench.similarity_spread import candidates_per_text, generated_columns
from stream_dedup.domain.document import Reason
from stream_dedup.domain.errors import InvariantError
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.log.answers import LogAnswer, Rejected, decode, encode
from stream_dedup.log.schema import Judgement


def test_a_stream_is_reproducible() -> None:
    """Also from the middle; a copy follows its original and differs by the given number of bits."""
    stream = PrintStream(PLANS["blocks"], 6000, 0.3, 15, seed=4)
    records = list(stream.records())

    assert [record.raw for record in stream.records(3)] == [record.raw for record in records[3:]]
    originals = np.concatenate([record.originals for record in records])
    prints = np.concatenate([record.prints for record in records])
    copies = np.flatnonzero(originals >= 0)
    assert 0.15 * 6000 < len(copies) < 0.3 * 6000
    assert (originals[copies] < copies).all()
    assert (originals[originals[copies]] < 0).all()
    found = set(np.bitwise_count(prints[copies] ^ prints[originals[copies]]).sum(axis=1).tolist())
    assert found == {15}


def test_a_run_measures_restarts_a_snapshot_and_a_rebuild(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    command = f"index --documents 6000 --plan classic --folder {tmp_path} --json {target}"
    code = main(command.split())
    (run,) = json.loads(target.read_text(encoding="utf-8"))["runs"]

    assert code == 0
    assert run["planted_found"] > 300
    assert (run["planted_missed"], run["complaints"]) == (0, [])
    names = ("filled", "open_after_kill", "open_after_close", "restored", "rebuilt")
    steps = [run[name] for name in names]
    assert len({step["chain"] for step in steps}) == 1
    assert {step["statistics"]["entries"] for step in steps} == {6000 - run["planted_found"]}
    assert run["disk_bytes_per_representative"]["total"] > 50
    assert run["restored_entries_per_second"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


def judge_records(stream: PrintStream) -> Iterator[tuple[StreamRecord, bytes]]:
    index = LogIndex(MemoryStore())
    index.apply([(0, BEGIN_MS, stream.declare())])
    for record in stream.records():
        ((_, raw),) = index.apply([(record.offset, record.append_ms, record.raw)])
        yield record, raw


def test_a_wrong_answer_is_not_counted_as_chance() -> None:
    """A wrong verdict on an original ends the run; on a copy it counts as missed."""
    stream = PrintStream(PLANS["classic"], 3000, 0.3, 3)
    (first, _), (record, raw), *_ = judge_records(stream)
    answer = decode(raw)
    assert isinstance(answer, LogAnswer)
    right = answer.judgements
    copies = [place for place, judgement in enumerate(right) if judgement.of is not None]
    other = right[copies[1]].of

    def encode_with(place: int, judgement: Judgement) -> bytes:
        changed = (*right[:place], judgement, *right[place + 1 :])
        return encode(replace(answer, judgements=changed), bytes(16))[0]

    for wrong in (
        right[copies[0]]._replace(of=other),
        right[copies[0]]._replace(distance=2),
        Judgement(Reason.NEW, right[copies[0]].decided),
    ):
        planted, found, by_chance = AnswerChecker(stream).compare(
            record, encode_with(copies[0], wrong)
        )
        assert (planted - found, by_chance) == (1, 0)
    new = next(place for place in range(len(right)) if place not in copies)
    with pytest.raises(InvariantError, match="was judged NEAR"):
        AnswerChecker(stream).compare(record, encode_with(new, right[copies[0]]))
    with pytest.raises(InvariantError, match="did not judge"):
        AnswerChecker(stream).compare(first, encode(Rejected(1, bytes(16), 0, "why"), bytes(16))[0])


# `python -m bench index --corpus CORPORA --plan bands --plan classic`, 2026-11-26, 2,318 distinct
# texts.
REAL = {"bands": 0.003, "classic": 0.112}


@pytest.mark.parametrize("name", REAL)
def test_documents_are_as_near_as_real_texts(name: str) -> None:
    """The number of candidates per text is within 20 % of that of real texts."""
    found = candidates_per_text(PLANS[name], generated_columns(PLANS[name], 2_318, seed=1))
    assert found == pytest.approx(REAL[name], rel=0.2, abs=0.003)


def test_a_killed_index_reopens_with_other_memory_and_judges_on(tmp_path: Path) -> None:
    """Every copy planted after the kill is found, also of originals from before it."""
    lines: list[str] = []
    options = IndexOptions(
        4_000,
        PLANS["bands"],
        0.3,
        seed=4,
        folder=tmp_path,
        judging_only=True,
        reopen_bytes=600 << 20,
    )
    report = run_index(options, lines.append)
    found = report.as_json()

    assert report.complaints == []
    assert report.representatives < report.reopened["statistics"]["entries"] < 5_000
    assert sum(point["documents"] for point in report.reopened_curve) == 1_000
    assert sum(point["planted_found"] for point in report.reopened_curve) > 200
    assert found["reopened_documents_per_second"] > 0
    assert found["reopen_seconds"] > 0
    assert found["reopen_memory_bytes_allowed"] == 600 << 20
    assert list(tmp_path.iterdir()) == []
