"""The generated crawls: what they contain, and that the exact measure finds it."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from bench import truth
from bench.endless_crawl import endless
from bench.mini_crawl import KINDS, mini_crawl
from bench.prose import LANGUAGES
from stream_dedup.demo.crawl import CrawledPage, read_crawl
from stream_dedup.demo.score import DUPLICATE_FROM, GREY_FROM, Pair, TrueVerdict, is_judged
from stream_dedup.fingerprinting import Languages
from tests.tiers import few

UNSPACED = ("zh", "zh-Hant", "ja", "th")

Resemblances = dict[tuple[int, int], float]


@pytest.fixture(scope="module")
def crawl() -> list[CrawledPage]:
    return read_crawl()[0]


def resemblances(pages: list[CrawledPage]) -> Resemblances:
    return {(pair.earlier, pair.later): pair.similarity for pair in truth.find_pairs(pages)}


@pytest.mark.parametrize("pages", [40, 101])
def test_mini_crawl_has_every_kind_and_every_language_in_any_length(pages: int) -> None:
    made = mini_crawl(3, pages)

    assert pages == len(made)
    assert set(KINDS) == {page.kind for page in made}
    assert set(LANGUAGES) == {page.language for page in made if page.kind == "original"}


def test_records_are_what_a_crawler_sends(crawl: list[CrawledPage]) -> None:
    times = []
    for page in crawl:
        assert page.id.encode() == page.key
        if page.kind == "broken":
            with pytest.raises(json.JSONDecodeError):
                json.loads(page.value)
        else:
            record = json.loads(page.value)
            times.append(record.pop("fetched"))
            title = {"title": page.title} if page.title else {}
            expected = {"url": page.id, "text": page.text, "language": page.language} | title
            assert expected == record
            assert (page.title == "") == (page.kind == "short")
            assert page.title.casefold() in page.text.casefold()
    assert sorted(times) == times


def test_independent_originals_are_distinct(crawl: list[CrawledPage]) -> None:
    for code in LANGUAGES:
        found = [
            truth.shingles(page.text, code)
            for page in crawl
            if page.kind == "original" and page.language == code
        ]
        values = [truth.jaccard(first, other) for first, other in itertools.combinations(found, 2)]

        assert len(values) > 100
        assert max(values) < 0.3
        assert sum(values) / len(values) < 0.15


def test_translations_are_no_duplicates(crawl: list[CrawledPage]) -> None:
    known = resemblances(crawl)
    languages = {page.id: page.language for page in crawl}
    for place, page in enumerate(crawl):
        if page.kind == "translation":
            assert page.of is not None
            assert languages[page.of] != page.language
            assert all(known.get((earlier, place), 0) < GREY_FROM for earlier in range(place))


def test_only_copies_on_the_large_site_are_near_duplicates(crawl: list[CrawledPage]) -> None:
    """Two pages of the site have a Jaccard of 0.5 to 0.65; a copy has more than 0.95."""
    pages = [page for page in crawl if page.is_on_large_site]
    of = {page.id: page.of for page in pages}
    features = {page.id: truth.shingles(page.text, page.language) for page in pages}
    for first, other in itertools.combinations(of, 2):
        similarity = truth.jaccard(features[first], features[other])
        if of[other] == first:
            assert similarity > 0.95
        else:
            assert 0.5 < similarity < 0.65  # the threshold of `bands`


@pytest.mark.parametrize("size_bytes", few([250, 1000, 6000]))
def test_endless_pages_have_the_size_and_share_asked_for(size_bytes: int) -> None:
    pages = list(
        endless(5, 1500, size_bytes=size_bytes, duplicate_share=0.4, languages=("en", "de"))
    )

    assert (
        list(endless(5, 200, size_bytes=size_bytes, duplicate_share=0.4, languages=("en", "de")))
        == pages[:200]
    )
    assert (
        0.85 * size_bytes
        < sum(len(page.text.encode()) for page in pages) / len(pages)
        < 1.15 * size_bytes
    )
    assert 0.35 < sum(page.kind != "original" for page in pages) / len(pages) < 0.45
    assert {"en", "de"} == {page.language for page in pages}


@pytest.mark.parametrize(
    ("languages", "size_bytes"),
    few([(("en",), 250), (LANGUAGES, 900), (("zh", "hi"), 4000), (("en", "ja"), 6000)]),
)
def test_endless_originals_are_distinct_and_copies_are_duplicates(
    languages: tuple[str, ...], size_bytes: int
) -> None:
    """Two originals have a Jaccard below 0.5, a copy and its page one above 0.8."""
    pages = list(endless(6, 400, size_bytes=size_bytes, languages=languages))
    known = resemblances(pages)
    place_of = {page.id: place for place, page in enumerate(pages) if page.kind == "original"}

    for (earlier, later), value in known.items():
        if pages[earlier].kind == pages[later].kind == "original":
            assert value < GREY_FROM
    copies = [(place_of[page.of], place) for place, page in enumerate(pages) if page.of]
    assert {"re-crawl", "mirror", "edit"} == {pages[place].kind for _, place in copies}
    assert all(known[pair] >= DUPLICATE_FROM for pair in copies)


def test_words_are_split_as_the_recipe_splits_them() -> None:
    """With another split the bench would count copies that the filter cannot see."""
    odd = "snake_case, x² don't, п\u02bcять; अवन्\u200d 'quoted' soft\u00adhyphen a\u0301\u0323b ①"
    texts = [odd, *(page.text for page in mini_crawl(3, 300) if page.language not in UNSPACED)]
    assert len(texts) > 100

    for text in texts:
        assert len(truth.words(text)) == len(Languages().words(text)), text[:200]


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("One, two; THREE four!", "en", {"one two three", "two three four"}),
        ("\uff21 b\u00a0c", "en", {"a b c"}),  # full-width A, no-break space
        ("a b", "en", set()),
        ("a_b c", "en", {"a b c"}),
        ("so\u00adft o\u02bbz m", "en", {"soft o z", "o z m"}),
        ("हिन्दी में लिखा", "hi", {"हिन्दी में लिखा"}),
        ("ดีมี่", "th", {"ดีมี่"}),
        ("", "en", set()),
        (
            "\u4eca\u5929, \u5929\u6c14 2x!",
            "zh",
            {"\u4eca\u5929\u5929\u6c142", "\u5929\u5929\u6c142x"},
        ),
        ("\u4eca\u5929\u5929\u6c14", "zh", set()),
        ("abcdef", "ja", {"abcde", "bcdef"}),
        ("abcdef", "zh-Hant", {"abcde", "bcdef"}),
    ],
)
def test_shingles(text: str, language: str, expected: set[str]) -> None:
    """After NFKC and lower-casing; a text too short for one shingle has none."""
    assert expected == truth.shingles(text, language)


def test_pairs_equal_brute_force() -> None:
    """On a random sample, the pairs are those of a double loop over the definition."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    pages = random.Random(seed).sample(mini_crawl(seed, 300), 150)
    cut = [truth.shingles(page.text, page.language) for page in pages]
    bare = [truth.bare_text(page.text) for page in pages]
    judged = [place for place, page in enumerate(pages) if is_judged(page)]
    expected = []
    for earlier, later in sorted(
        itertools.combinations(judged, 2), key=lambda places: places[::-1]
    ):
        value = len(cut[earlier] & cut[later]) / (len(cut[earlier] | cut[later]) or 1)
        verdict: TrueVerdict = (
            "duplicate" if value >= 0.8 else "grey" if value >= 0.5 else "different"
        )
        if bare[earlier] == bare[later]:
            expected.append(Pair(earlier, later, value, "exact"))
        elif value >= 0.3:
            expected.append(Pair(earlier, later, value, verdict))

    assert len(expected) > 10
    assert expected == truth.find_pairs(pages)


def test_pages_of_a_site_with_different_titles_are_grey_up_to_97_percent() -> None:
    """Such pages are grey; pages of different sites or without a title are duplicates."""
    words = [f"word{number}" for number in range(400)]
    first, other, equal = (
        CrawledPage("", " ".join(words[:-last] + ["end"] * last), "en", "edit", None, b"", b"")
        for last in (1, 40, 3)
    )

    def verdicts(*named: tuple[str, str]) -> list[str]:
        return [pair.verdict for pair in truth.find_pairs([first, other, equal], named)][::2]

    assert verdicts() == ["duplicate", "duplicate"]
    assert verdicts(("a", "1"), ("a", "2"), ("a", "3")) == ["grey", "grey"]
    assert verdicts(("a", "1"), ("a", ""), ("a", "1")) == ["duplicate", "duplicate"]
    assert verdicts(("a", "1"), ("b", "2"), ("c", "3")) == ["duplicate", "duplicate"]
    found = [pair.verdict for pair in truth.find_pairs([first, equal], [("a", "1"), ("a", "2")])]
    assert found == ["duplicate"]
