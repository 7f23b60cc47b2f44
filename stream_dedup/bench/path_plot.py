"""Pictures of what `bench path` and `bench scaling` measured: ratios, latencies and throughputs as bars, in SVG.

Invariants: every bar begins at zero and carries its figure; bars of one panel share a scale; what was not measured has no bar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from stream_dedup.bench.path_report import COPY, PathReport, median
from stream_dedup.bench.scaling import SIZE, Curve

_WIDTH: Final = 760
_BARS_FROM: Final = 190
_BARS_WIDTH: Final = 480
_ROW: Final = 24
_HEAD: Final = 44
_PERCENTILES: Final = (("p50", "p50_ms"), ("p99", "p99_ms"), ("p99.9", "p99_9_ms"))
_RATES: Final = ("Documents per second", "Megabytes per second")
_STYLE: Final = """
 svg { background: #fff }
 text { font: 14px sans-serif; fill: #222 } .s { font-size: 12px; fill: #555 } .b { font-weight: bold }
 .bar { fill: #e4f2e4; stroke: #3a7a3a } .base { fill: #f5f5f5; stroke: #444 }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A value from 0 on, with what stands before and behind its bar; the base is what others are compared with."""

    label: str
    value: float
    figure: str
    is_base: bool = False


def draw(report: PathReport) -> str:
    """Return the picture as SVG, with a panel of throughputs as shares of the copy's, and one of latencies if there are any."""
    panels = [("Throughput as a share of a plain exactly-once copy", _ratios(report))]
    if report.latencies:
        panels.append(("From a record's time to its committed output, ms", _latencies(report)))
    options, cores = report.options, report.machine.get("cores", "?")
    size = f"{report.mean_value_bytes:,.0f} bytes"
    about = f"{options.documents:,} documents of {size}, {cores} cores, medians of {options.rounds} rounds"
    return _picture("The whole path beside a plain copy", panels, about)


def draw_curves(curves: Sequence[Curve]) -> str:
    """Return the picture as SVG, with a panel for each axis: of all variants at each value, side by side."""
    panels = [(f"{_RATES[curve.axis == SIZE]} by {curve.axis}", _rates(curve)) for curve in curves]
    reports = [report for curve in curves for report in curve.points.values()]
    cores, rounds = reports[0].machine.get("cores", "?"), reports[0].options.rounds
    return _picture("The whole path along one axis at a time", panels, f"{cores} cores, medians of {rounds} rounds")


def _picture(title: str, panels: Sequence[tuple[str, Sequence[Bar]]], about: str) -> str:
    lines: list[str] = []
    top = _HEAD
    for heading, bars in panels:
        lines += _panel(heading, bars, top)
        top += _HEAD + _ROW * len(bars)
    lines.append(f'<text class="s" x="15" y="{top}">{escape(about)}</text>\n')
    height = top + 16
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
{"".join(lines)}</svg>
"""


def _ratios(report: PathReport) -> list[Bar]:
    found = []
    for variant in report.variants:
        rate = report.documents_per_second(variant)
        ratio = 1.0 if variant == COPY else median(report.ratios(variant))
        if rate is not None and ratio is not None:
            found.append(Bar(variant, ratio, f"{ratio:.2f} ({rate:,.0f}/s)", variant == COPY))
    return found


def _latencies(report: PathReport) -> list[Bar]:
    return [
        Bar(f"{plan}, {one.documents_per_second:,.0f} documents/s, {name}", figures[key], f"{figures[key]:,.0f}")
        for plan, found in report.latencies.items()
        for one in found
        for figures in [one.as_json()]
        for name, key in _PERCENTILES
    ]


def _rates(curve: Curve) -> list[Bar]:
    """Documents per second, of sizes megabytes per second: with documents the small ones would hide all others."""
    found = []
    for value, report in curve.points.items():
        unit_bytes = report.mean_value_bytes / 1e6 if curve.axis == SIZE else 1.0
        for variant in report.variants:
            rate, ratio = report.documents_per_second(variant), median(report.ratios(variant))
            if rate is None:
                continue
            share = "" if variant == COPY or ratio is None else f" ({ratio:.2f} of the copy)"
            found.append(Bar(f"{value:,}, {variant}", rate * unit_bytes, f"{rate * unit_bytes:,.0f}{share}", variant == COPY))
    return found


def _panel(title: str, bars: Sequence[Bar], top: int) -> Iterator[str]:
    yield f'<text class="b" x="15" y="{top - 14}">{escape(title)}</text>\n'
    largest = max((bar.value for bar in bars), default=0.0) or 1.0
    for number, bar in enumerate(bars):
        y = top + number * _ROW
        width = bar.value / largest * _BARS_WIDTH
        kind = "base" if bar.is_base else "bar"
        yield f'<text x="{_BARS_FROM - 8}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>\n'
        yield f'<rect class="{kind}" x="{_BARS_FROM}" y="{y}" width="{width:.1f}" height="{_ROW - 6}"/>\n'
        inside = width > _BARS_WIDTH * 0.8
        x, anchor = (_BARS_FROM + width - 6, "end") if inside else (_BARS_FROM + width + 6, "start")
        yield f'<text class="s" x="{x:.1f}" y="{y + 13}" text-anchor="{anchor}">{escape(bar.figure)}</text>\n'
