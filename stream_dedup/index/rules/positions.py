"""Earlier verdicts by source position: watermarks and the redelivery cache
(docs/explanation/index-layout.md, "Memory of positions").

    watermark  of a source partition: the highest (epoch, committed offset) in its batches so far, compared
               in this order
    cache      every verdict on a document at or above its partition's watermark, by (source, offset,
               value digest)

When a watermark rises, the verdicts below it are dropped. When its epoch rises, first all verdicts of
the partition are dropped except the unique ones, which stay until the new watermark passes them.

`judging` decides on a document at (epoch, offset) by the first of these that applies:
 1. There is a cached verdict, and the epoch is not below the watermark's: that verdict.
 2. There is a live representative at this position: unique.
 3. (epoch, offset) is below the watermark: stale, and nothing changes.
 4. The document is judged, and the verdict is cached.
A position with another value digest is another document.

If a representative expires or is forgotten, the cached verdicts on it and on its duplicates do not
change: a redelivered document gets its first verdict again. Only a forgotten id is removed from them.

Invariants: no cached verdict is below its partition's watermark; the cached verdicts of a stored record
are exactly its rows at or above the watermarks (so a rising watermark alone writes nothing, while a
rising epoch rewrites stored records); a cached duplicate names a representative that was not
retracted.

Verdicts are kept as columns. They are read one by one only if the offsets of their record overlap with
those of a batch; nearly always, a watermark passes the record first.

A retraction reads only the records with the position, and those that name its representative. To find
the latter, the handles of each record are indexed at the first retraction after it was cached.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import Position, Reason, Verdict
from stream_dedup.domain.errors import FormatError
from stream_dedup.domain.lazy_sequences import sizes_between
from stream_dedup.index.storage.columns import Columns, make_columns
from stream_dedup.index.storage.contract import Writes
from stream_dedup.index.storage.layout import (
    CACHED_VERDICT,
    cached_key,
    decode_cached,
    decode_source,
    decode_watermark,
    encode_cached,
    encode_source,
    encode_watermark,
    number_of,
    source_key,
    watermark_key,
)
from stream_dedup.log.record_frame import index_distinct
from stream_dedup.log.schema import (
    COLUMNS,
    Judgement,
    NamedRepresentatives,
    Verdicts,
    naming_mask,
)

Key = tuple[int, int, int]
"""A document's identity: (source number, offset, value digest)."""

_PLACES = 1 << 16


