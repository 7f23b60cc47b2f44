"""`calibrate`: a threshold of similarity from a sample of one's own."""

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
    """Copies with a few words changed, which are alike, and with twenty, which are hardly: nothing
    in between."""
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


def test_a_look_shows_what_each_threshold_drops(run: Run, pages: Path) -> None:
    """Of pages of one site, of which two kinds of copies lie on either side of .9, one threshold
    decides; three pairs of each side show what differs."""
    given = ("--text-field", "body", "--set", "similarity_same_site=0.9", "--json")
    said = run("calibrate", str(pages), *given).json

    assert (said["documents"], said["compared"]) == (500, 500)
    assert said["plan"] == "128:4:0:36~20:62,70,90,97%:64"
    assert sum(said["two_sites"]) == 0
    assert sum(said["one_site"]) >= 150
    by_name = {one["name"]: one for one in said["thresholds"]}
    expected = {"similarity": 0.62, "unsure": 0.7, "same_site": 0.9, "other_title": 0.97}
    assert {name: one["similarity"] for name, one in by_name.items()} == expected
    decides = by_name["same_site"]
    assert 20 < decides["drops"] <= 105
    assert sum(one["drops"] for one in said["thresholds"]) == decides["drops"]
    for name, lies in (("dropped", float.__ge__), ("kept", float.__lt__)):
        assert len(decides[name]) == 3
        assert all(lies(one["similarity"], 0.9) for one in decides[name])
    texts = {
        row["url"]: row["body"].split() for row in map(json.loads, pages.read_text().splitlines())
    }
    first = decides["dropped"][0]
    one, other = (texts[first[name].replace("\\x1b", "\x1b")] for name in ("id", "earlier_id"))
    assert set(first["words"].replace("…", "").split()) <= set(one)
    assert set(first["earlier_words"].replace("…", "").split()) <= set(other)


@pytest.mark.parametrize(
    ("sites", "titles", "decides"),
    [
        ("ab", "xx", "similarity"),
        ("aa", "xx", "unsure"),
        ("aa", "xy", "other_title"),
    ],
)
def test_the_threshold_that_decides_is_that_of_the_relation(
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

    said = run("calibrate", str(path), "--json").json

    assert {one["name"]: one["dropped"] != [] for one in said["thresholds"]} == {
        name: name == decides for name in ("similarity", "unsure", "same_site", "other_title")
    }
    expected = (60 * (decides == "similarity"), 60 * (decides != "similarity"))
    assert (sum(said["two_sites"]), sum(said["one_site"])) == expected


def test_people_read_histograms_and_pairs(run: Run, pages: Path) -> None:
    """Nothing of a document reaches the terminal as an order."""
    ended = run("calibrate", str(pages), "--text-field", "body", "--set", "plan=bands")
    told = "0.95 to 1.00|█|on other sites|on the same site, or unknown|One site, a title unknown: 0.85 drops|dropped|kept|500 documents|http://a/"
    assert [part for part in told.split("|") if part not in " ".join(ended.out.split())] == []
    assert "\x1b[31m" not in ended.out


@pytest.mark.parametrize(
    ("content", "more", "code", "says"),
    [
        ("", (), 1, "0 of 0 documents have different"),
        (f"{' '.join(WORDS[:60])}\n" * 80, (), 1, "1 of 80 documents have different"),
        ("x\n", ("--set", "recipe=chars"), 78, "recipe chars.* computes none"),
    ],
)
def test_what_says_nothing_is_told_in_a_sentence(
    run: Run,
    tmp_path: Path,
    content: str,
    more: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    path = tmp_path / "pages.txt"
    path.write_text(content)

    ended = run("calibrate", str(path), "--format", "lines", *more)

    assert ended.code == code
    assert re.search(says, ended.words)


def test_documents_are_read_as_check_reads_them(run: Run, pages: Path, tmp_path: Path) -> None:
    """Sites of a field, and of several files."""
    rows = [json.loads(line) for line in pages.read_text().splitlines()]
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, part in zip(paths, (rows[:250], rows[250:]), strict=True):
        path.write_text(jsonl(row | {"host": f"{n}.example"} for n, row in enumerate(part)))

    said = run("calibrate", *paths, "--text-field", "body", "--site-field", "host", "--json").json

    assert said["documents"] == 500
    assert sum(said["one_site"]) < sum(said["two_sites"])
