"""Pictures as SVG, drawn on the server: colours come from the stylesheet by class, so both themes have them. Pure.

Each has a title and a description for those who do not see it; the page puts the figures in a table beside it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from stream_dedup.console.nouns import REASONS, FigureColumn

_WIDTH: Final = 640
_HEIGHT: Final = 160
_FOOT: Final = 20
_LEFT: Final = 44


def columns(found: Sequence[FigureColumn], minutes: int) -> Markup:
    """Draw the decisions of `minutes` minutes each as a column, stacked by reason. A column says its time and counts."""
    most = max((sum(one.counts.values()) for one in found), default=0)
    total = sum(sum(one.counts.values()) for one in found)
    parts = [_axis(most)]
    wide = (_WIDTH - _LEFT) / max(1, len(found))
    for place, one in enumerate(found):
        height = 0.0
        order = sorted(one.counts, key=lambda reason: REASONS.index(reason) if reason in REASONS else len(REASONS))
        begins = dt.datetime.fromtimestamp(one.begin_ms / 1000, dt.UTC).strftime("%m-%d %H:%M")
        for reason in order:
            tall = (_HEIGHT - _FOOT - 8) * one.counts[reason] / max(1, most)
            name = reason if reason in REASONS else "other"
            top = _HEIGHT - _FOOT - height - tall
            parts.append(
                _bar(_LEFT + place * wide + 0.5, top, wide - 1, tall, f"r-{name}", f"{begins} {reason}: {one.counts[reason]:,}")
            )
            height += tall
    parts += [
        _text(_LEFT, _HEIGHT - 5, f"{_span(len(found) * minutes)} ago", "start"),
        _text(_WIDTH, _HEIGHT - 5, "now", "end"),
    ]
    said = f"{total:,} decisions in {_span(len(found) * minutes)}; at most {most:,} in {_span(minutes)}."
    return _svg("Decisions over time, by reason", said, parts)


def _span(minutes: int) -> str:
    """Return a number of minutes in the largest unit that tells it exactly."""
    for unit, of in (("day", 1_440), ("hour", 60), ("minute", 1)):
        if minutes % of == 0:
            return f"{minutes // of} {unit}{'s' * (minutes != of)}"
    raise AssertionError


def histogram(bins: Sequence[int], threshold: float | None) -> Markup:
    """Draw how many duplicates were how similar, with the threshold as a line."""
    most = max(bins, default=0)
    wide = (_WIDTH - _LEFT) / max(1, len(bins))
    parts = [_axis(most)]
    for place, count in enumerate(bins):
        tall = (_HEIGHT - _FOOT - 8) * count / max(1, most)
        text = f"{place / len(bins):.2f} to {(place + 1) / len(bins):.2f}: {count:,}"
        parts.append(_bar(_LEFT + place * wide + 0.5, _HEIGHT - _FOOT - tall, wide - 1, tall, "bar", text))
    parts += [
        _text(_LEFT + (_WIDTH - _LEFT) * at, _HEIGHT - 5, f"{at:g}", "middle" if 0 < at < 1 else "end" if at else "start")
        for at in (0, 0.25, 0.5, 0.75, 1)
    ]
    said = ""
    if threshold is not None:
        at = _LEFT + (_WIDTH - _LEFT) * threshold
        parts.append(Markup('<line class="threshold" x1="{0}" x2="{0}" y1="4" y2="{1}"/>').format(f"{at:.1f}", _HEIGHT - _FOOT))
        parts.append(_text(at - 4, 14, f"threshold {threshold:g}", "end"))
        said = f" The threshold is {threshold:g}."
    return _svg("Duplicates by similarity", f"{sum(bins):,} duplicates whose similarity was told.{said}", parts)


def share(part: float) -> Markup:
    """Draw a share, 0 to 1, as a bar in a line of text."""
    full = 100 * min(1.0, max(0.0, part))
    return Markup(
        '<svg class="share" viewBox="0 0 100 10" width="100" height="10" aria-hidden="true" preserveAspectRatio="none">'
        '<rect class="track" width="100" height="10"/><rect class="bar" width="{0}" height="10"/></svg>'
    ).format(f"{full:.1f}")


def _svg(title: str, description: str, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="picture" viewBox="0 0 {0} {1}" role="img" aria-label="{2}. {3}">'
        "<title>{2}</title><desc>{3}</desc>{4}</svg>"
    ).format(_WIDTH, _HEIGHT, title, description, Markup("").join(parts))


def _axis(most: int) -> Markup:
    base = _HEIGHT - _FOOT
    line = Markup('<line class="axis" x1="{0}" x2="{1}" y1="{2}" y2="{2}"/>').format(_LEFT, _WIDTH, base)
    return line + _text(_LEFT - 4, 12, f"{most:,}", "end") + _text(_LEFT - 4, base, "0", "end")


def _bar(left: float, top: float, wide: float, tall: float, name: str, text: str) -> Markup:
    return Markup('<rect class="{0}" x="{1}" y="{2}" width="{3}" height="{4}"><title>{5}</title></rect>').format(
        name, f"{left:.1f}", f"{top:.1f}", f"{max(0.5, wide):.1f}", f"{tall:.1f}", text
    )


def _text(left: float, top: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{0}" y="{1}" text-anchor="{2}">{3}</text>').format(f"{left:.1f}", f"{top:.1f}", anchor, text)
