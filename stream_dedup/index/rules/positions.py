"""What was said before, by source position: watermarks and the redelivery cache
(docs/explanation/index-layout.md, "Memory of positions").

    watermark  per source partition, the lexicographic maximum of the (epoch, committed offset) that its batches carried;
               a lower pair changes nothing
    cache      every verdict on a document at or above its partition's watermark, by (source, offset, value digest)

    rises      when the watermark moves, verdicts below it are dropped; when its epoch rises, first all verdicts of the
               partition go but the unique ones, which stay until the new watermark passes them

Look-up, for a document at (epoch, offset), as `apply` carries it out: (1) a verdict in the cache,
unless the epoch is below the watermark's; (2) a live representative at this very position: unique;
(3) (epoch, offset) below the watermark: stale, and nothing changes; (4) judge, and keep the
verdict. A position with another value digest is another document.

A representative that expires or is forgotten leaves the cached verdicts on it, and on its
duplicates, as they are: they are the first verdict, which a redelivered document gets again. Of a
forgotten one only the id is blanked.

Invariants: no cached verdict lies below its partition's watermark; what is stored may hold more
rows than are kept, but after a look at the watermarks exactly the kept ones are left (so passing a
watermark costs no write, and a rising epoch rewrites what is stored); a kept duplicate names a
representative that was not retracted.

The verdicts of a log record stay columns (`WholeRecord`) until somebody looks at one of them; that
its offsets do not overlap with those of a new batch is enough to know that nothing of it is asked
for. Nearly always a watermark passes it before that.

A retraction, which any dead letter may send, looks at the records that hold the position and at
those that name its representative, not at all that is kept: which records name which representative
is noted once a record, when one is retracted.
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
from stream_dedup.index.tables.rows import Columns
from stream_dedup.index.volume.contract import Writes
from stream_dedup.index.volume.layout import (
    KEPT,
    decode_kept,
    decode_source,
    decode_watermark,
    encode_kept,
    encode_source,
    encode_watermark,
    kept_key,
    number_of,
    source_key,
    watermark_key,
)
from stream_dedup.log.frame import table_of
from stream_dedup.log.schema import COLUMNS, Judgement, NamedRepresentatives, Verdicts

Key = tuple[int, int, int]
"""A document's identity: (source number, offset, value digest)."""

_PLACES = 1 << 16
_FEW = 64


