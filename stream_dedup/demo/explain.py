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
from stream_dedup.domain.document import OUTCOMES, Message
from stream_dedup.domain.hosts import site_of
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.printable import printable
from stream_dedup.domain.related import in_words, relation_of
from stream_dedup.domain.tables import FittedTable
from stream_dedup.fingerprinting import Recipe, SiteHasher
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


def siblings(
    unique: Sequence[Message], number_at: Mapping[str, int]
) -> list[tuple[Message, int, int]]:
    """Return what only its site or title kept, with the numbers of its page and of its sibling, the
    most alike first.
    """
    found = [
        (one, int(text_of(one.headers, "demo-page")), number_at[sibling])
        for one in unique
        if (sibling := text_of(one.headers, "dedup.sibling.position")) in number_at
    ]
    shares = {id(one): text_of(one.headers, "dedup.sibling.similarity") for one, _, _ in found}
    return sorted(found, key=lambda row: (shares[id(row[0])], -row[1]), reverse=True)


def show_kept(
    out: Console, one: Message, page: CrawledPage, sibling: CrawledPage, plan: Plan
) -> None:
    """Print a page that only its site or title kept, beside the page that it is like."""
    out.print(Text.assemble(("unique", "bold green"), f"     {printable(page.id)}"))
    out.print(Text.assemble(("like     ", "bold"), f"  {printable(sibling.id)}"))
    for name, what in (("title", page.title), ("its title", sibling.title)):
        out.print(f"{name:<9}  {printable(what, 100)}")
    share = text_of(one.headers, "dedup.sibling.similarity")
    out.print(f"why        {_why(share, page, sibling, plan)}")


def _why(share: str, page: CrawledPage, other: CrawledPage, plan: Plan) -> str:
    """Return in words what a similarity, as headers have it, means for two pages."""
    hasher = SiteHasher(Recipe())
    sites = site_of(page.key), site_of(other.key)
    origins = (
        hasher.origin_of(site, one.title, one.key)
        for site, one in zip(sites, (page, other), strict=True)
    )
    relation = relation_of(*origins)
    threshold, is_same = plan.similarities[relation], page.id == other.id
    return in_words(round(100 * float(share)), relation, threshold, sites, has_same_id=is_same)


def show_duplicate(
    out: Console, one: Message, page: CrawledPage, kept: CrawledPage, plan: Plan
) -> None:
    """Print one duplicate: what its headers say, how much the texts share, and the first
    differences.
    """
    resemblance = _resemblance(page, kept)
    reason, distance = text_of(one.headers, "dedup.reason"), text_of(one.headers, "dedup.distance")
    similarity = text_of(one.headers, "dedup.similarity")
    out.print(Text.assemble(("duplicate", "bold yellow"), f"  {printable(page.id)}"))
    out.print(
        Text.assemble(("of       ", "bold"), f"  {printable(text_of(one.headers, 'dedup.of.id'))}")
    )
    out.print(
        f"why        {reason}: {OUTCOMES[reason].sentence}; {distance} of 128 bits differ, exact Jaccard "
        f"{resemblance:.2f}, language {page.language}"
    )
    if similarity:
        out.print(f"           {_why(similarity, page, kept, plan)}")
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
