"""The index beside a plain scan, a short run for each kind of plan, and a long one for `make
test-all`."""

from __future__ import annotations

import os

import pytest

from stream_dedup.domain.plan import parse
from tests.index.machine import KINDS, QUICK_KINDS, run
from tests.tiers import few

SEED, STEPS = int(os.environ["TEST_SEED"]), int(os.environ.get("MACHINE_STEPS", "10000"))


@pytest.mark.parametrize("kind", few(KINDS, QUICK_KINDS))
def test_the_index_equals_a_plain_scan(kind: str) -> None:
    """Whatever is inserted, asked, taken out, reopened and killed, the answers are those of a list
    searched in order."""
    assert run(parse(kind), steps=40, seed=SEED).total() >= 40


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_the_index_equals_a_plain_scan_for_long(kind: str) -> None:
    """The same for long enough that rules meet in every order."""
    assert run(parse(kind), STEPS, SEED).total() >= STEPS
