"""Plans: their text, their fields, their limits, the predicate that specifies the index, and what
their page says they find."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.audit.scan import ComparedText, PlanRules
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.plan import PLANS, Plan, parse, parse_similarity
from stream_dedup.domain.relations import UNKNOWN, Origin

BLOCKS, CLASSIC, WITHIN_A_BIT = PLANS["blocks"], PLANS["classic"], Plan(128, 8, 1, 21, ratio=75)
STEPS = st.lists(
    st.tuples(st.integers(1, 500), st.integers(0, 60)), max_size=4, unique_by=lambda step: step[0]
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    width = draw(st.integers(1, 256))
    blocks = draw(st.integers(0, min(8, width)))
    steps = tuple((below, min(threshold, width)) for below, threshold in sorted(draw(STEPS)))
    sketch = (
        {}
        if draw(st.booleans())
        else {"bands": draw(st.sampled_from([0, 5, 16, 20])), "asked": draw(st.integers(0, 70))}
    )
    if draw(st.booleans()):
        sketch |= {
            name: draw(st.integers(0, 100)) for name in ("unsure", "same_site", "other_title")
        }
    return Plan(
        width,
        blocks,
        0 if any(sketch.values()) else draw(st.integers(0, 3)),
        draw(st.integers(0, min(60, width))),
        key_blocks=draw(st.integers(1, max(1, blocks))),
        by_length=steps,
        ratio=draw(st.sampled_from([0, 0, 1, 50, 100])),
        similarity=draw(st.sampled_from([0, 0, 65, 100])) if sketch else 0,
        **sketch,
    )


def test_named_plans_keep_their_numbers() -> None:
    """Named plans are frozen: they are written into logs by their numbers."""
    assert (PLANS["bands"].id, PLANS["bands"].name) == ("128:4:0:36~20:62,70,85,97%:64", "bands")
    assert (BLOCKS.id, BLOCKS.name) == ("128:8:0:17:75%~0:0%:1000", "blocks")
    assert (CLASSIC.id, CLASSIC.name) == ("64:4:0:3", "classic")
    assert Plan(64, 4, 1, 7).name == "64:4:1:7"


def test_plans_of_older_logs_keep_their_text_and_fields() -> None:
    """What is optional and not used appears nowhere, and four fields make the plan that they always
    made."""
    fields = {"width": 128, "blocks": 8, "radius": 1, "threshold": 19}

    plan = Plan(128, 8, 1, 19)
    assert fields == plan.to_fields()
    assert plan.id == "128:8:1:19"
    assert Plan.from_fields(fields) == plan
    assert Plan.from_fields({**fields, "key_blocks": 1, "by_length": [], "ratio": 0}) == plan


@given(plans())
def test_text_and_fields_round_trip(plan: Plan) -> None:
    assert plan == parse(plan.id)
    assert plan == Plan.from_fields(json.loads(json.dumps(plan.to_fields())))


def test_plan_names_ignore_case_and_spaces() -> None:
    assert BLOCKS is parse(" Blocks\n")
    assert CLASSIC is parse("CLASSIC")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blok", "did you mean 'blocks'"),
        ("clasic", "did you mean 'classic'"),
        ("", "blocks, classic"),
        ("128:8:1", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("128:8:1:-1", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("128:8:1:½", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("257:8:1:18", "width must be a whole number from 1 to 256, not 257"),
        ("8:9:0:1", "blocks must be a whole number from 0 to 8, not 9"),
        ("128:8:4:18", "radius must be a whole number from 0 to 3"),
        ("10:2:0:11", "threshold must be a whole number from 0 to 10"),
        ("128:8:1:19:50", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("128:8:1:19:101%", "ratio must be a whole number from 0 to 100"),
        ("64:6/:0:3", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("64:6/7:0:3", "key_blocks must be a whole number from 1 to 6"),
        ("64:6/0:0:3", "key_blocks must be a whole number from 1 to 6"),
        ("64:10/5:0:5", "make 252 tables"),
        ("128:8:1:21@50,24@20,19", "order of their feature counts"),
        ("128:8:1:24@20,21@20,19", "order of their feature counts"),
        ("128:8:1:24@0,19", "feature count of a threshold by length must be"),
        ("128:8:1:129@20,19", "threshold by length must be a whole number from 0 to 128"),
        ("128:8:1:9@1,9@2,9@3,9@4,9@5,9@6,9@7,9@8,9@9,19", "at most 8 thresholds by length"),
        ("128:8:1:24,19", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("128:4:0:28~16:65%", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("128:4:0:28~16:65:64", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("128:4:0:28~:65%:64", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("128:4:0:28~7:65%:64", "cannot be divided into 7 equal blocks"),
        ("128:4:0:28~16:101%:64", "similarity must be a whole number from 0 to 100"),
        ("128:4:0:28~16:65%:65536", "candidates per block must be a whole number from 0 to 65535"),
        ("128:4:0:28~16:65%:64:40", "WIDTH:BLOCKS:RADIUS:THRESHOLD"),
        ("128:4:1:28~16:65%:64", "a radius of 0, not 1"),
        ("128:4:1:28~0:65%:64", "a radius of 0, not 1"),
    ],
)
def test_an_invalid_plan_is_refused_with_its_reason(text: str, message: str) -> None:
    """An unknown name or an impossible number is a configuration error that says what to write."""
    with pytest.raises(ConfigurationError, match=message):
        parse(text)


FIELDS = BLOCKS.to_fields()


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        "blocks",
        {},
        {"width": 64, "blocks": 4, "radius": 0},
        {**FIELDS, "more": 1},
        *(
            {**FIELDS, name: bad}
            for name in (*FIELDS, "key_blocks", "by_length")
            for bad in ("8", None, 8.0, True)
        ),
        *({**FIELDS, "by_length": bad} for bad in ({}, [[1]], [[1, "2"]], [1])),
    ],
)
def test_invalid_fields_are_refused(fields: object) -> None:
    """Fields come from the log and may be anything."""
    with pytest.raises(ConfigurationError):
        Plan.from_fields(fields)


def within_reach(
    plan: Plan,
    number: int,
    other: int,
    features: tuple[int, int] = (0, 0),
    sketches: tuple[bytes, bytes] = (b"", b""),
    origins: tuple[Origin, Origin] = (UNKNOWN, UNKNOWN),
) -> bool:
    texts = zip((number, other), features, sketches, origins, strict=True)
    return PlanRules(plan).is_near(*(ComparedText.of_number(*text) for text in texts))


def test_within_reach_is_a_block_within_r_and_the_whole_within_t() -> None:
    """The predicate, on cases counted by hand (classic: 4 blocks of 16, r 0, t 3; one of 8 of 16, r
    1, t 21, 75 %)."""
    assert within_reach(CLASSIC, 0, 0b111)
    assert within_reach(CLASSIC, 0, 1 | 1 << 16 | 1 << 32)
    assert not within_reach(CLASSIC, 0, 0b1111)
    assert within_reach(CLASSIC, 0, 1 << 64)
    two_a_block = sum(0b11 << 16 * block for block in range(8))
    alike = (100, 100)
    assert not within_reach(WITHIN_A_BIT, 0, two_a_block, alike)
    assert within_reach(WITHIN_A_BIT, 0, two_a_block ^ 1, alike)
    assert within_reach(WITHIN_A_BIT, 0, (1 << 21) - 1, alike)
    assert not within_reach(WITHIN_A_BIT, 0, (1 << 22) - 1, alike)
    assert within_reach(WITHIN_A_BIT, 0, 0, (75, 100))
    assert not within_reach(WITHIN_A_BIT, 0, 0, (74, 100))
    assert within_reach(Plan(64, 0, 0, 5), 0, 0b11111)
    assert not within_reach(Plan(64, 0, 0, 5), 0, 0b111111)


@given(plans(), st.integers(0, 2**32))
def test_everything_within_the_guaranteed_distance_is_within_reach(plan: Plan, seed: int) -> None:
    chance, plan = (
        random.Random(seed),
        dataclasses.replace(
            plan, bands=0, similarity=0, asked=0, unsure=0, same_site=0, other_title=0
        ),
    )
    first_print = chance.getrandbits(plan.width)
    second_print = first_print
    for bit in chance.sample(range(plan.width), min(plan.width, plan.distance_guaranteed)):
        second_print ^= 1 << bit

    assert within_reach(plan, first_print, second_print, (7, 7))

    beyond = plan.distance_guaranteed + 1
    share, rest = divmod(plan.radius + 1, plan.key_blocks)
    a_block = [
        share + (number < rest) for number in range(plan.key_blocks)
    ]  # the key that differs least, evenly
    a_block += [max(a_block)] * (plan.blocks - plan.key_blocks)
    spread = [
        first + bit
        for bits, (first, end) in zip(a_block, plan.bounds, strict=False)
        for bit in range(min(bits, end - first))
    ]
    if plan.blocks and plan.threshold >= beyond and len(spread) == beyond == sum(a_block):
        assert not within_reach(plan, 0, sum(1 << bit for bit in spread), (999, 999))


def test_guaranteed_distances_of_the_literature() -> None:
    """3 bits: 4 blocks, keys of 2 of 5, or of 3 of 6 (Manku et al. 2007); 4 blocks with radius 1: 7
    (Norouzi et al. 2012)."""
    assert [
        Plan(64, 5, 0, 3, key_blocks=2).distance_guaranteed,
        Plan(64, 6, 0, 3, key_blocks=3).distance_guaranteed,
    ] == [3, 3]
    assert [
        Plan(64, 5, 0, 5, key_blocks=2).distance_guaranteed,
        Plan(64, 6, 0, 9, key_blocks=3).distance_guaranteed,
    ] == [3, 3]
    assert [
        plan.distance_guaranteed for plan in (CLASSIC, Plan(64, 4, 1, 9), WITHIN_A_BIT, BLOCKS)
    ] == [3, 7, 15, 7]
    assert Plan(128, 0, 0, 18).distance_guaranteed == 18
    keys = Plan(64, 6, 0, 3, key_blocks=3).keys
    assert (len(keys), {sum(end - first for first, end in key) for key in keys}) == (
        20,
        {31, 32, 33},
    )


@pytest.mark.parametrize("name", PLANS)
def test_named_plans_find_the_shares_on_their_page(name: str) -> None:
    """Of 1,000 random pairs of each similarity as many, or as chance allows once in a million
    draws."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "plans.md").read_text(
        encoding="utf-8"
    )
    (headings,) = re.findall(r"^\| plan \| surely .*$", page, re.MULTILINE)
    (row,) = re.findall(rf"^\| `{name}` \| \d+ bits? \|.*$", page, re.MULTILINE)
    surely, *shares = [cell.strip() for cell in row.strip("|").split("|")][1:]
    similarities = [float(cell) for cell in headings.strip("|").split("|")[2:]]
    dice, plan = np.random.default_rng(int(os.environ["TEST_SEED"])), PLANS[name]

    assert int(surely.split()[0]) == plan.distance_guaranteed
    for similarity, share in zip(similarities, map(float, shares), strict=True):
        differing = 0.8 * math.acos(2 * similarity / (1 + similarity)) / math.pi
        hits = 0
        for _ in range(1000):
            difference = sum(
                1 << bit for bit in np.flatnonzero(dice.random(128) < differing).tolist()
            )
            values, others = np.concatenate(
                [dice.integers(0, 256, (2, 80)), dice.integers(0, 16, (2, 80))], axis=1
            )
            pair = values, np.where(dice.random(160) < similarity, values, others)
            sketches = tuple(
                bytes([*sketch[:80], *(sketch[80::2] | sketch[81::2] << 4)]) for sketch in pair
            )
            origins = Origin(1), Origin(2)
            hits += within_reach(plan, 0, difference, (100, 100), sketches, origins)
        assert abs(hits - 1000 * share) < 5 * math.sqrt(1000 * share * (1 - share)) + 3