class Sources:
    """Source partitions, numbered in the log's order of first mention, so that an entry needs four
    bytes for one.

    Invariants: a number is never reused; a partition is identified by topic, topic id and partition
    together, because documents of files have a topic id of zeros.
    """

    def __init__(self, stored: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._names: list[tuple[str, bytes, int]] = []
        self._numbers: dict[tuple[str, bytes, int], int] = {}
        for key, value in stored:
            if number_of(key) != len(self._names):
                raise FormatError(
                    "The index volume does not contain the name of a source partition. Start the "
                    "index with an empty volume; it is rebuilt from the log."
                )
            self.number(*decode_source(value))
        self._stored = len(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def number(self, topic: str, topic_id: bytes, partition: int) -> int:
        """Return the partition's number; a new partition gets the next number."""
        name = (topic, topic_id, partition)
        number = self._numbers.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
        return number

    def find(self, topic: str, topic_id: bytes, partition: int) -> int | None:
        """Return the partition's number, or None if no batch named it."""
        return self._numbers.get((topic, topic_id, partition))

    def name(self, source: int) -> tuple[str, bytes, int]:
        """Return a partition's topic, topic id and number in the topic."""
        return self._names[source]

    def position(self, source: int, offset: int) -> Position:
        """Return the position of an offset in a numbered partition."""
        topic, topic_id, partition = self._names[source]
        return Position(topic, topic_id, partition, offset)

    def list_distinct(
        self, sources: NDArray[np.uint32]
    ) -> tuple[list[tuple[str, bytes, int]], NDArray[np.uint16]]:
        """Return (distinct partitions, indices). The partitions are in order of first mention; index i
        is that of the partition with the number `sources[i]`.
        """
        numbers, indices = index_distinct(sources)
        return [self._names[number] for number in numbers.tolist()], indices.astype(np.uint16)

    def source_and_offset(self, position: Position) -> tuple[int, int]:
        """Return the (source, offset) of a position in a numbered partition."""
        return self._numbers[position.topic, position.topic_id, position.partition], position.offset

    def add_writes(self, writes: Writes) -> None:
        """Add the partitions that were numbered since the last call."""
        for number in range(self._stored, len(self._names)):
            writes.put(source_key(number), encode_source(*self._names[number]))
        self._stored = len(self._names)


Spans = dict[int, tuple[int, int]]
"""By source: the lowest and the highest offset of some documents."""


def _reasons_of(verdict: Verdict) -> NDArray[np.bool_]:
    """Return the mask (256,) of the numbers of reasons with this verdict."""
    return np.isin(np.arange(256), [reason for reason in Reason if reason.verdict is verdict])


_IS_UNIQUE, _IS_DUPLICATE = _reasons_of(Verdict.UNIQUE), _reasons_of(Verdict.DUPLICATE)


class CachedRecord:
    """The cached verdicts of one log record, as columns (n,) in the order of its documents.

    A document's handle is that of the representative that it names or became. `is_kept` is false
    for verdicts that were dropped one by one. `sources_remaining` is the number of sources whose
    watermark has not passed the record; at 0 the whole record is dropped. `reach` is, by source,
    the highest offset in this record and in those before it in the source's list in `Positions`.
    """

    __slots__ = (
        "_replaced",
        "_verdicts",
        "handles",
        "is_kept",
        "is_stored",
        "log_offset",
        "offsets",
        "reach",
        "reasons",
        "sources",
        "sources_remaining",
        "spans",
        "value_digests",
    )  # fmt: skip

    def __init__(
        self, log_offset: int, columns: Columns, verdicts: Verdicts, handles: NDArray[np.int64]
    ) -> None:
        self.log_offset = log_offset
        self.sources, self.offsets = columns.sources, columns.offsets
        self.value_digests = columns.value_digests
        self._verdicts, self.handles = verdicts, handles
        self._replaced: dict[int, Judgement] = {}
        self.reasons = verdicts.reasons.copy()
        self.is_kept = np.ones(len(handles), np.bool_)
        self.is_stored = False
        self.reach: dict[int, int] = {}
        self._update_spans()

    def keys(self) -> list[Key]:
        """Return the identities of the documents."""
        columns = self.sources, self.offsets, self.value_digests
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def find(self, key: Key) -> int | None:
        """Return the row of a document whose verdict was not dropped, or None."""
        source, offset, value_digest = key
        is_same = (self.offsets == offset) & (self.sources == source) & self.is_kept
        rows = np.flatnonzero(is_same & (self.value_digests == np.uint64(value_digest)))
        return int(rows[0]) if len(rows) else None

    def replace(self, row: int, judgement: Judgement) -> None:
        """Replace the verdict of a row."""
        self._replaced[row] = judgement
        self.reasons[row] = judgement.reason

    @property
    def verdicts(self) -> Verdicts:
        """The verdicts. The columns are built again only at the first access after `replace`, because
        an order may replace many.
        """
        if self._replaced:
            judgements = enumerate(self._verdicts.judgements())
            replaced, self._replaced = self._replaced, {}
            self._verdicts = Verdicts.of(
                [replaced.get(row, judgement) for row, judgement in judgements]
            )
        return self._verdicts

    def append(self, part: CachedRecord) -> None:
        """Add the documents of a later part of the same log record."""
        for name in ("sources", "offsets", "value_digests", "handles", "is_kept", "reasons"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(part, name)]))
        self._verdicts = Verdicts.joined([self.verdicts, part.verdicts])
        self._update_spans()

    def _update_spans(self) -> None:
        self.spans, _ = find_spans(self.sources, self.offsets)
        self.sources_remaining = len(self.spans)


