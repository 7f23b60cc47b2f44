"""What the index decides, as `decisions` has it: as the proof's fold says; and an index that is
given it looks nothing up."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_dedup.ground.document import Message
from stream_dedup.ground.plan import Plan, parse
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.log import decisions
from stream_dedup.proof.decisions import AuditedDecisions, differences
from stream_dedup.proof.findings import Findings, Kind
from stream_dedup.proof.fold import Fold
from stream_dedup.proof.outline import Outline
from stream_dedup.proof.scan import PlainScan
from tests.index.logs import RandomLog, append_time, read
from tests.tiers import few

PLANS = ("64:4:0:3", "128:8:1:21:75%", "128:4:0:28~16:65%:64")


def random_log(seed: int, plan: Plan, count: int = 120) -> list[tuple[int, int, bytes | None]]:
    """Return a log with everything that can happen to it, some plans and windows changing on the
    way."""
    source = RandomLog(seed, plan, plan_changes=seed % 2 == 0, windows=seed % 3 > 0)
    return [(at, append_time(at), raw) for at, raw in enumerate(source.records(count))]


def decided(log: list[tuple[int, int, bytes | None]]) -> tuple[dict[int, bytes], LogIndex]:
    """Return what an index decides on a log, and that index."""
    index = LogIndex(MemoryStore())
    index.decide(0)
    index.apply(log)
    assert index.take_decisions() == list(index.unwritten_decisions())
    return dict(index.unwritten_decisions()), index


def outline_of(log: list[tuple[int, int, bytes | None]]) -> Outline:
    outline = Outline(Fold(PlainScan()))
    for at, append_ms, raw in log:
        outline.fold(at, append_ms, read(raw))
    return outline


def spoilt(raw: bytes, chance: random.Random) -> bytes | None:
    """Return a decision with one thing changed that rebuilding depends on; None if it says nothing
    but bits."""
    one = decisions.decode(raw)
    if not len(one.of):
        return None
    name = chance.choice(["of", "distances", "similarity", "copies", "better", "made"])
    column: Any = getattr(one, name).copy()
    place = chance.randrange(len(column))
    column[place] = not column[place] if name == "made" else (int(column[place]) + 1) % 3
    reasons = np.where(column, 0, one.reasons).astype(np.uint8) if name == "made" else one.reasons
    if np.array_equal(column, getattr(one, name)) or np.count_nonzero(reasons) != len(one.of):
        return None
    return decisions.encode(replace(one, **{name: column, "reasons": reasons}))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("salt", few(range(4), 1))
def test_what_is_decided_is_what_the_log_says(plan: str, salt: int) -> None:
    """Each batch and each seed has its decision, the proof's fold agrees with all of it, and an
    audit finds what is wrong."""
    seed = int(os.environ["TEST_SEED"]) + salt
    print("seed", seed)
    log = random_log(seed, parse(plan))
    found, _ = decided(log)
    outline, chance = outline_of(log), random.Random(seed)

    assert found.keys() == outline.made.keys()
    wrong = {at: list(differences(outline, at, decisions.decode(raw))) for at, raw in found.items()}
    assert {at: sentences for at, sentences in wrong.items() if sentences} == {}

    audited, findings, changed = AuditedDecisions(), Findings(5), 0
    lost = chance.choice(sorted(found)[:-1])
    for at, raw in found.items():
        other = spoilt(raw, chance) if chance.random() < 0.3 else None
        changed += other is not None and at != lost
        if at != lost:
            audited.take_message(Message("decisions", 0, at, None, other or raw, 0, []))
    audited.close(outline, findings)
    assert (findings.counts[Kind.DECISION], audited.missing, audited.compared) == (
        changed,
        1,
        len(found) - 1,
    )


def applied_with(
    log: list[tuple[int, int, bytes | None]],
    given: dict[int, bytes],
    chance: random.Random,
    folder: Path | None,
) -> tuple[LogIndex, list[tuple[int, bytes]]]:
    """Apply a log to an empty volume with what is known of its decisions, some records at a time,
    and now and then anew."""
    store = MemoryStore()
    index, answers, at = LogIndex(store, keep_in=folder), [], 0
    while at < len(log):
        if chance.random() < 0.1:
            index = LogIndex(store, keep_in=folder)
        if chance.random() < 0.2:
            (index.suspend if chance.random() < 0.7 else index.resume)()
        end = at + chance.choice([1, 2, 5, 17, 60])
        known = {
            offset: decisions.decode(given[offset])
            for offset, _, _ in log[at:end]
            if offset in given
        }
        answers += index.apply(log[at:end], known)
        at = end
    return index, answers


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("salt", few(range(6), 1))
@pytest.mark.parametrize(
    "lacks", ["nothing", "some", "its end", "is wrong once", "is of another log"]
)
def test_what_is_applied_with_decisions_is_what_is_judged(
    plan: str, salt: int, lacks: str, tmp_path: Path
) -> None:
    """Whatever befalls the log, and whatever its decisions lack: the same answers, and the same
    state."""
    seed = int(os.environ["TEST_SEED"]) + salt
    print("seed", seed)
    log, chance = random_log(seed, parse(plan), 160), random.Random(seed)
    judged = LogIndex(MemoryStore())
    answers = judged.apply(log)
    given, _ = decided(log[:120] if lacks == "its end" else log)
    if lacks == "some":
        given = {at: raw for at, raw in given.items() if chance.random() < 0.8}
    elif lacks == "is of another log":
        given = decided(random_log(seed + 1000, parse(plan), 160))[0]
    elif lacks == "is wrong once":
        found = {at: other for at, raw in given.items() if (other := spoilt(raw, chance))}
        for at in chance.sample(sorted(found), min(1, len(found))):
            given[at] = found[at]

    index, told = applied_with(log, given, chance, tmp_path if salt % 2 == 0 else None)

    assert told == answers
    assert index.state_digest() == judged.state_digest()
    if lacks in ("nothing", "some", "its end"):
        assert index.contradiction == ""
    if lacks == "nothing":
        assert index.statistics()["candidates"] == 0
