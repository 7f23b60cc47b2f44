"""Trace documents in the log for their release to `unique`.

The steps to release one or many documents; if the command is killed between two of them, running it
again continues from there:

  1  acquire the transactional id, which ends an open transaction of an earlier run and fences a
     concurrent run
  2  read the log once to find where the document was judged, and releases of earlier runs
  3  if there is no release: check that the document is in `duplicates` and not in `unique`; append a
     release, with the current end of `unique`
  4  search `unique` from that end for a record that names one of the releases
  5  if there is none: write the document to `unique` in a transaction

Invariants: steps 2 and 4 come after 1, so records that they do not find cannot appear later. The
record in `unique` names the log place of its release (`dedup.log`). No verdict has the same place, so
the record can be found again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stream_dedup.log.records import Batch, LogRecord, Release, document_of


class TracedDocument(NamedTuple):
    """A document in the log, as a batch of one; its log offset, and its index in the log record."""

    log_offset: int
    index_in_record: int
    document: Batch


class LoggedRelease(NamedTuple):
    """A release in the log; `unique_from` is the end of `unique` before it was appended."""

    log_offset: int
    unique_from: int


@dataclass(slots=True)
class Trace:
    """The log's records of the document at a position, complete once `Traces` has read the log."""

    partition: int
    offset: int
    value_digest: int
    judged: list[TracedDocument] = field(default_factory=list)
    releases: list[LoggedRelease] = field(default_factory=list)

    @property
    def source_place(self) -> tuple[int, int]:
        """Its partition and offset in the source."""
        return self.partition, self.offset

    @property
    def verdicts_at(self) -> set[str]:
        """The log places at which it may have been judged, as in `dedup.log`."""
        return {f"{logged.log_offset}/{logged.index_in_record}" for logged in self.judged}

    @property
    def released_at(self) -> set[str]:
        """The log places of its releases, as in `dedup.log`."""
        return {f"{logged.log_offset}/0" for logged in self.releases}


class Traces:
    """Finds documents of a topic and recipe in the log; `fold` applies all its records in order."""

    def __init__(self, topic_id: bytes, recipe: str, traces: Iterable[Trace]) -> None:
        self._topic_id, self._recipe = topic_id, recipe
        self._traces = {
            (trace.partition, trace.offset, trace.value_digest): trace for trace in traces
        }
        self._offsets = np.unique(np.array([offset for _, offset, _ in self._traces], np.int64))

    def fold(self, log_offset: int, record: LogRecord | None) -> None:
        """Apply the next record of the log."""
        if isinstance(record, Batch):
            for row, trace in self._find_traces(record):
                document = document_of(record, row)
                trace.judged.append(TracedDocument(log_offset, row, document))
        elif isinstance(record, Release):
            for _, trace in self._find_traces(record.batch):
                trace.releases.append(LoggedRelease(log_offset, record.unique_from))

    def _find_traces(self, batch: Batch) -> Iterator[tuple[int, Trace]]:
        """Yield (row in the batch, trace) of its documents that are traced."""
        if batch.recipe != self._recipe:
            return
        partitions = {
            index: source.partition
            for index, source in enumerate(batch.sources)
            if source.topic_id == self._topic_id
        }
        if not partitions:
            return
        is_traced = np.isin(batch.source, list(partitions)) & np.isin(batch.offset, self._offsets)
        for row in np.flatnonzero(is_traced).tolist():
            partition, offset = partitions[int(batch.source[row])], int(batch.offset[row])
            trace = self._traces.get((partition, offset, int(batch.value_digest[row])))
            if trace is not None:
                yield row, trace
