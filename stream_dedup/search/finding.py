"""A question answered: documents that hold a clue, with snippets; a group with its copies; groups in an order.

Invariant: an answer never fails for a text that is kept no longer, or that Kafka does not give now: the document is told
without a snippet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog

from stream_dedup.console.nouns import DocumentGroup, FoundDocument, GroupMember
from stream_dedup.fingerprinting import Languages
from stream_dedup.ground.document import digest_id
from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.insights.hosts import HostNames
from stream_dedup.search.clue import LEAST, clue_of
from stream_dedup.search.snippets import snippet_of
from stream_dedup.search.texts import GroupFacts, TextFacts, TextIndex

_logger = structlog.get_logger("stream_dedup.search")

MEMBERS_MAX = 200


class FinderPlace:
    """Where a finder will be once the engine is open; until then, and once it is closed, it says so."""

    def __init__(self) -> None:
        self._finder: Finder | None = None

    def serve(self, finder: Finder | None) -> None:
        """Answer by this finder from now on; None: the engine is being closed."""
        self._finder = finder

    @property
    def _open(self) -> Finder:
        if self._finder is None:
            raise StreamDedupError("The search is still opening its full-text engine, or is closing; see /startupz.")
        return self._finder

    def find(self, text: str, limit: int, least: float = LEAST) -> list[FoundDocument]:
        """Answer as `Finder.find`, or raise StreamDedupError."""
        return self._open.find(text, limit, least)

    def group(self, named: str) -> DocumentGroup | None:
        """Answer as `Finder.group`, or raise StreamDedupError."""
        return self._open.group(named)

    def groups(self, order: str, limit: int) -> list[DocumentGroup]:
        """Answer as `Finder.groups`, or raise StreamDedupError."""
        return self._open.groups(order, limit)


class Finder:
    """Answers over an engine. `texts_at` gives texts by their places; `id_key`, where the log names documents by digests."""

    def __init__(
        self,
        engine: TextIndex,
        languages: Languages,
        texts_at: Callable[[Iterable[str]], Mapping[str, str]],
        id_key: bytes | None = None,
    ) -> None:
        self._engine = engine
        self._languages = languages
        self._texts_at = texts_at
        self._id_key = id_key
        self._hosts = HostNames()

    def find(self, text: str, limit: int, least: float = LEAST) -> list[FoundDocument]:
        """Return the documents that hold a clue, or so much of it, best first.

        Raises:
            InputError: it is no clue.
        """
        clue = clue_of(text, self._languages)
        found = self._engine.find(clue, limit, least)
        lacking = [one.facts.at for one in found if not one.text]
        texts = {one.facts.at: one.text for one in found if one.text}
        texts.update(self._asked(lacking) if lacking else {})
        return [
            FoundDocument(
                at=one.facts.at,
                id=one.facts.id,
                share=one.share,
                snippet=snippet_of(texts[one.facts.at], clue, self._languages) if texts.get(one.facts.at) else (),
                verdict=one.facts.verdict,
                time_ms=one.facts.time_ms,
                group=self._group_of(one.facts),
            )
            for one in found
        ]

    def _asked(self, places: list[str]) -> Mapping[str, str]:
        try:
            return self._texts_at(places)
        except StreamDedupError as error:
            _logger.warning("texts could not be read, and documents are told without snippets", why=str(error))
            return {}

    def _group_of(self, facts: TextFacts) -> str:
        """Return the position that a document's group goes by; of a kept one, that of the newest group that names its id."""
        if facts.group or not facts.id:
            return facts.group
        return next((one.position for one in self._engine.groups_of_id(self._log_form(facts.id), 1)), "")

    def _log_form(self, identifier: str) -> str:
        if self._id_key is None:
            return identifier
        return digest_id(identifier.encode("utf-8", "replace"), self._id_key).decode()

    def group(self, named: str) -> DocumentGroup | None:
        """Return the group of a document: by its position in the source or an output, or by its id. None: it has no copies."""
        found = self._engine.group(named)
        if found is None:
            known = self._engine.facts_at(named)
            position = self._group_of(known) if known else self._group_by_id(named)
            found = self._engine.group(position) if position else None
        return None if found is None else self._listed(found, self._engine.copies_of(found.position, MEMBERS_MAX))

    def _group_by_id(self, identifier: str) -> str:
        own = next((one.position for one in self._engine.groups_of_id(self._log_form(identifier), 1)), "")
        return own or next((one.group for one in self._engine.facts_of_id(identifier) if one.group), "")

    def groups(self, order: str, limit: int) -> list[DocumentGroup]:
        """Return the `largest` groups, or the `newest`, without their copies."""
        return [self._listed(one, []) for one in self._engine.groups(order, limit)]

    def _listed(self, group: GroupFacts, copies: list[TextFacts]) -> DocumentGroup:
        members = tuple(
            GroupMember(one.at, one.id, self._hosts.of(one.id.encode()), one.time_ms, one.reason, one.similarity, one.size)
            for one in copies
        )
        return DocumentGroup(group.position, group.id, group.copies, group.bytes_wasted, group.newest_ms, members)
