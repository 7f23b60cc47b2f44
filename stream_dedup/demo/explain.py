"""Print the tables of the demo, and some duplicates with their differences from the originals.

Invariants: everything printed follows from the outputs' headers and the two texts; control characters
never reach a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from stream_dedup.demo.crawl import CrawledPage
from stream_dedup.demo.score import DUPLICATE_FROM, TruthTally
from stream_dedup.domain import differences
from stream_dedup.domain.document import OUTCOMES, Message
from stream_dedup.domain.hosts import site_of
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.printable import printable
from stream_dedup.domain.relations import in_words, relation_of
from stream_dedup.domain.tables import FittedTable
from stream_dedup.fingerprinting import Recipe, SiteHasher
from stream_dedup.log.headers import text_of

_CHANGES_SHOWN = 3
_CONTEXT_CHARACTERS = 30


def show_balance(
    out: Console, total: int, unique: int, duplicates: int, dead: int, reasons: Counter[str]
) -> None:
    """Print the numbers of input and output pages, and the reasons."""
    out.print("in = unique + duplicates + dead letters", style="italic")
    table = FittedTable(("in", "unique", "duplicates", "dead letters", "reasons"), right=range(4))
    reasons_text = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    table.add_row(str(total), str(unique), str(duplicates), str(dead), reasons_text)
    table.print_to(out)


def show_languages(out: Console, tallies: Mapping[str, TruthTally]) -> None:
    """Print recall and false drops by language."""
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


def choose_duplicates(
    pages: Sequence[CrawledPage],
    duplicates: Sequence[Message],
    number_at: Mapping[str, int],
    jaccards: Mapping[tuple[int, int], float],
) -> list[tuple[Message, int, int]]:
    """Return three duplicates: an edit, a re-crawl and a mirror, each in a different language, with
    the numbers of its page and of its original. Each is the first true near-duplicate of its kind.

    `jaccards`: the Jaccard of the similar pairs, by the numbers of both pages in either order.
    """
    chosen: list[tuple[Message, int, int]] = []
    for kind in ("edit", "re-crawl", "mirror"):
        languages = {pages[page].language for _, page, _ in chosen}
        for duplicate in duplicates:
            page = int(text_of(duplicate.headers, "demo-page"))
            original = number_at.get(text_of(duplicate.headers, "dedup.of.position"))
            if original is None or pages[page].kind != kind or pages[page].language in languages:
                continue
            is_equal = pages[page].text == pages[original].text
            if not is_equal and jaccards.get((page, original), 0.0) >= DUPLICATE_FROM:
                chosen.append((duplicate, page, original))
                break
    return chosen


def find_siblings(
    unique: Sequence[Message], number_at: Mapping[str, int]
) -> list[tuple[Message, int, int]]:
    """Return the pages that were kept only because of their site or title, with the numbers of the
    page and of its sibling; the most similar first.
    """
    messages = [
        (message, int(text_of(message.headers, "demo-page")), number_at[sibling])
        for message in unique
        if (sibling := text_of(message.headers, "dedup.sibling.position")) in number_at
    ]
    similarities = {
        id(message): text_of(message.headers, "dedup.sibling.similarity")
        for message, _, _ in messages
    }
    return sorted(messages, key=lambda row: (similarities[id(row[0])], -row[1]), reverse=True)


def show_kept_sibling(
    out: Console, message: Message, page: CrawledPage, sibling: CrawledPage, plan: Plan
) -> None:
    """Print a page that was kept only because of its site or title, and its sibling."""
    out.print(Text.assemble(("unique", "bold green"), f"     {printable(page.id)}"))
    out.print(Text.assemble(("like     ", "bold"), f"  {printable(sibling.id)}"))
    for name, title in (("title", page.title), ("its title", sibling.title)):
        out.print(f"{name:<9}  {printable(title, 100)}")
    similarity = text_of(message.headers, "dedup.sibling.similarity")
    out.print(f"why        {_explain_similarity(similarity, page, sibling, plan)}")


def _explain_similarity(similarity: str, page: CrawledPage, other: CrawledPage, plan: Plan) -> str:
    """Return a sentence about the similarity of two pages. `similarity`: the value of its header."""
    hasher = SiteHasher(Recipe())
    sites = site_of(page.key), site_of(other.key)
    origins = (
        hasher.origin_of(site, document.title, document.key)
        for site, document in zip(sites, (page, other), strict=True)
    )
    relation = relation_of(*origins)
    threshold, has_same_id = plan.similarities[relation], page.id == other.id
    per_cent = round(100 * float(similarity))
    return in_words(per_cent, relation, threshold, sites, has_same_id=has_same_id)


def show_duplicate(
    out: Console,
    duplicate: Message,
    page: CrawledPage,
    original: CrawledPage,
    jaccard: float,
    plan: Plan,
) -> None:
    """Print a duplicate: its headers, the similarity of the texts, and the first differences."""
    reason, distance, similarity, kept_id = (
        text_of(duplicate.headers, f"dedup.{name}")
        for name in ("reason", "distance", "similarity", "of.id")
    )
    out.print(Text.assemble(("duplicate", "bold yellow"), f"  {printable(page.id)}"))
    out.print(Text.assemble(("of       ", "bold"), f"  {printable(kept_id)}"))
    out.print(
        f"why        {reason}: {OUTCOMES[reason].sentence}; {distance} of 128 bits differ, exact Jaccard "
        f"{jaccard:.2f}, language {page.language}"
    )
    if similarity:
        out.print(f"           {_explain_similarity(similarity, page, original, plan)}")
    for line in _differences(original, page):
        out.print(line)


def _differences(original: CrawledPage, page: CrawledPage) -> list[Text]:
    """Return the first differences, each between the characters before and after it."""
    texts = (" ".join(document.text.split()) for document in (original, page))
    pieces = differences.compare(*texts, folded=False).pieces
    changes = [index for index, piece in enumerate(pieces) if piece.kind != "same"]
    lines: list[Text] = []
    for index in changes[:_CHANGES_SHOWN]:
        before = pieces[index - 1].left[-_CONTEXT_CHARACTERS:] if index else ""
        after = pieces[index + 1].left[:_CONTEXT_CHARACTERS] if index + 1 < len(pieces) else ""
        line = Text(f"           …{printable(before, 120)}")
        # Marked as in wdiff, so that it is also readable without colours.
        for text, marks, style in (
            (pieces[index].left, "[--]", "red"),
            (pieces[index].right, "{++}", "green"),
        ):
            if text:
                line.append(f"{marks[:2]}{printable(text.strip(), 160)}{marks[2:]}", style)
        lines.append(line.append(f" {printable(after, 120)}…"))
    return lines + [Text("           ...")] * (len(changes) > _CHANGES_SHOWN)
