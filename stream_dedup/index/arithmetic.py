"""What a plan finds and what it costs, by counting: exact combinatorics, no simulation.

Two prints at distance d differ in d of `width` bits; each of the comb(width, d) ways is taken to be as likely as any
other, as a keyed hash makes it. Two sketches agree in each value with the probability s + (1 - s) / 256 that the similarity s
says, and of the second part s + (1 - s) / 16. The two witnesses belong together: texts of similarity s share 2s / (1 + s) of
their runs of words, whose arc cosine over pi would be the share of differing bits to be expected of prints of such runs
(Charikar, STOC 2002). Prints of words differ in four fifths of it, as pairs of real texts do.

    recall       by distance: the share of those ways in which some key is within the radius, counted block by block; for plans
                 with sketches times what sketches of the similarity that belongs to the distance let pass. By similarity: that,
                 over the distances to be expected. What `asked` passes over is left out of account
    candidates   how many entries a look-up compares: each visited bucket holds its share of the index; keyed tables look up
                 what has the key, and one in 256 of what else their bucket holds. Of texts half are taken to be of one
                 language, in which bits of two prints are equal 17 times out of 32 (docs/explanation/index-layout.md)
    chance       how likely two prints of fair bits, and random sketches, are within reach

Invariants: counts of prints are whole numbers and shares are fractions until they are printed; of prints recall is 1 exactly up
to the guaranteed distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from stream_dedup.ground.plan import ADDRESS_BITS_MAX, Plan
from stream_dedup.ground.sketch import FIRST_WEIGHT, JUDGING_VALUES, JUDGING_WEIGHT, SKETCH_VALUES
from stream_dedup.index.finder import TAGS, buckets_for

_FAIR: Final = Fraction(1, 2)
_OF_A_LANGUAGE: Final = Fraction(17, 32)
_VALUES: Final = 256
_OF_THE_ANGLE: Final = 0.8


def recalls(plan: Plan, distance_max: int) -> list[Fraction]:
    """Return, for each distance from 0 to `distance_max`, the share of pairs at that distance that the plan finds.

    Beyond the plan's threshold nothing is found. Where thresholds follow the length, the plan's own is meant, which holds
    for long texts.
    """
    found = _shares_found(plan, distance_max)
    if not plan.needs_sketch:
        return found
    return [
        share * met + (1 - share) * by_block if distance <= plan.threshold else Fraction(0)
        for distance, share in enumerate(found)
        for met, by_block in [_sketches_pass(plan, similarity_of(distance / plan.width))]
    ]


def recall_alike(plan: Plan, similarity: float) -> float:
    """Return the share of pairs of such a similarity that the plan finds."""
    met, by_block = _sketches_pass(plan, similarity)
    share, differing = 0.0, bits_differing(similarity)
    for distance, found in enumerate(_shares_found(plan, plan.threshold)):
        likely = math.comb(plan.width, distance) * differing**distance * (1 - differing) ** (plan.width - distance)
        share += likely * float(found * met + (1 - found) * by_block)
    return share


def bits_differing(similarity: float) -> float:
    """Return the share of bits to be expected to differ between prints of texts of such a similarity."""
    return _OF_THE_ANGLE * math.acos(min(1.0, 2 * similarity / (1 + similarity))) / math.pi


def similarity_of(share: float) -> float:
    """Return the similarity of texts of whose prints such a share of bits is to be expected to differ."""
    shared = math.cos(min(math.pi / 2, math.pi * share / _OF_THE_ANGLE))
    return shared / (2 - shared)


def _shares_found(plan: Plan, distance_max: int) -> list[Fraction]:
    """Return, by distance, the share of pairs within the threshold that the print's keys find."""
    ways = _ways_found(plan, min(distance_max, plan.threshold))
    found = [Fraction(count, math.comb(plan.width, distance)) for distance, count in enumerate(ways)]
    return found + [Fraction(0)] * (distance_max + 1 - len(found))


def _sketches_pass(plan: Plan, similarity: float) -> tuple[Fraction, Fraction]:
    """Return how likely sketches of such a similarity are alike enough, and how likely they share a block too."""
    if not plan.needs_sketch:
        return Fraction(1), Fraction(0)
    equal = similarity + (1 - similarity) / _VALUES
    size = SKETCH_VALUES // max(1, plan.bands)
    states = {(0, False): 1.0}  # equal values so far, whether a block is equal
    for _ in range(max(1, plan.bands)):
        following: dict[tuple[int, bool], float] = {}
        for (values, met), share in states.items():
            for more in range(size + 1):
                to = values + more, met or (more == size and plan.bands > 0)
                likely = share * math.comb(size, more) * equal**more * (1 - equal) ** (size - more)
                following[to] = following.get(to, 0.0) + likely
        states = following
    adds = _judging_adds(similarity)
    alike = {
        met: sum(
            share * (adds(plan.alike_min - FIRST_WEIGHT * values) if plan.similarity else 1.0)
            for (values, has), share in states.items()
            if has == met
        )
        for met in (False, True)
    }
    return Fraction(min(1.0, alike[False] + alike[True])), Fraction(alike[True])


