"""The arithmetic of plans: against every pair of short prints, against samples of long ones, and against the literature."""

from __future__ import annotations

import itertools
import math
import os
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from stream_dedup.ground.plan import PLANS, TABLES_MAX, Plan
from stream_dedup.index.arithmetic import (
    bits_differing,
    candidates,
    candidates_of_plan,
    candidates_of_texts,
    chance,
    distance_guaranteed,
    recall_alike,
    recalls,
    similarity_of,
)
from stream_dedup.index.neighbours import Identities, Neighbours
from stream_dedup.index.rows import Columns, no_columns, take_rows

SHORT = [
    Plan(10, 0, 0, 6),
    Plan(12, 3, 0, 8),
    Plan(12, 4, 1, 9),
    Plan(12, 12, 0, 12),
    Plan(13, 5, 1, 9, key_blocks=2),
    Plan(12, 6, 0, 7, key_blocks=3),
    Plan(12, 4, 3, 12, key_blocks=2),
    Plan(11, 3, 2, 11),
    Plan(12, 5, 3, 10, key_blocks=4),
    Plan(8, 8, 1, 8),
    Plan(1, 1, 0, 1),
]


def chance_of_so_few_or_so_many(hits: int, draws: int, probability: float) -> float:
    """The smaller of the binomial's two tails at `hits`, both with `hits` itself.

    Counted out, not read off a bell curve: where one in a thousand is missed, the curve calls seven misses impossible.
    """

    if probability in (0, 1):
        return float(hits == draws * probability)

    def of(number: int) -> float:
        ways = math.log(math.comb(draws, number))
        return math.exp(ways + number * math.log(probability) + (draws - number) * math.log1p(-probability))

    return min(math.fsum(map(of, range(hits + 1))), math.fsum(map(of, range(hits, draws + 1))))


@pytest.mark.parametrize("plan", SHORT, ids=lambda plan: plan.id)
def test_recall_equals_a_count_of_all_pairs(plan: Plan) -> None:
    """At each distance, the share of all differences that the predicate accepts; and their sum over all is the chance."""
    found, every = [0] * (plan.width + 1), 0
    for difference in range(1 << plan.width):
        near = plan.within_reach(0, difference)
        found[difference.bit_count()] += near
        every += near

    assert [Fraction(count, math.comb(plan.width, bits)) for bits, count in enumerate(found)] == recalls(plan, plan.width)
    assert Fraction(every, 1 << plan.width) == chance(plan)
    guaranteed = next((bits - 1 for bits, count in enumerate(found) if count < math.comb(plan.width, bits)), plan.width)
    assert min(guaranteed, plan.threshold) == distance_guaranteed(plan)
    assert distance_guaranteed(plan) >= plan.distance_guaranteed


@pytest.mark.parametrize(
    "plan", [PLANS["wide"], Plan(64, 4, 1, 14), Plan(128, 7, 1, 30, key_blocks=2)], ids=lambda plan: plan.id
)
def test_recall_is_what_random_pairs_show(plan: Plan) -> None:
    """Of 1,500 random pairs at a distance, as many are found as counted, or as chance allows once in ten million draws."""
    dice = random.Random(int(os.environ["TEST_SEED"]))
    for distance in range(plan.threshold - 4, plan.threshold + 1):
        expected = float(recalls(plan, plan.threshold)[distance])
        differences = (sum(1 << bit for bit in dice.sample(range(plan.width), distance)) for _ in range(1500))
        hits = sum(plan.within_reach(0, difference, (100, 100)) for difference in differences)
        assert chance_of_so_few_or_so_many(hits, 1500, expected) > 1e-7


