"""The demo's crawl, how the demo compares verdicts with the truth, and what it prints."""

from __future__ import annotations

import io
import lzma
from dataclasses import dataclass
from importlib import resources

import pytest
from rich.console import Console

from bench.demo_crawl import demo_lines
from bench.truth import find_pairs
from stream_dedup.demo import explain
from stream_dedup.demo.crawl import FILE, CrawledPage, read_crawl
from stream_dedup.demo.score import Score, TrueJudgement, TruthTally, score_verdicts
from stream_dedup.domain.document import Message
from stream_dedup.domain.plan import PLANS

UNIQUE = TrueJudgement(is_duplicate=False)


@dataclass
class Text:
    text: str
    language: str = "en"
    kind: str = "original"


def duplicate_of(representative: int | None) -> TrueJudgement:
    return TrueJudgement(is_duplicate=True, representative=representative)


def score_of(texts: list[Text], verdicts: dict[int, TrueJudgement]) -> Score:
    return score_verdicts(texts, verdicts, find_pairs(texts))


def test_the_file_of_the_demo_is_what_the_generator_writes() -> None:
    """On every Python and under every hash seed. Whoever changes the crawl says in CHANGELOG.md why:
    every published figure of the demo was measured on it."""
    packed = resources.files("stream_dedup.demo").joinpath(FILE).read_bytes()

    assert lzma.decompress(packed).decode() == demo_lines()


# Words a0..a19 make 18 shingles. Against LONG: ALIKE has 17 of 19 (0.89), HALF 13 of 23 (0.57), FAR
# 8 of 28 (0.29).
LONG = " ".join(f"a{number}" for number in range(20))
ALIKE = LONG.replace("a19", "b")
HALF = LONG.replace("a15", "b")[: LONG.index("a16")] + "c d e f"
FAR = " ".join([f"a{number}" for number in range(10)] + [f"f{number}" for number in range(10)])
ELSE = " ".join(f"e{number}" for number in range(20))


def counts(tally: TruthTally) -> tuple[int, ...]:
    return (
        tally.positives,
        tally.found,
        tally.grey,
        tally.grey_dropped,
        tally.negatives,
        tally.false_drops,
    )


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
        (
            (LONG, ELSE, ALIKE),
            ("u", "u", 1),
            (1, 1, 0, 0, 2, 1),
        ),  # rightly dropped, but the pointer leads elsewhere
        ((LONG, ALIKE), ("u", None), (1, 1, 0, 0, 1, 1)),  # and so does no pointer at all
        ((LONG, ALIKE, LONG), ("u", 0, 0), (2, 2, 0, 0, 1, 0)),
        ((LONG, ALIKE, LONG), ("u", 0, 1), (2, 2, 0, 0, 1, 0)),  # a chain: alike, yet misnamed
        (
            (LONG, LONG),
            (1, 0),
            (0, 0, 0, 0, 2, 2),
        ),  # each dropped for the other: the content is lost
        (("OK", "ok."), ("u", 0), (1, 1, 0, 0, 1, 0)),
        (("OK", "no"), ("u", 0), (0, 0, 0, 0, 2, 1)),
        (("", "", "OK"), ("u", 0, "u"), (0, 0, 0, 0, 1, 0)),
    ],
)
def test_counts_of_the_score(
    texts: tuple[str, ...], verdicts: tuple[object, ...], expected: tuple[int, ...]
) -> None:
    given_verdicts = {
        place: UNIQUE
        if verdict == "u"
        else duplicate_of(verdict if isinstance(verdict, int) else None)
        for place, verdict in enumerate(verdicts)
    }
    score = score_of([Text(text) for text in texts], given_verdicts)

    assert expected == counts(score.total)
    assert expected[0] + expected[2] + expected[4] == score.total.pages


def test_the_score_follows_the_order_of_the_verdicts() -> None:
    """Their order decides which page is earlier; broken and empty pages are not scored."""
    pages = [Text(LONG), Text(ALIKE), Text(""), Text("x", kind="broken")]
    verdicts = {0: duplicate_of(1), 1: UNIQUE, 2: UNIQUE, 3: UNIQUE}

    assert counts(score_of(pages, verdicts).total) == (0, 0, 0, 0, 2, 1)
    in_other_order = dict(reversed(verdicts.items()))
    assert counts(score_of(pages, in_other_order).total) == (1, 1, 0, 0, 1, 0)


def test_an_oracle_scores_full_marks_on_the_crawl() -> None:
    """Verdicts taken from the truth have recall 1 and no false drop; language tallies add up."""
    pages, pairs = read_crawl()
    verdicts = dict.fromkeys(range(len(pages)), UNIQUE)
    for pair in pairs:
        if pair.is_copy and not verdicts[pair.earlier].is_duplicate:
            verdicts[pair.later] = duplicate_of(pair.earlier)
    score = score_verdicts(pages, verdicts, pairs)

    assert (score.total.recall, score.total.near_recall, score.total.false_drops) == (1, 1, 0)
    assert score.total.positives > 160
    assert score.misnamed == []
    by_language = map(counts, score.by_language.values())
    assert counts(score.total) == tuple(map(sum, zip(*by_language, strict=True)))


def test_a_kept_page_is_shown_with_its_sibling_and_the_reason() -> None:
    page, sibling = (
        CrawledPage(url, "text", "en", "edit", None, url.encode(), b"", title)
        for url, title in (("https://a.example/1", "One"), ("https://a.example/0", "Two"))
    )
    messages = [
        Message("unique", 0, offset, None, b"", None, [("demo-page", b"1"), *sibling_headers])
        for offset, sibling_headers in enumerate(
            [
                [],
                [
                    ("dedup.sibling.position", b"documents-0@5"),
                    ("dedup.sibling.similarity", b"0.70"),
                ],
                [
                    ("dedup.sibling.position", b"documents-0@5"),
                    ("dedup.sibling.similarity", b"0.88"),
                ],
            ]
        )
    ]
    out = Console(file=io.StringIO(), width=300)

    found = explain.find_siblings(messages, {"documents-0@5": 0})
    explain.show_kept_sibling(out, found[0][0], page, sibling, PLANS["bands"])

    assert [(message.offset, page_number, of) for message, page_number, of in found] == [
        (2, 1, 0),
        (1, 1, 0),
    ]
    assert "Similarity 0.88, both on a.example with different titles." in out.file.getvalue()  # type: ignore[attr-defined]
    assert "so this one was kept." in out.file.getvalue()  # type: ignore[attr-defined]
