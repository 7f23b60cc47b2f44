"""The quality bench: its counts against short models, template pages, and a tiny corpus."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import quality, truth
from bench.corpus import GROUPS, CorpusDocument
from bench.peers import Peers
from bench.prose import Dice, Writer, language
from bench.quality import QualityOptions, near_pairs, run_quality
from bench.templates import template_pages
from stream_dedup.audit.scan import ComparedText, PlanRules
from stream_dedup.demo.score import GREY_FROM
from stream_dedup.domain.plan import Plan

FAKE = Path(__file__).with_name("fake_peer.py")


def texts(code: str, count: int) -> list[str]:
    dice = Dice("tiny corpus", code)
    return [language(code).render_article(Writer(dice).article(12)) for _ in range(count)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a set of six articles in each of two languages, two of them with a changed copy."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = []
    for code in ("en", "zh"):
        articles = texts(code, 6)
        documents += [
            CorpusDocument(f"{code}{number}", text, code) for number, text in enumerate(articles)
        ]
        documents += [
            CorpusDocument(
                f"{code}{number}b", f"{articles[number]} {('Amen', '完')[code == 'zh']}", code
            )
            for number in (1, 4)
        ]
    known = {(pair.earlier, pair.later): pair for pair in truth.find_pairs(documents)}
    names = {"exact": "exact", "duplicate": "dup", "grey": "grey", "different": "diff"}
    lines = [
        json.dumps(
            {
                "id": document.id,
                "text": document.text,
                "lang": document.language,
                "src": "made",
            }
        )
        for document in documents
    ]
    (folder / "tiny.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [
        f"{documents[a].id}\t{documents[b].id}\t-\t{names[pair.verdict]}\t{pair.jaccard:.4f}"
        for (a, b), pair in known.items()
    ]
    (folder / "tiny.pairs.tsv").write_text(
        "\n".join(["id_a\tid_b\tlabel\tverdict\tjaccard", *rows]) + "\n", encoding="utf-8"
    )
    return folder


def test_a_scan_finds_the_pairs_that_the_plan_accepts() -> None:
    """Of the pairs with enough features, it finds those that the plan's predicate accepts."""
    seed = int(os.environ["TEST_SEED"])
    dice = random.Random(seed)
    print("TEST_SEED", seed)
    base = dice.getrandbits(128)
    numbers = [
        base ^ sum(1 << dice.randrange(128) for _ in range(dice.randrange(16))) for _ in range(60)
    ]
    features = [dice.choice([10, 47, 48, 100, 200, 400]) for _ in numbers]
    sketches = np.array(
        [[3 if dice.random() < 0.85 else dice.randrange(256) for _ in range(120)] for _ in numbers],
        np.uint8,
    )
    sketch_bytes = [sketch.tobytes() for sketch in sketches]
    prints = np.array(
        [
            [masked & (1 << 64) - 1, masked >> 64]
            for masked in (number & (1 << 128) - 1 for number in numbers)
        ],
        np.uint64,
    )

    for plan in (
        Plan(128, 8, 1, 19),
        Plan(64, 4, 0, 3),
        Plan(100, 5, 1, 12),
        Plan(128, 8, 1, 19, by_length=((150, 24),), ratio=75),
        Plan(128, 4, 0, 28, bands=16, similarity=65),
    ):
        expected = {
            (a, b)
            for a, b in itertools.combinations(range(60), 2)
            if min(features[a], features[b]) >= 48
            and PlanRules(plan).is_near(
                ComparedText.of_number(numbers[a], features[a], sketch_bytes[a]),
                ComparedText.of_number(numbers[b], features[b], sketch_bytes[b]),
            )
        }
        assert expected
        assert near_pairs(prints, np.array(features, np.uint32), sketches, 48, plan) == expected


def test_template_pages_are_negatives_and_share_their_boilerplate() -> None:
    """No two pages reach a Jaccard of 0.5; the pairs listed are the exact measure's."""
    made = template_pages("fr", 7, 40)

    assert template_pages.__wrapped__("fr", 7, 40) == made
    expected = {
        (pair.earlier, pair.later): pair.jaccard for pair in truth.find_pairs(made.documents)
    }
    assert {(pair.earlier, pair.later): pair.jaccard for pair in made.pairs} == expected
    assert max(made.nearest) < GREY_FROM
    assert made.quantiles()[1] > 0.25


def test_the_bench_finds_the_copies_and_drops_no_other_page(tiny: Path) -> None:
    """The copies are found with every key and in both groups; `classic` has its own counts."""
    report = run_quality(QualityOptions(tiny, keys=2), None, lambda _: None)
    lines = {(line.name, line.plan): line for line in report.summaries()}

    for name, dup in (("en", 4), ("zh", 4), ("tiny", 8), ("all", 8)):
        counts = lines[name, "blocks"].counts
        assert (counts.found, counts.dup, counts.false_pairs) == (dup, dup, 0)
        assert lines[name, "blocks"].recall_min == 1.0
    # Two keys; 16 documents without the four copies, and 100 template pages in each of two
    # languages.
    assert lines["all", "blocks"].counts.distinct == 2 * (12 + 200)
    assert lines["all", "blocks"].counts.false_drops <= 2
    assert ("all", "classic") in lines


def test_peers_are_measured_like_our_plans(tiny: Path) -> None:
    """A peer's pairs are counted like ours; its stream is the greedy pass over them."""
    with Peers([sys.executable, str(FAKE)]) as peers:
        report = run_quality(QualityOptions(tiny, plans=()), peers, lambda _: None)
    line = next(line for line in report.summaries() if line.name == "all")

    assert (line.method, line.plan) == ("first letter", "equal")
    assert line.counts.found == line.counts.dup == 4  # a copy begins as its original does
    assert line.counts.false_pairs > 0
    assert line.counts.false_drops > 0
    assert report.peers_missing


def test_a_failed_peer_loses_only_its_own_figures(tiny: Path) -> None:
    """The report has its set and reason; a new process answers for the methods after it."""
    with Peers([sys.executable, str(FAKE), "mixed"]) as peers:
        report = run_quality(QualityOptions(tiny, plans=()), peers, lambda _: None)

    assert set(report.peers_failed) == {"broken"}
    assert "tiny: The peers ended without an answer" in report.peers_failed["broken"]
    assert {finding.method for finding in report.findings} == {"first letter", "again"}


def test_recall_of_the_default_on_real_texts(corpora: Path) -> None:
    """Recall is at least 0.95 in each group; at most 5 pairs per million are false, none far."""
    report = run_quality(
        QualityOptions(corpora, plans=(quality.PLANS["bands"],)), None, lambda _: None
    )
    lines = {line.name: line for line in report.summaries()}

    found = {group: lines[group].counts.recall >= 0.95 for group in GROUPS}
    assert found == dict.fromkeys(GROUPS, True)
    assert lines["all"].counts.false_per_million <= 5  # type: ignore[operator]
    assert lines["all"].counts.far_pairs == 0