class Positions:
    """Watermarks and redelivery cache of all source partitions."""

    def __init__(
        self,
        sources: Sources,
        watermarks: Iterable[tuple[bytes, bytes]] = (),
        stored: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self._sources = sources
        self._watermarks = {number_of(key): decode_watermark(value) for key, value in watermarks}
        # The records that a source's watermark has not passed, ordered by their first offset in it.
        self._by_source: dict[int, list[CachedRecord]] = {}
        # The records with a cached verdict, by log offset, in ascending order.
        self._records: dict[int, CachedRecord] = {}
        # By the handle of a representative, the log offsets of indexed records with a duplicate of it.
        self._offsets_by_handle: dict[int, set[int]] = {}
        # By the log offset of an indexed record, its handles in `_offsets_by_handle`. All records up to
        # the last indexed one are indexed.
        self._handles_by_offset: dict[int, list[int]] = {}
        self._changed_watermarks: set[int] = set()
        self._changed: dict[int, CachedRecord] = {}
        for key, value in stored:
            self._load(number_of(key), value)

    def __len__(self) -> int:
        return sum(int(self._mark_cached(record).sum()) for record in self._records.values())

    def watermark(self, source: int) -> tuple[int, int]:
        """Return the (epoch, committed offset) of a partition's watermark."""
        return self._watermarks[source]

    def raise_watermark(self, source: int, epoch: int, committed: int) -> None:
        """Raise a partition's watermark to (epoch, committed) if that is higher, and drop the verdicts
        that it passes.
        """
        old = self._watermarks.get(source)
        if old is not None and (epoch, committed) <= old:
            return
        if old is not None and epoch > old[0]:
            # After a rewind the new watermark has a lower offset. Verdicts that the old one had
            # passed must not count as cached again.
            for record in [record for record in self._records.values() if source in record.spans]:
                is_dropped = (record.offsets < old[1]) | ~_IS_UNIQUE[record.reasons]
                self._drop(record, is_dropped & (record.sources == source))
        self._watermarks[source] = (epoch, committed)
        self._changed_watermarks.add(source)
        self._drop_passed(source, committed)

    def is_new_batch(self, spans: Spans) -> bool:
        """Return True only if no document of a batch has a cached verdict: the usual case. Return
        False if one may have: the spans of offsets overlap.
        """
        return next(self._overlapping(spans), None) is None

    def find_verdicts(self, columns: Columns) -> dict[Key, Judgement]:
        """Return the cached verdicts on documents of a batch."""
        keys, found = set(read_keys(columns)), dict[Key, Judgement]()
        spans, _ = find_spans(columns.sources, columns.offsets)
        for record in self._overlapping(spans):
            cached = zip(
                record.keys(), record.verdicts, self._mark_cached(record).tolist(), strict=True
            )
            found.update(
                (key, judgement)
                for key, judgement, is_cached in cached
                if is_cached and key in keys
            )
        return found

    def verdicts(self) -> list[tuple[Key, Judgement]]:
        """Return every cached verdict, ordered by source, offset and value digest."""
        cached: list[tuple[Key, Judgement]] = []
        for record in self._records.values():
            pairs = zip(record.keys(), record.verdicts, strict=True)
            cached += itertools.compress(pairs, self._mark_cached(record).tolist())
        return sorted(cached, key=itemgetter(0))

    def cache(
        self, log_offset: int, columns: Columns, verdicts: Verdicts, handles: NDArray[np.int64]
    ) -> None:
        """Cache verdicts on documents of a log record, with their handles (`handle_of`). The documents
        must be at or above their watermarks and have no cached verdict.
        """
        record = CachedRecord(log_offset, columns, verdicts, handles)
        earlier = self._records.get(log_offset)
        if earlier is not None:
            self._remove(earlier)
            earlier.append(record)
            record = earlier
        self._add(record)
        self._changed[log_offset] = record

    def retract(self, key: Key, handle: int | None, judgement: Judgement) -> None:
        """Replace the cached verdict on a retracted document, and drop those on duplicates that
        name it.

        `handle` is its representative's, or None if it is not a representative.
        """
        self._replace(key, judgement)
        for record in [] if handle is None else self._records_naming(handle):
            self._drop(record, (record.handles == handle) & _IS_DUPLICATE[record.reasons])

    def replace(self, key: Key, handle: int, judgement: Judgement) -> None:
        """Replace the cached verdict on a released document, if there is one."""
        replaced = self._replace(key, judgement)
        if replaced is not None:
            record, row = replaced
            record.handles[row] = handle

    def forget(self, ids: Collection[bytes]) -> None:
        """Replace these ids by empty ones in the cached verdicts on duplicates. The other fields do
        not change, so that a redelivered document gets its first verdict.
        """
        for record in self._records.values():
            if any(representative.id in ids for representative in record.verdicts.named):
                for row, judgement in enumerate(record.verdicts):
                    if judgement.of is not None and judgement.of.id in ids:
                        forgotten = judgement.of._replace(id=b"")
                        record.replace(row, judgement._replace(of=forgotten))
                self._changed[record.log_offset] = record

    def add_writes(self, writes: Writes) -> None:
        """Add the changes since the last call."""
        for source in sorted(self._changed_watermarks):
            writes.put(watermark_key(source), encode_watermark(*self._watermarks[source]))
        for log_offset, record in sorted(self._changed.items(), key=itemgetter(0)):
            if record.sources_remaining:
                writes.put(cached_key(log_offset), self._encode(record))
                record.is_stored = True
            elif record.is_stored:
                writes.delete(cached_key(log_offset))
        self._changed_watermarks.clear()
        self._changed.clear()

    def _add(self, record: CachedRecord) -> None:
        """Add a record, unless the watermarks of all its sources have passed it."""
        for source, (first, last) in record.spans.items():
            if last < self._watermarks[source][1]:
                record.sources_remaining -= 1
                continue
            records = self._by_source.setdefault(source, [])
            index = bisect_right(records, first, key=_first_offset_of(source))
            records.insert(index, record)
            reach = max(last, records[index - 1].reach[source]) if index else last
            record.reach[source] = reach
            for later in records[index + 1 :]:
                if later.reach[source] >= reach:
                    break
                later.reach[source] = reach
        if record.sources_remaining:
            self._records[record.log_offset] = record

    def _remove(self, record: CachedRecord) -> None:
        """Remove a record from the lists of its sources."""
        for source in record.spans:
            records = self._by_source.get(source, [])
            if record in records:
                records.remove(record)

    def _overlapping(self, spans: Spans) -> Iterator[CachedRecord]:
        """Yield the records with offsets within some spans, each once."""
        seen: set[int] = set()
        for source, (first, last) in spans.items():
            records = self._by_source.get(source, [])
            end = bisect_right(records, last, key=_first_offset_of(source))
            for record in reversed(records[:end]):
                if record.reach[source] < first:
                    break
                if record.spans[source][1] >= first and record.log_offset not in seen:
                    seen.add(record.log_offset)
                    yield record

    def _replace(self, key: Key, judgement: Judgement) -> tuple[CachedRecord, int] | None:
        """Replace the cached verdict on a document; return its record and row, None without one."""
        source, offset, _ = key
        for record in self._overlapping({source: (offset, offset)}):
            row = record.find(key)
            if row is not None and offset >= self._watermarks[source][1]:
                record.replace(row, judgement)
                self._changed[record.log_offset] = record
                return record, row
        return None

    def _records_naming(self, handle: int) -> list[CachedRecord]:
        """Return the records in which a duplicate may name a representative, and remove its handle
        from the index of handles: it is looked up only once.

        First index the records that are newer than the last indexed one.
        """
        new_offsets = list(
            itertools.takewhile(
                lambda offset: offset not in self._handles_by_offset, reversed(self._records)
            )
        )
        for log_offset in reversed(new_offsets):
            record = self._records[log_offset]
            named = set(record.handles[_IS_DUPLICATE[record.reasons]].tolist())
            self._handles_by_offset[log_offset] = list(named)
            for named_handle in named:
                self._offsets_by_handle.setdefault(named_handle, set()).add(log_offset)
        offsets = sorted(self._offsets_by_handle.pop(handle, ()))
        return [self._records[log_offset] for log_offset in offsets]

    def _drop_record(self, record: CachedRecord) -> None:
        """Remove a log record without cached verdicts."""
        self._changed[record.log_offset] = record
        del self._records[record.log_offset]
        for handle in self._handles_by_offset.pop(record.log_offset, ()):
            naming = self._offsets_by_handle.get(handle)
            if naming is not None:
                naming.discard(record.log_offset)
                if not naming:
                    del self._offsets_by_handle[handle]

    def _mark_cached(self, record: CachedRecord) -> NDArray[np.bool_]:
        """Return which verdicts of a record are cached: not dropped, and not below their watermarks,
        (n,).
        """
        numbers, indices = np.unique(record.sources, return_inverse=True)
        watermarks = np.array(
            [self._watermarks[source][1] for source in numbers.tolist()], np.int64
        )
        is_cached: NDArray[np.bool_] = record.is_kept & (record.offsets >= watermarks[indices])
        return is_cached

    def _drop(self, record: CachedRecord, is_dropped: NDArray[np.bool_]) -> None:
        """Drop some verdicts of a record, and the record if none remains."""
        record.is_kept &= ~is_dropped
        self._changed[record.log_offset] = record
        if not record.is_kept.any():
            self._remove(record)
            record.sources_remaining = 0
            self._drop_record(record)

    def _drop_passed(self, source: int, committed: int) -> None:
        records = self._by_source.get(source, [])
        end = bisect_left(records, committed, key=_first_offset_of(source))
        candidates = records[:end]
        records[:end] = [record for record in candidates if record.spans[source][1] >= committed]
        for record in candidates:
            if record.spans[source][1] < committed:
                record.sources_remaining -= 1
                if not record.sources_remaining:
                    self._drop_record(record)

    def _encode(self, record: CachedRecord) -> bytes:
        verdicts, kept = record.verdicts, np.flatnonzero(record.is_kept)
        if len(kept) < len(verdicts):
            verdicts = Verdicts.of([verdicts[row] for row in kept.tolist()])
        named = NamedRepresentatives.of(verdicts.named)
        rows = np.zeros(len(kept), CACHED_VERDICT)
        rows["source"], rows["offset"] = record.sources[kept], record.offsets[kept]
        rows["value_digest"] = record.value_digests[kept]
        rows["representative"] = record.handles[kept]
        for column in COLUMNS:
            rows[column.name] = getattr(verdicts, column.name)
        if named:
            naming_rows = np.flatnonzero(verdicts.names_another)
            numbers = np.array(
                [self._sources.find(*partition) for partition in named.partitions], np.uint32
            )
            rows["of_source"][naming_rows] = numbers[named.sources]
            rows["of_offset"][naming_rows] = named.offsets
            rows["of_time_ms"][naming_rows] = named.times_ms
            rows["id_bytes"][naming_rows] = sizes_between(named.stops)
        return encode_cached(rows, named.ids)

    def _load(self, log_offset: int, value: bytes) -> None:
        rows, ids = decode_cached(value)
        columns: dict[str, Any] = {
            column.name: rows[column.name].astype(column.kind) for column in COLUMNS
        }
        named_rows = rows[naming_mask(columns["reasons"], columns["similarity"])]
        partitions, sources = self._sources.list_distinct(named_rows["of_source"])
        named = NamedRepresentatives(
            partitions=partitions,
            sources=sources,
            offsets=named_rows["of_offset"].astype(np.int64),
            times_ms=named_rows["of_time_ms"].astype(np.int64),
            stops=np.cumsum(named_rows["id_bytes"], dtype=np.int64),
            ids=ids,
        )
        documents = make_columns(0, len(rows))._replace(
            sources=rows["source"].astype(np.uint32),
            offsets=rows["offset"].astype(np.int64),
            value_digests=rows["value_digest"].astype(np.uint64),
        )
        record = CachedRecord(
            log_offset,
            documents,
            Verdicts(named=named, **columns),
            rows["representative"].astype(np.int64),
        )
        record.is_stored = True
        self._add(record)
        if not record.sources_remaining:
            # Delete it with the next write: after a rewind, a lower watermark must not revive it.
            self._changed[log_offset] = record


def _first_offset_of(source: int) -> Callable[[CachedRecord], int]:
    """Return the sort key of the records of a source: the first offset."""
    return lambda record: record.spans[source][0]


def handle_of(log_offset: Any, place: Any) -> Any:
    """Return the permanent handle of a representative; arguments may be columns (n,).

    It is the log place of its verdict, as one number. The number of its entry is not permanent: a
    renewed representative gets a new entry.
    """
    return log_offset * _PLACES + place


def read_keys(columns: Columns) -> list[Key]:
    """Return the identities of a batch's documents."""
    return list(
        zip(
            columns.sources.tolist(),
            columns.offsets.tolist(),
            columns.value_digests.tolist(),
            strict=True,
        )
    )


def find_spans(sources: NDArray[np.uint32], offsets: NDArray[np.int64]) -> tuple[Spans, bool]:
    """Return the spans of documents, and whether the offsets of each source ascend, so that no
    document occurs twice.
    """
    if (sources[1:] != sources[:-1]).any():
        order = np.argsort(sources, kind="stable")
        sources, offsets = sources[order], offsets[order]
    begins = sources[1:] != sources[:-1]
    firsts = np.append(0, np.flatnonzero(begins) + 1)
    lowest, highest = np.minimum.reduceat(offsets, firsts), np.maximum.reduceat(offsets, firsts)
    spans = zip(lowest.tolist(), highest.tolist(), strict=True)
    are_ascending = bool((begins | (offsets[1:] > offsets[:-1])).all())
    return dict(zip(sources[firsts].tolist(), spans, strict=True)), are_ascending


def split_at_repeats(keys: Sequence[Key]) -> list[tuple[int, int]]:
    """Return ranges [first, end) of a batch in which no document occurs twice; usually one."""
    if len(set(keys)) == len(keys):
        return [(0, len(keys))]
    bounds = [0]
    seen: set[Key] = set()
    for place, key in enumerate(keys):
        if key in seen:
            bounds.append(place)
            seen = set()
        seen.add(key)
    return list(itertools.pairwise([*bounds, len(keys)]))
