"""What must be judged of each document of a `Stream`, and whether it was.

Prints are random bits, so in a long stream some documents are near an earlier one that nobody planted: of 10^8 prints of
64 bits, a dozen are within 3 bits of a stranger. Such a verdict is right if the two prints, made again from their numbers,
are within the plan's reach at the distance that the verdict states.

Invariant: every answer is either what was planted, or so explained; anything else counts as missed, or ends the run.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.bench.stream import RECORD_DOCUMENTS, PrintStream, StreamRecord
from stream_dedup.fingerprinting import number_of
from stream_dedup.ground.document import Verdict
from stream_dedup.ground.errors import InvariantError
from stream_dedup.ground.plan import Plan
from stream_dedup.index.arithmetic import recalls
from stream_dedup.log.answers import Judgement, LogAnswer, decode


class Counted(NamedTuple):
    """Planted copies of a record, those found with their original and distance, and documents near a stranger by chance."""

    planted: int
    found: int
    by_chance: int


def expected_by_chance(plan: Plan, documents: int) -> float:
    """Return in how many of `documents` with random prints an earlier stranger is found by the plan."""
    share = sum(recall * math.comb(plan.width, bits) for bits, recall in enumerate(recalls(plan, plan.threshold)))
    return float(share / 2**plan.width) * documents * documents / 2


class Truth:
    """Compares the answers with a stream, record after record from its beginning."""

    def __init__(self, stream: PrintStream) -> None:
        self._stream = stream
        self._not_kept: set[int] = set()  # originals that are no representatives, because they were near a stranger

    def compare(self, record: StreamRecord, raw: bytes) -> Counted:
        """Compare the answer to one record.

        Raises:
            InvariantError: the index did not judge it, or found an original near what it is not near to.
        """
        answer = decode(raw)
        if not isinstance(answer, LogAnswer):
            raise InvariantError(f"The index did not judge log record {record.offset}: {answer}.")
        planted = found = by_chance = 0
        first = (record.offset - 1) * RECORD_DOCUMENTS
        for place, (original, judgement) in enumerate(zip(record.originals.tolist(), answer.judgements, strict=True)):
            named = -1 if judgement.of is None else judgement.of.position.offset
            if named == original and (original >= 0 or judgement.reason.verdict is Verdict.UNIQUE):
                planted += original >= 0
                found += original >= 0 and judgement.distance == self._stream.distance
            elif self._is_explained(first + place, record.prints[place], original, judgement):
                by_chance += 1
            elif original >= 0:
                planted += 1
            else:
                raise InvariantError(
                    f"Document {first + place} of log record {record.offset}, an original, was judged {judgement.reason.name}."
                )
            if original < 0 and named >= 0:
                self._not_kept.add(first + place)
        return Counted(planted, found, by_chance)

    def _is_explained(self, number: int, print_words: NDArray[np.uint64], original: int, judgement: Judgement) -> bool:
        """Return whether a verdict that was not planted is right: of a stranger, or because the original was one's copy."""
        if judgement.of is None:
            return original in self._not_kept
        named = judgement.of.position.offset
        if not 0 <= named < number or (0 <= original < named and original not in self._not_kept):
            return False
        own, other = number_of(print_words), number_of(self._print_of(named))
        plan = self._stream.plan
        return plan.within_reach(own, other) and plan.distance(own, other) == judgement.distance

    def _print_of(self, number: int) -> NDArray[np.uint64]:
        record, place = divmod(number, RECORD_DOCUMENTS)
        made: NDArray[np.uint64] = next(self._stream.records(record)).prints[place]
        return made
