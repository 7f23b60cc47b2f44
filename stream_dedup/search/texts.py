"""The full-text engine, in one folder: finds documents by their words, and copies by their group.

It stores these kinds of entries, all in tantivy's segments:

    document      its words in order; its positions (`unique-3@17`, `documents-0@4`), group, id, time
                  and facts; for a copy of another host's page, both hosts; for a released document,
                  the positions of both its records on the outputs
    group         a kept document with copies, by its position in the source: the number of copies,
                  their bytes and times
    page          like a group, for a kept document that was fetched again and has no copies
    forgotten id  the digest of the id, with the offset of the log record that forgot it
    checkpoint    the next offset of every partition; the topics and settings that the engine was
                  filled from

Invariants: one commit makes all changes visible and durable, or none; a search finds exactly the
documents that a scan of all texts would find; a search looks up the rarest pairs of words first, and
the other pairs only in documents that contain enough of the rarest; at most `_HEAP_BYTES` of added
documents are in memory; a record time in the future, which a producer may set, counts as now.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import tantivy

from stream_dedup.domain.errors import StoreError, VolumeError
from stream_dedup.domain.paths import make_folder
from stream_dedup.search.facts import (
    TIME_MS_MAX,
    EngineCheckpoint,
    FoundText,
    GroupFacts,
    HostPairFacts,
    TextFacts,
    sortable_time_ms,
)
from stream_dedup.search.forgotten import ForgottenId, shown_key_of
from stream_dedup.search.query import SearchQuery, WordPair

_VERSION: Final = 9
_LOCKED: Final = "LockBusy"
_HEAP_BYTES: Final = 60_000_000
_WORDS: Final = "words"
_CHECKPOINT: Final = "place"
_FORGOTTEN: Final = "take-down"
_GROUP: Final = "group"
_PAGE: Final = "page"
_NAMELESS: Final = "nameless"
_UNIQUE: Final = "unique"
_DUPLICATE: Final = "duplicate"
_COPY: Final = "copy"
_RELEASED: Final = "released"
# A document must contain this number of the query's rarest pairs, plus one for each
# `_PAIRS_PER_RARE` pairs of the query, before the other pairs are looked up in it.
_RARE_PAIRS_MIN: Final = 2
_PAIRS_PER_RARE: Final = 15
_UNIQUE_FIRST: Final = (
    0.01  # added to a score, so that kept documents precede copies with the same number of pairs
)
_ID_CHARACTERS_MAX: Final = 1_000


class TextIndex:
    """The engine in a folder. Only one process at a time can open the folder. In that process, one
    thread may add documents while others search.
    """

    def __init__(
        self, folder: Path, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        """Open the folder, or create it. `now_ms`: the clock, in milliseconds since 1970.

        Raises:
            VolumeError: the folder is damaged.
            StoreError: another process has it open.
        """
        self._folder = folder
        self._now_ms = now_ms
        self._schema = _schema()
        try:
            make_folder(folder)
            self._index = tantivy.Index(self._schema, path=str(folder))
            self._index.register_tokenizer(
                "words", tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()
            )
            self._index.config_reader("manual")
            self._writer: tantivy.IndexWriter | None = self._index.writer(_HEAP_BYTES, 1)
            self._index.reload()
        except (ValueError, OSError) as error:
            if _LOCKED in str(error):
                raise StoreError(
                    f"Could not open the full-text engine in {folder}: another process has it "
                    "open. Stop that search, or name a different folder for this one with "
                    "STREAM_DEDUP_STATE_DIR."
                ) from error
            raise VolumeError(
                f"Could not open the full-text engine in {folder}: the folder is damaged, was written "
                "by another version of this program, or is not writable. Delete the folder, and the "
                "search fills a new one from Kafka; or name another folder with "
                f"STREAM_DEDUP_STATE_DIR (error of the engine: {error})."
            ) from error
        self._groups: dict[str, GroupFacts] = {}
        self._added = 0
        # Positions of the documents that were forgotten since the last commit.
        self._removed_positions: set[str] = set()
        # Copies and releases added since then without their other record, by (is release, source
        # position).
        self._pending_halves: dict[tuple[bool, str], TextFacts] = {}
        self.checkpoint = self._read_checkpoint()
        # Source positions of releases whose copy was not read yet: nearly always none, so that a copy
        # needs no search.
        released = self._facts_in_order(self._term("kind", _RELEASED), "time", None)
        self._lone_releases = {
            facts.source_position
            for facts in (TextFacts(*fields) for fields in released)
            if not facts.group_position
        }

    def _read_checkpoint(self) -> EngineCheckpoint | None:
        stored = self._first_facts("kind", _CHECKPOINT)
        if stored is None:
            return None
        try:
            version, *fields = json.loads(stored)
            if version != _VERSION:
                raise VolumeError(
                    f"The full-text engine in {self._folder} was written by another version of this "
                    "program. Delete the folder, and the search fills a new one from Kafka."
                )
            built_for, next_offsets = fields
            return EngineCheckpoint(
                built_for, {(topic, partition): offset for topic, partition, offset in next_offsets}
            )
        except (ValueError, TypeError) as error:
            raise VolumeError(
                f"The full-text engine in {self._folder} is damaged. Delete the folder, and the "
                "search fills a new one from Kafka."
            ) from error

    @property
    def added(self) -> int:
        """The number of documents added since the last commit."""
        return self._added

    @property
    def documents(self) -> int:
        """The number of documents and groups, as of the last commit."""
        should = tantivy.Occur.Should
        others = tantivy.Query.boolean_query(
            [(should, self._term("kind", kind)) for kind in (_CHECKPOINT, _FORGOTTEN)]
        )
        return int(self._index.searcher().num_docs) - self._count_of(others)

    @property
    def segments(self) -> int:
        """The number of segments after the last commit."""
        return int(self._index.searcher().num_segments)

    @property
    def size_bytes(self) -> int:
        """The size of the folder."""
        return sum(_size_of(path) for path in self._folder.iterdir())

    def add_text(
        self, facts: TextFacts, words: Sequence[str], id_key: str = "", hosts: Sequence[str] = ()
    ) -> None:
        """Add a document; the next commit makes it visible. The two records of a released document, a
        copy and its release, may come in any order; the second replaces the first, as one kept
        document.

        `id_key` (from `forgotten.key_of`): the key by which a `forget` finds the document; `hosts`:
        the hosts of a copy and of its kept document, if they are different.
        """
        self._added += 1
        facts = facts._replace(time_ms=min(facts.time_ms, self._now_ms()))
        if facts.is_duplicate:
            self._count_copy(facts)
        copy_position = ""
        if facts.source_position and (facts.is_duplicate or facts.is_released):
            facts, copy_position = self._join_release(facts)
            hosts = hosts if facts.is_duplicate else ()
        is_better = facts.is_duplicate and facts.better
        pair = " ".join(hosts)
        stored = facts._replace(kept_id="", counted=0)
        self._add_document(
            kind=[_DUPLICATE, *[_COPY] * (not facts.is_fetched_again)]
            if facts.is_duplicate
            else [_UNIQUE, *[_RELEASED] * facts.is_released],
            at=[
                position
                for position in (facts.output_position, facts.source_position, copy_position)
                if position
            ],
            id=facts.id[:_ID_CHARACTERS_MAX],
            id_key=id_key,
            group=facts.group_position,
            better_of=facts.group_position if is_better else "",
            decided=[facts.decision_rank] if is_better else [],
            pair=pair,
            host=list(hosts),
            words=" ".join(words),
            time=facts.sortable_ms,
            facts=json.dumps(stored, separators=(",", ":")).encode(),
        )

    def _join_release(self, facts: TextFacts) -> tuple[TextFacts, str]:
        """Remove the other record of a released document, and no longer count the document as a copy.
        Return the facts of the document and the output position of the copy; if there is no other
        record yet, return `facts` and an empty position.
        """
        other = None
        if facts.is_released or facts.source_position in self._lone_releases:
            query = self._both(
                self._term("at", facts.source_position),
                self._term("kind", _DUPLICATE if facts.is_released else _RELEASED),
            )
            committed = [TextFacts(*fields) for fields in self._facts_in_order(query, "time", 1)]
            pending = self._pending_halves.pop((not facts.is_released, facts.source_position), None)
            other = pending or next(iter(committed), None)
        if other is None:
            self._pending_halves[facts.is_released, facts.source_position] = facts
            if facts.is_released:
                self._lone_releases.add(facts.source_position)
            return facts, ""
        self._lone_releases.discard(facts.source_position)
        copy, released = (other, facts) if facts.is_released else (facts, other)
        with self._writing() as writer:
            writer.delete_documents_by_term("at", other.output_position)
        position = copy.group_position
        group = self._pending_group(position) or GroupFacts(position, "", 0, 0, 0)
        self._groups[position] = group._replace(
            copies=group.copies - (not copy.is_fetched_again),
            fetched_again=group.fetched_again - copy.is_fetched_again,
            bytes_wasted=group.bytes_wasted - copy.wasted_bytes,
            released=group.released + 1,
        )
        return (
            released._replace(group_position=position, similarity=copy.similarity),
            copy.output_position,
        )

    def _add_document(self, **fields: Any) -> None:
        """Add a document with the fields that are not empty."""
        non_empty = {name: value for name, value in fields.items() if value not in ("", [])}
        with self._writing() as writer:
            writer.add_document(tantivy.Document.from_dict(non_empty, self._schema))

    def _count_copy(self, facts: TextFacts) -> None:
        """Add a copy, or a fetch of the kept page, to the sums of its group."""
        before = self._pending_group(facts.group_position) or GroupFacts(
            facts.group_position, "", 0, 0, 0
        )
        time_ms = 0 if facts.is_fetched_again else facts.sortable_ms
        self._groups[facts.group_position] = GroupFacts(
            facts.group_position,
            facts.kept_id or before.id,
            before.copies + (not facts.is_fetched_again),
            before.bytes_wasted + facts.wasted_bytes,
            max(before.newest_ms, time_ms),
            max(before.named_at, facts.log_offset) if facts.kept_id else before.named_at,
            min(before.oldest_ms, time_ms)
            if before.oldest_ms and time_ms
            else before.oldest_ms or time_ms,
            max(before.counted, facts.counted),
            before.fetched_again + facts.is_fetched_again,
            before.is_forgotten and not facts.kept_id,
            before.released,
        )

    def _pending_group(self, position: str) -> GroupFacts | None:
        """Return a group as the next commit will store it."""
        return self._groups.get(position) or self.group(position)

    def commit(self, checkpoint: EngineCheckpoint) -> None:
        """Make the added documents visible and durable, with the offsets read in Kafka.

        Raises:
            StoreError: the folder cannot be written; the added documents are lost, and are read
            again after a restart.
        """
        with self._writing() as writer:
            for group in self._groups.values():
                writer.delete_documents_by_term("root", group.position)
                if group.copies + group.fetched_again + group.released <= 0:
                    continue
                nameless_kinds = [_NAMELESS] if group.is_forgotten else []
                self._add_document(
                    kind=[_GROUP if group.copies else _PAGE, *nameless_kinds],
                    root=group.position,
                    root_id=group.id[:_ID_CHARACTERS_MAX],
                    root_key=shown_key_of(group.id),
                    copies=group.copies,
                    newest=group.newest_ms if group.copies else self._now_ms(),
                    facts=json.dumps(group, separators=(",", ":")).encode(),
                )
            writer.delete_documents_by_term("kind", _CHECKPOINT)
            next_offsets = [
                [*key, offset] for key, offset in sorted(checkpoint.next_offsets.items())
            ]
            state = [_VERSION, dict(checkpoint.built_for), next_offsets]
            self._add_document(kind=_CHECKPOINT, facts=json.dumps(state).encode())
            writer.commit()
            self._index.reload()
        self.checkpoint = checkpoint
        self._groups.clear()
        self._removed_positions.clear()
        self._pending_halves.clear()
        self._added = 0

    def forget(self, forgotten_id: ForgottenId) -> None:
        """Remove the documents that have a forgotten id and precede its `forget`, and store the
        `forget`; the next commit makes both visible.

        Call this right after a commit. Removed copies are no longer counted in their groups; a
        group whose kept document is forgotten loses its id and keeps its copies.
        """
        if self._added:
            raise StoreError(
                "Documents were added since the last commit, so forgetting an id would miss them."
            )
        with self._writing() as writer:
            removed: dict[str, list[TextFacts]] = {}
            for fields in self._facts_in_order(
                self._term("id_key", forgotten_id.id_key), "time", None
            ):
                facts = TextFacts(*fields)
                if (
                    forgotten_id.covers(facts.log_offset, facts.time_ms)
                    and facts.output_position not in self._removed_positions
                ):
                    self._removed_positions.add(facts.output_position)
                    writer.delete_documents_by_term("at", facts.output_position)
                    removed.setdefault(facts.group_position, []).append(facts)
            for position, copies in removed.items():
                group = self._pending_group(position) if position else None
                if group is not None:
                    self._groups[position] = self._group_without_removed(group, copies)
            for fields in self._facts_in_order(
                self._term("root_key", forgotten_id.shown_key), "newest", None
            ):
                group = self._pending_group(GroupFacts(*fields).position)
                if group is not None and forgotten_id.covers(group.named_at, group.newest_ms):
                    self._groups[group.position] = group._replace(id="", is_forgotten=True)
            writer.delete_documents_by_term("forgotten", forgotten_id.id_key)
            self._add_document(
                kind=_FORGOTTEN,
                forgotten=forgotten_id.id_key,
                time=sortable_time_ms(forgotten_id.append_ms),
                facts=json.dumps(forgotten_id).encode(),
            )

    def _group_without_removed(self, group: GroupFacts, copies: Sequence[TextFacts]) -> GroupFacts:
        newest_and_oldest = [
            next(
                (
                    copy.sortable_ms
                    for copy in self.copies_of(
                        group.position,
                        len(self._removed_positions) + 1,
                        is_oldest_first=is_oldest_first,
                    )
                    if copy.output_position not in self._removed_positions
                ),
                0,
            )
            for is_oldest_first in (False, True)
        ]
        was_oldest = any(copy.sortable_ms == group.oldest_ms for copy in copies)
        fetched_again = sum(copy.is_fetched_again for copy in copies)
        released = sum(copy.is_released for copy in copies)
        return group._replace(
            copies=group.copies - len(copies) + fetched_again + released,
            fetched_again=group.fetched_again - fetched_again,
            released=group.released - released,
            bytes_wasted=group.bytes_wasted
            - sum(copy.wasted_bytes for copy in copies if copy.is_duplicate),
            newest_ms=newest_and_oldest[0],
            oldest_ms=newest_and_oldest[1] if was_oldest else group.oldest_ms,
        )

    def forgotten(self) -> list[ForgottenId]:
        """Return the forgotten ids, as of the last commit."""
        return [
            ForgottenId(*fields)
            for fields in self._facts_in_order(self._term("kind", _FORGOTTEN), "time", None)
        ]

    def drop_before(self, time_ms: int) -> None:
        """Remove documents that are older than `time_ms`, and groups whose newest copy is older; keep
        forgotten ids. The next commit makes it visible.
        """
        for field in ("time", "newest"):
            older = tantivy.Query.range_query(
                self._schema,
                field,
                tantivy.FieldType.Unsigned,
                0,
                max(0, time_ms),
                include_upper=False,
            )
            query = self._excluding(older, self._term("kind", _FORGOTTEN))
            with self._writing() as writer:
                writer.delete_documents_by_query(query)

    def _in_time_range(self, first_ms: int, last_ms: int) -> tantivy.Query:
        return tantivy.Query.range_query(
            self._schema, "time", tantivy.FieldType.Unsigned, first_ms, last_ms
        )

    def _both(self, first: tantivy.Query, second: tantivy.Query) -> tantivy.Query:
        return tantivy.Query.boolean_query(
            [(tantivy.Occur.Must, first), (tantivy.Occur.Must, second)]
        )

    def _excluding(self, wanted: tantivy.Query, excluded: tantivy.Query) -> tantivy.Query:
        return tantivy.Query.boolean_query(
            [(tantivy.Occur.Must, wanted), (tantivy.Occur.MustNot, excluded)]
        )

    def _count_of(self, query: tantivy.Query) -> int:
        return int(self._index.searcher().search(query, 1, count=True).count)  # type: ignore[attr-defined] # the stubs lack it

    def find(
        self, query: SearchQuery, limit: int, min_share: float | None = None
    ) -> list[FoundText]:
        """Return at most `limit` documents that contain at least the share `min_share` of a query:
        the highest share first; for equal shares kept documents before copies, then the newest.
        """
        searcher, should, must = self._index.searcher(), tantivy.Occur.Should, tantivy.Occur.Must
        needed = query.needed_pairs(min_share)
        frequency = {
            pair: min(searcher.doc_freq(_WORDS, word) for word in pair) for pair in query.pairs
        }
        by_rareness = sorted(query.pairs, key=frequency.__getitem__)
        # A document with `needed` pairs lacks at most `lacking` pairs, so it contains at least `rare`
        # of any `lacking + rare` pairs. All pairs are looked up only in documents with that number
        # of the rarest.
        lacking = len(query.pairs) - needed
        rare = min(needed, _RARE_PAIRS_MIN + len(query.pairs) // _PAIRS_PER_RARE)
        rarest = self._with_some_of(by_rareness[: lacking + rare], rare)
        wanted = [
            (must, tantivy.Query.const_score_query(rarest, 0.0)),
            (must, self._with_some_of(by_rareness, needed)),
            (should, tantivy.Query.const_score_query(self._term("kind", _UNIQUE), _UNIQUE_FIRST)),
        ]
        hits = searcher.search(tantivy.Query.boolean_query(wanted), limit, count=False).hits
        matches = [
            FoundText(
                int(score + _UNIQUE_FIRST / 2) / len(query.pairs),
                TextFacts(*json.loads(_stored_facts(searcher.doc(address)))),
            )
            for score, address in hits
        ]
        return sorted(
            matches,
            key=lambda match: (
                -match.share,
                match.facts.is_duplicate,
                -match.facts.time_ms,
                match.facts.output_position,
            ),
        )

    def _with_some_of(self, pairs: Sequence[WordPair], pairs_min: int) -> tantivy.Query:
        """Return a query for the documents with at least `pairs_min` of the pairs. It scores a document
        by the number of its pairs.
        """
        return tantivy.Query.boolean_query(
            [(tantivy.Occur.Should, self._pair_query(pair)) for pair in pairs],
            minimum_number_should_match=pairs_min,
        )

    def _pair_query(self, pair: WordPair) -> tantivy.Query:
        if len(pair) == 1:
            return tantivy.Query.const_score_query(
                tantivy.Query.term_query(self._schema, _WORDS, pair[0], "basic"), 1.0
            )
        words: list[str | tuple[int, str]] = list(pair)
        return tantivy.Query.const_score_query(
            tantivy.Query.phrase_query(self._schema, _WORDS, words), 1.0
        )

    def _term(self, field: str, value: str) -> tantivy.Query:
        return tantivy.Query.term_query(self._schema, field, value, "basic")

    def facts_at(self, position: str) -> TextFacts | None:
        """Return the facts of the document at a position in the source or an output; None without one."""
        stored = self._first_facts("at", position)
        return None if stored is None else TextFacts(*json.loads(stored))

    def facts_of_id(self, identifier: str, limit: int = 10) -> list[TextFacts]:
        """Return the facts of the documents with an id, the newest first."""
        query = self._term("id", identifier[:_ID_CHARACTERS_MAX])
        return [TextFacts(*fields) for fields in self._facts_in_order(query, "time", limit)]

    def group(self, position: str) -> GroupFacts | None:
        """Return the group of the kept document at a position in the source, also if the group has no
        copies; None if there is no group.
        """
        stored = self._first_facts("root", position)
        return None if stored is None else GroupFacts(*json.loads(stored))

    @property
    def group_count(self) -> int:
        """The number of groups with copies."""
        return self._count_of(self._term("kind", _GROUP))

    def groups_of_id(self, identifier: str, limit: int = 10) -> list[GroupFacts]:
        """Return the groups whose kept document has that id, the newest first."""
        query = self._term("root_id", identifier[:_ID_CHARACTERS_MAX])
        return [GroupFacts(*fields) for fields in self._facts_in_order(query, "newest", limit)]

    def copies_of(
        self,
        position: str,
        limit: int,
        *,
        is_oldest_first: bool = False,
        are_released: bool = False,
    ) -> list[TextFacts]:
        """Return the copies in a group, or (with `are_released`) the former copies that an operator
        released, the newest first. With `is_oldest_first` the oldest first; copies without a time are
        then left out.
        """
        query = self._both(
            self._term("group", position),
            self._term("kind", _RELEASED if are_released else _COPY),
        )
        if is_oldest_first:
            query = self._both(query, self._in_time_range(1, TIME_MS_MAX))
        return [
            TextFacts(*fields)
            for fields in self._facts_in_order(query, "time", limit, ascending=is_oldest_first)
        ]

    def kept_at(self, position: str) -> list[TextFacts]:
        """Return the newest record in `unique` of the document at a source position, if any."""
        query = self._both(self._term("at", position), self._term("kind", _UNIQUE))
        return [TextFacts(*fields) for fields in self._facts_in_order(query, "time", 1)]

    def best_of(self, position: str) -> TextFacts | None:
        """Return the last copy in a group that the log marked as better than the kept document and
        all earlier copies; None without one.
        """
        stored = list(self._facts_in_order(self._term("better_of", position), "decided", 1))
        return TextFacts(*stored[0]) if stored else None

    @property
    def committed_ms(self) -> int:
        """The time of the last commit."""
        return int(1000 * (self._folder / "meta.json").stat().st_mtime)

    def host_pairs(self, host: str, limit: int) -> list[HostPairFacts]:
        """Return the pairs of hosts, those with the most copies first. With `host`, return only the
        pairs of this host. Copies of a forgotten document do not count.
        """
        nameless = self._facts_in_order(self._term("kind", _NAMELESS), "newest", None)
        forgotten = tantivy.Query.term_set_query(
            self._schema, "group", [position for position, *_ in nameless]
        )
        query = self._term("host", host) if host else self._term("kind", _COPY)
        aggregation = {
            "pairs": {
                "terms": {"field": "pair", "size": limit},
                "aggs": {"max": {"max": {"field": "time"}}},
            }
        }
        query = self._excluding(query, forgotten)
        found = self._index.searcher().aggregate(query, aggregation)["pairs"]["buckets"]
        pairs = []
        for bucket in found:
            copies = self._excluding(self._term("pair", bucket["key"]), forgotten)
            for fields in self._facts_in_order(copies, "time", 1, ascending=True):
                copier, source = bucket["key"].split()
                newest_ms = int(bucket["max"]["value"])
                earliest = TextFacts(*fields)
                pairs.append(
                    HostPairFacts(copier, source, bucket["doc_count"], earliest, newest_ms)
                )
        return pairs

    def groups(self, order: str, limit: int, offset: int = 0) -> list[GroupFacts]:
        """Return at most `limit` groups after the first `offset`: in the order `largest` those with the
        most copies first, in the order `newest` those with the newest copies first.
        """
        sort_field = "newest" if order == "newest" else "copies"
        # The engine allocates memory for all rows before the page, whether or not they exist.
        return [
            GroupFacts(*fields)
            for fields in self._facts_in_order(
                self._term("kind", _GROUP), sort_field, limit, offset=min(offset, self.group_count)
            )
        ]

    def _facts_in_order(
        self,
        query: tantivy.Query,
        field: str,
        limit: int | None,
        *,
        ascending: bool = False,
        offset: int = 0,
    ) -> list[list[Any]]:
        """Return the stored facts that a query finds, sorted by `field`, the highest value first or (with
        `ascending`) the lowest; without a limit all.
        """
        searcher = self._index.searcher()
        limit = max(1, self._count_of(query)) if limit is None else limit
        order = tantivy.Order.Asc if ascending else tantivy.Order.Desc
        hits = searcher.search(
            query, limit, count=False, order_by_field=field, offset=offset, order=order
        ).hits
        return [json.loads(_stored_facts(searcher.doc(address))) for _, address in hits]

    def _first_facts(self, field: str, value: str) -> bytes | None:
        searcher = self._index.searcher()
        for _, address in searcher.search(self._term(field, value), 1, count=False).hits:
            return _stored_facts(searcher.doc(address))
        return None

    def _open_writer(self) -> tantivy.IndexWriter:
        if self._writer is None:
            raise StoreError(f"The full-text engine in {self._folder} is closed.")
        return self._writer

    def finish_merging(self) -> None:
        """Wait until segments are merged; uncommitted changes are lost."""
        self._open_writer().wait_merging_threads()
        self._writer = self._index.writer(_HEAP_BYTES, 1)
        self._writer.garbage_collect_files()
        self._index.reload()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tantivy.IndexWriter]:
        """Yield the writer. Any call of it may fail; its errors are raised as a `StoreError`."""
        try:
            yield self._open_writer()
        except (ValueError, OSError) as error:
            raise StoreError(
                f"The full-text engine in {self._folder} could not be written. Is the disk full? "
                f"A restart continues from the last commit (error of the engine: {error})."
            ) from error

    def close(self) -> None:
        """Close the folder; uncommitted changes are lost."""
        self._writer = None  # an unfinished merge is started again later


def _stored_facts(document: tantivy.Document) -> bytes:
    return bytes(document.get_first("facts") or b"")


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # a merge has just deleted the file


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    for name in (
        "kind",
        "at",
        "id",
        "id_key",
        "group",
        "better_of",
        "root",
        "root_id",
        "root_key",
        "forgotten",
        "host",
    ):
        builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("pair", tokenizer_name="raw", index_option="basic", fast=True)
    builder.add_text_field(_WORDS, tokenizer_name="words", index_option="position")
    for name in ("time", "copies", "newest", "decided"):
        builder.add_unsigned_field(name, fast=True)
    builder.add_bytes_field("facts", stored=True)
    return builder.build()
