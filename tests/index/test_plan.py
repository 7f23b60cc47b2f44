"""Plans: their text, their fields, their limits, and the predicate that specifies the index."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.errors import ConfigurationError
from stream_dedup.index.plan import PLANS, Plan, parse

WIDE, CLASSIC = PLANS["wide"], PLANS["classic"]
NUMBERS = st.builds(
    lambda width, blocks, radius, threshold: (width, min(blocks, width), radius, min(threshold, width, 255)),
    st.integers(1, 256), st.integers(0, 8), st.integers(0, 1), st.integers(0, 60),
)  # fmt: skip


def test_the_named_plans_are_what_they_are_called() -> None:
    """`wide` and `classic` are frozen: they are written into logs by their numbers."""
    assert (WIDE.id, WIDE.name) == ("128:8:1:19", "wide")
    assert (CLASSIC.id, CLASSIC.name) == ("64:4:0:3", "classic")
    assert Plan(64, 4, 1, 7).name == "64:4:1:7"


@given(NUMBERS)
def test_text_and_fields_lead_back(numbers: tuple[int, int, int, int]) -> None:
    """A plan's text form and its JSON fields give an equal plan again."""
    plan = Plan(*numbers)

    assert plan == parse(plan.id)
    assert plan == Plan.from_fields(json.loads(json.dumps(plan.to_fields())))


def test_names_are_read_as_people_write_them() -> None:
    """Case and surrounding space do not matter."""
    assert WIDE is parse(" Wide\n")
    assert CLASSIC is parse("CLASSIC")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("wid", "did you mean 'wide'"),
        ("clasic", "did you mean 'classic'"),
        ("", "wide, classic"),
        ("128:8:1", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("128:8:1:-1", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("128:8:1:½", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("257:8:1:18", "width must be a whole number from 1 to 256, not 257"),
        ("8:9:0:1", "blocks must be a whole number from 0 to 8, not 9"),
        ("128:8:4:18", "radius must be a whole number from 0 to 3"),
        ("10:2:0:11", "threshold must be a whole number from 0 to 10"),
    ],
)
def test_what_is_no_plan_is_told_in_a_sentence(text: str, told: str) -> None:
    """An unknown name or an impossible number is a configuration error that says what to write."""
    with pytest.raises(ConfigurationError, match=told):
        parse(text)


@pytest.mark.parametrize(
    "fields",
    [
        None, [], "wide", {}, {"width": 64, "blocks": 4, "radius": 0}, {**WIDE.to_fields(), "more": 1},
        {**WIDE.to_fields(), "width": "128"}, {**WIDE.to_fields(), "blocks": 8.0}, {**WIDE.to_fields(), "radius": True},
        {**WIDE.to_fields(), "threshold": None},
    ],
)  # fmt: skip
def test_fields_of_no_plan_are_refused(fields: object) -> None:
    """Fields come from the log and may be anything; what is not exactly four fit numbers is refused."""
    with pytest.raises(ConfigurationError):
        Plan.from_fields(fields)


def test_within_reach_is_a_block_within_r_and_the_whole_within_t() -> None:
    """The predicate, on cases counted by hand (classic: 4 blocks of 16, r 0, t 3; wide: 8 of 16, r 1, t 19)."""
    assert CLASSIC.within_reach(0, 0b111)
    assert CLASSIC.within_reach(0, 1 | 1 << 16 | 1 << 32)
    assert not CLASSIC.within_reach(0, 0b1111)
    assert CLASSIC.within_reach(0, 1 << 64)
    two_a_block = sum(0b11 << 16 * block for block in range(8))
    assert not WIDE.within_reach(0, two_a_block)
    assert WIDE.within_reach(0, two_a_block ^ 1)
    assert WIDE.within_reach(0, (1 << 19) - 1)
    assert not WIDE.within_reach(0, (1 << 20) - 1)
    assert Plan(64, 0, 0, 5).within_reach(0, 0b11111)
    assert not Plan(64, 0, 0, 5).within_reach(0, 0b111111)


@given(NUMBERS, st.integers(0, 2**32))
def test_everything_within_the_guaranteed_distance_is_within_reach(numbers: tuple[int, int, int, int], seed: int) -> None:
    """Up to the guaranteed distance any two prints are within reach; one bit more, and some pair is not."""
    plan = Plan(*numbers)
    chance = random.Random(seed)
    one = chance.getrandbits(plan.width)
    other = one
    for bit in chance.sample(range(plan.width), min(plan.width, plan.distance_guaranteed)):
        other ^= 1 << bit

    assert plan.within_reach(one, other)

    beyond = plan.distance_guaranteed + 1
    spread = [first + bit for bit in range(plan.radius + 1) for first, end in plan.bounds if first + bit < end]
    if plan.blocks and plan.threshold >= beyond and len(spread) >= beyond:
        assert not plan.within_reach(0, sum(1 << bit for bit in spread[:beyond]))


def test_guaranteed_distances_of_the_literature() -> None:
    """4 blocks find 3 bits (Manku et al. 2007), with radius 1 they find 7 (Norouzi et al. 2012); wide finds 15."""
    assert [plan.distance_guaranteed for plan in (CLASSIC, Plan(64, 4, 1, 9), WIDE, Plan(128, 0, 0, 18))] == [3, 7, 15, 18]
    assert [plan.probes for plan in (CLASSIC, Plan(64, 4, 1, 9), WIDE, Plan(128, 0, 0, 18))] == [4, 17 * 4, 17 * 8, 1]
