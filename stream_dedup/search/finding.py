"""Answer queries: documents that contain a text, with snippets; a group with its copies; groups in
an order.

Invariant: an answer never fails because Kafka has deleted a text or does not return it now:
the document is returned without a snippet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

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
    Opened,
    similarity_of,
)
from stream_dedup.domain.document import Reason, digest_id, shorten_id
from stream_dedup.domain.errors import InputError, StreamDedupError
from stream_dedup.domain.hosts import HostNames, asked_host, is_of_host
from stream_dedup.fingerprinting import Languages
from stream_dedup.log.headers import parse_log_place
from stream_dedup.search.facts import FoundText, GroupFacts, TextFacts
from stream_dedup.search.forgotten import ForgottenIds
from stream_dedup.search.query import parse_query
from stream_dedup.search.snippets import snippet_of
from stream_dedup.search.texts import TextIndex

_logger = structlog.get_logger("stream_dedup.search")

MEMBERS_MAX = 200
LISTED_MEMBERS = 50
PAIRS_MAX = 1_000
FOUND_MAX = 10_000
"""How many documents that contain a query are counted, sorted and listed: the best of more."""


class Finder:
    """Answers from an engine. Without one, before anything was read and while it is closed, each
    call raises StreamDedupError.

    `texts_at` returns texts by position; `id_key` is set if the log names documents by digests;
    `forgotten` contains the forgotten ids.
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
                "The search has read nothing yet and waits for Kafka, or is closing; see /startupz."
            )
        return self.engine

    def find(
        self,
        text: str,
        limit: int,
        least: float | None = None,
        *,
        offset: int = 0,
        order: str = "best",
        host: str = "",
        snippets: bool = True,
    ) -> FoundDocuments:
        """Return `limit` of the documents that contain enough of a text, after `offset` others
        in one of `FIND_ORDERS`; of `host` and its subdomains, if it is given. Documents without a
        time come last.

        Raises:
            InputError: the text has no word or is too long, or the order is unknown.
        """
        if order not in FIND_ORDERS:
            raise InputError(f"order must be one of {', '.join(FIND_ORDERS)}, not {order!r:.40}.")
        query = parse_query(text, self._languages)
        matches = self._engine.find(query, FOUND_MAX + 1, least)
        is_whole = len(matches) <= FOUND_MAX
        hosts = {
            match.facts.at: self._hosts.of(match.facts.id.encode()) for match in matches[:FOUND_MAX]
        }
        wanted_host = asked_host(host)
        listed = [
            match for match in matches[:FOUND_MAX] if is_of_host(hosts[match.facts.at], wanted_host)
        ]
        if order != "best":
            sign = 1 if order == "earliest" else -1
            listed.sort(key=lambda match: (not match.facts.time_ms, sign * match.facts.time_ms))
        page = listed[offset : offset + limit]
        texts = self._texts_of(page) if snippets else {}
        return FoundDocuments(
            documents=tuple(
                FoundDocument(
                    at=match.facts.at,
                    id=match.facts.id,
                    share=match.share,
                    snippet=snippet_of(texts[match.facts.at], query, self._languages)
                    if texts.get(match.facts.at)
                    else (),
                    verdict=match.facts.verdict,
                    time_ms=match.facts.time_ms,
                    group=self._group_of(match.facts),
                    host=hosts[match.facts.at],
                    title=match.facts.title,
                )
                for match in page
            ),
            total=len(listed),
            is_whole=is_whole,
            hosts=len({hosts[match.facts.at] for match in listed}),
        )

    def _texts_of(self, page: list[FoundText]) -> dict[str, str]:
        try:
            return dict(self._texts_at([document.facts.at for document in page]))
        except StreamDedupError as error:
            _logger.warning(
                "texts could not be read; documents are returned without snippets", why=str(error)
            )
            return {}

    def _group_of(self, facts: TextFacts) -> str:
        """Return the position of a document's group; of a kept document its own, if it has copies."""
        if facts.group or not facts.position:
            return facts.group
        return facts.position if self._engine.group(facts.position) else ""

    def _id_in_log(self, identifier: str) -> str:
        """Return an id of a record in the form of the log: shortened, and with a key its digest."""
        short = shorten_id(identifier.encode("utf-8", "replace"))
        return (short if self._id_key is None else digest_id(short, self._id_key)).decode(
            "utf-8", "replace"
        )

    def group_count(self) -> int:
        """Return the number of groups."""
        return self._engine.group_count

    def unless_forgotten(self, record: Opened) -> Opened:
        """Return the record, or for a forgotten one a record that only says so: Kafka may keep it
        for long.

        Raises:
            StreamDedupError: the forgotten ids are not known yet.
        """
        log = "" if record.decision is None else record.decision.log
        if not self._is_forgotten(self._id_in_log(record.id), log, record.time_ms):
            return record
        why = f"The record at {record.at} was forgotten and is not shown; its topic deletes it after its retention."
        return Opened(record.at, "", "", why, is_forgotten=True)

    def as_shown(self, decision: Decision) -> Decision | None:
        """Return a decision as it may be listed: None if it was forgotten, without the id of a
        forgotten kept document.

        Raises:
            StreamDedupError: the forgotten ids are not known yet.
        """
        if self._is_forgotten(self._id_in_log(decision.id), decision.log, decision.time_ms):
            return None
        other = decision.of_id or decision.sibling_id
        is_named = not self._is_forgotten(other, decision.log, decision.time_ms)
        return decision if is_named else decision.without_kept_id()

    def _is_forgotten(self, identifier: str, log: str, time_ms: int) -> bool:
        if not self._forgotten.is_complete:
            raise StreamDedupError(
                "The search still reads which ids were forgotten, and shows no record until then; see "
                "/startupz."
            )
        place = parse_log_place(log)
        return self._forgotten.hides_displayed_id(
            identifier, -1 if place is None else place.offset, time_ms
        )

    def group(self, named: str, limit: int = MEMBERS_MAX) -> DocumentGroup | None:
        """Return the group of a document with its newest `limit` members, by a position in the
        source or an output, or by an id; None without one.
        """
        group = self._engine.group(named)
        if group is None:
            facts = self._engine.facts_at(named)
            position = self._group_of(facts) if facts else self._group_by_id(named)
            group = self._engine.group(position) if position else None
        if group is None:
            return None
        return self._to_group(
            group,
            self._engine.copies_of(group.position, limit),
            self._engine.copies_of(group.position, 1, is_oldest_first=True),
        )

    def released(self, position: str) -> str:
        """Return the position of the released document from a source position; empty without one."""
        return next(
            (
                facts.at
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
            (facts.group for facts in self._engine.facts_of_id(identifier) if facts.group), ""
        )

    def groups(self, order: str, limit: int, offset: int = 0) -> list[DocumentGroup]:
        """Return the `largest` groups, or the `newest`, after `offset` others, each with its newest
        `LISTED_MEMBERS` copies.
        """
        return [
            self._to_group(group, self._engine.copies_of(group.position, LISTED_MEMBERS))
            for group in self._engine.groups(order, limit, offset)
        ]

    def pairs(self, host: str) -> HostPairs:
        """Return which hosts copied which, the most copies first; with `host`, only pairs with it
        or a subdomain.
        """
        pairs = []
        for hosts, copies, first, newest_ms in self._engine.pairs(host, PAIRS_MAX):
            copier, source = hosts.split()
            kept = next(iter(self._engine.kept_at(first.group)), None)
            pairs.append(
                HostPair(
                    copier=copier,
                    source=source,
                    copies=copies,
                    first_ms=first.time_ms,
                    newest_ms=newest_ms,
                    example=first.at,
                    example_id=first.id,
                    is_older_than_kept=kept is not None and first.time_ms < kept.time_ms,
                )
            )
        return HostPairs(tuple(pairs), self._engine.committed_ms)

    def _to_group(
        self, group: GroupFacts, copies: list[TextFacts], earliest: Sequence[TextFacts] = ()
    ) -> DocumentGroup:
        best = self._engine.best_of(group.position)
        return DocumentGroup(
            position=group.position,
            id=group.id,
            copies=group.copies,
            bytes_wasted=group.bytes_wasted,
            newest_ms=group.newest_ms,
            members=tuple(map(self._to_member, copies)),
            oldest_ms=group.oldest_ms,
            counted=group.counted or None,
            best=None if best is None else self._to_member(best),
            fetched_again=group.fetched_again,
            host=self._hosts.of(group.id.encode()),
            earliest=next(map(self._to_member, earliest), None),
        )

    def _to_member(self, facts: TextFacts) -> GroupMember:
        host = self._hosts.of(facts.id.encode())
        return GroupMember(
            at=facts.at,
            id=facts.id,
            host=host,
            time_ms=facts.time_ms,
            reason=facts.reason,
            similarity=similarity_of(facts.reason, facts.similarity),
            size=facts.size,
            better=facts.better,
            title=facts.title,
        )
