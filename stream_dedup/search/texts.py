"""The full-text engine: documents by their words, copies by their group, and the place in Kafka, in one folder.

What lies in it, all in tantivy's own segments:

    a document   its words with their positions; where it lies (`unique-3@17`), its group, id and time, and what is told of it
    a group      a kept document that copies name, by its position in the source: how many copies, how many bytes, the newest
    the place    the next offset of every partition, and what the engine was made for

Invariants: one commit makes all three visible, or none of them; a clue is looked for exactly as a scan of all texts would, and
the engine is asked for the rarest pairs of words first; at most `_HEAP_BYTES` of documents are held in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import tantivy

from stream_dedup.ground.document import TopicPartitionKey
from stream_dedup.ground.errors import StoreError, VolumeError
from stream_dedup.search.clue import LEAST, Clue, WordPair

_VERSION: Final = 1
_HEAP_BYTES: Final = 60_000_000
_WORDS: Final = "words"
_PLACE: Final = "place"
_GROUP: Final = "group"
_UNIQUE: Final = "unique"
_COPY: Final = "copy"
_TIME_MS_MAX: Final = (1 << 62) - 1
_UNIQUE_FIRST: Final = 0.01  # added to the number of pairs found: of equals, the kept document comes first
_ID_CHARACTERS_MAX: Final = 1_000


class TextFacts(NamedTuple):
    """What is told of a document. `group`: the position of the kept document that it is a copy of; empty if it was kept."""

    at: str
    id: str
    time_ms: int
    size: int
    verdict: str
    reason: str
    similarity: float | None = None
    group: str = ""
    of_id: str = ""


class GroupFacts(NamedTuple):
    """A kept document with copies: its position in the source, and what its copies add up to."""

    position: str
    id: str
    copies: int
    bytes_wasted: int
    newest_ms: int


class FoundText(NamedTuple):
    """A document that holds so much of a clue; `text` is empty where texts are not kept here."""

    share: float
    facts: TextFacts
    text: str = ""


class EnginePlace(NamedTuple):
    """What the engine was made for (topics by id, the rules of words), and the next offset of each partition."""

    made_for: Mapping[str, str]
    following: Mapping[TopicPartitionKey, int]


class TextIndex:
    """The engine in a folder. One process at a time opens it; many threads of it may ask while one adds."""

    def __init__(self, folder: Path) -> None:
        """Open it, or make it.

        Raises:
            VolumeError: the folder is damaged, or another process has it open.
        """
        self._folder = folder
        self._schema = _schema()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._index = tantivy.Index(self._schema, path=str(folder))
            self._index.register_tokenizer("words", tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build())
            self._index.config_reader("manual")
            self._writer: tantivy.IndexWriter | None = self._index.writer(_HEAP_BYTES, 1)
            self._index.reload()
        except (ValueError, OSError) as error:
            raise VolumeError(
                f"The folder of the full-text engine, {folder}, cannot be opened: {error}. Is another search running on it? If "
                "it is damaged, delete it: it is filled anew from Kafka."
            ) from error
        self._groups: dict[str, GroupFacts] = {}
        self._added = 0
        self.place = self._read_place()

    def _read_place(self) -> EnginePlace | None:
        found = self._first("kind", _PLACE)
        if found is None:
            return None
        try:
            version, made_for, following = json.loads(found)
            if version != _VERSION:
                raise VolumeError(
                    f"The full-text engine in {self._folder} is of another version of this program; delete the folder: it is "
                    "filled anew from Kafka."
                )
            return EnginePlace(made_for, {(topic, partition): offset for topic, partition, offset in following})
        except (ValueError, TypeError) as error:
            raise VolumeError(f"The full-text engine in {self._folder} is damaged; delete it: it is filled anew.") from error

    @property
    def added(self) -> int:
        """How many documents were added since the last commit."""
        return self._added

    @property
    def documents(self) -> int:
        """How many documents and groups it holds, as of the last commit."""
        return int(self._index.searcher().num_docs)

    @property
    def size_bytes(self) -> int:
        """How large the folder is."""
        return sum(_size_of(path) for path in self._folder.iterdir())

    def add(self, facts: TextFacts, words: Sequence[str], text: str = "") -> None:
        """Take in a document; it is found from the next commit on. `text` is kept where it is given."""
        found = tantivy.Document()
        found.add_text("kind", _COPY if facts.group else _UNIQUE)
        found.add_text("at", facts.at)
        if facts.id:
            found.add_text("id", facts.id[:_ID_CHARACTERS_MAX])
        if facts.group:
            found.add_text("group", facts.group)
            self._count(facts)
        if words:
            found.add_text(_WORDS, " ".join(words))
        found.add_unsigned("time", min(max(0, facts.time_ms), _TIME_MS_MAX))
        found.add_bytes("facts", json.dumps(facts, separators=(",", ":")).encode())
        if text:
            found.add_bytes("text", text.encode("utf-8", "replace"))
        self._open().add_document(found)
        self._added += 1

    def _count(self, facts: TextFacts) -> None:
        before = self._groups.get(facts.group) or self.group(facts.group) or GroupFacts(facts.group, "", 0, 0, 0)
        self._groups[facts.group] = GroupFacts(
            facts.group,
            facts.of_id or before.id,
            before.copies + 1,
            before.bytes_wasted + facts.size,
            max(before.newest_ms, min(max(0, facts.time_ms), _TIME_MS_MAX)),
        )

    def commit(self, place: EnginePlace) -> None:
        """Make all that was added visible and durable, with the place up to which Kafka was read.

        Raises:
            StoreError: it could not be written; what was added is lost, and is read again after a restart.
        """
        writer = self._open()
        try:
            for group in self._groups.values():
                writer.delete_documents_by_term("root", group.position)
                found = tantivy.Document()
                found.add_text("kind", _GROUP)
                found.add_text("root", group.position)
                if group.id:
                    found.add_text("root_id", group.id[:_ID_CHARACTERS_MAX])
                found.add_unsigned("copies", group.copies)
                found.add_unsigned("newest", group.newest_ms)
                found.add_bytes("facts", json.dumps(group, separators=(",", ":")).encode())
                writer.add_document(found)
            writer.delete_documents_by_term("kind", _PLACE)
            found = tantivy.Document()
            found.add_text("kind", _PLACE)
            following = [[topic, partition, offset] for (topic, partition), offset in sorted(place.following.items())]
            found.add_bytes("facts", json.dumps([_VERSION, dict(place.made_for), following]).encode())
            writer.add_document(found)
            writer.commit()
            self._index.reload()
        except (ValueError, OSError) as error:
            raise StoreError(
                f"The full-text engine in {self._folder} could not be written: {error}. Is the disk full? A restart goes on "
                "where the last commit stands."
            ) from error
        self.place = place
        self._groups.clear()
        self._added = 0

    def forget(self, identifier: str) -> None:
        """Let documents and groups of an id go with the next commit."""
        writer = self._open()
        writer.delete_documents_by_term("id", identifier[:_ID_CHARACTERS_MAX])
        writer.delete_documents_by_term("root_id", identifier[:_ID_CHARACTERS_MAX])
        self._groups = {position: one for position, one in self._groups.items() if one.id != identifier}

    def drop_before(self, time_ms: int) -> None:
        """Let documents that are older, and groups without a copy as new, go with the next commit."""
        for field in ("time", "newest"):
            writer = self._open()
            older = tantivy.Query.range_query(
                self._schema, field, tantivy.FieldType.Unsigned, 0, max(0, time_ms), include_upper=False
            )
            writer.delete_documents_by_query(older)

    def find(self, clue: Clue, limit: int, least: float = LEAST) -> list[FoundText]:
        """Return the documents that hold at least that share of a clue, best first; of equals those that were kept first."""
        searcher = self._index.searcher()
        needed = clue.needed(least)
        by_rareness = sorted(clue.pairs, key=lambda pair: min(searcher.doc_freq(_WORDS, word) for word in pair))
        # Whoever holds `needed` of them holds one of any so many: it is enough to look at the documents that the rarest are in.
        rarest = by_rareness[: len(by_rareness) - needed + 1]
        rest = by_rareness[len(rarest) :]
        should, must = tantivy.Occur.Should, tantivy.Occur.Must
        query = tantivy.Query.boolean_query(
            [
                (must, tantivy.Query.boolean_query([(should, self._holds(pair)) for pair in rarest])),
                *((should, self._holds(pair)) for pair in rest),
                (should, tantivy.Query.const_score_query(self._term("kind", _UNIQUE), _UNIQUE_FIRST)),
            ]
        )
        found = []
        for score, address in searcher.search(query, limit, count=False).hits:
            pairs = int(score + _UNIQUE_FIRST / 2)
            if pairs >= needed:
                document = searcher.doc(address)
                text = document.get_first("text")
                facts = TextFacts(*json.loads(_bytes_of(document)))
                found.append(FoundText(pairs / len(clue.pairs), facts, text.decode() if text else ""))
        return sorted(found, key=lambda one: (-one.share, bool(one.facts.group), -one.facts.time_ms, one.facts.at))

    def _holds(self, pair: WordPair) -> tantivy.Query:
        if len(pair) == 1:
            return tantivy.Query.const_score_query(tantivy.Query.term_query(self._schema, _WORDS, pair[0], "basic"), 1.0)
        words: list[str | tuple[int, str]] = list(pair)
        return tantivy.Query.const_score_query(tantivy.Query.phrase_query(self._schema, _WORDS, words), 1.0)

    def _term(self, field: str, value: str) -> tantivy.Query:
        return tantivy.Query.term_query(self._schema, field, value, "basic")

    def facts_at(self, at: str) -> TextFacts | None:
        """Return what is told of the document that lies there."""
        found = self._first("at", at)
        return None if found is None else TextFacts(*json.loads(found))

    def facts_of_id(self, identifier: str, limit: int = 10) -> list[TextFacts]:
        """Return what is told of the documents of an id, the newest first."""
        query = self._term("id", identifier[:_ID_CHARACTERS_MAX])
        return [TextFacts(*one) for one in self._ordered(query, "time", limit)]

    def group(self, position: str) -> GroupFacts | None:
        """Return a group by the position of the kept document."""
        found = self._first("root", position)
        return None if found is None else GroupFacts(*json.loads(found))

    def groups_of_id(self, identifier: str, limit: int = 10) -> list[GroupFacts]:
        """Return the groups whose kept document has that id, the newest first."""
        query = self._term("root_id", identifier[:_ID_CHARACTERS_MAX])
        return [GroupFacts(*one) for one in self._ordered(query, "newest", limit)]

    def copies_of(self, position: str, limit: int) -> list[TextFacts]:
        """Return the copies in a group, the newest first."""
        return [TextFacts(*one) for one in self._ordered(self._term("group", position), "time", limit)]

    def groups(self, order: str, limit: int) -> list[GroupFacts]:
        """Return the groups with the most copies, or (`newest`) with the newest."""
        by = "newest" if order == "newest" else "copies"
        return [GroupFacts(*one) for one in self._ordered(self._term("kind", _GROUP), by, limit)]

    def _ordered(self, query: tantivy.Query, field: str, limit: int) -> Iterable[list[Any]]:
        searcher = self._index.searcher()
        hits = searcher.search(query, limit, count=False, order_by_field=field).hits
        return [json.loads(_bytes_of(searcher.doc(address))) for _, address in hits]

    def _first(self, field: str, value: str) -> bytes | None:
        searcher = self._index.searcher()
        for _, address in searcher.search(self._term(field, value), 1, count=False).hits:
            return _bytes_of(searcher.doc(address))
        return None

    def _open(self) -> tantivy.IndexWriter:
        if self._writer is None:
            raise StoreError(f"The full-text engine in {self._folder} is closed.")
        return self._writer

    def close(self) -> None:
        """Let go of the folder; what was not committed is lost."""
        self._writer = None  # not waited for: a merge that is cut short is begun again


def _bytes_of(document: tantivy.Document) -> bytes:
    return bytes(document.get_first("facts") or b"")


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # merged away meanwhile


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    for name in ("kind", "at", "id", "group", "root", "root_id"):
        builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
    builder.add_text_field(_WORDS, tokenizer_name="words", index_option="position")
    for name in ("time", "copies", "newest"):
        builder.add_unsigned_field(name, fast=True)
    for name in ("facts", "text"):
        builder.add_bytes_field(name, stored=True)
    return builder.build()