def test_a_similarity_is_written_as_a_share_or_in_per_cent() -> None:
    """0.65 and 65% are the same; what lies between two hundredths, or outside, is told in a
    sentence."""
    assert [parse_similarity(text) for text in ("0.65", " .8 ", "65%", "1", "0.01")] == [
        65,
        80,
        65,
        100,
        1,
    ]
    for text in ("", "much", "0.655", "65", "-0.1", "0", "1/0", "nan"):
        with pytest.raises(ConfigurationError, match=r"such as 0\.65"):
            parse_similarity(text)


def test_a_similarity_replaces_that_of_the_plan() -> None:
    """Nothing else of the plan changes; a plan that compares no sketches is refused by name."""
    assert PLANS["bands"].with_similarity(80) == parse("128:4:0:36~20:80,70,85,97%:64")
    assert PLANS["bands"].with_similarity(80).similarities == (80, 80, 80, 85, 97)
    assert PLANS["bands"].with_similarity(same_site=90) == parse("128:4:0:36~20:62,70,90,97%:64")
    assert parse("128:8:1:21~0:50%:0").with_similarity(65) == parse("128:8:1:21~0:65%:0")
    with pytest.raises(ConfigurationError, match="The plan blocks compares no sketches"):
        BLOCKS.with_similarity(65)
