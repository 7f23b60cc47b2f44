"""A threshold of similarity from a sample: the nearest pairs, the proposal, and how sure it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dedup.fingerprinting import Prints
from stream_dedup.ground.plan import PLANS, parse
from stream_dedup.ground.sketch import agreeing_min
from stream_dedup.local.threshold import NearestPairs, distinct_rows, nearest_pairs, propose, wilson


def random_prints(seed: int, count: int) -> tuple[Prints, np.ndarray]:
    """Families of texts: members share values of the sketch and bits of the print, more or less."""
    chance = np.random.default_rng(seed)
    family = chance.integers(0, max(1, count // 4), count)
    sketches = chance.integers(0, 256, (count, 80), np.uint8)[family]
    changed = chance.random((count, 80)) < chance.random((count, 1)) ** 2 * (chance.random((count, 1)) < 0.6)
    sketches = np.where(changed, chance.integers(0, 256, (count, 80), np.uint8), sketches)
    prints = chance.integers(0, 2**64, (count, 2), np.uint64)[family]
    for _ in range(20):
        prints[np.arange(count), chance.integers(0, 2, count)] ^= np.uint64(1) << chance.integers(0, 64, count, np.uint64)
    features = chance.integers(1, 60, count).astype(np.uint32)
    digests = chance.integers(0, 256, (count, 16), np.uint8)[chance.integers(0, count, count)]
    scopes = chance.integers(0, 2, count).astype(np.uint64)
    return Prints(prints, sketches, features, digests, chance.random(count) < 0.1), scopes


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.sampled_from(["128:4:0:28~16:65%:64", "100:4:0:30@9,20:60%~16:65%:64"]))
def test_the_nearest_pairs_are_those_of_a_plain_search(seed: int, count: int, text: str) -> None:
    """Of all earlier rows of its scope that share a block of two values and pass lengths and distance, the most similar."""
    prints, scopes = random_prints(seed, count)
    plan = parse(text)
    passes = replace(plan, similarity=0)
    rows = distinct_rows(prints, scopes, 3)

    def number(row: int) -> int:
        return int(prints.prints[row, 1]) << 64 | int(prints.prints[row, 0])

    expected = []
    for at, row in enumerate(rows.tolist()):
        best = (-1, 0)
        for other in rows[:at].tolist():
            mine, others = prints.sketches[row], prints.sketches[other]
            features = (int(prints.features[row]), int(prints.features[other]))
            is_met = (mine == others).reshape(40, 2).all(axis=1).any() and scopes[row] == scopes[other]
            if is_met and passes.is_alike(number(row), number(other), features, (mine.tobytes(), others.tobytes())):
                best = max(best, (int((mine == others).sum()), -other))
        if best[0] >= 0:
            expected.append((row, -best[1], best[0]))

    found = nearest_pairs(prints, scopes, rows, plan)

    assert list(zip(found.rows.tolist(), found.of.tolist(), found.agreeing.tolist(), strict=True)) == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60))
def test_what_is_compared_are_the_first_of_each_text(seed: int, count: int) -> None:
    """Not what is empty or below the floor; a text of two scopes counts in each."""
    prints, scopes = random_prints(seed, count)
    seen, expected = set(), []
    for row in range(count):
        text = (prints.digests[row].tobytes(), int(scopes[row]))
        if not prints.empty[row] and prints.features[row] >= 3 and text not in seen:
            seen.add(text)
            expected.append(row)
    assert distinct_rows(prints, scopes, 3).tolist() == expected


def test_a_gap_between_two_crowds_is_found() -> None:
    """Wherever it lies; from many pairs for sure."""
    for gap in (48, 56, 64):
        agreeing = np.repeat(np.array([*range(30, gap - 5), *range(gap + 6, 81)]), 20)
        found = propose(agreeing, 65)
        assert gap - 3 <= agreeing_min(found.similarity) <= gap + 4
        assert found.is_sure


def test_where_nothing_tells_the_one_in_force_stays() -> None:
    """Too few pairs, or none that lies near a threshold."""
    assert propose(np.full(29, 60), 70) == propose(np.full(29, 50), 70)
    assert (propose(np.full(29, 60), 70).similarity, propose(np.full(29, 60), 70).is_sure) == (70, False)
    far = propose(np.full(300, 80), 70)
    assert (far.similarity, far.low, far.high, far.is_sure) == (70, 70, 70, True)
    even = propose(np.arange(20, 81), 65)
    assert even.high - even.low > 15
    assert not even.is_sure


@given(st.lists(st.integers(0, 80), max_size=200), st.integers(50, 90))
@settings(max_examples=50, deadline=None)
def test_a_proposal_is_a_threshold_that_can_be_declared(agreeing: list[int], in_force: int) -> None:
    """In per cent; it does not depend on the pairs' order."""
    found = propose(np.array(agreeing, np.int64), in_force)
    assert 50 <= found.similarity <= 90
    assert 50 <= found.low <= found.high <= 90
    assert PLANS["bands"].with_similarity(found.similarity).agreeing_min == agreeing_min(found.similarity)
    assert found == propose(np.array(agreeing[::-1], np.int64), in_force)


@given(st.lists(st.integers(0, 80), max_size=100))
def test_a_higher_threshold_drops_less(agreeing: list[int]) -> None:
    """As many as have so many equal values."""
    numbers = np.array(agreeing, np.int64)
    pairs = NearestPairs(numbers, numbers, numbers)
    dropped = [pairs.dropped(similarity) for similarity in range(101)]
    assert dropped == sorted(dropped, reverse=True)
    assert pairs.dropped(65) == sum(one >= 52 for one in agreeing)


@given(st.integers(1, 5000), st.data())
def test_a_share_lies_in_its_interval(whole: int, data: st.DataObject) -> None:
    """Within 0 and 1, and narrower the more are counted."""
    part = data.draw(st.integers(0, whole))
    low, high = wilson(part, whole)
    assert 0 <= low <= part / whole <= high <= 1
    wider = wilson(part, whole)
    narrower = wilson(100 * part, 100 * whole)
    assert narrower[1] - narrower[0] < wider[1] - wider[0]


def test_intervals_of_the_literature() -> None:
    """Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for part, whole, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson(part, whole) == pytest.approx((low, high), abs=6e-5)
    assert wilson(0, 0) == (0, 1)
