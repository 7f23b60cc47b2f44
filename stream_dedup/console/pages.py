"""Compute the values of each page, for its template and for JSON, from the sources and the query of
the address. This module contains no HTTP.

Invariant: if a source cannot answer, a sentence is added to `notices`, and the rest of the page is
shown; a page fails only if it can show nothing without the source.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from stream_dedup.console.recent_decisions import (
    BINS,
    FILTERS,
    SPANS,
    figures_of_hosts,
    filter_of,
    select,
)
from stream_dedup.console.sources import ConsoleSources, TextSearch
from stream_dedup.console.tables import TABLES
from stream_dedup.console.values import (
    FIND_ORDERS,
    Decision,
    DocumentGroup,
    FoundDocuments,
    HostFigures,
    HostPairs,
    OpenedRecord,
    ReasonFigures,
    SimilarityFigures,
)
from stream_dedup.domain import differences
from stream_dedup.domain.document import DUPLICATES, SAME_ID
from stream_dedup.domain.errors import InputError, StreamDedupError
from stream_dedup.domain.hosts import searched_host
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.printable import printable
from stream_dedup.domain.relations import in_words, relation_of
from stream_dedup.fingerprinting import Recipe, SiteHasher

T = TypeVar("T")

ROWS: Final = 50
REMARKS_MAX: Final = 12
FOUND_PER_PAGE: Final = 20
FOUND_MAX: Final = 10_000
GROUPS_MAX: Final = 1000
_GROUPS_PER_PAGE: Final = TABLES["groups"].rows_shown
SEARCH_CHARACTERS_MAX: Final = 8_000
POSITION: Final = re.compile(r"[A-Za-z0-9._-]{1,249}-\d{1,9}@\d{1,18}\Z", re.ASCII)
_NO_DECISIONS: Final = (
    "No decisions yet: no record was written to unique or duplicates since this console started."
)
_NO_SEARCH: Final = (
    "This role has no full-text index. Start one with: stream-dedup run search --set http_port=8083"
)


class PageError(Exception):
    """A page failed. `status`: its HTTP status; the message is a sentence for the page."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ThreadCall(Protocol):
    """Calls a function in a thread."""

    async def __call__(self, call: Callable[[], T], /) -> T:
        """Return the result of the function, or raise its error."""
        ...


Query = Mapping[str, str]
PageAnswer = Callable[[ConsoleSources, Query, ThreadCall], Awaitable[dict[str, Any]]]


async def _call_or_notice(
    notices: list[str],
    call: ThreadCall,
    source: Callable[[], T] | None,
    missing_notice: str,
    failure: str,
    default: T,
) -> T:
    """Return the result of a source. Without a source, return `default` and add `missing_notice`; if
    the source fails, return `default` and add a notice that begins with `failure`.
    """
    if source is None:
        notices.append(missing_notice)
        return default
    try:
        return await call(source)
    except InputError:
        raise
    except (StreamDedupError, PageError) as error:
        notices.append(f"{failure}: {error}" if failure else str(error))
        return default


async def _available_sources(
    sources: ConsoleSources, call: ThreadCall
) -> tuple[list[str], ConsoleSources]:
    """Return notices and the sources that are available. If Kafka does not answer, these are one
    notice and the sources without Kafka.
    """
    notices: list[str] = []
    problem = await _call_or_notice(
        notices, call, sources.kafka_problem, "", "Whether Kafka answers is not known", ""
    )
    return ([problem], sources.without_kafka()) if problem else (notices, sources)


async def _start_decisions_page(
    sources: ConsoleSources, call: ThreadCall
) -> tuple[list[str], ConsoleSources]:
    """Return the same as `_available_sources`, with a notice if decisions are missing."""
    notices, available = await _available_sources(sources, call)
    problem = "" if notices else sources.decisions_problem()
    if problem:
        notices.append(f"Decisions are missing: {problem}")
    elif not notices and sources.recent.is_empty:
        notices.append(_NO_DECISIONS)
    return notices, available


