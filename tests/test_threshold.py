"""A threshold of similarity from a sample: the nearest pairs, the proposal, and how sure it is."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dedup.fingerprinting import Prints
from stream_dedup.ground.plan import PLANS, Plan, parse
from stream_dedup.ground.sketch import own_share, per_cent
from stream_dedup.local.threshold import (
    Doubt,
    NearestPairs,
    ThresholdProposal,
    distinct_rows,
    nearest_pairs,
    propose,
    wilson,
)


def random_prints(seed: int, count: int) -> tuple[Prints, np.ndarray]:
    """Families of texts: members share values of the sketch and bits of the print, more or less; or
    few families, as of sites, whose members differ in the same values."""
    chance = np.random.default_rng(seed)
    are_sites = seed % 2 == 1
    family = chance.integers(0, max(1, count // (20 if are_sites else 4)), count)
    sketches = chance.integers(0, 256, (count, 120), np.uint8)[family]
    changed = chance.random((count, 120)) < chance.random((count, 1)) ** 2 * (
        chance.random((count, 1)) < 0.6
    )
    if are_sites:
        changed = np.where(
            chance.random((count, 1)) < 0.8, (chance.random((count, 120)) < 0.4)[family], changed
        )
    sketches = np.where(changed, chance.integers(0, 256, (count, 120), np.uint8), sketches)
    prints = chance.integers(0, 2**64, (count, 2), np.uint64)[family]
    for _ in range(20):
        prints[np.arange(count), chance.integers(0, 2, count)] ^= np.uint64(1) << chance.integers(
            0, 64, count, np.uint64
        )
    features = chance.integers(1, 60, count).astype(np.uint32)
    digests = chance.integers(0, 256, (count, 16), np.uint8)[chance.integers(0, count, count)]
    scopes = chance.integers(0, 2, count).astype(np.uint64)
    return Prints(prints, sketches, features, digests, chance.random(count) < 0.1), scopes


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 60),
    st.sampled_from(
        [
            "128:4:0:28~16:65%:64",
            "100:4:0:30@9,20:60%~16:65%:64",
            "128:4:0:60~40:55%:9:60%",
            "128:0:0:70~20:60%:64:45%",
        ]
    ),
)
def test_the_nearest_pairs_are_those_of_a_plain_search(seed: int, count: int, text: str) -> None:
    """Of all earlier rows of its scope that share a block of two values and pass lengths and
    distance, the most similar.

    From .5 on it stands out from the document's crowd: of the earlier ones that the plan keeps,
    those whom its tables give.
    """
    prints, scopes = random_prints(seed, count)
    plan = parse(text)
    passes = replace(plan, similarity=0)
    rows = distinct_rows(prints, scopes, 3)
    kept: list[int] = []

    def told(row: int) -> tuple[int, int, bytes]:
        return number(row), int(prints.features[row]), prints.sketches[row].tobytes()

    def number(row: int) -> int:
        return int(prints.prints[row, 1]) << 64 | int(prints.prints[row, 0])

    expected, expected_near, apart = [], [], []
    for at, row in enumerate(rows.tolist()):
        peers = [other for other in kept if scopes[other] == scopes[row]]
        crowd = crowd_of(plan, told(row), [told(other) for other in peers], peers)
        if not list(plan.scan(told(row), [told(other) for other in peers])):
            kept.append(row)
        best = near = (-1, 0)
        for other in rows[:at].tolist():
            mine, others = prints.sketches[row], prints.sketches[other]
            features = (int(prints.features[row]), int(prints.features[other]))
            is_met = (mine == others)[:80].reshape(40, 2).all(axis=1).any() and scopes[
                row
            ] == scopes[other]
            if is_met and passes.is_alike(
                number(row), number(other), features, (mine.tobytes(), others.tobytes())
            ):
                alike = (per_cent(mine.tobytes(), others.tobytes()), -other)
                best = max(best, alike)
                if (
                    alike[0] < 50
                    or held_against(plan, told(row), told(other), other, crowd)[1] >= plan.crowd
                ):
                    near = max(near, alike)
        if best[0] >= 0:
            expected.append((row, -best[1], best[0]))
        if near[0] >= 0:
            expected_near.append((row, -near[1], near[0]))
        if best[0] >= 50 and near[0] < best[0]:
            apart.append(
                (len(expected) - 1, *held_against(plan, told(row), told(-best[1]), -best[1], crowd))
            )

    found = nearest_pairs(prints, scopes, rows, plan)

    for pairs, wanted in ((found.nearest, expected), (found.near, expected_near)):
        assert (
            list(
                zip(pairs.rows.tolist(), pairs.of.tolist(), pairs.similarity.tolist(), strict=True)
            )
            == wanted
        )
    assert (
        list(zip(found.apart.tolist(), found.others.tolist(), found.shares.tolist(), strict=True))
        == apart
    )


Told = tuple[int, int, bytes]


def crowd_of(plan: Plan, one: Told, peers: list[Told], rows: list[int]) -> dict[int, bytes]:
    """Return the sketches of a document's crowd by their rows: the first 32 whom the tables
    give."""
    given = set()
    for table in range(plan.tables):
        sharing = [
            at
            for at, other in enumerate(peers)
            if plan.shared(one[0] ^ other[0], (one[2], other[2]))[table]
        ]
        given |= set(plan.among(sharing))
    return {rows[at]: peers[at][2] for at in sorted(given)[:32]}


def held_against(
    plan: Plan, one: Told, other: Told, row: int, crowd: dict[int, bytes]
) -> tuple[int, int]:
    """Return how many others are its crowd, and what the two share that these do not, in per
    cent."""
    others = [sketch for member, sketch in crowd.items() if member != row]
    return len(others), own_share(one[2], other[2], others) if others and plan.crowd else 100


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


def pairs_of(parts: np.ndarray, site_size: int = 1) -> NearestPairs:
    """Pairs that are so many 80ths alike; each `site_size` of them hang together: of one document,
    which is in none of them."""
    rows = np.arange(1, len(parts) + 1) * 2
    firsts = rows - 2 * ((rows // 2 - 1) % site_size) - 1
    return NearestPairs(rows, firsts, parts * 5 // 4)


def proposed(pairs: NearestPairs, compared: int, in_force: int) -> ThresholdProposal:
    return propose(pairs, pairs.sites(), compared, in_force)


def test_a_gap_between_two_crowds_is_found() -> None:
    """Wherever it lies; from many pairs for sure."""
    for gap in (48, 56, 64):
        parts = np.repeat(np.array([*range(30, gap - 5), *range(gap + 6, 81)]), 20)
        found = proposed(pairs_of(parts), 5000, 90)
        assert found.doubt is None
        assert 5 * gap / 4 - 4 <= (found.similarity or 0) <= 5 * gap / 4 + 5
        assert found.low is not None
        assert found.high is not None
        assert found.low <= (found.similarity or 0) <= found.high


def test_the_threshold_in_force_stays_where_none_is_better() -> None:
    """Documents that are like nothing on one side, copies on the other, and nothing between
    them."""
    for in_force in (60, 65, 70, 80):
        found = proposed(pairs_of(np.full(300, 80)), 1000, in_force)
        assert (found.similarity, found.low, found.high, found.doubt) == (
            in_force,
            in_force,
            in_force,
            None,
        )
    # One pair near it makes another the emptiest, but many samples do without that pair.
    one_near = proposed(pairs_of(np.array([54, *[80] * 300])), 1000, 65)
    assert (one_near.similarity, one_near.doubt) == (65, None)
    assert one_near.low != 65 or one_near.high != 65


@pytest.mark.parametrize(
    ("parts", "site_size", "doubt"),
    [
        (np.full(29, 60), 1, Doubt.FEW_PAIRS),
        (np.repeat(np.arange(40, 80), 8), 1, Doubt.NO_VALLEY),  # flat
        (
            np.repeat(np.arange(40, 80), np.arange(40) + 1),
            1,
            Doubt.NO_VALLEY,
        ),  # ever more: fewest at the lower edge
        (
            np.repeat(np.arange(40, 80), 40 - np.arange(40)),
            1,
            Doubt.NO_VALLEY,
        ),  # ever fewer: at the upper edge
        (
            np.repeat(np.arange(20, 80), [40] * 36 + [25] * 8 + [40] * 16),
            1,
            Doubt.NO_VALLEY,
        ),  # a dent
        (
            np.repeat(np.array([*range(40, 54), *range(70, 80)]), 20),
            60,
            Doubt.FEW_SITES,
        ),  # two hills, of eight sites
        (
            np.repeat(np.array([44, 76]), [12, 18]),
            1,
            None,
        ),  # two hills of few pairs: from thirty on
    ],
)
def test_nothing_is_proposed_without_a_valley_or_from_few_sites(
    parts: np.ndarray, site_size: int, doubt: Doubt
) -> None:
    """An edge of the range is no answer, and neither is what some templates happen to be alike
    by."""
    found = proposed(pairs_of(parts, site_size), 2 * len(parts), 65)

    assert found.doubt == doubt
    assert (found.similarity is None) == (doubt is not None)


def test_a_site_of_many_pages_has_no_more_to_say_than_others() -> None:
    """A thousand pages of one template fill the valley between the copies of other sites and their
    pages."""
    hills, between = (
        np.repeat(np.array([*range(40, 48), *range(70, 80)]), 40),
        np.repeat(np.arange(49, 69), 100),
    )
    pairs = pairs_of(np.concatenate([hills, between]))
    together = NearestPairs(
        pairs.rows, np.where(np.arange(len(pairs.rows)) < len(hills), pairs.of, 1), pairs.similarity
    )

    assert len(np.unique(together.sites())) == len(
        hills
    )  # the template's are with that of the first pair
    assert proposed(pairs, 8000, 65).doubt == Doubt.NO_VALLEY  # as so many sites of their own
    assert proposed(together, 8000, 65).similarity == 65


def test_a_range_wider_than_an_answer_is_none() -> None:
    """Three valleys as deep, of which samples take one or another."""
    per_cents = np.repeat(np.array([51, 58, 65, 72, 79, 86, 93]), 12)
    found = proposed(replace(pairs_of(per_cents), similarity=per_cents), 2000, 65)

    assert (found.doubt, found.similarity) == (Doubt.WIDE_RANGE, None)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60, unique=True), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_sites_are_what_hangs_together(rows: list[int], seed: int) -> None:
    """As following each document to the first of its chain of .5 alike documents says."""
    dice = np.random.default_rng(seed)
    rows = sorted(rows)
    of = np.array([int(dice.choice([0, *rows[:at]])) for at in range(len(rows))])
    pairs = NearestPairs(np.array(rows), of, dice.integers(25, 101, len(rows)))
    before = {
        row: one
        for row, one, alike in zip(rows, of.tolist(), pairs.similarity.tolist(), strict=True)
        if alike >= 50
    }

    def first(row: int) -> int:
        return first(before[row]) if row in before else row

    told = pairs.sites().tolist()
    for one, other in itertools.combinations(range(len(rows)), 2):
        assert (told[one] == told[other]) == (first(rows[one]) == first(rows[other]))


@given(st.lists(st.integers(0, 80), max_size=200), st.integers(51, 89))
@settings(max_examples=50, deadline=None)
def test_a_proposal_is_a_threshold_that_can_be_declared(parts: list[int], in_force: int) -> None:
    """In per cent; never at an edge of what is looked at."""
    found = proposed(pairs_of(np.array(parts, np.int64)), 2 * len(parts), in_force)
    if found.doubt is None:
        assert found.similarity is not None
        assert 50 < found.similarity < 90
        assert PLANS["bands"].with_similarity(found.similarity).similarity == found.similarity


def test_intervals_of_the_literature() -> None:
    """Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of
    29."""
    for part, whole, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson(part, whole) == pytest.approx((low, high), abs=6e-5)
    assert wilson(0, 0) == (0, 1)
