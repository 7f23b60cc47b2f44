"""Hashes of sites and titles: keyed, equal for equal names, 0 for none."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from stream_dedup.fingerprinting import Languages, Recipe, SiteHasher

KEY = b"a key of our own"


def plain_hash(name: str, person: bytes, key: bytes = KEY) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=key, person=person).digest()
    return int.from_bytes(digest, "little")


def test_sites_are_hashed_under_the_key() -> None:
    """Equal sites have equal hashes, others not, and no site is 0; asked again it is the same."""
    hasher = SiteHasher(Recipe(key=KEY))
    sites = ["shop.example", "", "news.example", "shop.example", "\ud800"]

    found = hasher.hash_sites(sites)

    assert found.dtype == np.uint64
    assert found.tolist() == [
        plain_hash("shop.example", b"document site"),
        0,
        plain_hash("news.example", b"document site"),
        plain_hash("shop.example", b"document site"),
        plain_hash("?", b"document site"),
    ]
    assert hasher.hash_sites(sites).tolist() == found.tolist()
    assert SiteHasher(Recipe()).hash_sites(sites)[0] != found[0]


def test_titles_are_normalised_like_texts() -> None:
    """Case, width, white space and invisible characters make no other title; a title is not hashed
    as a site is."""
    hasher = SiteHasher(Recipe(key=KEY))

    same = hasher.hash_titles(["Get-Item", "  GET-ITEM ", "Ｇｅｔ\u00ad-Item", "get-item"])

    assert same.tolist() == [plain_hash("get-item", b"document title")] * 4
    found = hasher.hash_titles(["", " \u200b ", "Get-Items"]).tolist()
    assert found == [0, 0, plain_hash("get-items", b"document title")]
    assert hasher.hash_titles(["", ""]).tolist() == [0, 0]
    assert hasher.hash_titles([]).tolist() == []
    assert hasher.hash_sites(["get-item"])[0] != same[0]


@pytest.mark.parametrize("folds", [False, True])
def test_titles_fold_han_where_texts_do(folds: bool) -> None:
    hasher = SiteHasher(Recipe(languages=Languages(fold_han=folds)))

    traditional, simplified = hasher.hash_titles(["漢語", "汉语"])

    assert (traditional == simplified) == folds
