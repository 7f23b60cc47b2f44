"""The demo's tables, and duplicates shown beside the page they name, with what differs marked.

Invariant: shows only what the outputs' headers say and what the two texts are; control characters
never reach a terminal.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from stream_dedup.demo import truth
from stream_dedup.demo.crawl import CrawledPage
from stream_dedup.ground.document import Message
from stream_dedup.ground.printable import printable
from stream_dedup.ground.tables import FittedTable
from stream_dedup.log.headers import text_of

_CHANGES_SHOWN = 3
_CONTEXT_TOKENS = 5
_UNSPACED = frozenset({"zh", "ja", "th"})


def show_balance(
    out: Console, came: int, unique: int, duplicates: int, dead: int, reasons: Counter[str]
) -> None:
    """Print what went in and what came out, by reason."""
    out.print("in = unique + duplicates + dead letters", style="italic")
    table = FittedTable(("in", "unique", "duplicates", "dead letters", "reasons"), right=range(4))
    said = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    table.add_row(str(came), str(unique), str(duplicates), str(dead), said)
    table.print_to(out)


def show_languages(out: Console, tallies: Mapping[str, truth.TruthTally]) -> None:
    """Print how well each language was served."""
    headings = (
        "language",
        "pages",
        "true duplicates",
        "found",
        "recall",
        "false drops",
        "grey",
        "grey dropped",
    )
    table = FittedTable(headings, right=range(1, len(headings)))
    for language, tally in sorted(tallies.items()):
        figures = (
            tally.pages,
            tally.positives,
            tally.found,
            f"{tally.recall:.3f}",
            tally.false_drops,
            tally.grey,
        )
        table.add_row(language, *map(str, figures), str(tally.grey_dropped))
    table.print_to(out)


def choose(
    pages: Sequence[CrawledPage],
    duplicates: Sequence[Message],
    number_at: Mapping[str, int],
    kinds: Sequence[str],
) -> list[tuple[Message, int, int]]:
    """Return a duplicate of each kind, with the numbers of its page and of the page it names, each
    in another language.

    Of a kind the middle one by distance is taken among the true near-duplicates: neither an easy
    one nor a lucky one.
    """
    chosen: list[tuple[Message, int, int]] = []
    for kind in kinds:
        found = []
        for one in duplicates:
            page, kept = (
                int(text_of(one.headers, "demo-page")),
                number_at.get(text_of(one.headers, "dedup.of.position")),
            )
            is_new = all(pages[page].language != pages[other].language for _, other, _ in chosen)
            if (
                kept is None
                or pages[page].kind != kind
                or not is_new
                or pages[page].text == pages[kept].text
            ):
                continue
            if _resemblance(pages[page], pages[kept]) >= truth.DUPLICATE_FROM:
                found.append((int(text_of(one.headers, "dedup.distance")), page, kept, one))
        if found:
            _, page, kept, one = sorted(found, key=lambda row: row[:3])[len(found) // 2]
            chosen.append((one, page, kept))
    return chosen


def show_duplicate(out: Console, one: Message, page: CrawledPage, kept: CrawledPage) -> None:
    """Print one duplicate: what its headers say, how much the texts share, and the first
    differences.
    """
    resemblance = _resemblance(page, kept)
    reason, distance = text_of(one.headers, "dedup.reason"), text_of(one.headers, "dedup.distance")
    similarity = text_of(one.headers, "dedup.similarity")
    witnesses = [f"{similarity} alike by its sketch"] if similarity else []
    witnesses.append(f"{distance} of 128 bits differ")
    out.print(Text.assemble(("duplicate", "bold yellow"), f"  {printable(page.id)}"))
    out.print(
        Text.assemble(("of       ", "bold"), f"  {printable(text_of(one.headers, 'dedup.of.id'))}")
    )
    what = {
        "near": "another page, nearly the same text",
        "revised": "the same page, a little changed",
        "exact": "another page, the same text",
        "unchanged": "the same page, the same text",
        "returned": "the same page, a text that it had before the last one",
    }
    out.print(
        f"why        {reason}: {what[reason]}; {', '.join(witnesses)}, exact Jaccard "
        f"{resemblance:.2f}, "
        f"language {page.language}"
    )
    for line in _differences(kept, page):
        out.print(line)


def _resemblance(one: CrawledPage, other: CrawledPage) -> float:
    return truth.jaccard(
        truth.shingles(one.text, one.language), truth.shingles(other.text, other.language)
    )


def _differences(kept: CrawledPage, page: CrawledPage) -> list[Text]:
    before, after = _tokens(kept), _tokens(page)
    joint = "" if page.language in _UNSPACED else " "
    lines: list[Text] = []
    for action, first, last, start, end in difflib.SequenceMatcher(
        None, before, after, autojunk=False
    ).get_opcodes():
        if action == "equal":
            continue
        if len(lines) == _CHANGES_SHOWN:
            lines.append(Text("           ..."))
            break
        lead = joint.join(before[max(0, first - _CONTEXT_TOKENS) : first])
        line = Text("           " + printable(lead + joint, 120))
        # Marked as wdiff does, so that it can be read without colours too.
        if first < last:
            line.append(f"[-{printable(joint.join(before[first:last]), 160)}-]", style="red")
        if start < end:
            line.append(f"{{+{printable(joint.join(after[start:end]), 160)}+}}", style="green")
        tail = joint.join(before[last : last + _CONTEXT_TOKENS])
        line.append(printable(joint + tail, 120))
        lines.append(line)
    return lines


def _tokens(page: CrawledPage) -> list[str]:
    return (
        list(page.text.replace("\n", " "))
        if page.language in _UNSPACED
        else re.findall(r"\S+", page.text)
    )
