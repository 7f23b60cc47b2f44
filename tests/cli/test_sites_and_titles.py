"""Sites, titles and siblings in the output of `explain`, `similar`, `check` and the API."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stream_dedup import Index, fingerprint
from tests.cli.running import Run, jsonl
from tests.cli.test_similar import serving_index

CHANCE = random.Random(1)
PAGE = [f"word{CHANCE.randrange(5000)}" for _ in range(200)]
TEXT, ALIKE = " ".join(PAGE), " ".join([*PAGE[:-24], *(f"other{number}" for number in range(24))])
ON_SHOP = "https://www.shop.example/1"
SHARE = f"{fingerprint(TEXT).similarity(fingerprint(ALIKE)) - 0.004:.2f}"
OTHER_SITE = "on different sites (shop.example and other.example). Pages of different sites"
SAME_ID = "with the same id. Versions of one document"
ARE_COPIES = "are copies at a similarity of"
ONE_TITLE = "both on shop.example with the same title. Pages of one site with the same title"
TWO_TITLES = "both on shop.example with different titles. Pages of one site with different titles"
NO_TITLE = "both on shop.example. Pages of one site"
NO_SITE = "and the site of one is unknown. Documents that may be of one site"
COPY, KEPT = "so this one is a copy.", "so this one was kept."
CASES = {
    # id, title: sentence, whether it is a copy
    ("https://other.example/2", "Two"): (f"{OTHER_SITE} {ARE_COPIES} 0.62 or more, {COPY}", True),
    (ON_SHOP, "Two"): (f"{SAME_ID} {ARE_COPIES} 0.62 or more, {COPY}", True),
    ("https://shop.example/2", "ONE "): (f"{ONE_TITLE} {ARE_COPIES} 0.70 or more, {COPY}", True),
    ("https://shop.example/2", "Two"): (f"{TWO_TITLES} {ARE_COPIES} 0.97 or more, {KEPT}", False),
    ("https://shop.example/2", ""): (f"{NO_TITLE} {ARE_COPIES} 0.85 or more, {KEPT}", False),
    ("7", ""): (f"{NO_SITE} {ARE_COPIES} 0.70 or more, {COPY}", True),
}
SETS = ("--set", "value_format=json", "--set", "id_field=url")


def test_the_similarity_of_the_texts_is_between_the_thresholds() -> None:
    assert 0.70 <= float(SHARE) < 0.85


def write_record(folder: Path, name: str, **fields: str) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(fields))
    return path


@pytest.mark.parametrize(("other", "expected"), CASES.items())
def test_explain_names_sites_and_titles(
    run: Run, tmp_path: Path, other: tuple[str, str], expected: tuple[str, bool]
) -> None:
    first = write_record(tmp_path, "a", url=ON_SHOP, title="One", text=TEXT)
    second = write_record(tmp_path, "b", url=other[0], title=other[1], text=ALIKE)

    found = run("explain", first, second, *SETS, "--json").json

    sentence, is_copy = expected
    assert (found["verdict"] == "duplicate") == is_copy
    if other[0] != "https://other.example/2":
        assert found["explanation"].startswith(f"Similarity {SHARE}, {sentence}")
    assert f"so this one {'is a copy' if is_copy else 'was kept'}." in found["explanation"]
    assert f"of {found['similarity_threshold']:.2f} or more, " in found["explanation"]


@pytest.mark.parametrize("place", ["--index", "--volume"])
@pytest.mark.parametrize(("other", "expected"), CASES.items())
def test_similar_names_sites_and_titles(
    run: Run,
    tmp_path: Path,
    place: str,
    other: tuple[str, str],
    expected: tuple[str, bool],
) -> None:
    """Of a record with its own id, site and title; of a text with those that are given."""
    kept = tmp_path / "a.jsonl"
    kept.write_text(json.dumps({"id": ON_SHOP, "title": "One", "text": TEXT}) + "\n")
    volume = tmp_path / "index"
    assert run("check", kept, "--index", volume).code == 0
    record_file = write_record(tmp_path, "b", url=other[0], title=other[1], text=ALIKE)
    given = [ALIKE, "--site", other[0] if "//" in other[0] else "", "--title", other[1]]

    def look_up(*words: object) -> Any:
        if place == "--volume":
            return run("similar", *words, place, volume)
        with serving_index(volume) as server:
            return run("similar", *words, place, f"http://127.0.0.1:{server.port}")

    for words in [[record_file, *SETS]] + [given] * (other[0] != ON_SHOP):
        (document,) = look_up(*words, "--json").json["found"]
        assert document["explanation"].startswith(f"Similarity {SHARE}, ")
        assert document["is_copy"] == expected[1]
        if other[0] != "https://other.example/2":
            assert document["explanation"] == f"Similarity {SHARE}, {expected[0]}"
        assert f"The nearest: {document['explanation']}" in " ".join(look_up(*words).err.split())


@pytest.mark.parametrize(("other", "expected"), CASES.items())
def test_an_index_returns_siblings_and_reasons(
    other: tuple[str, str], expected: tuple[str, bool]
) -> None:
    index = Index()
    index.add(ON_SHOP, TEXT, title="One")
    site = other[0] if "//" in other[0] else None

    (match,) = index.query(ALIKE, site=site, title=other[1])
    ((many,),) = index.query_many([ALIKE], site=[site], title=[other[1]])
    answer = index.add(other[0], ALIKE, title=other[1])

    assert many == match
    assert match.similarity is not None
    if other[0] != ON_SHOP:  # a look-up has no id
        assert (match.is_copy, answer.is_duplicate) == (expected[1],) * 2
    if answer.is_duplicate:
        assert (answer.duplicate_of, answer.sibling, answer.sibling_similarity) == (
            ON_SHOP,
            None,
            None,
        )
    else:
        assert (answer.reason, answer.duplicate_of, answer.similarity) == ("new", None, None)
        assert (answer.sibling, answer.sibling_similarity) == (ON_SHOP, float(SHARE))
        assert match.explanation == f"Similarity {SHARE}, {expected[0]}"
    index.close()


def test_check_names_siblings_and_the_most_similar_kept_page(run: Run, tmp_path: Path) -> None:
    pages = tmp_path / "pages.jsonl"
    rows = [
        {"id": f"https://shop.example/{number}", "title": f"Page {number}"} for number in range(3)
    ]
    texts = (TEXT, ALIKE, "nothing else is like it " * 9)
    pages.write_text(jsonl(row | {"text": text} for row, text in zip(rows, texts, strict=True)))

    listed = run("check", pages, "--json").rows
    errors = " ".join(run("check", pages).err.split())

    sibling = {"id": "https://shop.example/0", "number": 0, "similarity": float(SHARE)}
    assert [verdict["sibling"] for verdict in listed] == [None, sibling, None]
    assert [verdict["duplicate_of"] for verdict in listed] == [None] * 3
    assert (
        f"the most similar is https://shop.example/1, similarity {SHARE} to https://shop.example/0"
        in errors
    )
    assert (
        "0.70 or more with the same title, 0.97 or more with different titles, else 0.85 or more."
        in errors
    )