@pytest.mark.parametrize("similarity", [0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize(
    "plan",
    [
        PLANS["bands"],
        PLANS["wide"],
        replace(PLANS["bands"], blocks=0, bands=10, threshold=20),
        Plan(128, 8, 0, 28, similarity=70),
    ],
    ids=lambda plan: plan.id,
)
def test_recall_of_pairs_of_a_similarity_is_what_random_pairs_show(plan: Plan, similarity: float) -> None:
    """Of 1,000 random pairs whose values and bits agree as often as the similarity says, as many are found as counted.

    Or as chance allows once in ten million draws.
    """
    dice = np.random.default_rng(int(os.environ["TEST_SEED"]))
    bits = bits_differing(similarity)
    hits = 0
    for _ in range(1000):
        difference = sum(1 << bit for bit in np.flatnonzero(dice.random(128) < bits).tolist())
        values, others = np.concatenate([dice.integers(0, 256, (2, 80)), dice.integers(0, 16, (2, 80))], axis=1)
        pair = values, np.where(dice.random(160) < similarity, values, others)
        sketches = tuple(bytes([*one[:80], *(one[80::2] | one[81::2] << 4)]) for one in pair)
        hits += plan.within_reach(0, difference, (100, 100), sketches)
    assert chance_of_so_few_or_so_many(hits, 1000, recall_alike(plan, similarity)) > 1e-7


# The mean values and distance of 449 pairs of the corpora whose sketches agree in 24 to 69 values, by fifths; 2026-11-25.
@pytest.mark.parametrize(("agreeing", "distance"), [(28.0, 34.5), (35.1, 28.7), (45.1, 23.8), (55.5, 19.8), (64.5, 14.8)])
def test_distance_and_similarity_belong_together_as_in_real_texts(agreeing: float, distance: float) -> None:
    """Within a tenth."""
    assert 128 * bits_differing(agreeing / 80) == pytest.approx(distance, rel=0.1)


def test_bands_finds_what_is_alike_at_any_distance_that_belongs_to_it() -> None:
    """Nearly all up to 15 bits, which belong to a similarity of 0.81; none beyond its 28; unrelated ones hardly ever."""
    bands = recalls(PLANS["bands"], 30)
    assert similarity_of(15 / 128) == pytest.approx(0.81, abs=0.01)
    assert bits_differing(similarity_of(15 / 128)) == pytest.approx(15 / 128)
    assert min(bands[:16]) > 0.995
    assert all(one > other for one, other in itertools.pairwise(bands[15:29]))
    assert bands[29:] == [0, 0]
    assert chance(PLANS["bands"]) < 1e-60


# `python -m bench index --corpus CORPORA --plan bands --plan wide --plan classic`, 2026-11-26; twice what was looked up
# while the texts came in, because then half of them are there on average. Of `bands` they are seven in all.
@pytest.mark.parametrize(("name", "looked_up"), [("bands", 2 * 0.003), ("wide", 2 * 3.460), ("classic", 2 * 0.112)])
def test_candidates_are_those_of_real_texts(name: str, looked_up: float) -> None:
    """Of 2,318 distinct texts in 29 languages, within a fifth."""
    assert float(candidates_of_texts(PLANS[name], 2_318)) == pytest.approx(looked_up, rel=0.2, abs=0.006)


def test_recall_is_one_up_to_the_guaranteed_distance_and_less_beyond() -> None:
    """Classic finds all within 3 bits, wide all within 15 and nearly all at 16; nothing beyond the threshold."""
    assert recalls(PLANS["classic"], 5) == [1, 1, 1, 1, 0, 0]
    wide = recalls(PLANS["wide"], 22)
    assert wide[:16] == [1] * 16
    assert 0.998 < wide[16] < 1
    assert all(one > other for one, other in itertools.pairwise(wide[15:]))
    assert wide[22] == 0


def test_candidates_of_the_textbook() -> None:
    """Four tables of 16 bits: 2^30 documents are 65,536 candidates over the four, 2^26 are 4,096."""
    assert candidates_of_plan(PLANS["classic"], 1 << 30) == 65_536
    assert candidates_of_plan(PLANS["classic"], 1 << 26) == 4_096


@pytest.mark.parametrize(
    ("plan", "tables", "key_bits", "a_table"),
    [
        (Plan(64, 6, 0, 3, key_blocks=3), 20, {31, 32, 33}, 8),
        (Plan(64, 5, 0, 3, key_blocks=2), 10, {25, 26}, 512),
        (Plan(64, 4, 0, 3), 4, {16}, 262_144),
    ],
    ids=lambda value: value.id if isinstance(value, Plan) else "",
)
def test_the_designs_for_2_to_the_34_documents(plan: Plan, tables: int, key_bits: set[int], a_table: int) -> None:
    """Manku, Jain and Das Sarma 2007, example 3.1: f = 64, k = 3, d = 34; the most candidates that a table gives."""
    assert (plan.tables, set(plan.key_bits), plan.distance_guaranteed) == (tables, key_bits, 3)
    assert max(candidates(bits, 0, 1 << 34) for bits in plan.key_bits) == a_table


def test_the_nested_design_of_the_paper() -> None:
    """Its 16 tables, 4 blocks of 16 and 4 of 12 in the rest, have keys of 28 bits: 64 candidates a table. No plan says so."""
    assert candidates(16 + 12, 0, 1 << 34) == 64


def test_a_key_longer_than_an_address_costs_what_the_address_costs() -> None:
    """Keys of 31 bits are found by addresses of 20, so a look-up compares what keys of 20 bits would give."""
    assert candidates_of_plan(Plan(64, 6, 0, 3, key_blocks=3), 1 << 34) == 20 * (1 << 14)


FINDING_ALIKE = [
    plan
    for distance in (3, 7)
    for blocks, key_blocks, radius in itertools.product((0, 1, 2, 3, 4, 5, 6, 8, 10, 16), (1, 2, 3), (0, 1, 2, 3))
    if key_blocks <= max(1, blocks)
    and math.comb(blocks, key_blocks) <= TABLES_MAX
    and (plan := Plan(64, blocks, radius, distance, key_blocks=key_blocks)).distance_guaranteed == distance
    and plan.probes * sum(1 << min(bits, 20) for bits in plan.key_bits) < 1 << 28  # or the tests would take long
]


@pytest.mark.parametrize("distance", [3, 7])
def test_plans_that_guarantee_a_distance_find_the_same_pairs(distance: int) -> None:
    """Whatever the number of tables, the same pairs are near, as long as the plans guarantee the same distance."""
    plans = [plan for plan in FINDING_ALIKE if plan.threshold == distance]
    dice = random.Random(int(os.environ["TEST_SEED"]))
    for _ in range(300):
        difference = sum(1 << bit for bit in dice.sample(range(64), dice.randint(0, distance + 3)))
        assert {plan.within_reach(0, difference) for plan in plans} == {difference.bit_count() <= distance}
    assert len({plan.tables for plan in plans}) >= 5


@pytest.mark.parametrize("distance", [3, 7])
def test_tables_that_guarantee_a_distance_find_the_same_entries(distance: int) -> None:
    """The index names the same representatives, at the same distances, for every number of tables."""
    dice = random.Random(int(os.environ["TEST_SEED"]))
    bases = [dice.getrandbits(64) for _ in range(40)]
    columns = no_columns(1, 400)
    for row in range(400):
        number = dice.choice(bases)
        for bit in dice.sample(range(64), dice.randint(0, distance + 2)):
            number ^= 1 << bit
        columns.prints[row, 0], columns.digests[row] = number, (row, 1)
    found = set()
    for plan in FINDING_ALIKE:
        if plan.threshold == distance:
            judged = Neighbours(plan, 1, _identities(columns)).judge(columns, np.full(400, 9, np.uint32), 1)
            found.add((judged.entry.tobytes(), judged.distance.tobytes()))

    assert len(found) == 1


def _identities(columns: Columns) -> Identities:
    return lambda numbers: take_rows(columns, numbers)
