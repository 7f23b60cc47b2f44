import itertools
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from stream_dedup.demo import truth
from stream_dedup.demo.crawl import mini_crawl
from stream_dedup.demo.truth import TrueJudgement
from stream_dedup.ground.errors import InputError

UNIQUE = TrueJudgement(duplicate=False)


@dataclass
class Text:
    text: str
    language: str = "en"
    kind: str = "original"


def duplicate_of(representative: int | None) -> TrueJudgement:
    return TrueJudgement(duplicate=True, representative=representative)


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("One, two; THREE four!", "en", {"one two three", "two three four"}),
        ("\uff21 b\u00a0c", "en", {"a b c"}),  # full-width A, no-break space
        ("a b", "en", set()),
        ("", "en", set()),
        ("\u4eca\u5929, \u5929\u6c14 2x!", "zh", {"\u4eca\u5929\u5929\u6c142", "\u5929\u5929\u6c142x"}),
        ("\u4eca\u5929\u5929\u6c14", "zh", set()),
        ("abcdef", "ja", {"abcde", "bcdef"}),
        ("abcdef", "zh-Hant", {"abcde", "bcdef"}),
    ],
)
def test_shingles(text: str, language: str, expected: set[str]) -> None:
    """Words or characters are cut after NFKC and lower-casing; a text too short for one shingle has none."""
    assert expected == truth.shingles(text, language)


def test_pairs_equal_brute_force() -> None:
    """The inverted index finds what a plain double loop over the definition finds, on a random sample of a crawl."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    pages = random.Random(seed).sample(mini_crawl(seed, 300), 150)
    cut = [truth.shingles(page.text, page.language) for page in pages]
    bare = [truth.bare(page.text) for page in pages]
    judged = [place for place, page in enumerate(pages) if truth.is_judged(page)]
    expected = []
    for earlier, later in sorted(itertools.combinations(judged, 2), key=lambda places: places[::-1]):
        value = len(cut[earlier] & cut[later]) / (len(cut[earlier] | cut[later]) or 1)
        verdict: truth.TrueVerdict = "duplicate" if value >= 0.8 else "grey" if value >= 0.5 else "different"
        if bare[earlier] == bare[later]:
            expected.append(truth.Pair(earlier, later, value, "exact"))
        elif value >= 0.3:
            expected.append(truth.Pair(earlier, later, value, verdict))

    assert len(expected) > 10
    assert expected == truth.pairs(pages)


# Words a0..a19 make 18 shingles. Against LONG: ALIKE has 17 of 19 (0.89), HALF 13 of 23 (0.57), FAR 8 of 28 (0.29).
LONG = " ".join(f"a{number}" for number in range(20))
ALIKE = LONG.replace("a19", "b")
HALF = LONG.replace("a15", "b")[: LONG.index("a16")] + "c d e f"
FAR = " ".join([f"a{number}" for number in range(10)] + [f"f{number}" for number in range(10)])
ELSE = " ".join(f"e{number}" for number in range(20))


def counts(tally: truth.TruthTally) -> tuple[int, ...]:
    return tally.positives, tally.found, tally.grey, tally.grey_dropped, tally.negatives, tally.false_drops


@pytest.mark.parametrize(
    ("texts", "verdicts", "expected"),
    [
        # texts             verdicts: u, or the page named   positives found grey dropped negatives false-drops
        ((LONG, ALIKE), ("u", 0), (1, 1, 0, 0, 1, 0)),
        ((LONG, ALIKE), ("u", "u"), (1, 0, 0, 0, 1, 0)),
        ((LONG, HALF), ("u", 0), (0, 0, 1, 1, 1, 0)),
        ((LONG, HALF), ("u", "u"), (0, 0, 1, 0, 1, 0)),
        ((LONG, FAR), ("u", 0), (0, 0, 0, 0, 2, 1)),
        ((LONG, FAR), ("u", "u"), (0, 0, 0, 0, 2, 0)),
        ((LONG, ELSE, ALIKE), ("u", "u", 1), (1, 1, 0, 0, 2, 1)),  # rightly dropped, but the pointer leads elsewhere
        ((LONG, ALIKE), ("u", None), (1, 1, 0, 0, 1, 1)),  # and so does no pointer at all
        ((LONG, ALIKE, LONG), ("u", 0, 0), (2, 2, 0, 0, 1, 0)),
        ((LONG, ALIKE, LONG), ("u", 0, 1), (2, 2, 0, 0, 1, 0)),  # a chain: alike, yet misnamed
        ((LONG, LONG), (1, 0), (0, 0, 0, 0, 2, 2)),  # each dropped for the other: the content is lost
        (("OK", "ok."), ("u", 0), (1, 1, 0, 0, 1, 0)),
        (("OK", "no"), ("u", 0), (0, 0, 0, 0, 2, 1)),
        (("", "", "OK"), ("u", 0, "u"), (0, 0, 0, 0, 1, 0)),
    ],
)
def test_judge(texts: tuple[str, ...], verdicts: tuple[object, ...], expected: tuple[int, ...]) -> None:
    given_verdicts = {
        place: UNIQUE if verdict == "u" else duplicate_of(verdict if isinstance(verdict, int) else None)
        for place, verdict in enumerate(verdicts)
    }
    score = truth.judge([Text(text) for text in texts], given_verdicts)

    assert expected == counts(score.total)
    assert expected[0] + expected[2] + expected[4] == score.total.pages
    assert expected[-1] == len(score.false_drops)
    assert expected[0] - expected[1] == len(score.missed)


def test_judge_follows_the_order_of_judging() -> None:
    """What counts as earlier is the order of the verdicts, which partitions make another than that of the crawl."""
    pages = [Text(LONG), Text(ALIKE)]
    verdicts = {0: duplicate_of(1), 1: UNIQUE}

    assert counts(truth.judge(pages, verdicts, order=[1, 0]).total) == (1, 1, 0, 0, 1, 0)
    assert counts(truth.judge(pages, verdicts, order=[1]).total) == (1, 1, 0, 0, 1, 0)
    assert counts(truth.judge(pages, verdicts).total) == (0, 0, 0, 0, 2, 1)


def test_judge_wants_a_verdict_on_every_page() -> None:
    """A page without a verdict is an error that names it; broken and empty pages need none."""
    pages = [Text(""), Text("x", kind="broken"), Text("a b c d")]
    assert truth.judge(pages, {2: UNIQUE}).total.pages == 1
    with pytest.raises(InputError, match="Page 2 of the crawl has no verdict"):
        truth.judge(pages, {0: UNIQUE, 1: UNIQUE})


def test_an_oracle_scores_full_marks_on_a_crawl() -> None:
    """Verdicts read off the truth itself have a recall of 1 and no false drop; the tallies by kind and language add up."""
    pages = mini_crawl(4, 300)
    known = truth.pairs(pages)
    verdicts = dict.fromkeys(range(len(pages)), UNIQUE)
    for pair in known:
        if pair.resemblance >= truth.DUPLICATE_FROM and not verdicts[pair.earlier].duplicate:
            verdicts[pair.later] = duplicate_of(pair.earlier)
    score = truth.judge(pages, verdicts, known=known)

    assert (score.total.recall, score.total.near_recall) == (1.0, 1.0)
    assert score.total.positives > 60
    assert (score.missed, score.false_drops, score.misnamed) == ([], [], [])
    for parts in (score.by_kind, score.by_language):
        assert counts(score.total) == tuple(map(sum, zip(*map(counts, parts.values()), strict=True)))
    assert Counter(page.kind for page in pages if truth.is_judged(page)) == {
        kind: tally.pages for kind, tally in score.by_kind.items()
    }
