"""`group`: print a kept document with its copies, or groups of copies, from a running search."""

from __future__ import annotations

import urllib.parse
from typing import Annotated, Any

import typer

from stream_dedup.cli.find import SearchOption
from stream_dedup.cli.options import JsonOption, command
from stream_dedup.domain.printable import counted, printable
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.search.client import ask_search, of_this_version, time_of
from stream_dedup.settings.settings import Settings

_COPY_COLUMNS = ["copy", "host", "time", "similarity", "reason", "better by", "bytes", "position"]
_GROUP_COLUMNS = [
    "kept document",
    "copies",
    "bytes wasted",
    "first copy",
    "newest copy",
    "best copy",
]


@command("group", example="stream-dedup group duplicates-3@17", asks_kafka=False)
def group_command(
    settings: Settings,
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID|POSITION]",
            help="Id or position of a document; without one, groups are listed.",
            show_default=False,
        ),
    ] = None,
    newest: Annotated[
        bool,
        typer.Option("--newest", help="List the newest groups instead of the largest."),
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, max=1000, help="List at most N groups, or copies of one."
        ),
    ] = 20,
    search: SearchOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show a kept document with its copies, or the largest groups of copies."""
    order = "newest" if newest else "largest"
    query = {"limit": limit} | ({"order": order} if named is None else {"of": named})
    path = f"/v1/groups?{urllib.parse.urlencode(query, errors='replace')}"
    answer = ask_search(settings, search, path)
    with of_this_version():
        columns = [*_GROUP_COLUMNS, "position"] if named is None else _COPY_COLUMNS
        rows = list(
            map(_group_row, answer["groups"])
            if named is None
            else map(_copy_row, answer["members"])
        )
        sentence = (_list_sentence if named is None else _group_sentence)(answer, len(rows))
    if as_json:
        print_json(answer)
    else:
        print_table(columns, rows)
        note(sentence)
    return 0


def _list_sentence(answer: dict[str, Any], shown: int) -> str:
    total = answer["total"]
    return (
        f"{shown:,} of {total:,} groups (--limit)."
        if total > shown
        else f"{counted(shown, 'group')}."
    )


def _group_sentence(answer: dict[str, Any], shown: int) -> str:
    """Return the numbers of copies, the position, the times and the best copy of a group."""
    copies, again, in_log = answer["copies"], answer["fetched_again"], answer["counted"]
    total, best = copies + again, answer["best"]
    parts = [
        f"{_name(answer)} was kept, and {copies:,} {'copy' if copies == 1 else 'copies'} of it judged "
        f"{'a duplicate' if copies == 1 else 'duplicates'}"
        + (f"; it was fetched again {counted(again, 'time')}" if again else "")
        + (f"; the newest {shown} are shown (--limit)" if total > shown else "")
        + ".",
        f"Its position is {answer['position']}.",
    ]
    if in_log is not None and in_log != total:
        parts.append(f"The log has counted {in_log:,}.")
    newest = time_of(answer["newest_ms"])
    if answer["oldest_ms"]:
        times = f"It came at {newest}." if total == 1 else ""
        parts.append(times or f"All came from {time_of(answer['oldest_ms'])} to {newest}.")
    if best is not None:
        rule = printable(str(best["better"]), 40)
        parts.append(f"The best copy so far, by the rule {rule}, is {_name(best)}.")
    return " ".join(parts)


def _group_row(group: dict[str, Any]) -> list[str]:
    best = group["best"]
    return [
        _name(group),
        f"{group['copies']:,}",
        f"{group['bytes_wasted']:,}",
        time_of(group["oldest_ms"]),
        time_of(group["newest_ms"]),
        "the kept one" if best is None else f"{_name(best)} ({printable(str(best['better']), 40)})",
        group["position"],
    ]


def _copy_row(member: dict[str, Any]) -> list[str]:
    similarity = "" if member["similarity"] is None else f"{member['similarity']:.2f}"
    return [
        printable(str(member["id"] or "-"), 120),
        printable(str(member["host"]), 80),
        time_of(member["time_ms"]),
        similarity,
        member["reason"],
        printable(str(member["better"]), 40),
        f"{member['size']:,}",
        member["at"],
    ]


def _name(group: dict[str, Any]) -> str:
    return printable(str(group["id"] or group.get("position") or group["at"]), 120)
