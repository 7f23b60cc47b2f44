"""Tables and sentences of groups of copies, as a search answers them, for `group`."""

from __future__ import annotations

from typing import Any, Final

from stream_dedup.domain.printable import counted, printable, utc_text

COPY_COLUMNS: Final = [
    "copy",
    "host",
    "time",
    "similarity",
    "reason",
    "better by",
    "bytes",
    "position",
]
GROUP_COLUMNS: Final = [
    "kept document",
    "copies",
    "bytes wasted",
    "first copy",
    "newest copy",
    "best copy",
    "position",
]


def list_sentence(answer: dict[str, Any], shown: int) -> str:
    """Return how many of the groups are shown."""
    total = answer["total"]
    return (
        f"{shown:,} of {total:,} groups (--limit)."
        if total > shown
        else f"{counted(shown, 'group')}."
    )


def group_sentence(answer: dict[str, Any], shown: int) -> str:
    """Return the numbers of copies, the position, the times and the best copy of a group."""
    copies, again, in_log = answer["copies"], answer["fetched_again"], answer["counted"]
    total, best = copies + again, answer["best"]
    parts = [
        f"{_name(answer)} was kept and has {copies:,} {'copy' if copies == 1 else 'copies'}"
        + (f"; it was fetched again {counted(again, 'time')}" if again else "")
        + (f"; the newest {shown} are shown (--limit)" if total > shown else "")
        + ".",
        f"Its position is {answer['position']}.",
    ]
    if in_log is not None and in_log != total:
        parts.append(f"The log counted {in_log:,}.")
    newest = utc_text(answer["newest_ms"])
    if answer["oldest_ms"]:
        times = f"Time of the copy: {newest}." if total == 1 else ""
        parts.append(times or f"Times of the copies: {utc_text(answer['oldest_ms'])} to {newest}.")
    if best is not None:
        rule = printable(str(best["better"]), 40)
        parts.append(f"The best copy so far, by the rule {rule}, is {_name(best)}.")
    return " ".join(parts)


def group_row(group: dict[str, Any]) -> list[str]:
    """Return the row of a group for `GROUP_COLUMNS`."""
    best = group["best"]
    return [
        _name(group),
        f"{group['copies']:,}",
        f"{group['bytes_wasted']:,}",
        utc_text(group["oldest_ms"]),
        utc_text(group["newest_ms"]),
        "the kept one" if best is None else f"{_name(best)} ({printable(str(best['better']), 40)})",
        group["position"],
    ]


def copy_row(member: dict[str, Any]) -> list[str]:
    """Return the row of a copy for `COPY_COLUMNS`."""
    similarity = "" if member["similarity"] is None else f"{member['similarity']:.2f}"
    return [
        printable(str(member["id"] or "-"), 120),
        printable(str(member["host"]), 80),
        utc_text(member["time_ms"]),
        similarity,
        member["reason"],
        printable(str(member["better"]), 40),
        f"{member['size']:,}",
        member["at"],
    ]


def _name(group: dict[str, Any]) -> str:
    return printable(str(group["id"] or group.get("position") or group["at"]), 120)
