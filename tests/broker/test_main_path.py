"""The whole path on a real Apache Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.broker.harness import MakeFilter, header

pytestmark = pytest.mark.broker

LONG = (
    "the harbour wall was built of grey stone and the fishermen of the town mend their nets there "
    "every morning while "
    "the gulls wait for the boats that come back from the northern banks with cod and herring "
    "before the market opens "
    "at seven and the cooks of the three inns argue about prices with the oldest of the captains"
)


def test_the_same_text_on_twelve_partitions_gives_one_unique(
    make_filter: MakeFilter,
) -> None:
    """Copies on every partition find each other: one leaves as unique, the rest name it."""
    crawl = make_filter(partitions=12)
    crawl.start_both()
    crawl.produce(
        (part, f"https://m{part}.example/".encode(), LONG.encode(), []) for part in range(12)
    )
    outcome = crawl.outcome()
    assert outcome.reasons() == {"new": 1, "exact": 11}
    kept = header(outcome.unique[0], "dedup.log")
    assert len({header(message, "dedup.of.position") for message in outcome.duplicates}) == 1
    assert kept


def test_a_chain_names_the_first_that_was_kept(make_filter: MakeFilter) -> None:
    """B is near A, C is near B: each duplicate names a kept document, never another duplicate."""
    crawl = make_filter(partitions=1)
    crawl.start_both()
    words = LONG.split()
    texts = [
        " ".join(words),
        " ".join([*words[:-1], "fishwives"]),
        " ".join([*words[:-2], "younger", "fishwives"]),
    ]
    crawl.produce((0, b"%d" % index, text.encode(), []) for index, text in enumerate(texts))
    outcome = crawl.outcome()
    assert outcome.reasons()["near"] == 2
    assert {header(message, "dedup.of.id") for message in outcome.duplicates} == {"0"}


def test_reasons_distinguish_a_re_crawl_from_a_copy(make_filter: MakeFilter) -> None:
    crawl = make_filter(partitions=1)
    crawl.start_both()
    edited = LONG.replace("seven", "eight")
    events = [
        (b"a", LONG),
        (b"a", LONG.upper()),
        (b"a", edited),
        (b"b", LONG),
        (b"b", edited),
        (b"c", "not found"),
        (b"d", "not found"),
        (b"c", "Not  found"),
        (b"e", " \n"),
        (None, LONG),
        (b"a", LONG),
        (b"a", LONG),
    ]
    crawl.produce((0, key, text.encode(), []) for key, text in events)
    crawl.produce([(0, b"f", None, [])])
    outcome = crawl.outcome()
    in_order = sorted(
        (*outcome.unique, *outcome.duplicates),
        key=lambda message: (message.timestamp_ms or 0, message.offset),
    )
    assert len(in_order) == 13
    assert outcome.reasons() == {
        "new": 1,
        "unchanged": 3,
        "returned": 1,
        "revised": 1,
        "exact": 3,
        "near": 1,
        "too-short": 1,
        "empty": 1,
        "tombstone": 1,
    }


@pytest.mark.thorough
def test_nearly_all_duplicates_in_the_corpora_are_found(
    make_filter: MakeFilter, corpora: Path
) -> None:
    """No text is lost, and nearly every pair with Jaccard >= 0.8 is found."""
    crawl = make_filter(partitions=3, value_format="json", documents_bytes_max=4_000_000)
    crawl.start_both()
    lines = []
    for name in ("en_versions", "ja_books", "multi_guides", "zh_translations"):
        lines += (corpora / f"{name}.jsonl").read_bytes().splitlines()
    documents = [
        (index % 3, json.loads(line)["id"].encode(), line, []) for index, line in enumerate(lines)
    ]
    crawl.produce(documents)
    outcome = crawl.outcome()
    duplicate_ids = {(message.key or b"").decode() for message in outcome.duplicates}
    found = missed = 0
    for name in ("en_versions", "ja_books", "multi_guides", "zh_translations"):
        for line in (corpora / f"{name}.pairs.tsv").read_text().splitlines()[1:]:
            first, second, _, verdict, *_ = line.split("\t")
            if verdict == "dup":
                # Order is by arrival, so either may be the copy.
                found += first in duplicate_ids or second in duplicate_ids
                missed += first not in duplicate_ids and second not in duplicate_ids
    assert found >= 0.95 * (found + missed), f"{found} of {found + missed} pairs caught"
