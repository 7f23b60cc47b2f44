"""Earlier verdicts by source position: watermarks and the redelivery cache
(docs/explanation/index-layout.md, "Memory of positions").

    watermark  per source partition, the lexicographic maximum of the (epoch, committed offset) in its batches;
               a lower pair changes nothing
    cache      every verdict on a document at or above its partition's watermark, by (source, offset, value digest)

    rises      when the watermark moves, verdicts below it are dropped; when its epoch rises, first all verdicts of the
               partition are dropped except the unique ones, which stay until the new watermark passes them

Look-up of a document at (epoch, offset), as `judging` does it: (1) a verdict in the cache, unless
the epoch is below the watermark's; (2) a live representative at this position: unique; (3) (epoch,
offset) below the watermark: stale, and nothing changes; (4) judge, and cache the verdict. A
position with another value digest is another document.

If a representative expires or is forgotten, the cached verdicts on it and on its duplicates stay as
they are: a redelivered document gets its first verdict again. Only a forgotten id is blanked.

Invariants: no cached verdict is below its partition's watermark; of the rows of a stored
record, those at or above the watermarks are exactly the cached ones (so a rising
watermark costs no write, and a rising epoch rewrites stored values); a cached duplicate
names a representative that was not retracted.

The verdicts of a log record stay columns (`WholeRecord`) until one of them is read; if its offsets
do not overlap with those of a new batch, none is needed. Nearly always a watermark passes the
record before that.

A retraction reads the records with the position and those that
name its representative, not the whole cache: for this, each record's handles are indexed once, when
a representative is retracted.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import Position, Representative, Verdict
from stream_dedup.domain.errors import FormatError
from stream_dedup.domain.lazy import sizes_of
from stream_dedup.domain.sketch import NOT_COMPARED
from stream_dedup.index.storage.columns import Columns
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
from stream_dedup.log.frame import table_of
from stream_dedup.log.schema import COLUMNS, Judgement, NamedRepresentatives, Verdicts

Key = tuple[int, int, int]
"""A document's identity: (source number, offset, value digest)."""

_PLACES = 1 << 16
_SMALL_BATCH = 64


