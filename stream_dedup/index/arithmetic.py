"""What a plan finds and what it costs, by counting: exact combinatorics, no simulation.

Two prints at distance d differ in d of `width` bits; each of the comb(width, d) ways is taken to be as likely as any
other, as a keyed hash makes it. What unrelated texts do is counted on prints of fair bits: real texts share phrases, so
more of them are near by chance than is said here (`bench quality` measures that).

    recall       the share of those ways in which some key is within the radius: counted block by block
    candidates   how many prints a look-up compares: each visited bucket holds its share of the index
    chance       how likely two unrelated prints are within reach

Invariants: counts are whole numbers and shares are fractions until they are printed; recall is 1 exactly up to the
guaranteed distance.
"""

from __future__ import annotations

import math
from fractions import Fraction

from stream_dedup.ground.plan import ADDRESS_BITS_MAX, Plan


def recalls(plan: Plan, distance_max: int) -> list[Fraction]:
    """Return, for each distance from 0 to `distance_max`, the share of pairs at that distance that the plan finds.

    Beyond the plan's threshold nothing is found. Where thresholds follow the length, the plan's own is meant, which holds
    for long texts.
    """
    ways = _ways_found(plan, min(distance_max, plan.threshold))
    found = [Fraction(count, math.comb(plan.width, distance)) for distance, count in enumerate(ways)]
    return found + [Fraction(0)] * (distance_max + 1 - len(found))


def distance_guaranteed(plan: Plan) -> int:
    """Return the largest distance up to which every pair is found, counted; `Plan.distance_guaranteed` never exceeds it.

    It is larger where blocks are too short to differ in as many bits as the radius allows.
    """
    found = recalls(plan, plan.threshold)
    return next((distance - 1 for distance, share in enumerate(found) if share < 1), plan.threshold)


def chance(plan: Plan) -> Fraction:
    """Return how likely two unrelated prints, of fair bits, are within reach."""
    ways = _ways_found(plan, plan.threshold)
    return Fraction(sum(ways), 1 << plan.width)


def candidates(key_bits: int, radius: int, documents: int) -> Fraction:
    """Return how many of `documents` prints share a key of so many bits with another within a radius, on average.

    The arithmetic of the literature: 2^30 documents and a key of 16 bits are 2^14 candidates a table.
    """
    keys = sum(math.comb(key_bits, flips) for flips in range(min(radius, key_bits) + 1))
    return Fraction(documents * keys, 1 << key_bits)


def candidates_of_plan(plan: Plan, documents: int) -> Fraction:
    """Return how many prints a look-up compares in all tables, one found in two tables counted twice.

    A table's address has at most `ADDRESS_BITS_MAX` bits, so a longer key costs what a key of so many bits costs.
    """
    return sum((candidates(min(bits, ADDRESS_BITS_MAX), plan.radius, documents) for bits in plan.key_bits), start=Fraction(0))


def _ways_found(plan: Plan, distance_max: int) -> list[int]:
    """Count, for each distance, the ways to spread the differing bits so that some key is within the radius.

    Only the blocks that differ in 0 .. radius bits can be of such a key, so a state is how many of each there are; more
    than could be chosen (`key_blocks` that are equal, radius / e of those that differ in e bits) count as that many.
    """
    if plan.blocks == 0:
        return [math.comb(plan.width, distance) for distance in range(distance_max + 1)]
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
