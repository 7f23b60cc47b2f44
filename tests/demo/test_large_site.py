"""The demo's large site: a template, pages of their own and some copies, and which pages its crowd kept."""

from __future__ import annotations

import itertools

import pytest

from stream_dedup.demo import truth
from stream_dedup.demo.crawl import CrawledPage
from stream_dedup.demo.crowd import kept_by_crowd
from stream_dedup.demo.large_site import demo_crawl, is_of_site
from stream_dedup.fingerprinting import Recipe
from stream_dedup.ground.document import Reason
from stream_dedup.ground.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.local.offline import OfflineDocument, judge_documents
from tests.cli.test_similar import documents
from tests.index.logs import APPEND_MS, batch, declare


@pytest.fixture(scope="module")
def crawl() -> list[CrawledPage]:
    return demo_crawl(1, 600)


@pytest.mark.parametrize("seed", range(1, 6))
def test_only_its_copies_are_copies(seed: int) -> None:
    """Any two pages share about half, by the exact measure, which is no copy; a copy is nearly its page."""
    pages = [page for page in demo_crawl(seed, 100) if is_of_site(page)]
    of = {page.id: page.of for page in pages}
    features = {page.id: truth.shingles(page.text, page.language) for page in pages}
    for one, other in itertools.combinations(of, 2):
        alike = truth.jaccard(features[one], features[other])
        if of[other] == one:
            assert alike > 0.95
        else:
            assert 0.5 < alike < 0.65  # which `bands` asks for


def test_what_the_crowd_kept_is_what_the_index_turned_away(crawl: list[CrawledPage]) -> None:
    """Such a page is near another by everything but its crowd, as an index says that holds what was kept before it."""
    judged = judge_documents([OfflineDocument(page.key, page.text) for page in crawl], Recipe(), PLANS["bands"])
    kept = [page for page, one in zip(crawl, judged, strict=True) if one.reason is Reason.NEW]
    texts = [page.text for page in kept]

    found = kept_by_crowd(texts, Recipe(), PLANS["bands"], lambda place: is_of_site(kept[place]))

    assert len(found) > 1
    assert kept_by_crowd(texts[:200], Recipe(), PLANS["bands"]) == [one for one in found if one.place < 200]
    for one in found:
        *before, told = documents({str(place): text for place, text in enumerate(texts[: one.place + 1])})
        index, recipe = LogIndex(MemoryStore()), Recipe().id
        begun = declare(PLANS["bands"], recipe=recipe, floor=Recipe().floor)
        index.apply([(0, APPEND_MS, begun), (1, APPEND_MS, batch(before, recipe=recipe))])
        limbs = [told.print & (2**64 - 1), told.print >> 64]
        said = index.similar(limbs, told.digest, told.features, 0, 100, told.sketch)
        assert said.found == ()
        nearest = next(apart for apart in said.apart if apart.entry.id == str(one.other).encode())
        assert (nearest.others, nearest.share / 100) == (one.others, one.share)
        assert one.share < 0.4 < 0.65 <= one.similarity
        # Kept, it is none of its own crowd: what is said of it stays, but for the place that it had among the first.
        index.apply([(2, APPEND_MS, batch([told], recipe=recipe))])
        again = index.similar(limbs, told.digest, told.features, 0, 100, told.sketch)
        assert [entry.id for _, entry in again.found] == [told.id]
        beside = next(apart for apart in again.apart if apart.entry.number == nearest.entry.number)
        assert (beside.others, abs(beside.share - nearest.share) <= 1) == (nearest.others, True)