class Sources:
    """Source partitions, numbered in the log's order of first mention, so that an entry needs four
    bytes for one.

    Invariants: a number is never reused; a partition is identified by its topic's name, id and
    number together, because the id of a topic without one (a file) is all zeros.
    """

    def __init__(self, stored: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._names: list[tuple[str, bytes, int]] = []
        self._numbers: dict[tuple[str, bytes, int], int] = {}
        for key, value in stored:
            if number_of(key) != len(self._names):
                raise FormatError(
                    "The index volume lacks the name of a source partition; rebuild it."
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

    def named(
        self, sources: NDArray[np.uint32]
    ) -> tuple[list[tuple[str, bytes, int]], NDArray[np.uint16]]:
        """Return (the distinct partitions in order of first mention, the index of each number
        among them, (n,)).
        """
        numbers, places = table_of(sources)
        return [self._names[number] for number in numbers.tolist()], places.astype(np.uint16)

    def place(self, position: Position) -> tuple[int, int]:
        """Return the (source, offset) of a position in a numbered partition."""
        return self._numbers[position.topic, position.topic_id, position.partition], position.offset

    def add_writes(self, writes: Writes) -> None:
        """Add the partitions that were numbered since the last call."""
        for number in range(self._stored, len(self._names)):
            writes.put(source_key(number), encode_source(*self._names[number]))
        self._stored = len(self._names)


class CachedRecord:
    """The cached verdicts of one log record, in parallel lists; `handles` are those of the
    representatives that the verdicts are about. `remaining` counts the verdicts not yet dropped.
    """

    __slots__ = ("handles", "is_stored", "judgements", "keys", "log_offset", "remaining")

    def __init__(self, log_offset: int) -> None:
        self.log_offset = log_offset
        self.keys: list[Key] = []
        self.judgements: list[Judgement] = []
        self.handles: list[int] = []
        self.remaining = 0
        self.is_stored = False


Spans = dict[int, tuple[int, int]]
"""By source: the first and the last offset of a batch whose offsets rise for each source."""


class WholeRecord:
    """All verdicts of one log record as columns (n,), until one of them is read, which is rare.

    `remaining` counts the sources whose watermark has not passed the record.
    """

    __slots__ = (
        "_handles",
        "_slice",
        "_verdicts",
        "columns",
        "is_stored",
        "log_offset",
        "remaining",
        "spans",
    )

    _verdicts: Verdicts
    _handles: NDArray[np.int64]
    _slice: slice

    def __init__(self, log_offset: int, columns: Columns, spans: Spans) -> None:
        self.log_offset = log_offset
        self.columns = columns
        self.spans = spans
        self.remaining = len(spans)
        self.is_stored = False

    def set_verdicts(self, verdicts: Verdicts, handles: NDArray[np.int64], first: int) -> None:
        """Set the n verdicts from place `first` of `verdicts`, before any is read.

        `handles` are those of the representatives of all `verdicts`.
        """
        self._verdicts, self._handles, self._slice = (
            verdicts,
            handles,
            slice(first, first + len(self.columns.offsets)),
        )

    @property
    def verdicts(self) -> Verdicts:
        """The verdicts, in the order of the documents."""
        return self._verdicts.part(self._slice.start, self._slice.stop)

    @property
    def handles(self) -> NDArray[np.int64]:
        """Handles of the representatives of the verdicts, (n,)."""
        return self._handles[self._slice]


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
        self._cached: dict[Key, tuple[CachedRecord, int]] = {}
        # By source: the cached keys of each log record, by offset.
        self._runs: dict[int, list[deque[Key]]] = {}
        # By source, above its watermark; their spans do not overlap.
        self._whole_records: dict[int, list[WholeRecord]] = {}
        # By log offset, in its order: those with a cached verdict.
        self._records: dict[int, CachedRecord | WholeRecord] = {}
        # By handle: the log offsets of the indexed records with a duplicate of the representative.
        self._offsets_by_handle: dict[int, set[int]] = {}
        # By log offset, of the indexed (oldest) records: their handles in `_offsets_by_handle`.
        self._handles_by_offset: dict[int, list[int]] = {}
        self._changed_watermarks: set[int] = set()
        self._changed: dict[int, CachedRecord | WholeRecord] = {}
        for key, value in stored:
            self._load(number_of(key), value)

    def __len__(self) -> int:
        wholes = [record for record in self._records.values() if isinstance(record, WholeRecord)]
        return len(self._cached) + sum(
            int(np.count_nonzero(self._mark_cached(whole))) for whole in wholes
        )

    def watermark(self, source: int) -> tuple[int, int]:
        """Return the (epoch, committed offset) of a partition's watermark."""
        return self._watermarks[source]

    def raise_watermark(self, source: int, epoch: int, committed: int) -> None:
        """Raise a partition's watermark to (epoch, committed), and drop verdicts as the rules
        say.
        """
        old = self._watermarks.get(source)
        if old is not None and (epoch, committed) <= old:
            return
        is_new_epoch = old is not None and epoch > old[0]
        if is_new_epoch:
            self.split_records()
        self._watermarks[source] = (epoch, committed)
        self._changed_watermarks.add(source)
        if is_new_epoch:
            for key in [key for key in self._cached if key[0] == source]:
                record, row = self._cached[key]
                if record.judgements[row].reason.verdict is not Verdict.UNIQUE:
                    self._drop(key)
            # A lower offset may be above the new watermark: stored rows that only the old watermark
            # excluded must be deleted.
            self._changed.update((record.log_offset, record) for record, _ in self._cached.values())
        self._drop_passed(source, committed)

    def is_new_batch(self, columns: Columns, spans: Spans) -> bool:
        """Return True only if no document of a batch has a cached verdict: the usual case.

        False may also mean that only the spans of offsets overlap.
        """
        for source, (first, last) in spans.items():
            whole = self._whole_before(source, last)
            if whole is not None and whole.spans[source][1] >= first:
                return False
        return not self._cached or self._cached.keys().isdisjoint(read_keys(columns))

    def split_records(self, sources: Iterable[int] | None = None) -> None:
        """Split the records with documents of these sources, or all records, into single verdicts.

        `find_verdict` and `cache` need this for their sources.
        """
        chosen_sources = list(self._whole_records) if sources is None else sources
        whole_records = {
            whole.log_offset: whole
            for source in chosen_sources
            for whole in self._whole_records.get(source, ())
        }
        for _, whole in sorted(whole_records.items()):
            self._split_record(whole)

    def are_new(self, keys: Sequence[Key]) -> bool:
        """Return whether none of these documents, of split sources, has a cached verdict."""
        return self._cached.keys().isdisjoint(keys)

    def find_verdict(self, key: Key) -> Judgement | None:
        """Return the cached verdict on a document of a split source, or None."""
        cached = self._cached.get(key)
        return None if cached is None else cached[0].judgements[cached[1]]

    def verdicts(self) -> list[tuple[Key, Judgement]]:
        """Return every cached verdict, ordered by source, offset and value digest."""
        self.split_records()
        return [
            (key, record.judgements[row])
            for key, (record, row) in sorted(self._cached.items(), key=itemgetter(0))
        ]

    def cache(
        self,
        record: CachedRecord,
        keys: Sequence[Key],
        judgements: Sequence[Judgement],
        handles: Sequence[int],
    ) -> None:
        """Cache verdicts on documents at or above their watermarks; `handles` are handles
        (`handle_of`).
        """
        first = len(record.keys)
        record.keys += keys
        record.judgements += judgements
        record.handles += handles
        record.remaining += len(keys)
        self._cached.update(
            zip(keys, zip(itertools.repeat(record), range(first, len(record.keys))), strict=False)
        )

    def finish_record(self, record: CachedRecord) -> None:
        """Add a log record after its last `cache`."""
        if record.keys:
            self._add_runs(sorted(record.keys))
            self._changed[record.log_offset] = self._records[record.log_offset] = record

    def cache_whole(self, log_offset: int, columns: Columns, spans: Spans) -> WholeRecord:
        """Cache the verdicts on all documents of a log record, none of which was cached
        (`is_new_batch`).

        The caller then calls `set_verdicts`.
        """
        whole = WholeRecord(log_offset, columns, spans)
        for source in spans:
            insort(self._whole_records.setdefault(source, []), whole, key=_first_offset_of(source))
        self._changed[log_offset] = self._records[log_offset] = whole
        return whole

    def retract(self, key: Key, handle: int | None, judgement: Judgement) -> None:
        """Replace the cached verdict on a retracted document, and drop those on duplicates that
        name it.

        `handle` is its representative's, or None if it is no representative.
        """
        cached = self._find_cached(key)
        if cached is not None:
            record, row = cached
            record.judgements[row] = judgement
            self._changed[record.log_offset] = record
        for record in [] if handle is None else self._records_naming(handle):
            self._changed[record.log_offset] = record
            for row in [row for row, named in enumerate(record.handles) if named == handle]:
                is_kept = self._cached.get(record.keys[row]) == (record, row)
                if is_kept and record.judgements[row].reason.verdict is Verdict.DUPLICATE:
                    self._drop(record.keys[row])

    def replace(self, key: Key, handle: int, judgement: Judgement) -> None:
        """Replace the cached verdict on a released document, if there is one."""
        cached = self._find_cached(key)
        if cached is not None:
            record, row = cached
            record.judgements[row], record.handles[row] = judgement, handle
            self._changed[record.log_offset] = record

    def forget(self, ids: Collection[bytes]) -> None:
        """Blank these ids in the cached verdicts on duplicates; other fields stay, so redelivery
        changes nothing.
        """
        for stored in list(self._records.values()):
            if isinstance(stored, WholeRecord) and not any(
                representative.id in ids for representative in stored.verdicts.named
            ):
                continue
            record = self._split_record(stored) if isinstance(stored, WholeRecord) else stored
            for row, judgement in enumerate(record.judgements):
                if judgement.of is not None and judgement.of.id in ids:
                    record.judgements[row] = judgement._replace(of=judgement.of._replace(id=b""))
                    self._changed[record.log_offset] = record

    def add_writes(self, writes: Writes) -> None:
        """Add the changes since the last call."""
        for source in sorted(self._changed_watermarks):
            writes.put(watermark_key(source), encode_watermark(*self._watermarks[source]))
        for log_offset, record in sorted(self._changed.items(), key=itemgetter(0)):
            if record.remaining:
                writes.put(cached_key(log_offset), self._encode(record))
                record.is_stored = True
            elif record.is_stored:
                writes.delete(cached_key(log_offset))
        self._changed_watermarks.clear()
        self._changed.clear()

    def _whole_before(self, source: int, offset: int) -> WholeRecord | None:
        """Return the last whole record of a source whose span begins at an offset or before it."""
        wholes = self._whole_records.get(source, [])
        index = bisect_right(wholes, offset, key=_first_offset_of(source))
        return wholes[index - 1] if index else None

    def _find_cached(self, key: Key) -> tuple[CachedRecord, int] | None:
        """Return (record, row) of the verdict on a document, after splitting a whole record that
        contains it.
        """
        source, offset, value_digest = key
        whole = self._whole_before(source, offset)
        if whole is not None:
            columns = whole.columns
            is_same = (
                (columns.offsets == offset)
                & (columns.sources == source)
                & (columns.value_digests == np.uint64(value_digest))
            )
            if is_same.any():
                self._split_record(whole)
        return self._cached.get(key)

    def _split_record(self, whole: WholeRecord) -> CachedRecord:
        """Split a whole record into single verdicts."""
        places = np.flatnonzero(self._mark_cached(whole)).tolist()
        for source in whole.spans:
            self._remove_whole(source, whole)
        record = CachedRecord(whole.log_offset)
        record.is_stored = whole.is_stored
        keys, judgements, handles = (
            read_keys(whole.columns),
            whole.verdicts.judgements(),
            whole.handles.tolist(),
        )
        self.cache(
            record,
            [keys[place] for place in places],
            [judgements[place] for place in places],
            [handles[place] for place in places],
        )
        self._add_runs(sorted(record.keys))
        self._records[whole.log_offset] = record
        if whole.log_offset in self._changed:
            self._changed[whole.log_offset] = record
        return record

    def _remove_whole(self, source: int, whole: WholeRecord) -> None:
        """Remove a record from the whole ones of a source, unless the source's watermark has passed
        it.
        """
        wholes = self._whole_records.get(source, [])
        index = bisect_right(wholes, whole.spans[source][0], key=_first_offset_of(source)) - 1
        if index >= 0 and wholes[index] is whole:
            del wholes[index]

    def _records_naming(self, handle: int) -> list[CachedRecord]:
        """Return the records in which a duplicate may name a representative; called once for each
        handle.

        It indexes only records newer than those that are indexed.
        """
        new_offsets = list(
            itertools.takewhile(
                lambda offset: offset not in self._handles_by_offset, reversed(self._records)
            )
        )
        for log_offset in reversed(new_offsets):
            named = self._handles_by_offset[log_offset] = _handles_named(self._records[log_offset])
            for named_handle in named:
                self._offsets_by_handle.setdefault(named_handle, set()).add(log_offset)
        records = [
            self._records[log_offset]
            for log_offset in sorted(self._offsets_by_handle.pop(handle, ()))
        ]
        return [
            self._split_record(record) if isinstance(record, WholeRecord) else record
            for record in records
        ]

    def _drop_record(self, record: CachedRecord | WholeRecord) -> None:
        """Remove a log record without cached verdicts."""
        self._changed[record.log_offset] = record
        del self._records[record.log_offset]
        for handle in self._handles_by_offset.pop(record.log_offset, ()):
            naming = self._offsets_by_handle.get(handle)
            if naming is not None:
                naming.discard(record.log_offset)
                if not naming:
                    del self._offsets_by_handle[handle]

    def _mark_cached(self, whole: WholeRecord) -> NDArray[np.bool_]:
        """Return which documents of a record are at or above their watermarks, (n,)."""
        columns = whole.columns
        numbers, indices = np.unique(columns.sources, return_inverse=True)
        watermarks = np.array(
            [self._watermarks[source][1] for source in numbers.tolist()], np.int64
        )
        is_cached: NDArray[np.bool_] = columns.offsets >= watermarks[indices]
        return is_cached

    def _drop(self, key: Key) -> None:
        record, _ = self._cached.pop(key)
        record.remaining -= 1
        if not record.remaining:
            self._drop_record(record)

    def _drop_passed(self, source: int, committed: int) -> None:
        wholes = self._whole_records.get(source, [])
        passed = list(
            itertools.takewhile(lambda record: record.spans[source][1] < committed, wholes)
        )
        del wholes[: len(passed)]
        for whole in passed:
            whole.remaining -= 1
            if not whole.remaining:
                self._drop_record(whole)
        runs = self._runs.get(source, [])
        for run in runs:
            while run and run[0][1] < committed:
                key = run.popleft()
                if key in self._cached:  # else a rising epoch or a retraction dropped it
                    self._drop(key)
        runs[:] = filter(None, runs)

    def _add_runs(self, ordered: list[Key]) -> None:
        for source, keys in itertools.groupby(ordered, key=itemgetter(0)):
            self._runs.setdefault(source, []).append(deque(keys))

    def _encode(self, record: CachedRecord | WholeRecord) -> bytes:
        if isinstance(record, WholeRecord):
            columns = record.columns
            return self._encode_columns(
                columns.sources,
                columns.offsets,
                columns.value_digests,
                record.verdicts,
                record.handles,
            )
        places = [
            place
            for place, key in enumerate(record.keys)
            if (cached := self._cached.get(key)) and cached[0] is record
        ]
        sources, offsets, values = zip(*(record.keys[place] for place in places), strict=True)
        return self._encode_columns(
            sources,
            offsets,
            values,
            Verdicts.of([record.judgements[place] for place in places]),
            [record.handles[place] for place in places],
        )

    def _encode_columns(
        self, sources: Any, offsets: Any, values: Any, verdicts: Verdicts, handles: Any
    ) -> bytes:
        named = NamedRepresentatives.of(verdicts.named)
        rows = np.zeros(len(verdicts.reasons), CACHED_VERDICT)
        rows["source"], rows["offset"], rows["value_digest"], rows["representative"] = (
            sources,
            offsets,
            values,
            handles,
        )
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
            rows["id_bytes"][naming_rows] = sizes_of(named.stops)
        return encode_cached(rows, named.ids)

    def _load(self, log_offset: int, value: bytes) -> None:
        rows, ids = decode_cached(value)
        record = CachedRecord(log_offset)
        record.is_stored = True
        for values, representative_id in zip(rows.tolist(), ids, strict=True):
            row = dict(zip(CACHED_VERDICT.names or (), values, strict=True))
            if row["offset"] < self._watermarks[row["source"]][1]:
                continue
            judgement = Judgement.from_row([row[column.name] for column in COLUMNS])
            is_duplicate = judgement.reason.verdict is Verdict.DUPLICATE
            if is_duplicate or judgement.similarity != NOT_COMPARED:
                position = self._sources.position(row["of_source"], row["of_offset"])
                representative = Representative(position, representative_id, row["of_time_ms"])
                judgement = judgement._replace(of=representative)
            key = (row["source"], row["offset"], row["value_digest"])
            self.cache(record, [key], [judgement], [row["representative"]])
        if record.keys:
            self._add_runs(sorted(record.keys))
            self._records[log_offset] = record


def _first_offset_of(source: int) -> Callable[[WholeRecord], int]:
    """Return the sort key of whole records of a source: the first offset."""
    return lambda whole: whole.spans[source][0]


def _handles_named(record: CachedRecord | WholeRecord) -> list[int]:
    """Return the handles of the representatives that a record's duplicates name, each once."""
    if isinstance(record, WholeRecord):
        return list(set(record.handles[record.verdicts.are_duplicates].tolist()))
    judged = zip(record.handles, record.judgements, strict=True)
    return list(
        {named for named, judgement in judged if judgement.reason.verdict is Verdict.DUPLICATE}
    )


def handle_of(log_offset: Any, place: Any) -> Any:
    """Return the permanent handle of a representative; arguments may be columns (n,).

    It is the place in the log of its verdict, as one number. Its entry's number is not permanent: a
    renewed representative gets a new one.
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


def find_spans(columns: Columns) -> Spans | None:
    """Return the spans of a batch; None if a source's offsets do not rise: a document may occur
    twice.
    """
    sources, offsets = columns.sources, columns.offsets
    if len(offsets) < _SMALL_BATCH and len(set(sources.tolist())) == 1:  # fastest for small batches
        offset_list = offsets.tolist()
        rises = all(offset < next_offset for offset, next_offset in itertools.pairwise(offset_list))
        return {int(sources[0]): (offset_list[0], offset_list[-1])} if rises else None
    if (sources[1:] != sources[:-1]).any():
        order = np.argsort(sources, kind="stable")
        sources, offsets = sources[order], offsets[order]
    begins = sources[1:] != sources[:-1]
    if not (begins | (offsets[1:] > offsets[:-1])).all():
        return None
    bounds = [0, *(np.flatnonzero(begins) + 1).tolist(), len(sources)]
    return {
        int(sources[first]): (int(offsets[first]), int(offsets[end - 1]))
        for first, end in itertools.pairwise(bounds)
    }


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
