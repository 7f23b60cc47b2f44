"""Answer queries: find documents that contain a text, with snippets; return groups of copies.

Invariant: if Kafka has deleted a text or does not return it now, the query does not fail; the
document is returned without a snippet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import structlog

from stream_dedup.console.values import (
    FIND_ORDERS,
    Decision,
    DocumentGroup,
    FoundDocument,
    FoundDocuments,
    GroupMember,
    HostPair,
    HostPairs,
    OpenedRecord,
    similarity_of,
)
from stream_dedup.domain.document import Reason, digest_id, shorten_id
from stream_dedup.domain.errors import InputError, StreamDedupError
from stream_dedup.domain.hosts import HostNames, is_of_host, searched_host
from stream_dedup.fingerprinting import Languages
from stream_dedup.log.headers import parse_log_place
from stream_dedup.search.facts import FoundText, GroupFacts, TextFacts
from stream_dedup.search.forgotten import ForgottenIds
from stream_dedup.search.query import parse_query
from stream_dedup.search.snippets import snippet_of
from stream_dedup.search.texts import TextIndex

T = TypeVar("T")

_logger = structlog.get_logger("stream_dedup.search")

MEMBERS_MAX = 200
LISTED_MEMBERS = 50
PAIRS_MAX = 1_000
FETCHES_MAX = 10_000
"""How many of the newest copies of a group are read, to list each page once."""
FOUND_MAX = 10_000
"""The maximum number of documents that are counted, sorted and listed: those with the highest share."""


def _group_by_page(fetches: Iterable[T], facts_of: Callable[[T], TextFacts]) -> list[list[T]]:
    """Return the fetches of each page, in their order; pages in the order of their first fetch."""
    pages: dict[str, list[T]] = {}
    for fetch in fetches:
        facts = facts_of(fetch)
        pages.setdefault(facts.id or facts.output_position, []).append(fetch)
    return list(pages.values())


def _fetch_fields(fetches: Sequence[TextFacts]) -> dict[str, int]:
    """Return the number of fetches of a page, and the times of the first and the newest, 0 if
    unknown, as fields of a found document or a member of a group.
    """
    times = [facts.time_ms for facts in fetches if facts.time_ms] or [0]
    return {"fetches": len(fetches), "first_ms": min(times), "newest_ms": max(times)}


def _shortened(identifier: str) -> str:
    return shorten_id(identifier.encode("utf-8", "replace")).decode("utf-8", "replace")


class Finder:
    """Answers queries from an engine. While there is none (before anything was read, and while the
    role ends), each call raises StreamDedupError.

    `texts_at`: returns the texts at output positions; `id_key`: the key of id digests, if the log
    contains digests instead of ids; `forgotten`: the forgotten ids.
    """

    def __init__(
        self,
        engine: TextIndex | None,
        languages: Languages,
        texts_at: Callable[[Iterable[str]], Mapping[str, str]],
        id_key: bytes | None = None,
        forgotten: ForgottenIds | None = None,
    ) -> None:
        self.engine = engine
        self._languages = languages
        self._texts_at = texts_at
        self._id_key = id_key
        self._forgotten = ForgottenIds() if forgotten is None else forgotten
        self._hosts = HostNames()

    @property
    def _engine(self) -> TextIndex:
        if self.engine is None:
            raise StreamDedupError(
                "The search has read nothing yet and waits for Kafka, or is stopping; see /startupz."
            )
        return self.engine

    def find(
        self,
        text: str,
        limit: int,
        min_share: float | None = None,
        *,
        offset: int = 0,
        order: str = "best",
        host: str = "",
        snippets: bool = True,
    ) -> FoundDocuments:
        """Return the pages that contain at least the share `min_share` of a text: at most `limit` after
        the first `offset`, in one of `FIND_ORDERS`. A page is listed once, by the first of its
        fetches in that order; pages without a time come last. With `host`, return only pages of
        this host and its subdomains.

        Raises:
            InputError: the text has no word or is too long, or the order is unknown.
        """
        if order not in FIND_ORDERS:
            raise InputError(f"order must be one of {', '.join(FIND_ORDERS)}, not {order!r:.40}.")
        query = parse_query(text, self._languages)
        matches = self._engine.find(query, FOUND_MAX + 1, min_share)
        is_whole = len(matches) <= FOUND_MAX
        hosts = {
            match.facts.output_position: self._hosts.of(match.facts.id.encode())
            for match in matches[:FOUND_MAX]
        }
        wanted_host = searched_host(host)
        listed = [
            match
            for match in matches[:FOUND_MAX]
            if is_of_host(hosts[match.facts.output_position], wanted_host)
        ]
        if order != "best":
            sign = 1 if order == "earliest" else -1
            listed.sort(key=lambda match: (not match.facts.time_ms, sign * match.facts.time_ms))
        pages = _group_by_page(listed, lambda match: match.facts)
        shown = pages[offset : offset + limit]
        texts = self._read_texts([fetches[0] for fetches in shown]) if snippets else {}
        return FoundDocuments(
            documents=tuple(
                FoundDocument(
                    output_position=match.facts.output_position,
                    id=match.facts.id,
                    share=match.share,
                    snippet=snippet_of(texts[match.facts.output_position], query, self._languages)
                    if texts.get(match.facts.output_position)
                    else (),
                    verdict=match.facts.verdict,
                    time_ms=match.facts.time_ms,
                    group_position=self._group_of(match.facts),
                    host=hosts[match.facts.output_position],
                    title=match.facts.title,
                    **_fetch_fields([fetch.facts for fetch in fetches]),
                )
                for fetches in shown
                for match in fetches[:1]
            ),
            total=len(pages),
            is_whole=is_whole,
            hosts=len({hosts[match.facts.output_position] for match in listed} - {""}),
        )

    def _read_texts(self, page: list[FoundText]) -> dict[str, str]:
        try:
            return dict(self._texts_at([document.facts.output_position for document in page]))
        except StreamDedupError as error:
            _logger.warning(
                "texts could not be read; documents are returned without snippets",
                reason=str(error),
            )
            return {}

    def _group_of(self, facts: TextFacts) -> str:
        """Return the source position of the kept document in a document's group; empty if the
        document is kept and has no copies. A released document without copies is in its former group.
        """
        if facts.is_duplicate or not self._engine.group(facts.source_position):
            return facts.group_position
        return facts.source_position

    def _id_in_log(self, identifier: str) -> str:
        """Return the id of a record as the log contains it: shortened, and with a key its digest."""
        short = shorten_id(identifier.encode("utf-8", "replace"))
        return (short if self._id_key is None else digest_id(short, self._id_key)).decode(
            "utf-8", "replace"
        )

    def group_count(self) -> int:
        """Return the number of groups."""
        return self._engine.group_count

    def redact_record(self, record: OpenedRecord) -> OpenedRecord:
        """Return a record as it may be shown: a forgotten record without its contents, which Kafka
        may still store.

        Raises:
            StreamDedupError: the forgotten ids are not known yet.
        """
        log = "" if record.decision is None else record.decision.log
        if not self._is_forgotten(self._id_in_log(record.id), log, record.time_ms):
            return record
        reason = f"The record at {record.position} was forgotten and is not shown; its topic deletes it after its retention."
        return OpenedRecord(record.position, "", "", reason, is_forgotten=True)

    def redact_decision(self, decision: Decision) -> Decision | None:
        """Return a decision as it may be listed: None for a forgotten document, and without the id of
        a kept document that was forgotten.

        Raises:
            StreamDedupError: the forgotten ids are not known yet.
        """
        if self._is_forgotten(self._id_in_log(decision.id), decision.log, decision.time_ms):
            return None
        kept_id = decision.kept_id or decision.sibling_id
        hides_kept_id = self._is_forgotten(kept_id, decision.log, decision.time_ms)
        return decision.without_kept_id() if hides_kept_id else decision

    def _is_forgotten(self, identifier: str, log: str, time_ms: int) -> bool:
        if not self._forgotten.is_complete:
            raise StreamDedupError(
                "The search is still reading which ids were forgotten, and shows no records before it "
                "has finished; see /startupz."
            )
        place = parse_log_place(log)
        return self._forgotten.hides_displayed_id(
            identifier, -1 if place is None else place.offset, time_ms
        )

    def group(
        self, document: str, limit: int = MEMBERS_MAX, offset: int = 0
    ) -> DocumentGroup | None:
        """Return the group of a document with at most `limit` members, without the first `offset`;
        None without a group. `document`: its position in the source or an output, or its id.
        """
        group = self._engine.group(document)
        if group is None:
            facts = self._engine.facts_at(document)
            position = self._group_of(facts) if facts else self._group_by_id(document)
            group = self._engine.group(position) if position else None
        if group is None:
            return None
        return self._to_group(
            group,
            self._engine.copies_of(group.position, FETCHES_MAX),
            slice(offset, offset + limit),
            self._engine.copies_of(group.position, 1, is_oldest_first=True),
            () if offset else self._engine.copies_of(group.position, limit, are_released=True),
        )

    def released_position(self, position: str) -> str:
        """Return the output position of the released document whose source record is at `position`;
        empty if the document was not released.
        """
        return next(
            (
                facts.output_position
                for facts in self._engine.kept_at(position)
                if facts.reason == Reason.RELEASED.label
            ),
            "",
        )

    def _group_by_id(self, identifier: str) -> str:
        position = next(
            (group.position for group in self._engine.groups_of_id(self._id_in_log(identifier), 1)),
            "",
        )
        return position or next(
            (
                facts.group_position
                for form in dict.fromkeys((identifier, _shortened(identifier)))
                for facts in self._engine.facts_of_id(form)
                if facts.group_position
            ),
            "",
        )

    def groups(self, order: str, limit: int, offset: int = 0) -> list[DocumentGroup]:
        """Return at most `limit` groups after the first `offset`, the `largest` or the `newest` first,
        each with its newest `LISTED_MEMBERS` copies.
        """
        return [
            self._to_group(
                group, self._engine.copies_of(group.position, LISTED_MEMBERS), slice(None)
            )
            for group in self._engine.groups(order, limit, offset)
        ]

    def host_pairs(self, host: str) -> HostPairs:
        """Return which hosts copied which hosts, the most copies first. With `host`, return only the
        pairs of this host.
        """
        pairs = []
        for pair in self._engine.host_pairs(host, PAIRS_MAX):
            earliest = pair.earliest
            kept = next(iter(self._engine.kept_at(earliest.group_position)), None)
            pairs.append(
                HostPair(
                    copier=pair.copier,
                    source=pair.source,
                    copies=pair.copies,
                    first_ms=earliest.time_ms,
                    newest_ms=pair.newest_ms,
                    example=earliest.output_position,
                    example_id=earliest.id,
                    is_older_than_kept=kept is not None and earliest.time_ms < kept.time_ms,
                )
            )
        return HostPairs(tuple(pairs), self._engine.committed_ms)

    def _to_group(
        self,
        group: GroupFacts,
        copies: list[TextFacts],
        shown: slice,
        earliest: Sequence[TextFacts] = (),
        released: Sequence[TextFacts] = (),
    ) -> DocumentGroup:
        best = self._engine.best_of(group.position)
        pages = _group_by_page(copies, lambda facts: facts)
        return DocumentGroup(
            position=group.position,
            id=group.id,
            copies=group.copies,
            bytes_wasted=group.bytes_wasted,
            newest_ms=group.newest_ms,
            members=tuple(map(self._to_member, pages[shown])),
            member_count=len(pages),
            released=group.released,
            released_members=tuple(self._to_member([facts]) for facts in released),
            oldest_ms=group.oldest_ms,
            counted=group.counted or None,
            best=None if best is None else self._to_member([best]),
            fetched_again=group.fetched_again,
            host=self._hosts.of(group.id.encode()),
            earliest=self._to_member(earliest) if earliest else None,
        )

    def _to_member(self, fetches: Sequence[TextFacts]) -> GroupMember:
        """Return a page that is a copy, by its first fetch in the order of `fetches`."""
        facts = fetches[0]
        host = self._hosts.of(facts.id.encode())
        return GroupMember(
            output_position=facts.output_position,
            id=facts.id,
            host=host,
            time_ms=facts.time_ms,
            reason=facts.reason,
            similarity=similarity_of(facts.reason, facts.similarity),
            size=facts.size,
            better=facts.better,
            title=facts.title,
            **_fetch_fields(fetches),
        )