class Sources:
    """Source partitions, numbered in the order in which the log names them, so that an entry needs
    four bytes for one.

    Invariants: a number is given once and never again; a partition is known by its topic's name, id
    and number together, because the id of a topic that has none (a file) is all zeros.
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
        """Return the partition's number, giving it one if it is new."""
        name = (topic, topic_id, partition)
        number = self._numbers.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
        return number

    def find(self, topic: str, topic_id: bytes, partition: int) -> int | None:
        """Return the partition's number, or None if no batch named it."""
        return self._numbers.get((topic, topic_id, partition))

    def name(self, source: int) -> tuple[str, bytes, int]:
        """Return a numbered partition's topic, topic id and partition."""
        return self._names[source]

    def position(self, source: int, offset: int) -> Position:
        """Return a position in a numbered partition."""
        topic, topic_id, partition = self._names[source]
        return Position(topic, topic_id, partition, offset)

    def named(
        self, sources: NDArray[np.uint32]
    ) -> tuple[list[tuple[str, bytes, int]], NDArray[np.uint16]]:
        """Return the partitions with these numbers (n,) in the order in which they come first, and
        each one's place there.
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


class KeptRecord:
    """The verdicts kept of one log record; the lists run side by side. `about` are handles of
    representatives.
    """

    __slots__ = ("about", "is_stored", "judgements", "keys", "left", "log_offset")

    def __init__(self, log_offset: int) -> None:
        self.log_offset = log_offset
        self.keys: list[Key] = []
        self.judgements: list[Judgement] = []
        self.about: list[int] = []
        self.left = 0
        self.is_stored = False


Spans = dict[int, tuple[int, int]]
"""By source: the first and the last offset of a batch in which the offsets of each source rise."""


class WholeRecord:
    """All verdicts of one log record as columns (n,), until somebody needs one by itself: nearly
    always nobody does.

    `left` counts the sources whose watermark has not passed the record.
    """

    __slots__ = (
        "_about",
        "_own",
        "_verdicts",
        "columns",
        "is_stored",
        "left",
        "log_offset",
        "spans",
    )

    _verdicts: Verdicts
    _about: NDArray[np.int64]
    _own: slice

    def __init__(self, log_offset: int, columns: Columns, spans: Spans) -> None:
        self.log_offset = log_offset
        self.columns = columns
        self.spans = spans
        self.left = len(spans)
        self.is_stored = False

    def decided(self, verdicts: Verdicts, about: NDArray[np.int64], first: int) -> None:
        """Say what the verdicts are, before anybody needs one: the n from the place `first` on.

        `about` are handles of what all these verdicts are about.
        """
        self._verdicts, self._about, self._own = (
            verdicts,
            about,
            slice(first, first + len(self.columns.offsets)),
        )

    @property
    def verdicts(self) -> Verdicts:
        """The verdicts, in the order of the documents."""
        return self._verdicts.part(self._own.start, self._own.stop)

    @property
    def about(self) -> NDArray[np.int64]:
        """Handles of what they are about, (n,)."""
        return self._about[self._own]


class Positions:
    """Watermarks and redelivery cache of all source partitions."""

    def __init__(
        self,
        sources: Sources,
        watermarks: Iterable[tuple[bytes, bytes]] = (),
        kept: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self._sources = sources
        self._watermarks = {number_of(key): decode_watermark(value) for key, value in watermarks}
        self._kept: dict[Key, tuple[KeptRecord, int]] = {}
        self._runs: dict[
            int, list[deque[Key]]
        ] = {}  # by source: the kept keys of each log record, by offset
        self._wholes: dict[
            int, list[WholeRecord]
        ] = {}  # by source, beyond its watermark; their spans do not overlap
        self._records: dict[
            int, KeptRecord | WholeRecord
        ] = {}  # by log offset, in its order: those of which something is kept
        self._naming: dict[
            int, set[int]
        ] = {}  # by handle: the log offsets of the noted records with a duplicate about it
        self._noted: dict[
            int, list[int]
        ] = {}  # by log offset, the oldest records: what `_naming` has of each
        self._changed_watermarks: set[int] = set()
        self._changed: dict[int, KeptRecord | WholeRecord] = {}
        for key, value in kept:
            self._load(number_of(key), value)

    def __len__(self) -> int:
        wholes = [record for record in self._records.values() if isinstance(record, WholeRecord)]
        return len(self._kept) + sum(
            int(np.count_nonzero(self._is_kept(whole))) for whole in wholes
        )

    def watermark(self, source: int) -> tuple[int, int]:
        """Return the (epoch, committed offset) of a partition's watermark."""
        return self._watermarks[source]

    def raise_watermark(self, source: int, epoch: int, committed: int) -> None:
        """Move a partition's watermark up to (epoch, committed), and drop the verdicts that the
        rules drop.
        """
        old = self._watermarks.get(source)
        if old is not None and (epoch, committed) <= old:
            return
        is_new_epoch = old is not None and epoch > old[0]
        if is_new_epoch:
            self.split()
        self._watermarks[source] = (epoch, committed)
        self._changed_watermarks.add(source)
        if is_new_epoch:
            for key in [key for key in self._kept if key[0] == source]:
                record, row = self._kept[key]
                if record.judgements[row].reason.verdict is not Verdict.UNIQUE:
                    self._drop(key)
            # A lower offset may be above the new watermark: rows that only the old watermark kept
            # out must leave the volume.
            self._changed.update((record.log_offset, record) for record, _ in self._kept.values())
        self._pass(source, committed)

    def none_near(self, columns: Columns, spans: Spans) -> bool:
        """Return whether there is no verdict for any of these documents: the usual case, told by
        their offsets.

        False may also mean that a verdict lies between them.
        """
        for source, (first, last) in spans.items():
            whole = self._whole_before(source, last)
            if whole is not None and whole.spans[source][1] >= first:
                return False
        return not self._kept or self._kept.keys().isdisjoint(keys_of(columns))

    def split(self, sources: Iterable[int] | None = None) -> None:
        """Make the verdicts of records with documents of these sources, or of all, accessible one
        by one.

        What looks at single verdicts (`kept`, `keep`) needs it for the sources that it asks for.
        """
        chosen = list(self._wholes) if sources is None else sources
        found = {
            whole.log_offset: whole for source in chosen for whole in self._wholes.get(source, ())
        }
        for _, whole in sorted(found.items()):
            self._split_one(whole)

    def none_kept(self, keys: Sequence[Key]) -> bool:
        """Return whether there is no verdict for any of these documents, of sources that were
        split.
        """
        return self._kept.keys().isdisjoint(keys)

    def kept(self, key: Key) -> Judgement | None:
        """Return the verdict kept for a document of a source that was split."""
        found = self._kept.get(key)
        return None if found is None else found[0].judgements[found[1]]

    def verdicts(self) -> list[tuple[Key, Judgement]]:
        """Return every cached verdict, in the order of source, offset and value digest."""
        self.split()
        return [
            (key, record.judgements[row])
            for key, (record, row) in sorted(self._kept.items(), key=itemgetter(0))
        ]

    def keep(
        self,
        record: KeptRecord,
        keys: Sequence[Key],
        judgements: Sequence[Judgement],
        about: Sequence[int],
    ) -> None:
        """Keep verdicts on documents at or above their watermarks; `about` are handles of what they
        are about (`handle_of`).
        """
        first = len(record.keys)
        record.keys += keys
        record.judgements += judgements
        record.about += about
        record.left += len(keys)
        self._kept.update(
            zip(keys, zip(itertools.repeat(record), range(first, len(record.keys))), strict=False)
        )

    def close(self, record: KeptRecord) -> None:
        """Finish a log record after its last `keep`."""
        if record.keys:
            self._add_runs(sorted(record.keys))
            self._changed[record.log_offset] = self._records[record.log_offset] = record

    def keep_whole(self, log_offset: int, columns: Columns, spans: Spans) -> WholeRecord:
        """Keep the verdicts on all documents of a log record, of which none was kept before
        (`none_near`); see `decided`.
        """
        whole = WholeRecord(log_offset, columns, spans)
        for source in spans:
            insort(self._wholes.setdefault(source, []), whole, key=_first_of(source))
        self._changed[log_offset] = self._records[log_offset] = whole
        return whole

    def retract(self, key: Key, handle: int | None, judgement: Judgement) -> None:
        """Replace the verdict kept for a retracted document, and drop those on duplicates that name
        it.

        `handle` is its representative's, or None if it represents nobody.
        """
        found = self._found(key)
        if found is not None:
            record, row = found
            record.judgements[row] = judgement
            self._changed[record.log_offset] = record
        for record in [] if handle is None else self._naming_records(handle):
            self._changed[record.log_offset] = record
            named = [row for row, about in enumerate(record.about) if about == handle]
            for row in named:
                is_kept = self._kept.get(record.keys[row]) == (record, row)
                if is_kept and record.judgements[row].reason.verdict is Verdict.DUPLICATE:
                    self._drop(record.keys[row])

    def replace(self, key: Key, handle: int, judgement: Judgement) -> None:
        """Replace the verdict kept for a released document, if one is kept."""
        found = self._found(key)
        if found is not None:
            record, row = found
            record.judgements[row], record.about[row] = judgement, handle
            self._changed[record.log_offset] = record

    def forget(self, ids: Collection[bytes]) -> None:
        """Blank these ids in the verdicts kept on duplicates; all else of them stays, so that
        redelivery changes nothing.
        """
        for found in list(self._records.values()):
            if isinstance(found, WholeRecord) and not any(
                of.id in ids for of in found.verdicts.named
            ):
                continue
            record = self._split_one(found) if isinstance(found, WholeRecord) else found
            for row, judgement in enumerate(record.judgements):
                if judgement.of is not None and judgement.of.id in ids:
                    record.judgements[row] = judgement._replace(of=judgement.of._replace(id=b""))
                    self._changed[record.log_offset] = record

    def add_writes(self, writes: Writes) -> None:
        """Add what changed since the last call."""
        for source in sorted(self._changed_watermarks):
            writes.put(watermark_key(source), encode_watermark(*self._watermarks[source]))
        for log_offset, record in sorted(self._changed.items(), key=itemgetter(0)):
            if record.left:
                writes.put(kept_key(log_offset), self._encode(record))
                record.is_stored = True
            elif record.is_stored:
                writes.delete(kept_key(log_offset))
        self._changed_watermarks.clear()
        self._changed.clear()

    def _whole_before(self, source: int, offset: int) -> WholeRecord | None:
        """Return the last whole record of a source whose span begins at an offset or before it."""
        wholes = self._wholes.get(source, [])
        at = bisect_right(wholes, offset, key=_first_of(source))
        return wholes[at - 1] if at else None

    def _found(self, key: Key) -> tuple[KeptRecord, int] | None:
        """Return where the verdict on a document is kept, after splitting the record that holds it,
        if that is whole.
        """
        source, offset, value_digest = key
        whole = self._whole_before(source, offset)
        if whole is not None:
            columns = whole.columns
            is_it = (
                (columns.offsets == offset)
                & (columns.sources == source)
                & (columns.values == np.uint64(value_digest))
            )
            if is_it.any():
                self._split_one(whole)
        return self._kept.get(key)

    def _split_one(self, whole: WholeRecord) -> KeptRecord:
        """Make the verdicts of one record accessible one by one."""
        places = np.flatnonzero(self._is_kept(whole)).tolist()
        for source in whole.spans:
            self._take_out(source, whole)
        record = KeptRecord(whole.log_offset)
        record.is_stored = whole.is_stored
        keys, judgements, about = (
            keys_of(whole.columns),
            whole.verdicts.judgements(),
            whole.about.tolist(),
        )
        self.keep(
            record,
            [keys[place] for place in places],
            [judgements[place] for place in places],
            [about[place] for place in places],
        )
        self._add_runs(sorted(record.keys))
        self._records[whole.log_offset] = record
        if whole.log_offset in self._changed:
            self._changed[whole.log_offset] = record
        return record

    def _take_out(self, source: int, whole: WholeRecord) -> None:
        """Take a record out of the whole ones of a source, unless the source's watermark has passed
        it.
        """
        wholes = self._wholes.get(source, [])
        at = bisect_right(wholes, whole.spans[source][0], key=_first_of(source)) - 1
        if at >= 0 and wholes[at] is whole:
            del wholes[at]

    def _naming_records(self, handle: int) -> list[KeptRecord]:
        """Return the kept records in which a duplicate may name a representative, which is asked
        once for each.

        Only the records that came since a representative was retracted last are looked through.
        """
        new = list(
            itertools.takewhile(lambda offset: offset not in self._noted, reversed(self._records))
        )
        for log_offset in reversed(new):
            named = self._noted[log_offset] = _handles_named(self._records[log_offset])
            for one in named:
                self._naming.setdefault(one, set()).add(log_offset)
        found = [self._records[log_offset] for log_offset in sorted(self._naming.pop(handle, ()))]
        return [
            self._split_one(record) if isinstance(record, WholeRecord) else record
            for record in found
        ]

    def _leave(self, record: KeptRecord | WholeRecord) -> None:
        """Take note that nothing of a log record is kept any more."""
        self._changed[record.log_offset] = record
        del self._records[record.log_offset]
        for handle in self._noted.pop(record.log_offset, ()):
            naming = self._naming.get(handle)
            if naming is not None:
                naming.discard(record.log_offset)
                if not naming:
                    del self._naming[handle]

    def _is_kept(self, whole: WholeRecord) -> NDArray[np.bool_]:
        """Return which documents of a record lie at or above their watermarks, (n,)."""
        columns = whole.columns
        numbers, which = np.unique(columns.sources, return_inverse=True)
        watermarks = np.array(
            [self._watermarks[source][1] for source in numbers.tolist()], np.int64
        )
        is_kept: NDArray[np.bool_] = columns.offsets >= watermarks[which]
        return is_kept

    def _drop(self, key: Key) -> None:
        record, _ = self._kept.pop(key)
        record.left -= 1
        if not record.left:
            self._leave(record)

    def _pass(self, source: int, committed: int) -> None:
        wholes = self._wholes.get(source, [])
        passed = list(itertools.takewhile(lambda one: one.spans[source][1] < committed, wholes))
        del wholes[: len(passed)]
        for whole in passed:
            whole.left -= 1
            if not whole.left:
                self._leave(whole)
        runs = self._runs.get(source, [])
        for run in runs:
            while run and run[0][1] < committed:
                key = run.popleft()
                if (
                    key in self._kept
                ):  # it may have gone when an epoch rose, or with its representative
                    self._drop(key)
        runs[:] = filter(None, runs)

    def _add_runs(self, ordered: list[Key]) -> None:
        for source, keys in itertools.groupby(ordered, key=itemgetter(0)):
            self._runs.setdefault(source, []).append(deque(keys))

    def _encode(self, record: KeptRecord | WholeRecord) -> bytes:
        if isinstance(record, WholeRecord):
            columns = record.columns
            return self._encode_columns(
                columns.sources, columns.offsets, columns.values, record.verdicts, record.about
            )
        places = [
            place
            for place, key in enumerate(record.keys)
            if (held := self._kept.get(key)) and held[0] is record
        ]
        sources, offsets, values = zip(*(record.keys[place] for place in places), strict=True)
        return self._encode_columns(
            sources,
            offsets,
            values,
            Verdicts.of([record.judgements[place] for place in places]),
            [record.about[place] for place in places],
        )

    def _encode_columns(
        self, sources: Any, offsets: Any, values: Any, verdicts: Verdicts, about: Any
    ) -> bytes:
        named = NamedRepresentatives.of(verdicts.named)
        rows = np.zeros(len(verdicts.reasons), KEPT)
        rows["source"], rows["offset"], rows["value_digest"], rows["about"] = (
            sources,
            offsets,
            values,
            about,
        )
        for column in COLUMNS:
            rows[column.name] = getattr(verdicts, column.name)
        if named:
            naming = np.flatnonzero(verdicts.names_another)
            numbers = np.array(
                [self._sources.find(*partition) for partition in named.partitions], np.uint32
            )
            rows["of_source"][naming] = numbers[named.sources]
            rows["of_offset"][naming] = named.offsets
            rows["of_time_ms"][naming] = named.times_ms
            rows["id_bytes"][naming] = sizes_of(named.stops)
        return encode_kept(rows, named.ids)

    def _load(self, log_offset: int, value: bytes) -> None:
        rows, ids = decode_kept(value)
        record = KeptRecord(log_offset)
        record.is_stored = True
        for row, identifier in zip(rows.tolist(), ids, strict=True):
            source, offset, value_digest, *values = row
            verdict = values[: len(COLUMNS)]
            about, of_source, of_offset, of_time, _ = values[len(COLUMNS) :]
            if offset < self._watermarks[source][1]:
                continue
            judgement = Judgement.from_row(verdict, None)
            is_duplicate = judgement.reason.verdict is Verdict.DUPLICATE
            if is_duplicate or judgement.similarity != NOT_COMPARED:
                of = self._sources.position(of_source, of_offset)
                judgement = judgement._replace(of=Representative(of, identifier, of_time))
            self.keep(record, [(source, offset, value_digest)], [judgement], [about])
        if record.keys:
            self._add_runs(sorted(record.keys))
            self._records[log_offset] = record