async def answer_now(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with the figures of a span of time and what needs attention. `remarks` is None if the
    checks could not run.
    """
    span = query.get("span", "") or "1h"
    notices, sources = await _start_decisions_page(sources, call)
    are_decisions_missing = notices not in ([], [_NO_DECISIONS])
    plans = await _call_or_notice(notices, call, sources.plans, "", "", None)
    figures = sources.recent.figures_of(span, plans.chart_marks() if plans else ())
    if are_decisions_missing:
        figures = replace(figures, per_second=None)
    lag = await _call_or_notice(notices, call, sources.lag, "", "The lag is not known", None)
    remarks = await _call_or_notice(
        notices, call, sources.remarks, "", "What needs attention is not known", None
    )
    duplicates = sum(
        figures.by_reason.get(reason, 0) for reason in DUPLICATES if reason not in SAME_ID
    )
    dismissed = list(dict.fromkeys(filter(None, query.get("dismissed", "").split(","))))
    shown_remarks = [
        remark for remark in remarks or () if not remark.host or remark.host not in dismissed
    ]
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
        "remarks": remarks if remarks is None else shown_remarks[:REMARKS_MAX],
        "more_remarks": max(0, len(shown_remarks) - REMARKS_MAX),
        "dismissed": dismissed,
        "as_of_ms": sources.recent.time_ms,
        "threshold": plans.current.similarity / 100 if plans and plans.current.similarity else None,
    }


async def answer_decisions(
    sources: ConsoleSources, query: Query, call: ThreadCall
) -> dict[str, Any]:
    """Answer with the newest decisions that match the filter, or with all of them sorted by a column.
    `before`: the decisions on the next page have lower numbers.
    """
    filters = filter_of(query)
    before = _parse_number(query, "before")
    sort = query.get("sort", "")
    remembered = sources.recent.newest_first()
    selected = select(remembered, filters)
    listed = [decision for decision in selected if before is None or decision.number < before]
    notices, _ = await _start_decisions_page(sources, call)
    plans = await _call_or_notice([], call, sources.plans, "", "", None)
    return {
        "notices": notices,
        "decisions": listed if sort else listed[:ROWS],
        "before": listed[ROWS - 1].number if len(listed) > ROWS and not sort else None,
        "matching": len(selected),
        "remembered": len(remembered),
        "is_live": before is None and not sort,
        "thresholds": thresholds_of(plans.current if plans else None),
    }


def thresholds_of(plan: Plan | None) -> str:
    """Return a sentence about the thresholds of a plan; empty without thresholds."""
    if plan is None or not plan.similarity:
        return ""
    other_site, _, same_title, unknown_title, other_title = (
        share / 100 for share in plan.similarities
    )
    if other_title == other_site:
        return f"Documents are copies at a similarity of {other_site:.2f} or more."
    return (
        f"Pages of different sites are copies at a similarity of {other_site:.2f} or more, pages "
        f"of one site from {same_title:.2f}, {unknown_title:.2f} or {other_title:.2f}, depending on "
        "their titles."
    )


async def answer_all_decisions(
    sources: ConsoleSources, query: Query, call: ThreadCall
) -> dict[str, Any]:
    """Answer with all decisions in memory that match the filters, for CSV."""
    filters = filter_of(query)
    return {"decisions": await call(lambda: select(sources.recent.newest_first(), filters))}


async def answer_decision(
    sources: ConsoleSources, query: Query, call: ThreadCall
) -> dict[str, Any]:
    """Answer with one decision: its similarity, both texts and their differences, and positions."""
    position = _parse_position(query)
    notices, sources = await _available_sources(sources, call)
    decision = sources.recent.find_decision(position)
    record = await _read_record(sources, call, position, notices)
    if record.is_forgotten:
        raise PageError(410, record.missing_reason)
    decision = decision or record.decision
    if decision is None:
        if notices:
            raise PageError(
                503, f"The decision at {position} cannot be read now: {' '.join(notices)}"
            )
        reason = (
            record.missing_reason
            or "it is a source record; its decision is on unique or duplicates."
        )
        raise PageError(404, f"There is no decision at {position}: {reason}")
    # This page needs the index for one sentence only. Other pages report if it does not answer.
    has_similarity = decision.similarity is not None or decision.sibling_similarity is not None
    plans = await _call_or_notice([], call, sources.plans if has_similarity else None, "", "", None)
    plan = plans.plan_at(decision.log) if plans else None
    kept = None
    if kept_position := decision.kept_position or decision.sibling_position:
        kept = await _read_record(sources, call, kept_position, notices, is_from_header=True)
    if kept is not None and kept.is_forgotten:
        decision = decision.without_kept_id()
        record = replace(record, decision=decision)
    released, copies, search = "", None, sources.search
    if decision.is_duplicate and search is not None:
        find_released = partial(search.released_position, decision.source_position)
        released = await _call_or_notice(
            notices, call, find_released, "", "Whether it was released is not known", ""
        )
    elif decision.source_position and search is not None:
        copies = await _call_or_notice(
            notices,
            call,
            partial(_count_copies, search, decision.source_position),
            "",
            "The number of copies is not known",
            None,
        )
    values = {
        "notices": notices,
        "decision": decision,
        "record": record,
        "kept": kept,
        "released_position": released,
        "release_command": "" if released else release_command(decision),
        "copies": copies,
        "explanation": _explain(plan, decision, record, kept),
    }
    return values | await call(lambda: _compare_texts(sources, decision, record, kept))


def _count_copies(search: TextSearch, position: str) -> int:
    """Return the number of known copies of the kept document at a source position."""
    group = search.group(position)
    return group.copies if group and group.position == position else 0


def _explain(
    plan: Plan | None, decision: Decision, record: OpenedRecord, kept: OpenedRecord | None
) -> str:
    """Return sentences: why the document is a copy or was kept, by the plan that judged it; empty if
    a text is missing, or if it was judged without a similarity.
    """
    similarity = decision.sibling_similarity if decision.similarity is None else decision.similarity
    has_texts = kept is not None and record.text and kept.text and similarity is not None
    if (
        plan is None
        or not has_texts
        or kept is None
        or decision.reason not in ("near", "revised", "new")
    ):
        return ""
    # The hashes are only compared with each other, so any key will do.
    hasher = SiteHasher(Recipe())
    origins = [
        hasher.origin_of(document.site, document.title, document.id.encode("utf-8", "replace"))
        for document in (record, kept)
    ]
    relation, per_cent = relation_of(*origins), round(100 * (similarity or 0))
    threshold, has_same_id = plan.similarities[relation], record.id == kept.id
    if not threshold or (per_cent >= threshold) != decision.is_duplicate:
        return ""
    return in_words(
        per_cent, relation, threshold, (record.site, kept.site), has_same_id=has_same_id
    )


def _compare_texts(
    sources: ConsoleSources, decision: Decision, record: OpenedRecord, kept: OpenedRecord | None
) -> dict[str, Any]:
    kept_decision = (
        None
        if kept is None or kept.is_forgotten
        else sources.recent.find_decision(decision.kept_position or decision.sibling_position)
    )
    has_texts = kept is not None and record.text and kept.text
    return {
        "comparison": differences.compare(kept.text, record.text) if has_texts and kept else None,
        "kept_decision": kept_decision,
        "blocks": differences.compare_blocks(kept_decision.fingerprint, decision.fingerprint)
        if kept_decision
        else [],
    }


async def _read_record(
    sources: ConsoleSources,
    call: ThreadCall,
    position: str,
    notices: list[str],
    *,
    is_from_header: bool = False,
) -> OpenedRecord:
    """Return the record at a position. An invalid position raises InputError; if it is from a header,
    the error becomes the record's `missing_reason`.
    """
    read_record = sources.read_record
    if read_record is None:
        return OpenedRecord(position, "", "", "Texts cannot be read now.")
    try:
        record = await _call_or_notice(
            notices,
            call,
            lambda: read_record(position),
            "",
            f"The text at {position} could not be read",
            None,
        )
    except InputError as error:
        if not is_from_header:
            raise
        return OpenedRecord(position, "", "", str(error))
    return record or OpenedRecord(position, "", "", "It could not be read; see above.")


def release_command(decision: Decision) -> str:
    """Return the command that releases a duplicate; empty for a kept document."""
    return (
        f"stream-dedup release {decision.source_position or decision.output_position}"
        if decision.is_duplicate
        else ""
    )


async def answer_find(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with a page of the documents that contain a text."""
    return await _find_documents(sources, query, call, _parse_page_number(query))


async def answer_all_found(
    sources: ConsoleSources, query: Query, call: ThreadCall
) -> dict[str, Any]:
    """Answer with all documents that contain a text, for CSV."""
    return await _find_documents(sources, query, call, None)


async def _find_documents(
    sources: ConsoleSources, query: Query, call: ThreadCall, page: int | None
) -> dict[str, Any]:
    """Answer with one page of the found documents; without a page number with all of them, without
    snippets.
    """
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
        search = partial(
            sources.search.find,
            text,
            FOUND_PER_PAGE if page else FOUND_MAX,
            offset=FOUND_PER_PAGE * (page - 1) if page else 0,
            order=order,
            host=query.get("host", ""),
            snippets=page is not None,
        )
        found = await _call_or_notice(notices, call, search, "", "The search failed", found)
        notices += () if notices else _notices_of_find(found, has_snippets=page is not None)
    elif "q" in query:
        notices.append("The search text is empty; paste a sentence or two.")
    return {
        "notices": notices,
        "search_text": text,
        "is_searched": sources.search is not None,
        "documents": list(found.documents),
        "total": found.total,
        "is_whole": found.is_whole,
        "hosts": found.hosts,
        "order": order,
        "page_number": page,
        "pages": -(-found.total // FOUND_PER_PAGE),
        "first": FOUND_PER_PAGE * ((page or 1) - 1) + 1,
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
            "The texts of some documents cannot be read now; these are shown without a snippet."
        ]
    return []


async def answer_groups(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with a page of the groups of copies, the largest or the newest first."""
    return await _list_groups(sources, query, call, _parse_page_number(query))


async def answer_all_groups(
    sources: ConsoleSources, query: Query, call: ThreadCall
) -> dict[str, Any]:
    """Answer with the first `GROUPS_MAX` groups of copies, for CSV."""
    return await _list_groups(sources, query, call, None)


async def _list_groups(
    sources: ConsoleSources, query: Query, call: ThreadCall, page: int | None
) -> dict[str, Any]:
    order = query.get("order", "largest")
    if order not in ("largest", "newest"):
        raise InputError(f"order must be largest or newest, not {order!r:.40}.")
    notices: list[str] = []
    first = _GROUPS_PER_PAGE * ((page or 1) - 1)
    # One more than the page shows, to know whether another page follows.
    limit = _GROUPS_PER_PAGE + 1 if page else GROUPS_MAX
    list_groups = (
        None if sources.search is None else partial(sources.search.groups, order, limit, first)
    )
    no_groups: Sequence[DocumentGroup] = []
    listed_groups = await _call_or_notice(
        notices, call, list_groups, _NO_SEARCH, "The groups are not known", no_groups
    )
    return {
        "notices": notices,
        "is_searched": sources.search is not None,
        "order": order,
        "groups": list(listed_groups[:_GROUPS_PER_PAGE] if page else listed_groups),
        "page_number": page,
        "is_last": len(listed_groups) < limit,
    }


async def answer_group(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with one kept document and its copies. `document` in the query is the position or the
    id of any of them.
    """
    document = query.get("document", "").strip()
    if not document:
        raise InputError("document must be the position or the id of a document.")
    search = sources.search
    if search is None:
        raise PageError(404, _NO_SEARCH)
    notices, sources = await _available_sources(sources, call)
    found_group = await call(lambda: search.group(document))
    position = found_group.position if found_group else document if POSITION.match(document) else ""
    kept = await _read_record(sources, call, position, notices, is_from_header=True)
    if found_group is None and not kept.text:
        raise PageError(404, f"No copies of the document {printable(document[:500])} are known.")
    return {
        "notices": notices,
        "group": found_group or DocumentGroup(document, kept.id, 0, 0, 0),
        "members": (*found_group.members, *found_group.released_members) if found_group else (),
        "older_count": sum(0 < member.first_ms < kept.time_ms for member in found_group.members)
        if found_group
        else 0,
        "kept": kept,
    }


async def answer_hosts(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with the figures of each host, hosts with events first. `has_signals`: insights has
    written host signals.
    """
    del query
    notices, sources = await _start_decisions_page(sources, call)
    events_of_hosts = await _call_or_notice(
        notices, call, sources.host_events, "", "The events of hosts are not known", None
    )
    notices.append(
        await _call_or_notice(
            notices, call, sources.insights_problem, "", "Whether insights runs is not known", ""
        )
    )
    events = events_of_hosts or {}
    remembered = sources.recent.newest_first()
    figures = {host_figures.host: host_figures for host_figures in figures_of_hosts(remembered)}
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
        "remembered": len(remembered),
    }


async def answer_copies(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Answer with which hosts copied which hosts; with `host` in the query, only pairs with it."""
    host = searched_host(query.get("host", ""))
    notices: list[str] = []
    list_pairs = None if sources.search is None else partial(sources.search.host_pairs, host)
    no_pairs = HostPairs((), sources.recent.time_ms)
    pairs = await _call_or_notice(
        notices, call, list_pairs, _NO_SEARCH, "The copies are not known", no_pairs
    )
    return {
        "notices": notices,
        "is_searched": sources.search is not None,
        "host": host,
        "pairs": pairs.pairs,
        "as_of_ms": pairs.as_of_ms,
    }


async def answer_dead_letters(
    sources: ConsoleSources, query: Query, call: ThreadCall
) -> dict[str, Any]:
    """Answer with the dead letters: their numbers by kind, the newest of them, and the commands that
    send them back.
    """
    del query
    notices, sources = await _available_sources(sources, call)
    letters = await _call_or_notice(
        notices, call, sources.dead_letters, "", "The dead letters are not known", None
    )
    return {
        "notices": [notice for notice in notices if notice],
        "letters": letters,
        "kinds": () if letters is None else letters.kinds,
        "listed": () if letters is None else letters.letters,
    }


def _parse_position(query: Query) -> str:
    position = query.get("position", "").strip()
    if not POSITION.match(position):
        raise InputError(
            f"position must be a position such as duplicates-3@17, not {position!r:.80}."
        )
    return position


def _parse_page_number(query: Query) -> int:
    return _parse_number(query, "page") or 1


def _parse_number(query: Query, name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,14}", text):
        raise InputError(f"{name} must be a whole number from 1, not {text!r:.40}.")
    return int(text)


async def answer_unknown(sources: ConsoleSources, query: Query, call: ThreadCall) -> dict[str, Any]:
    """Raise the error for an address that is not a page."""
    del sources, query, call
    raise PageError(404, "There is no such page; the menu above lists all pages.")


PAGES: Final[dict[str, PageAnswer]] = {
    "now": answer_now,
    "decisions": answer_decisions,
    "decision": answer_decision,
    "find": answer_find,
    "groups": answer_groups,
    "group": answer_group,
    "hosts": answer_hosts,
    "copies": answer_copies,
    "dead-letters": answer_dead_letters,
}
CSV_ANSWERS: Final[dict[str, PageAnswer]] = {
    "decisions": answer_all_decisions,
    "find": answer_all_found,
    "groups": answer_all_groups,
}
"""The answers for the CSV files that have more rows than the page."""
_DECISIONS_PARAMETERS: Final = (*FILTERS, "before")
_FIND_PARAMETERS: Final = ("q", "page", "order", "host")
_PARAMETERS: Final[dict[PageAnswer, tuple[str, ...]]] = dict.fromkeys(PAGES.values(), ()) | {
    answer_now: ("span", "dismissed"),
    answer_decisions: _DECISIONS_PARAMETERS,
    answer_all_decisions: _DECISIONS_PARAMETERS,
    answer_decision: ("position",),
    answer_find: _FIND_PARAMETERS,
    answer_all_found: _FIND_PARAMETERS,
    answer_groups: ("order", "page"),
    answer_all_groups: ("order", "page"),
    answer_group: ("document",),
    answer_copies: ("host",),
}


def refuse_unknown_parameters(answer: PageAnswer, query: Query, *, is_table: bool = False) -> None:
    """Refuse a query with a parameter that the page does not know. A page with a table also knows
    `sort`.

    Raises:
        InputError: there is such a parameter.
    """
    parameters = _PARAMETERS.get(answer)
    if parameters is not None:
        refuse_unknown(query, (*parameters, "sort") if is_table else parameters)


def refuse_unknown(query: Query, parameters: Sequence[str]) -> None:
    """Refuse a query with a parameter that is not in `parameters`.

    Raises:
        InputError: there is such a parameter.
    """
    name = next((parameter for parameter in query if parameter not in parameters), None)
    if name is not None:
        known = ", ".join(parameters) or "none"
        raise InputError(f"There is no parameter {name!r:.40}; the parameters are {known}.")
