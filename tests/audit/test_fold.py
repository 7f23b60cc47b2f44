"""Two implementations of the rules, the index's and the audit's: they must agree on any log."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from stream_dedup.audit.judgements import Fold
from stream_dedup.audit.scan import ComparedText, PlainScan, PlanRules, Rows
from stream_dedup.domain.plan import parse
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.log import answers
from tests.index import oracle
from tests.index.logs import RandomLog, append_time, random_sketch, read
from tests.index.machine import KINDS, QUICK_KINDS
from tests.tiers import few

SEEDS = [random.Random(os.environ["TEST_SEED"]).randrange(2**32) for _ in range(2)]


@pytest.mark.parametrize("kind", few(KINDS, QUICK_KINDS))
def test_the_fold_judges_as_the_index_does(kind: str) -> None:
    """Redelivery, rewinds, zombies, orders, changed plans, a window, nonsense: every judgement is
    equal, with all it names."""
    for number, seed in enumerate(SEEDS):
        log = RandomLog(seed, parse(kind), plan_changes=True, windows=number == 0).records(80)
        index, fold = LogIndex(MemoryStore()), Fold(PlainScan())
        for offset, raw in enumerate(log):
            given = {
                answered: answers.decode(answer)
                for answered, answer in index.apply([(offset, append_time(offset), raw)])
            }
            judgements = fold.judge(offset, append_time(offset), read(raw))
            answer = given.get(offset)
            expected = answer.judgements if isinstance(answer, answers.LogAnswer) else None
            assert judgements == expected, f"seed {seed}, log offset {offset}"


WHOLE_KEYS = (
    "128:4:0:36~20:62,70,85,97%:64",
    "128:4:0:60~16:40,50,60,80%:5",
    "128:4:0:60~16:50%:5",
    "64:6/3:0:20:50%~0:0%:3",
    "100:0:0:40~8:0%:2",
    "90:0:0:30~0:30%:5",
)


@pytest.mark.parametrize("kind", [*few(KINDS, QUICK_KINDS), *WHOLE_KEYS])
def test_the_scan_finds_what_a_list_finds(kind: str) -> None:
    """As rows come and die between the questions, in families that share keys, from any row on:
    each time the same row.
    """
    chance, values = np.random.default_rng(SEEDS[1]), random.Random(SEEDS[1])
    plan = parse(kind)
    rules = PlanRules(plan)
    rows, plain, found = Rows(2, 120), PlainScan(), 0
    families = [(chance.integers(0, 2**64, 2, np.uint64), random_sketch(values)) for _ in range(5)]

    def text_of_a_family() -> ComparedText:
        limbs, sketch = families[chance.integers(5)]
        limbs, changed = limbs.copy(), np.frombuffer(sketch, np.uint8).copy()
        for _ in range(chance.integers(0, 12)):
            limbs[chance.integers(2)] ^= np.uint64(1) << np.uint64(chance.integers(64))
        positions = chance.integers(0, 120, chance.integers(0, 60))
        changed[positions] = chance.integers(0, 256, len(positions))
        return ComparedText(
            limbs,
            int(chance.integers(*chance.choice([(20, 60), (0, 120)]))),
            int(chance.choice([0, 0, 7])),
            changed,
            (int(chance.choice([0, 5, 6])), int(chance.choice([0, 8, 9])), int(chance.integers(3))),
        )

    def as_text(text: ComparedText) -> oracle.Text:
        number = int.from_bytes(text.limbs.tobytes(), "little")
        return number, text.features, text.sketch.tobytes(), text.origin

    for turn in range(90):  # more rows than the initial capacity
        for _ in range(chance.integers(0, 30)):
            rows.add_entry(text_of_a_family())
        if rows.count:
            rows.alive[chance.integers(0, rows.count, rows.count // 6)] = False
            if chance.random() < 0.1:
                rows.alive[: rows.count] = False
        first = int(chance.integers(0, rows.count // 2 + 1))
        asked = [text_of_a_family() for _ in range(8)]
        expected = plain.find(rules, rows, first, rows.count, asked).tolist()
        found += sum(near >= 0 for near, _ in expected)
        for new, places in zip(asked, expected, strict=True) if turn % 6 == 5 else ():
            peers = [
                row
                for row in range(first, rows.count)
                if rows.alive[row] and rows.scopes[row] == new.scope
            ]
            known = [as_text(rows.text(row)) for row in peers]
            firsts = [
                next(found_by(plan.to_fields(), as_text(new), known), None)
                for found_by in (oracle.near, oracle.siblings)
            ]
            assert places == [
                -1 if peer_index is None else peers[peer_index] for peer_index in firsts
            ]
    assert found > 20
