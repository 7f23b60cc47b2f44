"""Format the groups of copies that a search returns as tables and sentences, for `group`."""

from __future__ import annotations

from typing import Any, Final

from stream_dedup.domain.printable import counted, printable, utc_text
from stream_dedup.search.client import page_notes

COPY_COLUMNS: Final = [
    "copy",
    "host",
    "fetches",
    "first",
    "newest",
    "similarity",
    "reason",
    "best by rule",
    "bytes",
    "position",
]
GROUP_COLUMNS: Final = [
    "kept document",
    "copies",
    "bytes wasted",
    "first copied",
    "last copied",
    "best copy",
    "position",
]


def summarise_list(answer: dict[str, Any]) -> str:
    """Return sentences: how many groups there are, and which of them are listed."""
    total = answer["total"]
    notes = page_notes(answer, len(answer["groups"]), total, "group")
    return " ".join([f"{counted(total, 'group')}.", *notes])


def summarise_group(answer: dict[str, Any]) -> str:
    """Return sentences about a group: its copies, and which of the copied web pages are listed; its
    position, record times and best copy.
    """
    copies, fetched_again, in_log = answer["copies"], answer["fetched_again"], answer["counted"]
    released, best = answer["released"], answer["best"]
    total = copies + fetched_again + released
    pages, listed = answer["member_count"], len(answer["members"])
    has_repeated = listed == pages != copies
    parts = [
        f"{_name(answer)} was kept and has {copies:,} {'copy' if copies == 1 else 'copies'}"
        + (f" ({counted(pages, 'page')}, some fetched more than once)" if has_repeated else "")
        + (f"; it was fetched again {counted(fetched_again, 'time')}" if fetched_again else "")
        + (f"; an operator released {counted(released, 'other')}" if released else "")
        + ".",
        *page_notes(answer, len(answer["members"]), answer["member_count"], "page"),
        f"Its position is {answer['position']}.",
    ]
    if in_log is not None and in_log != total:
        parts.append(
            f"The log counted {counted(in_log, 'duplicate')} of it, including repeated fetches."
        )
    newest = utc_text(answer["newest_ms"])
    if answer["oldest_ms"]:
        times = f"Record time: {newest}." if copies == 1 else ""
        parts.append(times or f"Record times: {utc_text(answer['oldest_ms'])} to {newest}.")
    if best is not None:
        rule = printable(str(best["better"]), 40)
        parts.append(f"The best copy so far, by the rule {rule}, is {_name(best)}.")
    return " ".join(parts)


def group_row(group: dict[str, Any]) -> list[str]:
    """Return the cells of a group, by `GROUP_COLUMNS`."""
    best = group["best"]
    return [
        _name(group),
        f"{group['copies']:,}",
        f"{group['bytes_wasted']:,}",
        utc_text(group["oldest_ms"]),
        utc_text(group["newest_ms"]),
        "the kept document"
        if best is None
        else f"{_name(best)} ({printable(str(best['better']), 40)})",
        group["position"],
    ]


def copy_row(member: dict[str, Any]) -> list[str]:
    """Return the cells of a copy, by `COPY_COLUMNS`."""
    similarity = "" if member["similarity"] is None else f"{member['similarity']:.2f}"
    return [
        printable(str(member["id"] or "-"), 120),
        printable(str(member["host"]), 80),
        f"{member['fetches']:,}",
        utc_text(member["first_ms"]),
        utc_text(member["newest_ms"]),
        similarity,
        member["reason"],
        printable(str(member["better"]), 40),
        f"{member['size']:,}",
        member["output_position"],
    ]


def _name(group: dict[str, Any]) -> str:
    return printable(str(group["id"] or group.get("position") or group["output_position"]), 120)
