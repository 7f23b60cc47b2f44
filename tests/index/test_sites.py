"""Pages of one site: which threshold decides, what a repeated footer changes, and the sibling."""

from __future__ import annotations

import os
import random

import pytest

from stream_dedup.domain.document import Reason
from stream_dedup.domain.plan import PLANS
from stream_dedup.domain.relations import Origin, Relation, in_words, relation_of
from stream_dedup.files.offline import Judged, OfflineDocument, Sibling, judge_documents
from stream_dedup.fingerprinting import Recipe

WORDS = [f"word{number}" for number in range(5000)]


def judge(*documents: OfflineDocument) -> list[Judged]:
    return list(judge_documents(documents, Recipe(), PLANS["bands"]))


def draw_words(chance: random.Random, count: int) -> list[str]:
    return [chance.choice(WORDS) for _ in range(count)]


@pytest.mark.parametrize(("words", "times"), [(3, 100), (6, 100), (12, 100), (20, 30), (20, 100)])
def test_a_repeated_footer_hides_no_copy(words: int, times: int) -> None:
    """The sketches are nearly equal; the repeated words move the prints apart."""
    chance = random.Random(int(os.environ["TEST_SEED"]))
    page = draw_words(chance, 360)
    footed = " ".join(page + draw_words(chance, words) * times)

    _, copy = judge(OfflineDocument(b"a", " ".join(page)), OfflineDocument(b"b", footed))

    assert copy.reason is Reason.NEAR


def test_a_similar_page_is_a_sibling_on_its_site_and_a_copy_elsewhere() -> None:
    """A page that shares .78 with two earlier ones is kept beside the first where all are of one
    site, and is a copy of it across sites."""
    chance = random.Random(4)
    template = draw_words(chance, 210)
    pages = [" ".join(template + draw_words(chance, 30)) for _ in range(3)]

    def verdicts(sites: str, titles: str) -> list[Judged]:
        names = (b"%d" % number for number in range(3))
        whole = zip(names, pages, sites, titles, strict=True)
        return judge(
            *(
                OfflineDocument(name, page, site=site, title=title)
                for name, page, site, title in whole
            )
        )

    first, second, third = verdicts("aaa", "xyz")
    assert (first.reason, first.sibling) == (Reason.NEW, None)
    assert [verdict.reason for verdict in (second, third)] == [Reason.NEW, Reason.NEW]
    for verdict in (second, third):
        assert isinstance(verdict.sibling, Sibling)
        assert (verdict.sibling.number, verdict.sibling.id) == (0, b"0")
        assert 0.65 <= verdict.sibling.similarity < 0.9
        assert (verdict.kept_id, verdict.similarity) == (None, None)
    assert [verdict.reason for verdict in verdicts("abc", "xyz")] == [
        Reason.NEW,
        Reason.NEAR,
        Reason.NEAR,
    ]
    assert [verdict.reason for verdict in verdicts("aaa", "xxx")] == [
        Reason.NEW,
        Reason.NEAR,
        Reason.NEAR,
    ]


@pytest.mark.parametrize(
    ("origin", "other", "relation"),
    [
        ((1, 5, 7), (2, 5, 8), Relation.FREE),
        ((1, 5, 7), (1, 6, 7), Relation.FREE),
        ((0, 5, 7), (0, 6, 7), Relation.FREE),
        ((0, 5, 0), (1, 5, 0), Relation.UNKNOWN_SITE),
        ((1, 5, 0), (1, 5, 0), Relation.SAME_TITLE),
        ((1, 0, 7), (1, 5, 8), Relation.UNKNOWN_TITLE),
        ((1, 6, 7), (1, 5, 8), Relation.OTHER_TITLE),
    ],
)
def test_a_relation_follows_from_site_title_and_id(
    origin: tuple[int, int, int], other: tuple[int, int, int], relation: Relation
) -> None:
    assert relation_of(Origin(*origin), Origin(*other)) is relation
    assert relation_of(Origin(*other), Origin(*origin)) is relation


def test_the_sentence_names_site_and_threshold() -> None:
    assert in_words(78, Relation.UNKNOWN_TITLE, 85, ("shop.example", "shop.example")) == (
        "Similarity 0.78, both on shop.example. Pages of one site are copies at a similarity "
        "of 0.85 or more, so this one was kept."
    )
    assert in_words(78, Relation.FREE, 65) == (
        "Similarity 0.78, on different sites. Pages of different sites are copies at a similarity "
        "of 0.65 or more, so this one is a copy."
    )