def _first_of(source: int) -> Callable[[WholeRecord], int]:
    """Return what whole records of a source are in the order of: the first offset of each."""
    return lambda whole: whole.spans[source][0]


def _handles_named(record: KeptRecord | WholeRecord) -> list[int]:
    """Return the handles of the representatives that a record's duplicates name, each once."""
    if isinstance(record, WholeRecord):
        return list(set(record.about[record.verdicts.are_duplicates].tolist()))
    judged = zip(record.about, record.judgements, strict=True)
    return list(
        {about for about, judgement in judged if judgement.reason.verdict is Verdict.DUPLICATE}
    )


def handle_of(log_offset: Any, place: Any) -> Any:
    """Return what names a representative for ever: the place in the log at which it became one, as
    one number; or columns (n,).

    Its entry's number does not: a representative that is renewed gets a new one.
    """
    return log_offset * _PLACES + place


def keys_of(columns: Columns) -> list[Key]:
    """Return the identities of a batch's documents."""
    return list(
        zip(
            columns.sources.tolist(), columns.offsets.tolist(), columns.values.tolist(), strict=True
        )
    )


def spans_of(columns: Columns) -> Spans | None:
    """Return the spans of a batch, or None if the offsets of a source do not rise in it: then a
    document may occur twice.
    """
    sources, offsets = columns.sources, columns.offsets
    if len(offsets) < _FEW and len(set(sources.tolist())) == 1:  # by far the quickest for so few
        listed = offsets.tolist()
        rises = all(one < next_one for one, next_one in itertools.pairwise(listed))
        return {int(sources[0]): (listed[0], listed[-1])} if rises else None
    if (sources[1:] != sources[:-1]).any():
        order = np.argsort(sources, kind="stable")
        sources, offsets = sources[order], offsets[order]
    begins = sources[1:] != sources[:-1]
    if not (begins | (offsets[1:] > offsets[:-1])).all():
        return None
    cuts = [0, *(np.flatnonzero(begins) + 1).tolist(), len(sources)]
    return {
        int(sources[first]): (int(offsets[first]), int(offsets[end - 1]))
        for first, end in itertools.pairwise(cuts)
    }


def cut_at_repeats(keys: Sequence[Key]) -> list[tuple[int, int]]:
    """Return the batch as stretches [first, end) in none of which a document occurs twice; usually
    one.
    """
    if len(set(keys)) == len(keys):
        return [(0, len(keys))]
    cuts = [0]
    seen: set[Key] = set()
    for place, key in enumerate(keys):
        if key in seen:
            cuts.append(place)
            seen = set()
        seen.add(key)
    return list(itertools.pairwise([*cuts, len(keys)]))
