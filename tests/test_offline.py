"""The filter without Kafka: its verdicts are those of a plain scan over its own prints."""

from __future__ import annotations

from stream_dedup.fingerprinting import Recipe
from stream_dedup.ground.plan import PLANS
from stream_dedup.local.offline import OfflineDocument, judge_documents
from stream_dedup.log.records import DOCUMENTS_MAX

RECIPE = Recipe()


def test_documents_are_taken_as_verdicts_are_taken() -> None:
    """An endless stream can be judged: no more than one batch is read ahead of its verdicts."""
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield OfflineDocument(b"", f"text {taken}")

    verdicts = judge_documents(endless(), RECIPE, PLANS["blocks"])  # type: ignore[arg-type]
    for _ in range(3):
        next(verdicts)

    assert taken == DOCUMENTS_MAX


def test_nothing_in_nothing_out() -> None:
    assert list(judge_documents([], RECIPE, PLANS["blocks"])) == []


def test_a_long_id_is_shortened_as_on_the_log() -> None:
    (one,) = judge_documents([OfflineDocument(b"x" * 1_000_000, "text")], RECIPE, PLANS["blocks"])

    assert len(one.id) == 512
    assert one.id.startswith(b"xxx")
