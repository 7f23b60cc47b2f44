"""Releases: what the log knows of documents, and whether they may go to `unique` after all.

The order of a release, of one document or of many, and what a kill between two steps leaves;
repeating the command always goes on from there:

  1  take the transactional id, so that what a former run left open is ended, and a run beside this one is fenced
  2  read the log, once: where was the document judged, is there a release of it already?
  3  if there is none: it must have left on `duplicates`, and not on `unique`; append the release, and where `unique` ends
  4  look in `unique`, from there on, for a record that names one of the releases
  5  if there is none: write the document there, in a transaction

Invariants: steps 2 and 4 come after 1, so what they do not find cannot appear later; the record in
`unique` names the place of the release in the log (`dedup.log`), which no verdict has, so it is
found again, wherever else the document is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from stream_dedup.log.records import Batch, LogRecord, Release, document_of


@dataclass(slots=True)
class Trace:
    """What the log says of the document at one position, once `Traces` took in the whole of it.

    `judged` holds (log offset, place, the document as a batch of its own), `releases` (log offset,
    where `unique` ended).
    """

    partition: int
    offset: int
    value_digest: int
    judged: list[tuple[int, int, Batch]] = field(default_factory=list)
    releases: list[tuple[int, int]] = field(default_factory=list)

    @property
    def verdicts_at(self) -> set[str]:
        """The places in the log that may have decided on it, as `dedup.log` writes them."""
        return {f"{log_offset}/{place}" for log_offset, place, _ in self.judged}

    @property
    def released_at(self) -> set[str]:
        """The places in the log of its releases, likewise."""
        return {f"{log_offset}/0" for log_offset, _ in self.releases}


class Traces:
    """Documents of one topic and recipe that are looked for in the log together. `fold` takes the
    whole log, in its order.
    """

    def __init__(self, topic_id: bytes, recipe: str, wanted: Iterable[Trace]) -> None:
        self._topic_id, self._recipe = topic_id, recipe
        self._by_place = {(one.partition, one.offset, one.value_digest): one for one in wanted}
        self._offsets = np.unique(np.array([offset for _, offset, _ in self._by_place], np.int64))

    def fold(self, log_offset: int, record: LogRecord | None) -> None:
        """Take in the next record of the log."""
        if isinstance(record, Batch):
            for place, trace in self._found(record):
                trace.judged.append((log_offset, place, document_of(record, place)))
        elif isinstance(record, Release):
            for _, trace in self._found(record.batch):
                trace.releases.append((log_offset, record.unique_from))

    def _found(self, batch: Batch) -> Iterator[tuple[int, Trace]]:
        """Yield the places of a batch that hold a document looked for, with its trace."""
        if batch.recipe != self._recipe:
            return
        partitions = {
            index: one.partition
            for index, one in enumerate(batch.sources)
            if one.topic_id == self._topic_id
        }
        if not partitions:
            return
        is_wanted = np.isin(batch.source, list(partitions)) & np.isin(batch.offset, self._offsets)
        for place in np.flatnonzero(is_wanted).tolist():
            partition, offset = partitions[int(batch.source[place])], int(batch.offset[place])
            trace = self._by_place.get((partition, offset, int(batch.value_digest[place])))
            if trace is not None:
                yield place, trace
