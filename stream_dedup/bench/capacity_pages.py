"""What the pages on sizing say, made from the figures of `index.measured`: two tables, each between two marks of its page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from stream_dedup.bench.path_report import PLANS
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.plan import parse
from stream_dedup.index.calibration import Constants
from stream_dedup.index.measured import Measured

PAGES: Final = {"docs/handbook.md": "sizing", "docs/explanation/capacity.md": "capacity"}
_SHARE_NEW: Final = 0.7
_TAKEN: Final = 0.8  # of the memory: a fifth stays free for tables that are laid out anew
_MONTH_SECONDS: Final = 2.592e6
_BURST: Final = 10
_BESIDE: Final = (1_000_000, 10_000_000, 100_000_000)
_CRAWLS: Final = ((1e6, "a month"), (1e8, "a month"), (1e10, "three days"), (1e10, "a month"))
_KEPT: Final = {"a month": 1.0, "three days": 0.1}


def put(text: str, name: str, found: Measured) -> str:
    """Return a page with the table of that name made anew.

    Raises:
        InputError: the page has no such marks.
    """
    return put_table(text, name, {"sizing": _sizing, "capacity": _crawls}[name](found))


def put_table(text: str, name: str, table: str) -> str:
    """Return a page with this table between the marks of that name.

    Raises:
        InputError: the page has no such marks.
    """
    changed, count = re.subn(
        rf"(<!-- {name}[^\n]*-->\n).*?(<!-- /{name} -->)",
        lambda marks: f"{marks[1]}\n{table}\n{marks[2]}",
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        raise InputError(f"A page on sizing has to hold `<!-- {name} -->` and `<!-- /{name} -->` once.")
    return changed


def put_tables(tree: Path, pages: Mapping[str, str], put: Callable[[str, str], str]) -> None:
    """Make the tables of pages anew; `pages` are the names of the tables by page, and `put` returns a text with one of them.

    Raises:
        InputError: a page has no such marks.
    """
    for page, name in pages.items():
        file = tree / page
        file.write_text(put(file.read_text(encoding="utf-8"), name), encoding="utf-8")


def index_us(found: Measured, plan: str, representatives: int) -> float:
    """Return the CPU time of one document in the index, beside so many representatives."""
    constants = Constants(**found.constants)  # type: ignore[arg-type]
    return constants.microseconds(parse(plan), representatives, _SHARE_NEW, surrounding_us=found.surrounding_us)


def _sizing(found: Measured) -> str:
    def both(values: dict[str, str], so: str) -> tuple[str, ...]:
        return (*(values[plan] for plan in PLANS), so)

    plans = PLANS
    beside = [
        (
            f"index, CPU of a document beside {count // 1_000_000} million representatives",
            *both({plan: f"{index_us(found, plan, count):.0f} us" for plan in plans}, _carries(found, count)),
        )
        for count in _BESIDE
    ]
    memory = {
        plan: f"{found.index_bytes[plan] / 1e9:.2f} GB and {found.memory_bytes[plan]:.0f} bytes a representative"
        for plan in plans
    }
    rows = [
        (
            "worker, CPU of a document",
            *both(
                {plan: f"{found.worker_us[plan]:.0f} us" for plan in plans}, f"a core carries {_rate(found.worker_us['bands'])}"
            ),
        ),
        *beside,
        ("broker, CPU of a document", *both({plan: f"{found.broker_us[plan]:.1f} us" for plan in plans}, "")),
        ("both roles, the broker beside them", *both({plan: f"{found.rate[plan]:,.0f} documents/s" for plan in plans}, "")),
        ("index, memory", *both(memory, f"with `bands` 3Gi: {_fit(found, 3)}; 20Gi: {_fit(found, 20)}")),
        (
            "index, volume, twice that while it compacts",
            *both(dict.fromkeys(plans, f"{found.disk_bytes:.0f} bytes a representative"), f"10Gi: {_room(found, 10)}"),
        ),
        (
            "log, for ever, before replication",
            *both(
                dict.fromkeys(plans, f"{found.log_bytes:.0f} bytes a document"), f"100 million: {found.log_bytes / 10:.0f} GB"
            ),
        ),
    ]
    said = f"Measured {found.date} on {found.machine}: documents of {found.documents}; ids of {found.id_bytes:.0f} bytes.\n\n"
    return said + rows_of(("what", *(f"`{plan}`" for plan in PLANS), "so"), rows)


def _crawls(found: Measured) -> str:
    rows = []
    for pages, kept in _CRAWLS:
        average = pages / _MONTH_SECONDS
        representatives = int(pages * _SHARE_NEW * _KEPT[kept])
        cells = []
        for plan in PLANS:
            most = 1e6 / index_us(found, plan, representatives)
            verdict = (
                "carries the burst" if most >= average * _BURST else "carries the average" if most >= average else "too slow"
            )
            memory = (found.index_bytes[plan] + found.memory_bytes[plan] * representatives) / 1e9
            cells.append(f"{_round(most)}/s, {verdict}; {_round(memory)} GB")
        rows.append(
            (
                f"10^{len(f'{pages:.0f}') - 1}",
                f"{_round(average)}; {_round(average * _BURST)}",
                f"{_round(average * _BURST * found.worker_us['bands'] / 1e6)}",
                kept,
                _count(representatives),
                *cells,
                f"{_round(found.log_bytes * pages / 1e9)} GB",
            )
        )
    heads = (
        "pages a month",
        "documents/s: average; tenfold burst",
        "workers' cores in the burst",
        "kept for",
        "representatives",
        *(f"one index with `{plan}`, on one core" for plan in PLANS),
        "log a month",
    )
    return rows_of(heads, rows)


def rows_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _carries(found: Measured, count: int) -> str:
    return " / ".join(f"{_round(1e6 / index_us(found, plan, count))}" for plan in PLANS) + " documents/s a core"


def _rate(microseconds: float) -> str:
    return f"{_round(1e6 / microseconds)} documents/s"


def _fit(found: Measured, gibibytes: int) -> str:
    return _count(int((gibibytes * 2**30 * _TAKEN - found.index_bytes["bands"]) / found.memory_bytes["bands"]))


def _room(found: Measured, gibibytes: int) -> str:
    return _count(int(gibibytes * 2**30 / 2 / found.disk_bytes))


def _count(number: int) -> str:
    return f"{_round(number / 1e9)} billion" if number >= 1e9 else f"{_round(number / 1e6)} million"


def _round(value: float) -> str:
    """Return two digits of a number, without an exponent."""
    if value < 0.01:
        return "under 0.01"
    return f"{float(f'{value:.2g}'):,.10g}"
