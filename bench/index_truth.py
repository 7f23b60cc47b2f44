"""Compute the right verdict on each document of a `Stream`, and compare the index's verdicts with it.

In a long stream some documents are near an earlier one by chance. A verdict that names such a
document is right if the two fingerprints, generated again from their numbers, are within the plan's
threshold at the distance that the verdict states.

Invariant: every answer is either the planted one or explained in this way; any other answer counts
as missed, or ends the run.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.log_stream import FEATURES, RECORD_DOCUMENTS, PrintStream, StreamRecord
from stream_dedup.audit.scan import ComparedText, PlanRules
from stream_dedup.domain.document import Verdict
from stream_dedup.domain.errors import InvariantError
from stream_dedup.fingerprinting import number_of
from stream_dedup.log.answers import LogAnswer, decode
from stream_dedup.log.schema import Judgement


class RecordCounts(NamedTuple):
    """Counts for one record: planted copies, planted copies found with their original and distance,
    and documents that are near an unrelated document by chance.
    """

    planted: int
    found: int
    by_chance: int


class AnswerChecker:
    """Compares the answers with a stream, record after record from its beginning."""

    def __init__(self, stream: PrintStream) -> None:
        self._stream = stream
        self._not_kept: set[int] = (
            set()
        )  # originals that are no representatives, because they were near a stranger

    def compare(self, record: StreamRecord, raw: bytes) -> RecordCounts:
        """Compare the answer to one record.

        Raises:
            InvariantError: the index did not judge it, or found an original near what it is not
            near to.
        """
        answer = decode(raw)
        if not isinstance(answer, LogAnswer):
            raise InvariantError(f"The index did not judge log record {record.offset}: {answer}.")
        planted = found = by_chance = 0
        first = (record.offset - 1) * RECORD_DOCUMENTS
        for place, (original, judgement) in enumerate(
            zip(record.originals.tolist(), answer.judgements, strict=True)
        ):
            named = -1 if judgement.of is None else judgement.of.position.offset
            if named == original and (original >= 0 or judgement.reason.verdict is Verdict.UNIQUE):
                planted += original >= 0
                found += original >= 0 and judgement.distance == self._stream.distance
            elif self._is_explained(record, place, judgement):
                by_chance += 1
            elif original >= 0:
                planted += 1
            else:
                raise InvariantError(
                    f"Document {first + place} of log record {record.offset}, an original, was "
                    f"judged {judgement.reason.name}."
                )
            if original < 0 and named >= 0:
                self._not_kept.add(first + place)
        return RecordCounts(planted, found, by_chance)

    def _is_explained(self, record: StreamRecord, place: int, judgement: Judgement) -> bool:
        """Return whether a verdict that was not planted is right: of a stranger, or because the
        original was one's copy.
        """
        original = int(record.originals[place])
        if judgement.of is None:
            return original in self._not_kept
        named = judgement.of.position.offset
        number = (record.offset - 1) * RECORD_DOCUMENTS + place
        if not 0 <= named < number or (0 <= original < named and original not in self._not_kept):
            return False
        its_record, its_place = divmod(named, RECORD_DOCUMENTS)
        _, prints, sketches = self._stream.texts(its_record)
        fingerprint, other = number_of(record.prints[place]), number_of(prints[its_place])
        both = record.sketches[place].tobytes(), sketches[its_place].tobytes()
        plan = self._stream.plan
        return (
            PlanRules(plan).is_near(
                ComparedText.of_number(fingerprint, FEATURES, both[0]),
                ComparedText.of_number(other, FEATURES, both[1]),
            )
            and plan.distance(fingerprint, other) == judgement.distance
        )
