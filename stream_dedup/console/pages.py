"""The pages: functions from the sources and the query of an address to values for a template and
for JSON. No HTTP here.

Invariant: a source that cannot answer adds a sentence to `notices`, and the rest of the page is
shown; only a page that needs the source fails as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from stream_dedup.console.recent_decisions import BINS, FILTERS, KEEP, SPANS, filter_of
from stream_dedup.console.sources import ConsoleSources
from stream_dedup.console.tables import TABLES
from stream_dedup.console.values import (
    FIND_ORDERS,
    Decision,
    DocumentGroup,
    FoundDocuments,
    HostFigures,
    HostPairs,
    Opened,
    ReasonFigures,
    SimilarityFigures,
)
from stream_dedup.domain import differences
from stream_dedup.domain.document import DUPLICATES, SAME_ID
from stream_dedup.domain.errors import InputError, StreamDedupError
from stream_dedup.domain.hosts import asked_host
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.printable import printable
from stream_dedup.domain.relations import in_words, relation_of
from stream_dedup.fingerprinting import Recipe, SiteHasher

T = TypeVar("T")

ROWS: Final = 50
REMARKS: Final = 12
FOUND_ROWS: Final = 20
FOUND_MAX: Final = 10_000
GROUPS_MAX: Final = 1000
_GROUPS_OF_PAGE: Final = TABLES["groups"].shown
SEARCH_CHARACTERS_MAX: Final = 8_000
POSITION: Final = re.compile(r"[A-Za-z0-9._-]{1,249}-\d{1,9}@\d{1,18}\Z", re.ASCII)
_EMPTY: Final = (
    "No decisions yet: no record was written to unique or duplicates since this console started."
)
_NO_SEARCH: Final = (
    "This role has no full-text index. Start one with: stream-dedup run search --set http_port=8083"
)


class PageError(Exception):
    """The status and the sentence of a page that fails."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ThreadCall(Protocol):
    """Calls a source in a thread."""

    async def __call__(self, call: Callable[[], T], /) -> T:
        """Return the result of the source, or raise its error."""
        ...


Query = Mapping[str, str]
PageAnswer = Callable[[ConsoleSources, Query, ThreadCall], Awaitable[dict[str, Any]]]


async def _asked(
    notices: list[str],
    call: ThreadCall,
    source: Callable[[], T] | None,
    missing_packages: str,
    what: str,
    otherwise: T,
) -> T:
    """Return the result of a source; without one, or if it fails, `otherwise` with a notice that
    begins with `what`.
    """
    if source is None:
        notices.append(missing_packages)
        return otherwise
    try:
        return await call(source)
    except InputError:
        raise
    except (StreamDedupError, PageError) as error:
        notices.append(f"{what}: {error}" if what else str(error))
        return otherwise


async def _available_sources(
    sources: ConsoleSources, call: ThreadCall
) -> tuple[list[str], ConsoleSources]:
    """Return the notices of a page and its sources: while Kafka is unavailable, one notice and the
    sources without Kafka.
    """
    notices: list[str] = []
    away = await _asked(notices, call, sources.away, "", "Whether Kafka answers is not known", "")
    return ([away], sources.without_kafka()) if away else (notices, sources)


async def _begin(sources: ConsoleSources, call: ThreadCall) -> tuple[list[str], ConsoleSources]:
    """Do as `_available_sources` for a page of decisions; add why decisions are missing."""
    notices, answering = await _available_sources(sources, call)
    trouble = "" if notices else sources.trouble()
    if trouble:
        notices.append(f"Decisions are missing: {trouble}")
    elif not notices and not sources.recent.remembered:
        notices.append(_EMPTY)
    return notices, answering


