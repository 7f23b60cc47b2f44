"""`calibrate`: choose similarity thresholds from a sample of documents."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from tests.cli.running import Run, jsonl

WORDS = [f"word{number}" for number in range(3000)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents, and for a third of them copies with 2 and with 22 changed words."""
    chance = random.Random(4)
    lines = []
    for number in range(300):
        text = [chance.choice(WORDS) for _ in range(150)]
        lines.append(text)
        for count in (2, 22) if number % 3 == 0 else ():
            copy = list(text)
            for _ in range(count):
                copy[chance.randrange(150)] = chance.choice(WORDS)
            lines.append(copy)
    path = tmp_path_factory.mktemp("calibrate") / "pages.jsonl"
    rows = [
        {"url": f"http://a/{number}\x1b[31m", "body": " ".join(text)}
        for number, text in enumerate(lines)
    ]
    path.write_text(jsonl(rows))
    return path


def test_calibrate_reports_what_each_threshold_drops(run: Run, pages: Path) -> None:
    """Three dropped and three kept pairs show what the deciding threshold separates."""
    given = ("--text-field", "body", "--set", "similarity_same_site=0.9", "--json")
    report = run("calibrate", str(pages), *given).json

    assert (report["documents"], report["compared"]) == (500, 500)
    assert report["plan"] == "128:4:0:36~20:62,70,90,97%:64"
    assert sum(report["two_sites"]) == 0
    assert sum(report["one_site"]) >= 150
    by_name = {threshold["name"]: threshold for threshold in report["thresholds"]}
    expected = {"similarity": 0.62, "unsure": 0.7, "same_site": 0.9, "other_title": 0.97}
    assert {name: threshold["similarity"] for name, threshold in by_name.items()} == expected
    deciding = by_name["same_site"]
    assert 20 < deciding["drops"] <= 105
    assert sum(threshold["drops"] for threshold in report["thresholds"]) == deciding["drops"]
    for name, is_on_that_side in (("dropped", float.__ge__), ("kept", float.__lt__)):
        assert len(deciding[name]) == 3
        assert all(is_on_that_side(pair["similarity"], 0.9) for pair in deciding[name])
    texts = {
        row["url"]: row["body"].split() for row in map(json.loads, pages.read_text().splitlines())
    }
    first = deciding["dropped"][0]
    text, other_text = (
        texts[first[name].replace("\\x1b", "\x1b")] for name in ("id", "earlier_id")
    )
    assert set(first["words"].replace("…", "").split()) <= set(text)
    assert set(first["earlier_words"].replace("…", "").split()) <= set(other_text)


@pytest.mark.parametrize(
    ("sites", "titles", "decides"),
    [
        ("ab", "xx", "similarity"),
        ("aa", "xx", "unsure"),
        ("aa", "xy", "other_title"),
    ],
)
def test_site_and_title_choose_the_deciding_threshold(
    run: Run, tmp_path: Path, sites: str, titles: str, decides: str
) -> None:
    chance, path = random.Random(5), tmp_path / "pages.jsonl"
    rows = []
    for number in range(60):
        text = [chance.choice(WORDS) for _ in range(150)]
        for site, title in zip(sites, titles, strict=True):
            host = f"{site}{number}.example"
            rows.append(
                {"id": f"http://{host}/{len(rows)}", "text": " ".join(text), "title": title}
            )
            text[7] = "another"
    path.write_text(jsonl(rows))

    found = run("calibrate", str(path), "--json").json

    assert {threshold["name"]: threshold["dropped"] != [] for threshold in found["thresholds"]} == {
        name: name == decides for name in ("similarity", "unsure", "same_site", "other_title")
    }
    expected = (60 * (decides == "similarity"), 60 * (decides != "similarity"))
    assert (sum(found["two_sites"]), sum(found["one_site"])) == expected


def test_the_text_output_has_histograms_and_pairs(run: Run, pages: Path) -> None:
    """Escape sequences of documents do not reach the terminal."""
    ended = run("calibrate", str(pages), "--text-field", "body", "--set", "plan=bands")
    parts = "0.95 to 1.00|█|on other sites|on the same site, or unknown|One site, a title unknown: 0.85 drops|dropped|kept|500 documents|http://a/"
    assert [part for part in parts.split("|") if part not in " ".join(ended.out.split())] == []
    assert "\x1b[31m" not in ended.out


@pytest.mark.parametrize(
    ("content", "more", "code", "expected_error"),
    [
        ("", (), 1, "0 of 0 documents have different"),
        (f"{' '.join(WORDS[:60])}\n" * 80, (), 1, "1 of 80 documents have different"),
        ("x\n", ("--set", "recipe=chars"), 78, "recipe chars.* computes none"),
    ],
)
def test_unusable_samples_are_refused_with_a_sentence(
    run: Run,
    tmp_path: Path,
    content: str,
    more: tuple[str, ...],
    code: int,
    expected_error: str,
) -> None:
    path = tmp_path / "pages.txt"
    path.write_text(content)

    ended = run("calibrate", str(path), "--format", "lines", *more)

    assert ended.code == code
    assert re.search(expected_error, ended.words)


def test_documents_are_read_as_check_reads_them(run: Run, pages: Path, tmp_path: Path) -> None:
    """Sites of a field, and of several files."""
    rows = [json.loads(line) for line in pages.read_text().splitlines()]
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, part in zip(paths, (rows[:250], rows[250:]), strict=True):
        path.write_text(jsonl(row | {"host": f"{n}.example"} for n, row in enumerate(part)))

    report = run("calibrate", *paths, "--text-field", "body", "--site-field", "host", "--json").json

    assert report["documents"] == 500
    assert sum(report["one_site"]) < sum(report["two_sites"])
