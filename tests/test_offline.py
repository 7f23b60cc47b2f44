"""The filter without Kafka: its verdicts are those of a plain scan over its own prints."""

from __future__ import annotations

import random

import pytest

from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.ground.document import Reason, Verdict
from stream_dedup.ground.plan import PLANS, Plan
from stream_dedup.local.offline import OfflineDocument, judge_documents
from stream_dedup.log.records import DOCUMENTS_MAX
from tests.tiers import few

RECIPE = Recipe()


def crawl(source: random.Random, count: int) -> list[OfflineDocument]:
    """Pages, copies, edits of one to thirty words, short and empty ones, some twice in a row; ids repeat, two scopes."""
    words = [f"w{number}" for number in range(700)]
    pages = [[source.choice(words) for _ in range(120)] for _ in range(40)]
    documents = []
    while len(documents) < count:
        kind = source.random()
        if kind > 0.95 and documents:
            documents.append(documents[-1])
            continue
        if kind < 0.04:
            text = source.choice(["", "  \n", "short", "Short ", "another short one"])
        else:
            chosen = list(source.choice(pages))
            for _ in range(source.choice([0, 0, 1, 3, 10, 30])):
                chosen[source.randrange(len(chosen))] = source.choice(words)
            text = " ".join(chosen)
        documents.append(OfflineDocument(f"id{source.randrange(40)}".encode(), text, source.choice([0, 0, 0, 5])))
    return documents


def plain_scan(documents: list[OfflineDocument], plan: Plan) -> list[tuple[Reason, int | None]]:
    """Fold the documents one by one: equal text first, else the earliest representative within reach."""
    prints = Fingerprinter(RECIPE).fingerprint([document.text for document in documents])
    numbers = [(int(high) << 64) | int(low) for low, high in prints.prints.tolist()]
    told = [
        (number, int(features), sketch.tobytes())
        for number, features, sketch in zip(numbers, prints.features, prints.sketches, strict=True)
    ]
    kept: list[int] = []
    last: dict[tuple[int, bytes], bytes] = {}
    outcome: list[tuple[Reason, int | None]] = []
    for one, document in enumerate(documents):
        if prints.empty[one]:
            outcome.append((Reason.EMPTY, None))
            continue
        name, digest = (document.scope, document.id), prints.digests[one].tobytes()
        had_another = last.get(name, digest) != digest
        last[name] = digest
        is_full = prints.features[one] >= RECIPE.floor
        mine = [other for other in kept if documents[other].scope == document.scope]
        same = [other for other in mine if prints.digests[other].tobytes() == digest]
        full = [other for other in mine if is_full and prints.features[other] >= RECIPE.floor]
        if plan.asked:
            near = [full[place] for place in plan.scan(told[one], [told[other] for other in full])]
        else:
            near = [
                other
                for other in full
                if plan.within_reach(numbers[other], numbers[one], (prints.features[other], prints.features[one]))
            ]
        if same:
            is_same_id = documents[same[0]].id == document.id
            again = Reason.RETURNED if had_another else Reason.UNCHANGED
            outcome.append((again if is_same_id else Reason.EXACT, same[0]))
        elif near:
            outcome.append((Reason.REVISED if documents[near[0]].id == document.id else Reason.NEAR, near[0]))
        else:
            outcome.append((Reason.NEW if is_full else Reason.TOO_SHORT, None))
            kept.append(one)
    return outcome


@pytest.mark.parametrize("name", few(sorted(PLANS)))
def test_verdicts_equal_a_plain_scan(name: str) -> None:
    """Over more documents than one log record holds, each verdict and each named document is that of a plain scan."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    documents = crawl(random.Random(seed), DOCUMENTS_MAX + 700)

    judged = list(judge_documents(documents, RECIPE, PLANS[name]))

    expected = plain_scan(documents, PLANS[name])
    assert [(one.reason, one.of_number) for one in judged] == expected
    assert [one.number for one in judged] == list(range(len(documents)))
    reasons = {one.reason for one in judged}
    assert {Reason.NEW, Reason.EXACT, Reason.NEAR, Reason.UNCHANGED, Reason.RETURNED, Reason.EMPTY, Reason.TOO_SHORT} <= reasons
    for one in judged:
        assert (one.verdict is Verdict.DUPLICATE) == (one.of_number is not None) == (one.distance is not None)
        if one.of_number is not None:
            assert one.of_id == documents[one.of_number].id


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
    """No documents, no verdicts."""
    assert list(judge_documents([], RECIPE, PLANS["blocks"])) == []


def test_a_long_id_is_shortened_as_on_the_log() -> None:
    """An id of a megabyte is judged, and named by its prefix and hash."""
    (one,) = judge_documents([OfflineDocument(b"x" * 1_000_000, "text")], RECIPE, PLANS["blocks"])

    assert len(one.id) == 512
    assert one.id.startswith(b"xxx")
