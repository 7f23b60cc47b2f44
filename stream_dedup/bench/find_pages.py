"""What pages say of the search, made from the figures that `bench find` measured last and this version keeps (`FILE`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from stream_dedup.bench.capacity_pages import put_table, rows_of

FILE: Final = Path(__file__).with_name("find_measured.json")
PAGES: Final = {"docs/reference/bench.md": "find", "docs/explanation/capacity.md": "search"}
_BESIDE: Final = 100_000_000
_LANGUAGES: Final = {"en": "English", "zh": "Chinese", "ja": "Japanese"}


def read() -> dict[str, Any]:
    """Return the figures that this version keeps."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def put(text: str, name: str, figures: Mapping[str, Any]) -> str:
    """Return a page with the table of that name made anew.

    Raises:
        InputError: the page has no such marks.
    """
    return put_table(text, name, {"find": tables, "search": capacity}[name](figures))


def tables(figures: Mapping[str, Any]) -> str:
    """Return all that was measured, as Markdown."""
    said = (
        f"{figures['date']}, {figures['machine']}; {figures['documents']:,} {figures['texts']} texts of "
        f"{figures['bytes_of_text']:,} bytes, seed {figures['seed']}.\n"
    )
    whole = rows_of(
        ("of a document", ""),
        [
            ("loading", f"{figures['loaded_per_second']:,} a second, {figures['load_cpu_us']:,} us of CPU"),
            ("in the engine", f"{figures['bytes_in_engine']:,} bytes, in {figures['segments']} segments"),
            (
                "a clue, over all",
                f"median {figures['median_ms']} ms, 99 % within {figures['p99_ms']} ms; {figures['ask_cpu_ms']} ms of CPU",
            ),
        ],
    )
    rows = []
    for (code, tokens), cells in groupby(figures["cells"], lambda one: (one["language"], one["tokens"])):
        own = list(cells)
        rows.append(
            (
                f"{_LANGUAGES[code]}, {tokens} words",
                *(f"{one['recall']:.3f}, {one['listed']:.3f}" for one in own),
                " / ".join(f"{one['median_ms']:.1f}" for one in own),
                " / ".join(f"{one['p99_ms']:.1f}" for one in own),
            )
        )
    heads = ("clue", "whole: among the first 20, listed", "one word changed", "one missing", "median ms", "99 % within ms")
    found = rows_of(heads, rows)
    beside = rows_of(
        ("clue", "a plain scan, ms", "the engine, ms", "times as fast"),
        [
            (
                f"{one['tokens']} words ({one['asked']} asked)",
                f"{one['scan_ms']:,.0f}",
                f"{one['engine_ms']:.1f}",
                f"{one['scan_ms'] / one['engine_ms']:,.0f}",
            )
            for one in figures["scans"]
        ],
    )
    return "\n".join((said, whole, found, *([beside] if figures["scans"] else [])))


def capacity(figures: Mapping[str, Any]) -> str:
    """Return what a search over a hundred million documents takes, reckoned from what was measured over fewer."""
    times = _BESIDE / figures["documents"]
    rows: Sequence[Sequence[str]] = [
        (
            f"{_BESIDE // 1_000_000} million",
            f"{figures['bytes_in_engine'] * _BESIDE / 1e9:,.0f} GB, and as much again while segments are merged",
            f"{figures['load_cpu_us'] * _BESIDE / 3.6e9:,.0f} hours of CPU",
            f"{1e6 / figures['load_cpu_us']:,.0f} documents a second",
            f"{figures['median_ms'] * times / 1000:,.1f} s, {figures['median_ms']} ms over {figures['documents']:,}",
        )
    ]
    heads = ("documents", "volume of `run search`", "filling it anew", "one core takes in", "a clue, at worst in proportion")
    return f"Texts of {figures['bytes_of_text']:,} bytes, measured {figures['date']}.\n\n" + rows_of(heads, rows)
