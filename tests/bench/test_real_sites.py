"""`bench quality --real`: the figures for pages of a real site."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bench.real_sites import Page, RealSite, Thresholds, changed_versions, read_sites
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.plan import PLANS

DICE = random.Random(3)
WORDS = [f"{a}{b}{c}" for a in "bdfgklmnp" for b in "aeiou" for c in "lmnrst"]


def text(count: int = 120) -> str:
    return " ".join(DICE.choices(WORDS, k=count))


TEMPLATE = text(200)
PAGES = [
    Page(f"https://docs.example/{n}", f"{TEMPLATE} {text(40)}", "docs.example", f"{n}", f"Page {n}")
    for n in range(20)
]
"""Pages that share five sixths of their words, so that any two are about 0.7 alike."""


def write(folder: Path, pages: list[Page]) -> Path:
    rows = "".join(json.dumps(page._asdict()) + "\n" for page in pages)
    (folder / "site.jsonl").write_text(rows)
    return folder


def test_pages_of_one_template_are_lost_by_a_low_threshold_only() -> None:
    """`lost` counts first versions that were dropped as copies of another page."""
    site = RealSite("site", PAGES, 1)

    low = site.judge(Thresholds(PLANS["bands"].with_similarity(same_site=65), with_titles=False))
    high = site.judge(Thresholds(PLANS["bands"].with_similarity(same_site=95), with_titles=False))
    titled = site.judge(Thresholds(PLANS["bands"], with_titles=True))

    assert (low.pages, high.pages) == (20, 20)
    assert low.lost > 10
    assert (high.lost, titled.lost) == (0, 0)
    assert titled.edited == titled.edited_across == 20


def test_a_later_version_is_no_lost_page_and_is_counted_by_its_similarity() -> None:
    first = PAGES[0]
    words = first.text.split()
    changed = Page("v2", " ".join([*words[:100], "other", *words[101:]]), *first[2:])
    pages = [first, first, changed]

    found = RealSite("site", pages, 1).judge(Thresholds(PLANS["bands"], with_titles=True))

    assert list(changed_versions(pages)) == [2]
    assert (found.pages, found.lost) == (1, 0)
    assert found.versions == found.versions_found == (0, 0, 0, 0, 1)


def test_reading_a_folder_reports_rows_that_are_no_pages(tmp_path: Path) -> None:
    """The title of a row without one is the first line of its text; errors name file and line."""
    (page,) = read_sites(write(tmp_path, [PAGES[0]._replace(title="", text="One\nTwo")]))["site"]

    assert page.title == "One"
    (tmp_path / "site.jsonl").write_text('{"id": "1"}\n')
    with pytest.raises(InputError, match=r"site\.jsonl:1 is no page of a site"):
        read_sites(tmp_path)
    with pytest.raises(InputError, match=r"no NAME\.jsonl"):
        read_sites(tmp_path / "nowhere")
