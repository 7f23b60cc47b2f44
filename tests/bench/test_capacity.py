"""The figures of sizing stand in one place, a command makes them, and whoever quotes them quotes these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream_dedup.bench import capacity, capacity_pages
from stream_dedup.bench.index import IndexOptions
from stream_dedup.bench.path_report import PathOptions, PathReport, Sample
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.plan import PLANS
from stream_dedup.index.advice import advise, figures_of
from stream_dedup.index.calibration import Constants
from stream_dedup.index.measured import MEASURED, Measured, read

ROOT = Path(__file__).parent.parent.parent
# What was measured or thought through on a day of its own, and says so.
DATED = ("decisions", "scaling.md", "index-layout.md", "slices.md")
FIGURE = re.compile(
    r"[0-9][0-9,.]*\s+bytes\s+(?:each|a\s+(?:representative|document))"
    r"|[0-9][0-9,.]*\s+us\s+(?:of\s+CPU\s+)?(?:each|a\s+(?:representative|document))"
    r"|[0-9][0-9,.]*\s+documents(?:/s|\s+a\s+second)\s+(?:a|on\s+one|for\s+each)\s+core"
)


def strays(text: str) -> list[str]:
    """Return the figures of a text that stand outside the tables that are made."""
    return FIGURE.findall(re.sub(r"<!-- (\w+): made by .*?<!-- /\1 -->", "", text, flags=re.DOTALL))


def texts() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield ROOT / "ARCHITECTURE.md"
    for folder, ending in (("docs", "*.md"), ("deploy", "*.yaml"), ("deploy", "*.md")):
        yield from (path for path in sorted((ROOT / folder).rglob(ending)) if not set(DATED) & set(path.parts))


def test_no_page_has_a_figure_of_its_own() -> None:
    """One that is written by hand differs from the others sooner or later; three ways of writing one are noticed."""
    assert {str(path.relative_to(ROOT)): found for path in texts() if (found := strays(path.read_text(encoding="utf-8")))} == {}

    for text in ("190 bytes a representative", "19 us of CPU a document", "carries 55,000\n  documents a second on one core"):
        assert strays(text) == [text.removeprefix("carries ")]


@pytest.mark.parametrize(("page", "name"), capacity_pages.PAGES.items())
def test_a_page_has_the_kept_figures(page: str, name: str) -> None:
    """`stream-dedup bench capacity --kept --pages .` would change nothing; a figure that was changed by hand is noticed."""
    text = (ROOT / page).read_text(encoding="utf-8")

    assert capacity_pages.put(text, name, MEASURED) == text
    table = re.search(rf"<!-- {name}:.*?<!-- /{name} -->", text, flags=re.DOTALL)
    assert table is not None
    changed = table[0].replace("million", "billion", 1)
    assert capacity_pages.put(text.replace(table[0], changed), name, MEASURED) == text
    with pytest.raises(InputError, match="once"):
        capacity_pages.put(text.replace(f"<!-- /{name} -->", ""), name, MEASURED)


def test_the_page_and_plan_say_the_same() -> None:
    """Of 10^10 pages a month one had said that two cores keep up, the other 56 documents a second."""
    constants = Constants(**MEASURED.constants)  # type: ignore[arg-type]
    for representatives in (1_000_000, 100_000_000, 7_000_000_000):
        for name in PLANS:
            told = figures_of(PLANS[name], representatives, 18, constants).documents_per_second
            here = 1e6 / capacity_pages.index_us(MEASURED, name, representatives)
            assert told == pytest.approx(here, rel=0.25), "`plan` reckons with documents that are all new, the page with 70 %"

    page = (ROOT / "docs" / "explanation" / "capacity.md").read_text(encoding="utf-8")
    (line,) = (one for one in page.splitlines() if one.startswith("| 10^10 ") and "| a month |" in one)
    most = figures_of(PLANS["wide"], 7_000_000_000, 18, constants).documents_per_second
    assert most < 3_858
    assert line.split("|")[7].count("too slow") == 1
    picked = advise(100_000_000, 18, 128, constants)
    assert picked.as_json()["constants"]["disk_bytes"] == MEASURED.disk_bytes


def sample(variant: str) -> Sample:
    return Sample(
        variant,
        1,
        1000,
        0.1,
        1.0,
        {"worker": 0.02, "index": 0.01, "broker": 0.005},
        {},
        {},
        {"index": 10**9},
        {"in": 2000, "unique": 2000},
        {"fingerprints": 200_000},
    )


def test_the_figures_are_of_one_run(tmp_path: Path) -> None:
    """Each comes from the measurement that knows it, and what the file keeps is read again as it was."""
    said: list[str] = []

    def path(options: PathOptions, _say: object) -> PathReport:
        assert not options.rates
        report = PathReport(options, {"cores": 2, "processor": "some", "load_before": 0.1}, mean_value_bytes=1100.0)
        report.samples += [sample(variant) for variant in ("copy", "bands", "wide", "classic")]
        return report

    def index(options: IndexOptions, _say: object) -> Any:
        curve = [
            {"documents": 1000, "rss_bytes_max": 10**8 + 100_000 * number, "seconds": 0.1, "cpu_seconds": 0.1}
            for number in range(5)
        ]
        return SimpleNamespace(
            options=options,
            curve=curve,
            representatives=4500,
            sustained_cpu=10_000.0,
            complaints=["one"],
            disk={"total": 80.4, "ids as text": 37.0},
        )

    constants = Constants(1.0, 0.1, 0.05, 0.0003, 0.001, 2.0, 0.1, 0.1)
    found, complaints = capacity.run_capacity(
        PathOptions(), 4500, "2026-11-24", said.append, path=path, index=index, calibration=lambda: constants
    )

    assert (found.worker_us["wide"], found.index_us["classic"], found.broker_us["wide"]) == (20.0, 10.0, 5.0)
    assert (found.log_bytes, found.disk_bytes) == (100.0, 80.4)
    assert found.memory_bytes["wide"] == pytest.approx(constants.memory_bytes(PLANS["wide"], 4500) / 4500, rel=0.01)
    assert found.index_bytes["wide"] == pytest.approx(100_400_000 - 4500 * found.memory_bytes["wide"], rel=0.01)
    assert 0 < found.surrounding_us < 100.0
    assert complaints == ["one"] * 3
    file = tmp_path / "figures.json"
    file.write_text(json.dumps(found.as_json()), encoding="utf-8")
    assert read(file) == found
    assert isinstance(found, Measured)
