"""Draw charts as SVG. Pure.

Colours come from the stylesheet by class, so that charts work in both themes. Widths are percentages
of the page and heights are pixels, so that the size of letters does not depend on the screen. Each
chart has a title and a description for screen readers; the page also shows the figures as a table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from stream_dedup.console.values import FigureColumn, PictureMark, rank_of
from stream_dedup.domain.document import OUTCOMES

_HEIGHT: Final = 200
_TOP: Final = 20
_BOTTOM: Final = _HEIGHT - 20
_CHART_HEIGHT: Final = _BOTTOM - _TOP
_HATCH: Final = Markup(
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<path class="hatch" d="M0 6 6 0"/></pattern>'
)


def columns(
    figures: Sequence[FigureColumn], minutes: int, marks: Sequence[PictureMark] = ()
) -> Markup:
    """Draw a column for every `minutes` minutes of decisions, stacked by reason. Its text contains
    the time and the counts; it is hatched if not all records were read. Marks are drawn as lines.
    """
    count_max = max((sum(column.counts.values()) for column in figures), default=0)
    total = sum(sum(column.counts.values()) for column in figures)
    parts = [_HATCH]
    width = 100 / max(1, len(figures))
    for index, column in enumerate(figures):
        order = sorted(column.counts, key=rank_of)
        begin_text = dt.datetime.fromtimestamp(column.begin_ms / 1000, dt.UTC).strftime(
            "%m-%d %H:%MZ"
        )
        counts = ", ".join(f"{reason} {column.counts[reason]:,}" for reason in order) or "none"
        if not column.is_read:
            counts += " (only the newest records were read)" if order else " (not read)"
        background = "back" if column.is_read else "unread"
        bars, top = [_bar(index * width, _TOP, width, _CHART_HEIGHT, background)], float(_BOTTOM)
        for reason in order:
            height = _CHART_HEIGHT * column.counts[reason] / max(1, count_max)
            top -= height
            bars.append(
                _bar(
                    index * width,
                    top,
                    width,
                    height,
                    f"r-{reason if reason in OUTCOMES else 'other'}",
                )
            )
        parts.append(_with_label(f"{begin_text}: {counts}", bars))
    span_ms = len(figures) * minutes * 60_000
    for mark in marks:
        line = Markup(
            '<g><title>{0}</title><line class="mark" x1="{1}%" x2="{1}%" y1="{2}" y2="{3}"/></g>'
        )
        left = 100 * (mark.time_ms - figures[0].begin_ms) / span_ms
        parts.append(line.format(mark.text, f"{left:.2f}", _TOP, _BOTTOM))
    parts += [
        _text(0, 12, f"at most {count_max:,} in {_span(minutes)}", "start"),
        _text(0, _HEIGHT - 5, f"{_span(len(figures) * minutes)} ago", "start"),
        _text(100, _HEIGHT - 5, "now", "end"),
    ]
    description = f"{total:,} decisions in {_span(len(figures) * minutes)}; at most {count_max:,} in {_span(minutes)}."
    return _svg("Decisions over time, by reason", description, parts)


def _span(minutes: int) -> str:
    """Return a duration in the largest unit in which it is a whole number."""
    for unit, unit_minutes in (("day", 1_440), ("hour", 60), ("minute", 1)):
        if minutes % unit_minutes == 0:
            return f"{minutes // unit_minutes} {unit}{'s' * (minutes != unit_minutes)}"
    raise AssertionError


def histogram(bins: Sequence[int], threshold: float | None) -> Markup:
    """Draw the numbers of duplicates by similarity, with the threshold as a line without a label."""
    count_max = max(bins, default=0)
    width = 100 / max(1, len(bins))
    parts = [
        _text(0, 12, f"at most {count_max:,} in a range of {1 / max(1, len(bins)):g}", "start")
    ]
    for index, count in enumerate(bins):
        height = _CHART_HEIGHT * count / max(1, count_max)
        text = f"{index / len(bins):.2f} to {(index + 1) / len(bins):.2f}: {count:,}"
        background = _bar(index * width, _TOP, width, _CHART_HEIGHT, "back")
        parts.append(
            _with_label(
                text, [background, _bar(index * width, _BOTTOM - height, width, height, "bar")]
            )
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
        parts.append(line.format(f"{100 * threshold:.1f}", _TOP, _BOTTOM))
        threshold_text = f" The threshold is {threshold:g}."
    return _svg(
        "Duplicates by similarity",
        f"{sum(bins):,} duplicates with a similarity.{threshold_text}",
        parts,
    )


def share(part: float) -> Markup:
    """Draw a part, 0 to 1, as a bar in a line of text."""
    full = 100 * min(1.0, max(0.0, part))
    return Markup(
        '<svg class="share" viewBox="0 0 100 10" width="100" height="10" aria-hidden="true" '
        'preserveAspectRatio="none">'
        '<rect class="track" width="100" height="10"/><rect class="bar" width="{0}" '
        'height="10"/></svg>'
    ).format(f"{full:.1f}")


def _svg(title: str, description: str, parts: Sequence[Markup]) -> Markup:
    axis = Markup('<line class="axis" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(_BOTTOM)
    return Markup(
        '<svg class="picture" width="100%" height="{0}" role="img" aria-label="{1}. {2}">'
        "<title>{1}</title><desc>{2}</desc>{3}{4}</svg>"
    ).format(_HEIGHT, title, description, Markup("").join(parts), axis)


def _with_label(text: str, bars: Sequence[Markup]) -> Markup:
    """Return bars with a text that is shown while the pointer is on them, and is their title."""
    value = Markup('<text class="value" x="100%" y="12" text-anchor="end">{0}</text>')
    return Markup("<g><title>{0}</title>{1}{2}</g>").format(
        text, Markup("").join(bars), value.format(text)
    )


def _bar(left: float, top: float, width: float, height: float, css_class: str) -> Markup:
    return Markup('<rect class="{0}" x="{1}%" y="{2}" width="{3}%" height="{4}"/>').format(
        css_class,
        f"{left + 0.04 * width:.2f}",
        f"{top:.1f}",
        f"{0.92 * width:.2f}",
        f"{height:.1f}",
    )


def _text(left: float, top: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{0}%" y="{1}" text-anchor="{2}">{3}</text>').format(
        f"{left:.1f}", top, anchor, text
    )
