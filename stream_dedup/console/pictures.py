"""Pictures as SVG, drawn on the server: colours come from the stylesheet by class, so both themes
have them. Pure.

Widths are shares of the page's and heights pixels, so that no letter grows or shrinks with the
screen. Each has a title and a description for those who do not see it; the page puts the figures in
a table beside it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from stream_dedup.console.values import FigureColumn, PictureMark, rank_of
from stream_dedup.domain.document import OUTCOMES

_HEIGHT: Final = 200
_HEAD: Final = 20
_BASE: Final = _HEIGHT - 20
_TALL: Final = _BASE - _HEAD
_HATCH: Final = Markup(
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<path class="hatch" d="M0 6 6 0"/></pattern>'
)


def columns(
    figures: Sequence[FigureColumn], minutes: int, marks: Sequence[PictureMark] = ()
) -> Markup:
    """Draw a column for every `minutes` minutes of decisions, stacked by reason. Its text is the
    time and the counts; it is hatched if not all was read. A mark is a line.
    """
    count_max = max((sum(column.counts.values()) for column in figures), default=0)
    total = sum(sum(column.counts.values()) for column in figures)
    parts = [_HATCH]
    width = 100 / max(1, len(figures))
    for place, column in enumerate(figures):
        order = sorted(column.counts, key=rank_of)
        begins = dt.datetime.fromtimestamp(column.begin_ms / 1000, dt.UTC).strftime("%m-%d %H:%MZ")
        counts = ", ".join(f"{reason} {column.counts[reason]:,}" for reason in order) or "none"
        if not column.is_read:
            counts += " of the newest; others were not read" if order else "; not read"
        back = "back" if column.is_read else "unread"
        bars, top = [_bar(place * width, _HEAD, width, _TALL, back)], float(_BASE)
        for reason in order:
            height = _TALL * column.counts[reason] / max(1, count_max)
            top -= height
            bars.append(
                _bar(
                    place * width,
                    top,
                    width,
                    height,
                    f"r-{reason if reason in OUTCOMES else 'other'}",
                )
            )
        parts.append(_labelled(f"{begins}: {counts}", bars))
    span_ms = len(figures) * minutes * 60_000
    for mark in marks:
        line = Markup(
            '<g><title>{0}</title><line class="mark" x1="{1}%" x2="{1}%" y1="{2}" y2="{3}"/></g>'
        )
        at = 100 * (mark.time_ms - figures[0].begin_ms) / span_ms
        parts.append(line.format(mark.text, f"{at:.2f}", _HEAD, _BASE))
    parts += [
        _text(0, 12, f"at most {count_max:,} in {_span(minutes)}", "start"),
        _text(0, _HEIGHT - 5, f"{_span(len(figures) * minutes)} ago", "start"),
        _text(100, _HEIGHT - 5, "now", "end"),
    ]
    description = f"{total:,} decisions in {_span(len(figures) * minutes)}; at most {count_max:,} in {_span(minutes)}."
    return _svg("Decisions over time, by reason", description, parts)


def _span(minutes: int) -> str:
    """Return a number of minutes in the largest unit without a fraction."""
    for unit, unit_minutes in (("day", 1_440), ("hour", 60), ("minute", 1)):
        if minutes % unit_minutes == 0:
            return f"{minutes // unit_minutes} {unit}{'s' * (minutes != unit_minutes)}"
    raise AssertionError


def histogram(bins: Sequence[int], threshold: float | None) -> Markup:
    """Draw the numbers of duplicates by similarity, with the threshold as a line."""
    count_max = max(bins, default=0)
    width = 100 / max(1, len(bins))
    parts = [_text(0, 12, f"at most {count_max:,} in {1 / max(1, len(bins)):g}", "start")]
    for place, count in enumerate(bins):
        height = _TALL * count / max(1, count_max)
        text = f"{place / len(bins):.2f} to {(place + 1) / len(bins):.2f}: {count:,}"
        back = _bar(place * width, _HEAD, width, _TALL, "back")
        parts.append(
            _labelled(text, [back, _bar(place * width, _BASE - height, width, height, "bar")])
        )
    parts += [
        _text(
            100 * similarity,
            _HEIGHT - 5,
            f"{similarity:g}",
            "middle" if 0 < similarity < 1 else "end" if similarity else "start",
        )
        for similarity in (0, 0.25, 0.5, 0.75, 1)
    ]
    threshold_text = ""
    if threshold is not None:
        line = Markup('<line class="threshold" x1="{0}%" x2="{0}%" y1="{1}" y2="{2}"/>')
        parts.append(line.format(f"{100 * threshold:.1f}", _HEAD, _BASE))
        parts.append(
            _text(
                100 * threshold,
                12,
                f"threshold {threshold:g}",
                "end" if threshold > 0.5 else "start",
            )
        )
        threshold_text = f" The threshold is {threshold:g}."
    return _svg(
        "Duplicates by similarity",
        f"{sum(bins):,} duplicates with a similarity.{threshold_text}",
        parts,
    )


def share(part: float) -> Markup:
    """Draw a share, 0 to 1, as a bar in a line of text."""
    full = 100 * min(1.0, max(0.0, part))
    return Markup(
        '<svg class="share" viewBox="0 0 100 10" width="100" height="10" aria-hidden="true" '
        'preserveAspectRatio="none">'
        '<rect class="track" width="100" height="10"/><rect class="bar" width="{0}" '
        'height="10"/></svg>'
    ).format(f"{full:.1f}")


def _svg(title: str, description: str, parts: Sequence[Markup]) -> Markup:
    base = Markup('<line class="axis" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(_BASE)
    return Markup(
        '<svg class="picture" width="100%" height="{0}" role="img" aria-label="{1}. {2}">'
        "<title>{1}</title><desc>{2}</desc>{3}{4}</svg>"
    ).format(_HEIGHT, title, description, Markup("").join(parts), base)


def _labelled(text: str, bars: Sequence[Markup]) -> Markup:
    """Return bars with a text that the pointer shows, and as their title."""
    value = Markup('<text class="value" x="100%" y="12" text-anchor="end">{0}</text>')
    return Markup("<g><title>{0}</title>{1}{2}</g>").format(
        text, Markup("").join(bars), value.format(text)
    )


def _bar(left: float, top: float, width: float, height: float, name: str) -> Markup:
    return Markup('<rect class="{0}" x="{1}%" y="{2}" width="{3}%" height="{4}"/>').format(
        name, f"{left + 0.04 * width:.2f}", f"{top:.1f}", f"{0.92 * width:.2f}", f"{height:.1f}"
    )


def _text(left: float, top: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{0}%" y="{1}" text-anchor="{2}">{3}</text>').format(
        f"{left:.1f}", top, anchor, text
    )
