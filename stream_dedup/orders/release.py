"""Trace documents in the log for their release to `unique`.

The steps of a release of one or many documents; after a kill between two steps, the repeated command
continues from there:

  1  take the transactional id, which ends an open transaction of an earlier run and fences a concurrent run
  2  read the log once: where was the document judged, and does it have a release already?
  3  without a release: check that it is in `duplicates` and not in `unique`; append the release with the end of `unique`
  4  search `unique` from that end for a record that names one of the releases
  5  without such a record: write the document there in a transaction

Invariants: steps 2 and 4 come after 1, so records that they do not find cannot appear later; the
record in `unique` names the log place of its release (`dedup.log`), which no verdict has, so it can
be found again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from stream_dedup.log.records import Batch, LogRecord, Release, document_of


@dataclass(slots=True)
class Trace:
    """The log's records of the document at a position, complete once `Traces` has read the log.

    `judged` contains (log offset, place, the document as a batch), `releases` (log offset, end of
    `unique`).
    """

    partition: int
    offset: int
    value_digest: int
    judged: list[tuple[int, int, Batch]] = field(default_factory=list)
    releases: list[tuple[int, int]] = field(default_factory=list)

    @property
    def place(self) -> tuple[int, int]:
        """Its partition and offset in the source."""
        return self.partition, self.offset

    @property
    def verdicts_at(self) -> set[str]:
        """The log places that may have decided on it, as in `dedup.log`."""
        return {f"{log_offset}/{place}" for log_offset, place, _ in self.judged}

    @property
    def released_at(self) -> set[str]:
        """The log places of its releases, as in `dedup.log`."""
        return {f"{log_offset}/0" for log_offset, _ in self.releases}


class Traces:
    """Finds documents of a topic and recipe in the log. `fold` reads the whole log in order."""

    def __init__(self, topic_id: bytes, recipe: str, wanted: Iterable[Trace]) -> None:
        self._topic_id, self._recipe = topic_id, recipe
        self._by_place = {
            (trace.partition, trace.offset, trace.value_digest): trace for trace in wanted
        }
        self._offsets = np.unique(np.array([offset for _, offset, _ in self._by_place], np.int64))

    def fold(self, log_offset: int, record: LogRecord | None) -> None:
        """Apply the next record of the log."""
        if isinstance(record, Batch):
            for place, trace in self._found(record):
                trace.judged.append((log_offset, place, document_of(record, place)))
        elif isinstance(record, Release):
            for _, trace in self._found(record.batch):
                trace.releases.append((log_offset, record.unique_from))

    def _found(self, batch: Batch) -> Iterator[tuple[int, Trace]]:
        """Yield the places of a batch with a wanted document, and its trace."""
        if batch.recipe != self._recipe:
            return
        partitions = {
            index: source.partition
            for index, source in enumerate(batch.sources)
            if source.topic_id == self._topic_id
        }
        if not partitions:
            return
        is_wanted = np.isin(batch.source, list(partitions)) & np.isin(batch.offset, self._offsets)
        for place in np.flatnonzero(is_wanted).tolist():
            partition, offset = partitions[int(batch.source[place])], int(batch.offset[place])
            trace = self._by_place.get((partition, offset, int(batch.value_digest[place])))
            if trace is not None:
                yield place, trace
