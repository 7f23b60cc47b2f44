"""Made-up sites: their exact Jaccards, and the bench's counts compared with the public index."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.bands import count_bands
from bench.quality import KnownPrints, fingerprinter_of
from bench.sites import LANGUAGES, LEVELS, SiteOptions, SitePages, judge_site
from bench.truth import jaccard, shingles
from stream_dedup import Index
from stream_dedup.domain.plan import PLANS

SMALL = SiteOptions(pages=24, copies=6, keys=1)


@pytest.mark.parametrize("language", LANGUAGES)
def test_pages_of_a_site_share_their_template_and_copies_are_as_near_as_wanted(
    language: str,
) -> None:
    """With 70 % common words two pages have a Jaccard of 0.5 to 0.57; of two sites, below 0.1."""
    pages = SitePages(language, 70, 12, SMALL)
    again = SitePages(language, 70, 12, SMALL)

    assert (pages.texts, pages.order, pages.copies) == (again.texts, again.order, again.copies)
    assert (pages.sites, len(pages.texts), len(set(pages.texts))) == (2, 24, 24)
    assert sorted(pages.order) == list(range(24))
    page_shingles = [shingles(text, language) for text in pages.texts]
    for a, b in itertools.combinations(range(24), 2):
        exact = jaccard(page_shingles[a], page_shingles[b])
        if a // 12 == b // 12:
            assert pages.alike[a // 12][a % 12, b % 12] == pytest.approx(exact)
            assert 0.5 < exact < 0.57
        else:
            assert exact < 0.1
    assert [copy.level for copy in pages.copies] == [0] * 6 + [1] * 6 + [2] * 6
    for copy in pages.copies:
        found = jaccard(shingles(copy.text, language), page_shingles[copy.of])
        assert found == pytest.approx(LEVELS[copy.level], abs=0.015)


@pytest.mark.parametrize("template", [60, 75, 98])
def test_the_bench_counts_the_same_as_the_public_index(template: int) -> None:
    pages = SitePages("ja", template, 12, SMALL)
    known = KnownPrints(
        fingerprinter_of("words", 0), [*pages.texts, *(copy.text for copy in pages.copies)]
    )
    finding = judge_site(pages, known, PLANS["bands"], "words", 0)

    index, kept, bands, worst = Index(), [], [], {0: 0, 1: 0}
    for place in pages.order:
        page_shingles = shingles(pages.texts[place], "ja")
        nearest = max(
            (
                jaccard(page_shingles, shingles(pages.texts[k], "ja"))
                for k in kept
                if k // 12 == place // 12
            ),
            default=0.0,
        )
        site = f"site{place // 12}.example"
        is_dropped = index.add(str(place), pages.texts[place], site=site).is_duplicate
        bands.append((nearest, is_dropped))
        worst[place // 12] += is_dropped and nearest < 0.5
        if not is_dropped:
            kept.append(place)
    found = [
        index.add(f"copy {number}", copy.text, site="copies.example")
        for number, copy in enumerate(pages.copies)
    ]

    assert finding.bands == count_bands(*zip(*bands, strict=True))
    assert finding.worst == max(worst.values()) / 12
    expected = [sum(answer.is_duplicate for answer in found[n : n + 6]) for n in (0, 6, 12)]
    assert [level.found for level in finding.copies] == expected
    if template == 98:  # any two pages are .85 alike and more
        assert (sum(finding.bands.dropped), finding.bands.dropped[-1]) == (22, 22)
        assert finding.bands.documents[0] == 2  # the first of each site
    if template == 60:
        assert sum(finding.bands.dropped) == 0
        shown = (finding.copies[0].planted, finding.copies[0].found, finding.copies[0].misnamed)
        assert shown == (6, 6, 0)


def test_the_command_measures_made_up_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`bench quality --sites` needs no corpora; the JSON contains a finding of each kind."""
    target = tmp_path / "figures.json"
    chosen = "--language ar --template 50 --site-pages 5 --pages 10"

    assert (
        main(f"quality --sites {chosen} --preset words --plan bands --json {target}".split()) == 0
    )

    shown = capsys.readouterr().out
    assert "words bands" in shown
    (finding,) = json.loads(target.read_text())["sites"]
    assert (finding["sites"], finding["site_pages"], finding["template_percent"]) == (2, 5, 50)
    assert finding["bands"]["below .5"] == {"documents": 10, "dropped": 0}
    assert main(["quality", "--sites", "--language", "xx"]) == 2
