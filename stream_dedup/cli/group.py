"""`group`: a kept document with all its copies, from a running search."""

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
    if named is None:
        return list_groups(settings, search, newest=newest, limit=limit, as_json=as_json)
    return show_group(settings, search, named, limit=limit, as_json=as_json)


def show_group(
    settings: Settings, search: str | None, named: str, *, limit: int, as_json: bool
) -> int:
    """Print a group with its newest copies, at most `limit`; return 0."""
    query = urllib.parse.urlencode({"of": named, "limit": limit}, errors="replace")
    answer = ask_search(settings, search, f"/v1/groups?{query}")
    with of_this_version():
        rows = [_row(member) for member in answer["members"]]
        line = (
            f"{_name(answer)} was kept, and {answer['copies']:,} "
            f"{'copy' if answer['copies'] == 1 else 'copies'} of it judged "
            f"{'a duplicate' if answer['copies'] == 1 else 'duplicates'}"
        )
        again, total = answer["fetched_again"], answer["copies"] + answer["fetched_again"]
        line += f"; it was fetched again {counted(again, 'time')}" if again else ""
        more = _more(answer, total)
    if as_json:
        print_json(answer)
        return 0
    print_table(
        ["copy", "host", "time", "similarity", "reason", "better by", "bytes", "position"], rows
    )
    listed = f"; listed are the newest {len(rows)} (--limit)" if total > len(rows) else ""
    note(f"{line}{listed}. It lies at {answer['position']}.{more}")
    return 0


def _more(answer: dict[str, Any], total: int) -> str:
    """Return what else is told of a group of `total` members: what the log counts, since when, the
    best copy.
    """
    counted, best = answer["counted"], answer["best"]
    found = f" The log has counted {counted:,}." if counted is not None and counted != total else ""
    if answer["oldest_ms"] and total == 1:
        found += f" It came at {time_of(answer['newest_ms'])}."
    elif answer["oldest_ms"]:
        found += f" All came from {time_of(answer['oldest_ms'])} to {time_of(answer['newest_ms'])}."
    if best is not None:
        found += f" The best copy so far, by the rule {printable(str(best['better']), 40)}, is {_name(best)}."
    return found


def list_groups(
    settings: Settings, search: str | None, *, newest: bool, limit: int, as_json: bool
) -> int:
    """Print the largest groups, or the newest; return 0."""
    query = urllib.parse.urlencode({"order": "newest" if newest else "largest", "limit": limit})
    answer = ask_search(settings, search, f"/v1/groups?{query}")
    with of_this_version():
        rows = [
            [
                _name(group),
                f"{group['copies']:,}",
                f"{group['bytes_wasted']:,}",
                time_of(group["oldest_ms"]),
                time_of(group["newest_ms"]),
                ""
                if group["best"] is None
                else f"{_name(group['best'])} ({printable(str(group['best']['better']), 40)})",
                group["position"],
            ]
            for group in answer["groups"]
        ]
    if as_json:
        print_json(answer)
        return 0
    print_table(
        [
            "kept document",
            "copies",
            "bytes wasted",
            "first copy",
            "newest copy",
            "best copy",
            "position",
        ],
        rows,
    )
    of = f" of {answer['total']:,}" if answer["total"] > len(rows) else ""
    note(f"{len(rows):,}{of} groups (--limit)." if of else f"{counted(len(rows), 'group')}.")
    return 0


def _row(member: dict[str, Any]) -> list[str]:
    similarity = "" if member["similarity"] is None else f"{member['similarity']:.2f}"
    name = printable(str(member["id"] or "-"), 120)
    return [
        name,
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