async def now(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with the figures of a span. `remarks` is None if the checks could not run."""
    span = query.get("span", "") or "1h"
    notices, sources = await _begin(sources, call)
    are_decisions_missing = notices not in ([], [_EMPTY])
    plans = await _asked(notices, call, sources.plans, "", "", None)
    figures = sources.recent.now(span, plans.chart_marks() if plans else ())
    if are_decisions_missing:
        figures = replace(figures, per_second=None)
    lag = await _asked(notices, call, sources.lag, "", "The lag is not known", None)
    remarks = await _asked(
        notices, call, sources.remarks, "", "What needs attention is not known", None
    )
    duplicates = sum(
        figures.by_reason.get(reason, 0) for reason in DUPLICATES if reason not in SAME_ID
    )
    dismissed = list(dict.fromkeys(filter(None, query.get("dismissed", "").split(","))))
    listed = [remark for remark in remarks or () if not remark.host or remark.host not in dismissed]
    return {
        "notices": [notice for notice in notices if notice],
        "figures": figures,
        "span": span,
        "spans": tuple(SPANS),
        "duplicates": duplicates,
        "reasons": [
            ReasonFigures(reason, count, count / figures.total)
            for reason, count in figures.by_reason.items()
        ],
        "similarities": [
            SimilarityFigures(place / BINS, (place + 1) / BINS, count)
            for place, count in enumerate(figures.histogram)
            if count
        ],
        "lag": None if lag is None else sum(lag.values()),
        "lag_by_partition": lag
        and {
            partition: lag[partition]
            for partition in sorted(lag, key=lambda partition: -lag[partition])
            if lag[partition]
        },
        "fetched_again": sum(figures.by_reason.get(reason, 0) for reason in SAME_ID),
        "remarks": remarks if remarks is None else listed[:REMARKS],
        "more_remarks": max(0, len(listed) - REMARKS),
        "dismissed": dismissed,
        "as_of_ms": sources.recent.time_ms,
        "threshold": plans.now.similarity / 100 if plans and plans.now.similarity else None,
    }


async def decisions(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with the newest decisions that match the filters, or sorted by a column."""
    filters = filter_of(query)
    before = _number(query, "before")
    sort = query.get("sort", "")
    selected = sources.recent.select(filters, KEEP if sort else ROWS + 1, before)
    notices, _ = await _begin(sources, call)
    plans = await _asked([], call, sources.plans, "", "", None)
    if not selected and sources.recent.remembered:
        notices.append(
            f"None of the latest {sources.recent.remembered:,} decisions matches the filters."
        )
    return {
        "notices": notices,
        "decisions": selected if sort else selected[:ROWS],
        "older": selected[ROWS - 1].number if len(selected) > ROWS and not sort else None,
        "remembered": sources.recent.remembered,
        "is_live": before is None and not sort,
        "thresholds": thresholds_of(plans.now if plans else None),
    }


def thresholds_of(plan: Plan | None) -> str:
    """Return the sentence about the similarities of copies under a plan; empty without one."""
    if plan is None or not plan.similarity:
        return ""
    different, _, same_title, _, other_title = (share / 100 for share in plan.similarities)
    if other_title == different:
        return f"Documents are copies at a similarity of {different:.2f} or more."
    return (
        f"Pages of different sites are copies at a similarity of {different:.2f} or more, pages "
        f"of one site at {same_title:.2f} to {other_title:.2f} or more, depending on their titles."
    )


async def listed(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with all remembered decisions that match the filters, for CSV."""
    filters = filter_of(query)
    return {"decisions": await call(lambda: sources.recent.select(filters, KEEP))}


async def decision(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with one decision: similarity, both texts, their differences, all positions."""
    at = _position(query)
    notices, sources = await _available_sources(sources, call)
    decision = sources.recent.at(at)
    record = await _read_record(sources, call, at, notices)
    if record.is_forgotten:
        raise PageError(410, record.why)
    decision = decision or record.decision
    if decision is None:
        why = (
            " ".join(notices)
            or record.why
            or "it is a source record; its decision is on unique or duplicates."
        )
        if notices:
            raise PageError(503, f"The decision at {at} cannot be read now: {why}")
        raise PageError(404, f"There is no decision at {at}: {why}")
    # Other pages report an index that does not answer; this one needs it for one sentence.
    has_shares = decision.similarity is not None or decision.sibling_similarity is not None
    plans = await _asked([], call, sources.plans if has_shares else None, "", "", None)
    plan = plans.at(decision.log) if plans else None
    kept = None
    if kept_position := decision.of_position or decision.sibling_position:
        kept = await _read_record(sources, call, kept_position, notices, is_named_by_record=True)
    if kept is not None and kept.is_forgotten:
        decision = decision.without_kept_id()
        record = replace(record, decision=decision)
    released, search = "", sources.search
    if decision.is_duplicate and search is not None:
        ask = partial(search.released, decision.position)
        released = await _asked(notices, call, ask, "", "Whether it was released is not known", "")
    values = {
        "notices": notices,
        "decision": decision,
        "own": record,
        "kept": kept,
        "released": released,
        "release": "" if released else release_command(decision),
        "copies": await _copies_of_kept(sources, call, decision),
        "why": _why(plan, decision, record, kept),
    }
    return values | await call(lambda: _compared(sources, decision, record, kept))


async def _copies_of_kept(sources: ConsoleSources, call: ThreadCall, kept: Decision) -> int | None:
    """Return the number of known copies of a kept document; None for a duplicate or without an
    answer.
    """
    if kept.is_duplicate or not kept.position or sources.search is None:
        return None
    group = await _asked([], call, partial(sources.search.group, kept.position), "", "", None)
    return group.copies if group and group.position == kept.position else 0


def _why(plan: Plan | None, decision: Decision, record: Opened, kept: Opened | None) -> str:
    """Return in words why it is a copy or was kept, by the plan that judged it; empty without a
    text, or if equal texts decided.
    """
    share = decision.sibling_similarity if decision.similarity is None else decision.similarity
    is_known = kept is not None and record.text and kept.text and share is not None
    if (
        plan is None
        or not is_known
        or kept is None
        or decision.reason not in ("near", "revised", "new")
    ):
        return ""
    hasher = SiteHasher(Recipe())  # the hashes are compared here only, so any key will do
    origins = (
        hasher.origin_of(document.site, document.title, document.id.encode("utf-8", "replace"))
        for document in (record, kept)
    )
    relation, per_cent = relation_of(*origins), round(100 * (share or 0))
    threshold, is_same = plan.similarities[relation], record.id == kept.id
    if not threshold or (per_cent >= threshold) != decision.is_duplicate:
        return ""
    return in_words(per_cent, relation, threshold, (record.site, kept.site), has_same_id=is_same)


def _compared(
    sources: ConsoleSources, decision: Decision, record: Opened, kept: Opened | None
) -> dict[str, Any]:
    kept_decision = (
        None
        if kept is None or kept.is_forgotten
        else sources.recent.at(decision.of_position or decision.sibling_position)
    )
    has_texts = kept is not None and record.text and kept.text
    return {
        "comparison": differences.compare(kept.text, record.text) if has_texts and kept else None,
        "kept_decision": kept_decision,
        "blocks": differences.blocks(kept_decision.fingerprint, decision.fingerprint)
        if kept_decision
        else [],
    }


async def _read_record(
    sources: ConsoleSources,
    call: ThreadCall,
    at: str,
    notices: list[str],
    *,
    is_named_by_record: bool = False,
) -> Opened:
    """Return a record. If a record names it, an invalid position is returned as the reason, not
    raised.
    """
    missing_packages = Opened(at, "", "", "Texts cannot be read now.")
    opened = sources.opened
    if opened is None:
        return missing_packages
    try:
        record = await _asked(
            notices, call, lambda: opened(at), "", f"The text at {at} could not be read", None
        )
    except InputError as error:
        if not is_named_by_record:
            raise
        return Opened(at, "", "", str(error))
    return record or Opened(at, "", "", "It could not be read; see above.")


def release_command(decision: Decision) -> str:
    """Return the command that releases a duplicate; empty for a kept document."""
    return (
        f"stream-dedup release {decision.position or decision.at}" if decision.is_duplicate else ""
    )


async def find(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with a page of the documents that contain a text."""
    return await _found(sources, query, call, _page_number(query))


async def find_all(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with all documents that contain a text, for CSV."""
    return await _found(sources, query, call, None)


async def _found(
    sources: ConsoleSources, query: Query, call: ThreadCall, page: int | None
) -> dict[str, Any]:
    """Answer with a page of the documents, or with all of them without snippets."""
    text = query.get("q", "")
    order = query.get("order", "") or "best"
    if order not in FIND_ORDERS:
        raise InputError(f"order must be one of {', '.join(FIND_ORDERS)}, not {order!r:.40}.")
    if len(text) > SEARCH_CHARACTERS_MAX:
        raise InputError(
            f"The search text has {len(text):,} characters; the limit is "
            f"{SEARCH_CHARACTERS_MAX:,}. A sentence or two is enough. The command stream-dedup find "
            "reads a file."
        )
    notices: list[str] = []
    found = FoundDocuments()
    if sources.search is None:
        notices.append(_NO_SEARCH)
    elif text.strip():
        ask = partial(
            sources.search.find,
            text,
            FOUND_ROWS if page else FOUND_MAX,
            offset=FOUND_ROWS * (page - 1) if page else 0,
            order=order,
            host=query.get("host", ""),
            snippets=page is not None,
        )
        found = await _asked(notices, call, ask, "", "The search failed", found)
        notices += () if notices else _notices_of_find(found, has_snippets=page is not None)
    elif "q" in query:
        notices.append("The search text is empty; paste a sentence or two.")
    return {
        "notices": notices,
        "clue": text,
        "is_searched": sources.search is not None,
        "documents": list(found.documents),
        "total": found.total,
        "is_whole": found.is_whole,
        "hosts": found.hosts,
        "order": order,
        "page_number": page,
        "pages": -(-found.total // FOUND_ROWS),
        "first": FOUND_ROWS * ((page or 1) - 1) + 1,
    }


def _notices_of_find(found: FoundDocuments, *, has_snippets: bool) -> list[str]:
    """Return the notices about the documents that a search found."""
    if not found.documents:
        return [
            "This page is after the last one."
            if found.total
            else "No document contains this text, or most of it."
        ]
    if has_snippets and not all(document.snippet for document in found.documents):
        return [
            "Documents without a snippet were found by their words; their texts cannot be read now."
        ]
    return []


async def groups(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with a page of the groups of copies, the largest or the newest first."""
    return await _groups(sources, query, call, _page_number(query))


async def all_groups(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with the first `GROUPS_MAX` groups of copies, for CSV."""
    return await _groups(sources, query, call, None)


async def _groups(
    sources: ConsoleSources, query: Query, call: ThreadCall, page: int | None
) -> dict[str, Any]:
    order = query.get("order", "largest")
    if order not in ("largest", "newest"):
        raise InputError(f"order must be largest or newest, not {order!r:.40}.")
    notices: list[str] = []
    first = _GROUPS_OF_PAGE * ((page or 1) - 1)
    limit = _GROUPS_OF_PAGE + 1 if page else GROUPS_MAX  # one more: whether a page follows
    ask = None if sources.search is None else partial(sources.search.groups, order, limit, first)
    none: Sequence[DocumentGroup] = []
    listed_groups = await _asked(notices, call, ask, _NO_SEARCH, "The groups are not known", none)
    return {
        "notices": notices,
        "order": order,
        "groups": list(listed_groups[:_GROUPS_OF_PAGE] if page else listed_groups),
        "page_number": page,
        "is_last": len(listed_groups) < limit,
    }


async def group(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with one kept document and its copies; `at` may be a position or id of any of them."""
    at = query.get("at", "").strip()
    if not at:
        raise InputError("at must be the position or the id of a document.")
    search = sources.search
    if search is None:
        raise PageError(404, _NO_SEARCH)
    notices, sources = await _available_sources(sources, call)
    found_group = await call(lambda: search.group(at))
    position = found_group.position if found_group else at if POSITION.match(at) else ""
    kept = await _read_record(sources, call, position, notices, is_named_by_record=True)
    if found_group is None and not kept.text:
        raise PageError(404, f"No copies of the document {printable(at[:500])} are known.")
    return {
        "notices": notices,
        "group": found_group or DocumentGroup(at, kept.id, 0, 0, 0),
        "members": found_group.members if found_group else (),
        "older": sum(0 < member.time_ms < kept.time_ms for member in found_group.members)
        if found_group
        else 0,
        "kept": kept,
    }


async def hosts(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with the figures of each host, those with events first. `has_signals`: insights has
    written signals.
    """
    del query
    notices, sources = await _begin(sources, call)
    events_of_hosts = await _asked(
        notices, call, sources.events, "", "The events of hosts are not known", None
    )
    notices.append(
        await _asked(notices, call, sources.unwatched, "", "Whether insights runs is not known", "")
    )
    events = events_of_hosts or {}
    figures = {host_figures.host: host_figures for host_figures in sources.recent.hosts()}
    figures |= {host: HostFigures(host, 0, 0, 0, 0) for host in events if host not in figures}
    rows = [
        replace(host_figures, events=tuple(events.get(host, ())))
        for host, host_figures in figures.items()
    ]
    rows.sort(key=lambda row: not row.events)
    return {
        "notices": [notice for notice in notices if notice],
        "hosts": rows,
        "has_signals": events_of_hosts is not None,
        "remembered": sources.recent.remembered,
    }


async def copies(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with which hosts copied which, or with the copies of and from one host."""
    host = asked_host(query.get("host", ""))
    notices: list[str] = []
    ask = None if sources.search is None else partial(sources.search.pairs, host)
    none = HostPairs((), sources.recent.time_ms)
    pairs = await _asked(notices, call, ask, _NO_SEARCH, "The copies are not known", none)
    return {
        "notices": notices,
        "host": host,
        "pairs": pairs.pairs,
        "as_of_ms": pairs.as_of_ms,
    }


async def dead_letters(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with the dead letters: their number by kind, the newest, and the commands that send
    them back.
    """
    del query
    notices, sources = await _available_sources(sources, call)
    letters = await _asked(
        notices, call, sources.letters, "", "The dead letters are not known", None
    )
    return {
        "notices": [notice for notice in notices if notice],
        "letters": letters,
        "kinds": () if letters is None else letters.kinds,
        "listed": () if letters is None else letters.letters,
    }


def _position(query: Query) -> str:
    at = query.get("at", "").strip()
    if not POSITION.match(at):
        raise InputError(f"at must be a position such as duplicates-3@17, not {at!r:.80}.")
    return at


def _page_number(query: Query) -> int:
    return max(1, _number(query, "page") or 1)


def _number(query: Query, name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise InputError(f"{name} must be a whole number, not {text!r:.40}.")
    return int(text)


async def absent(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer for an address without a page."""
    del sources, query, call
    raise PageError(404, "There is no such page; the menu above lists all pages.")


PAGES: Final[dict[str, PageAnswer]] = {
    "now": now,
    "decisions": decisions,
    "decision": decision,
    "find": find,
    "groups": groups,
    "group": group,
    "hosts": hosts,
    "copies": copies,
    "dead-letters": dead_letters,
}
WHOLE: Final[dict[str, PageAnswer]] = {"decisions": listed, "find": find_all, "groups": all_groups}
"""The answers for the CSV of tables with more rows than their page shows."""
_OF_DECISIONS: Final = (*FILTERS, "before")
_OF_FIND: Final = ("q", "page", "order", "host")
_PARAMETERS: Final[dict[PageAnswer, tuple[str, ...]]] = dict.fromkeys(PAGES.values(), ()) | {
    now: ("span", "dismissed"),
    decisions: _OF_DECISIONS,
    listed: _OF_DECISIONS,
    decision: ("at",),
    find: _OF_FIND,
    find_all: _OF_FIND,
    groups: ("order", "page"),
    all_groups: ("order", "page"),
    group: ("at",),
    copies: ("host",),
}


def refuse_others(answer: PageAnswer, query: Query, *, is_table: bool = False) -> None:
    """Refuse a parameter that a page does not know, because the page would ignore it. A page with a
    table knows `sort` too.

    Raises:
        InputError: there is such a parameter.
    """
    parameters = _PARAMETERS.get(answer)
    if parameters is not None:
        refuse_unknown(query, (*parameters, "sort") if is_table else parameters)


def refuse_unknown(query: Query, parameters: Sequence[str]) -> None:
    """Refuse a parameter that is not in `parameters`.

    Raises:
        InputError: there is such a parameter.
    """
    name = next((parameter for parameter in query if parameter not in parameters), None)
    if name is not None:
        known = ", ".join(parameters) or "none"
        raise InputError(f"There is no parameter {name!r:.40}; the parameters are {known}.")
