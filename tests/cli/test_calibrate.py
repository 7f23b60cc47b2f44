"""`calibrate`: a threshold of similarity from a sample of one's own."""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_threshold_is_proposed_with_what_it_drops(
    run: Callable[..., Any], pages: Path, tmp_path: Path
) -> None:
    """Between the two kinds of copies; with pairs on either side, and the command to declare it."""
    given = ("--text-field", "body", "--set", "similarity=0.9", "--json")
    said = json.loads(run("calibrate", str(pages), *given).out)

    assert (said["documents"], said["compared"], said["plan"]) == (
        500,
        500,
        "128:4:0:28~16:90%:64:40%",
    )
    proposed = said["proposed"]
    assert 0.6 < proposed["similarity"] <= 0.88
    assert proposed["low"] <= proposed["similarity"] <= proposed["high"]
    assert (proposed["doubt"], said["in_force"]) == (None, 0.9)
    assert said["commands"] == [
        f"stream-dedup declare --similarity {proposed['similarity']:.2f}",
        f"stream-dedup check {pages} --text-field body --similarity {proposed['similarity']:.2f}",
    ]
    assert sum(said["histogram"]) >= 150
    dropped = {one["similarity"]: one["dropped"] for one in said["thresholds"]}
    assert dropped[proposed["similarity"]] == pytest.approx(100, abs=5)
    assert dropped[0.5] > dropped[0.9]
    for name, lies in (("dropped", float.__ge__), ("kept", float.__lt__)):
        assert len(said["pairs"][name]) == 3
        assert all(lies(one["similarity"], proposed["similarity"]) for one in said["pairs"][name])
    texts = {
        row["url"]: row["body"].split() for row in map(json.loads, pages.read_text().splitlines())
    }
    first = said["pairs"]["dropped"][0]
    one, other = (texts[first[name].replace("\\x1b", "\x1b")] for name in ("id", "of"))
    assert first["words"].split(" … ")[0].split()[0] == next(
        mine for mine, yours in zip(one, other, strict=True) if mine != yours
    )
    assert set(first["words"].replace("…", "").split()) <= set(one)
    assert set(first["of_words"].replace("…", "").split()) <= set(other)


def test_people_read_a_histogram_and_pairs(run: Callable[..., Any], pages: Path) -> None:
    """Nothing of a document reaches the terminal as an order."""
    ended = run(
        "calibrate",
        str(pages),
        "--text-field",
        "body",
        "--set",
        "plan=bands",
        "--set",
        "similarity=0.7",
    )
    told = "0.95 to 1.00|█|drops at most|Just similar enough|Just not|the words that differ|500 documents|http://a/"
    assert [part for part in told.split("|") if part not in ended.out] == []
    assert "\x1b[31m" not in ended.out


def test_from_a_sample_with_too_few_pairs_nothing_is_proposed(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    """The threshold in force stays, and is said to; there is no command to type."""
    path = tmp_path / "pages.txt"
    path.write_text(
        "".join(" ".join(random.Random(row).sample(WORDS, 60)) + "\n" for row in range(60))
    )

    ended = run("calibrate", str(path), "--format", "lines")

    assert ended.code == 0
    assert "No proposal, 0.65 stays: 0 pairs are .50 alike or more" in " ".join(ended.out.split())
    assert "stream-dedup" not in ended.out


def test_a_large_site_proposes_nothing(run: Callable[..., Any], tmp_path: Path) -> None:
    """Pages of one template, all different: what is shown of a pair is what differs, and not the
    template."""
    chance = random.Random(7)
    template = [chance.choice(WORDS) for _ in range(150)]
    path = tmp_path / "site.jsonl"
    texts = [
        " ".join([*template, *(f"own{chance.randrange(10**6)}" for _ in range(60))])
        for _ in range(200)
    ]
    path.write_text(
        "".join(
            json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)
        )
    )

    said = json.loads(run("calibrate", str(path), "--json").out)

    assert (said["proposed"]["similarity"], said["proposed"]["doubt"], said["commands"]) == (
        None,
        "few-pairs",
        [],
    )
    assert said["apart"]["documents"] > 100 > 20 > said["proposed"]["pairs"]
    assert len(said["apart"]["pairs"]) == 3
    for pair in (*said["apart"]["pairs"], *said["pairs"]["dropped"], *said["pairs"]["kept"]):
        assert pair["words"].startswith("own")
        assert pair["of_words"].startswith("own")
    for pair in said["apart"]["pairs"]:
        assert pair["crowd"] < 0.4 < 0.5 <= pair["similarity"]
        assert pair["others"] > 4
    told = " ".join(run("calibrate", str(path)).out.split())
    most = said["apart"]["pairs"][0]
    assert f"Kept by their crowd, at any threshold: {said['apart']['documents']} documents" in told
    assert (
        f"{most['of']} is {most['similarity']:.2f} alike; of what {most['others']} others do not "
        "share" in told
    )
    assert (
        f"; {said['apart']['documents']} more are alike only as the others of their site are; give "
        "a sample" in told
    )


def test_a_name_that_no_broker_knows_is_one_sentence(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    """A mistyped file is not waited for as a topic is; of what the client tries nothing is said but
    why it failed."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))

        ended = run(
            "calibrate", tmp_path / "nosuch.jsonl", "-b", f"127.0.0.1:{closed.getsockname()[1]}"
        )

    assert ended.code == 1
    assert ended.err.splitlines()[-1].startswith(
        f"There is no file '{tmp_path}/nosuch.jsonl', and of a topic no broker at"
    )
    assert ended.err.count("Connect to") == 0


@pytest.mark.parametrize(
    ("content", "more", "code", "says"),
    [
        ("", (), 1, "There is no document in"),
        (f"{' '.join(WORDS[:60])}\n" * 80, (), 1, "80 documents in .* 1 can be compared"),
        ("x\n", ("--set", "recipe=chars"), 78, "makes no sketches"),
    ],
)
def test_what_says_nothing_is_told_in_a_sentence(
    run: Callable[..., Any],
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
