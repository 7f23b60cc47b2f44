"""The sentence that explains the judgement of two documents."""

from __future__ import annotations

import pytest

from stream_dedup.domain.relations import Relation, in_words

SHOP = ("shop.example", "shop.example")
BOOKS = ("shop.example", "xn--bcher-kva.example")
NAMED = "different sites (shop.example and bücher.example)"
TITLES = "with different titles. Pages of one site with different titles"


@pytest.mark.parametrize(
    ("similarity", "relation", "threshold", "sites", "where", "result"),
    [
        (78, Relation.UNKNOWN_TITLE, 85, SHOP, "both on shop.example. Pages of one site", "kept"),
        (85, Relation.UNKNOWN_TITLE, 85, ("", ""), "both on one site. Pages of one site", "copy"),
        (78, Relation.FREE, 65, BOOKS, f"on {NAMED}. Pages of different sites", "copy"),
        (64, Relation.FREE, 65, ("", ""), "on different sites. Pages of different sites", "kept"),
        (
            *(78, Relation.SAME_TITLE, 70, SHOP),
            "both on shop.example with the same title. Pages of one site with the same title",
            "copy",
        ),
        (96, Relation.OTHER_TITLE, 97, SHOP, f"both on shop.example {TITLES}", "kept"),
        (
            *(70, Relation.UNKNOWN_SITE, 70, ("shop.example", "")),
            *("and the site of one is unknown. Documents that may be of one site", "copy"),
        ),
        (
            *(7, Relation.UNKNOWN_SITE, 70, ("", "")),
            *("of unknown sites. Documents that may be of one site", "kept"),
        ),
    ],
)
def test_one_sentence_for_each_relation(
    similarity: int,
    relation: Relation,
    threshold: int,
    sites: tuple[str, str],
    where: str,
    result: str,
) -> None:
    ending = {"copy": "is a copy", "kept": "was kept"}[result]
    assert in_words(similarity, relation, threshold, sites) == (
        f"Similarity {similarity / 100:.2f}, {where} are copies at a similarity of "
        f"{threshold / 100:.2f} or more, so this one {ending}."
    )


def test_versions_of_one_document_are_called_so() -> None:
    assert in_words(70, Relation.FREE, 65, SHOP, has_same_id=True) == (
        "Similarity 0.70, with the same id. Versions of one document are copies at a similarity "
        "of 0.65 or more, so this one is a copy."
    )