def _judging_adds(similarity: float) -> Callable[[int], float]:
    """Return how likely the second parts of two sketches of such a similarity add so many parts of `ALIKE`, or more."""
    equal = similarity + (1 - similarity) / JUDGING_WEIGHT
    likely = [
        math.comb(JUDGING_VALUES, count) * equal**count * (1 - equal) ** (JUDGING_VALUES - count)
        for count in range(JUDGING_VALUES + 1)
    ]

    def adds(parts: int) -> float:
        return sum(likely[max(0, -(-(parts + JUDGING_VALUES) // JUDGING_WEIGHT)) :])

    return adds


def distance_guaranteed(plan: Plan) -> int:
    """Return the largest distance up to which every pair is found, counted; `Plan.distance_guaranteed` never exceeds it.

    It is larger where blocks are too short to differ in as many bits as the radius allows. Sketches are left out of account.
    """
    found = _shares_found(plan, plan.threshold)
    return next((distance - 1 for distance, share in enumerate(found) if share < 1), plan.threshold)


def chance(plan: Plan) -> Fraction:
    """Return how likely two unrelated prints of fair bits, with random sketches, are within reach."""
    met, by_block = _sketches_pass(plan, 0.0)
    ways = _ways_found(plan, plan.threshold)
    others = sum(math.comb(plan.width, distance) for distance in range(plan.threshold + 1)) - sum(ways)
    return (sum(ways) * met + others * by_block) / (1 << plan.width)


def candidates(key_bits: int, radius: int, documents: int, equal: Fraction = _FAIR) -> Fraction:
    """Return how many of `documents` prints share a key of so many bits with another within a radius, on average.

    `equal` is how likely a bit of two prints is equal. The arithmetic of the literature: 2^30 documents and a key of 16 bits
    are 2^14 candidates a table.
    """
    return documents * sum(
        (
            math.comb(key_bits, flips) * equal ** (key_bits - flips) * (1 - equal) ** flips
            for flips in range(min(radius, key_bits) + 1)
        ),
        start=Fraction(0),
    )


def candidates_of_plan(plan: Plan, documents: int, equal: Fraction = _FAIR) -> Fraction:
    """Return how many entries a look-up compares in all tables, one found in two tables counted twice.

    A table's address has at most `ADDRESS_BITS_MAX` bits, so a longer key costs what a key of so many bits costs; keyed
    tables know no address.
    """
    if not plan.is_keyed:
        addresses = (min(bits, ADDRESS_BITS_MAX) for bits in plan.key_bits)
        return sum((candidates(bits, plan.radius, documents, equal) for bits in addresses), start=Fraction(0))
    keys = [candidates(bits, 0, documents, equal) for bits in plan.key_bits]
    keys += [Fraction(documents, _VALUES ** (end - first)) for first, end in plan.sketch_bounds]
    asked = [min(count, Fraction(plan.asked)) if plan.asked else count for count in keys]
    by_tag = Fraction(documents * plan.tables, buckets_for(documents) * TAGS)
    return sum(asked, start=by_tag)


def candidates_of_texts(plan: Plan, documents: int) -> Fraction:
    """Return how many entries a look-up of a real text compares that is like none of them."""
    return (candidates_of_plan(plan, documents) + candidates_of_plan(plan, documents, _OF_A_LANGUAGE)) / 2


def _ways_found(plan: Plan, distance_max: int) -> list[int]:
    """Count, for each distance, the ways to spread the differing bits so that some key is within the radius.

    Only the blocks that differ in 0 .. radius bits can be of such a key, so a state is how many of each there are; more
    than could be chosen (`key_blocks` that are equal, radius / e of those that differ in e bits) count as that many.
    """
    if plan.blocks == 0:
        return [0 if plan.bands else math.comb(plan.width, distance) for distance in range(distance_max + 1)]
    radius, wanted = plan.radius, plan.key_blocks
    caps = [wanted, *(min(wanted, radius // errors) for errors in range(1, radius + 1))]
    states: dict[tuple[int, ...], list[int]] = {(0,) * (radius + 1): [1] + [0] * distance_max}
    for first, end in plan.bounds:
        following: dict[tuple[int, ...], list[int]] = {}
        for state, counts in states.items():
            for errors in range(min(end - first, distance_max) + 1):
                to = state
                if errors <= radius:
                    to = (*state[:errors], min(caps[errors], state[errors] + 1), *state[errors + 1 :])
                into = following.setdefault(to, [0] * (distance_max + 1))
                choices = math.comb(end - first, errors)
                for before in range(distance_max + 1 - errors):
                    into[before + errors] += counts[before] * choices
        states = following
    found = [0] * (distance_max + 1)
    for state, counts in states.items():
        if _has_key(state, wanted, radius):
            found = [one + other for one, other in zip(found, counts, strict=True)]
    return found


def _has_key(state: tuple[int, ...], wanted: int, radius: int) -> bool:
    """Return whether so many blocks of 0, 1, .. errors hold `wanted` that differ in at most `radius` bits together."""
    total = 0
    for errors, blocks in enumerate(state):
        taken = min(blocks, wanted)
        total += taken * errors
        wanted -= taken
    return wanted == 0 and total <= radius
