"""How the judgement of two documents is put in words."""

from __future__ import annotations

import pytest

from stream_dedup.domain.related import Relation, in_words

SHOP = ("shop.example", "shop.example")
SENTENCES = {
    (
        78,
        Relation.UNKNOWN_TITLE,
        85,
        SHOP,
    ): "Similarity 0.78, both on shop.example. Pages of one site "
    "are copies from 0.85, so this one was kept.",
    (
        85,
        Relation.UNKNOWN_TITLE,
        85,
        ("", ""),
    ): "Similarity 0.85, both on one site. Pages of one site "
    "are copies from 0.85, so this one is a copy.",
    (
        78,
        Relation.FREE,
        65,
        ("shop.example", "xn--bcher-kva.example"),
    ): "Similarity 0.78, on different "
    "sites (shop.example and bücher.example). Pages of different sites are copies from 0.65, so "
    "this one is a copy.",
    (
        64,
        Relation.FREE,
        65,
        ("", ""),
    ): "Similarity 0.64, on different sites. Pages of different sites "
    "are copies from 0.65, so this one was kept.",
    (
        78,
        Relation.SAME_TITLE,
        70,
        SHOP,
    ): "Similarity 0.78, both on shop.example with one title. Pages of "
    "one site and one title are copies from 0.70, so this one is a copy.",
    (
        96,
        Relation.OTHER_TITLE,
        97,
        SHOP,
    ): "Similarity 0.96, both on shop.example with different titles. "
    "Pages of one site with different titles are copies from 0.97, so this one was kept.",
    (
        70,
        Relation.UNKNOWN_SITE,
        70,
        ("shop.example", ""),
    ): "Similarity 0.70, and the site of one is "
    "unknown. Documents that may be of one site are copies from 0.70, so this one is a copy.",
    (
        7,
        Relation.UNKNOWN_SITE,
        70,
        ("", ""),
    ): "Similarity 0.07, of unknown sites. Documents that may be "
    "of one site are copies from 0.70, so this one was kept.",
}


@pytest.mark.parametrize(("given", "sentence"), SENTENCES.items())
def test_one_sentence_for_each_relation(
    given: tuple[int, Relation, int, tuple[str, str]], sentence: str
) -> None:
    assert in_words(*given) == sentence


def test_versions_of_one_document_are_called_so() -> None:
    assert in_words(70, Relation.FREE, 65, SHOP, has_same_id=True) == (
        "Similarity 0.70, with the same id. Versions of one document are copies from 0.65, so this one "
        "is a copy."
    )
