"""Two implementations of the rules, the index's and the audit's: they must agree on any log."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from stream_dedup.ground.plan import parse
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.log import answers
from stream_dedup.proof.fold import Fold
from stream_dedup.proof.scan import AskedTexts, KeyedScan, PlainScan, Reach, Rows, as_number
from tests.index.logs import RandomLog, append_time, random_sketch, read
from tests.index.machine import KINDS, QUICK_KINDS
from tests.index.oracle import near
from tests.tiers import few

SEEDS = [random.Random(os.environ["TEST_SEED"]).randrange(2**32) for _ in range(2)]
SCANS = {"plain": PlainScan, "keyed": KeyedScan}


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("kind", few(KINDS, QUICK_KINDS))
def test_the_fold_judges_as_the_index_does(kind: str, scan: str) -> None:
    """Redelivery, rewinds, zombies, orders, changed plans, a window, nonsense: every judgement is equal, with all it names."""
    for number, seed in enumerate(SEEDS):
        log = RandomLog(seed, parse(kind), plan_changes=True, windows=number == 0).records(80)
        index, fold = LogIndex(MemoryStore()), Fold(SCANS[scan]())
        for offset, raw in enumerate(log):
            given = {at: answers.decode(answer) for at, answer in index.apply([(offset, append_time(offset), raw)])}
            judgements = fold.judge(offset, append_time(offset), read(raw))
            answer = given.get(offset)
            expected = answer.judgements if isinstance(answer, answers.LogAnswer) else None
            assert judgements == expected, f"seed {seed}, log offset {offset}"


@pytest.mark.parametrize("kind", few(KINDS, QUICK_KINDS))
def test_both_scans_find_the_lowest_row(kind: str) -> None:
    chance = np.random.default_rng(SEEDS[0])
    reach = Reach.from_fields(parse(kind).to_fields())
    rows, values = Rows(2, 120), random.Random(SEEDS[0])
    base = chance.integers(0, 2**64, (8, 2), np.uint64)
    for _ in range(3000):
        flips = np.uint64(1) << chance.integers(0, 64, 12, np.uint64)
        one = base[chance.integers(8)].copy()
        for flip in flips[: chance.integers(0, 13)]:
            one[chance.integers(2)] ^= flip
        sketch = np.frombuffer(random_sketch(values), np.uint8)
        rows.add_entry(one, int(chance.integers(0, 120)), int(chance.choice([0, 0, 7])), sketch)
    rows.alive[chance.integers(0, 3000, 300)] = False
    asked = rows.prints[chance.integers(0, 3000, 200)] ^ np.uint64(1)
    features, scopes = chance.integers(0, 120, 200), chance.choice(np.array([0, 7], np.uint64), 200)
    sketches = np.array([list(random_sketch(values)) for _ in range(200)], np.uint8)

    texts = AskedTexts(asked, features, scopes, sketches)
    plain = PlainScan().find(reach, rows, 17, 3000, texts)
    keyed = KeyedScan().find(reach, rows, 17, 3000, texts)

    assert plain.tolist() == keyed.tolist()
    if reach.looks_further or reach.needs_sketch:  # both look key by key: a list that is searched in order is another way
        living = [row for row in range(17, 3000) if rows.alive[row]]
        for at in range(40):
            peers = [row for row in living if rows.scopes[row] == scopes[at]]
            texts = [(as_number(rows.prints[row]), int(rows.features[row]), rows.sketches[row].tobytes()) for row in peers]
            new = as_number(asked[at]), int(features[at]), sketches[at].tobytes()
            first = next(near(parse(kind).to_fields(), new, texts), None)
            assert plain[at] == (-1 if first is None else peers[first])
    assert (plain >= 17).any()


@pytest.mark.parametrize(
    "text",
    ["128:4:0:28~16:65%:64", "128:4:0:60~16:50%:5:55%", "64:6/3:0:20:50%~0:0%:3", "100:0:0:40~8:0%:2", "90:0:0:30~0:30%:5"],
)
def test_whole_keys_find_what_a_plain_scan_finds(text: str) -> None:
    """As rows come and die between the questions, in families that share keys, from any row on: each time the same row."""
    chance, values = np.random.default_rng(SEEDS[1]), random.Random(SEEDS[1])
    reach = Reach.from_fields(parse(text).to_fields())
    rows, plain, keyed, found = Rows(2, 120), PlainScan(), KeyedScan(), 0
    families = [(chance.integers(0, 2**64, 2, np.uint64), random_sketch(values)) for _ in range(5)]

    def text_of_a_family() -> tuple[np.ndarray, int, int, np.ndarray]:
        limbs, sketch = families[chance.integers(5)]
        limbs, changed = limbs.copy(), np.frombuffer(sketch, np.uint8).copy()
        for _ in range(chance.integers(0, 12)):
            limbs[chance.integers(2)] ^= np.uint64(1) << np.uint64(chance.integers(64))
        at = chance.integers(0, 120, chance.integers(0, 60))
        changed[at] = chance.integers(0, 256, len(at))
        return limbs, int(chance.integers(20, 60)), int(chance.choice([0, 0, 7])), changed

    for _ in range(60):
        for _ in range(chance.integers(0, 30)):
            rows.add_entry(*text_of_a_family())
        if rows.count:
            rows.alive[chance.integers(0, rows.count, rows.count // 6)] = False
            if chance.random() < 0.1:
                rows.alive[: rows.count] = False
        first = int(chance.integers(0, rows.count // 2 + 1))
        asked = [text_of_a_family() for _ in range(8)]
        limbs, features, scopes, sketches = zip(*asked, strict=True)
        texts = AskedTexts(np.array(limbs), np.array(features), np.array(scopes, np.uint64), np.array(sketches))
        expected = plain.find(reach, rows, first, rows.count, texts).tolist()
        assert keyed.find(reach, rows, first, rows.count, texts).tolist() == expected
        found += sum(one >= 0 for one in expected)
    assert found > 20
