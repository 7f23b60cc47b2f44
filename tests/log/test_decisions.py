"""The bytes on `decisions`: there and back, whole or refused. That they are frozen: `test_formats`."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from stream_dedup.ground.document import Reason
from stream_dedup.log import decisions
from stream_dedup.log.decisions import LogDecision

DECISION = LogDecision(
    8812,
    bytes(range(8)),
    np.array([1, 0, 0, 1, 0, 0, 0, 0, 1], np.bool_),
    np.array([0, Reason.NEAR, 0, 0, Reason.RETURNED, Reason.EXACT, 0, Reason.REVISED, 0], np.uint8),
    np.array([17, 2**40, 8812, 0], np.int64),
    np.array([28, 0, 0, 255], np.uint8),
    np.array([65, 255, 255, 100], np.uint8),
    np.array([1, 0, 2**32 - 1, 7], np.uint32),
    np.array([0, 3, 0, 1], np.uint8),
)
_NONE = np.zeros(0, np.uint8)
ON_A_SEED = LogDecision(9, bytes(8), np.array([0, 1], np.bool_), np.zeros(2, np.uint8), *(_NONE,) * 5)


def as_lists(decision: LogDecision) -> list[object]:
    return [field.tolist() if isinstance(field, np.ndarray) else field for field in astuple(decision)]


@pytest.mark.parametrize("decision", [DECISION, ON_A_SEED])
def test_there_and_back(decision: LogDecision) -> None:
    """Decoding an encoded decision gives the decision; a document takes a bit, and one that is not made a byte more."""
    raw = decisions.encode(decision)

    assert as_lists(decisions.decode(raw)) == as_lists(decision)
    count, made = len(decision), int(decision.made.sum())
    assert len(raw) == 30 + -(-count // 8) + count - made + 15 * len(decision.of)


def test_the_largest_is_as_large_as_is_said() -> None:
    """A thousand duplicates: no broker that takes the log refuses it."""
    many = replace(
        DECISION,
        made=np.zeros(1000, np.bool_),
        reasons=np.full(1000, Reason.NEAR, np.uint8),
        of=np.zeros(1000, np.int64),
        **{name: np.zeros(1000, np.uint8) for name in ("distances", "similarity", "better")},
        copies=np.zeros(1000, np.uint32),
    )

    assert len(decisions.encode(many)) == 30 + 125 + 16 * 1000
