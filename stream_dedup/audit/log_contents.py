"""Collect from the log, without judging it: positions of documents, epochs, plans in force and
operators' orders.

Invariant: the log is read once, regardless of its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stream_dedup.audit.judgements import Fold
from stream_dedup.audit.scan import ComparedText, PlanRules
from stream_dedup.domain.document import LogPlace
from stream_dedup.log.controls import Partition
from stream_dedup.log.records import Batch, Control, Release, Seed, forgotten_ids
from stream_dedup.log.schema import Judgement

# A log place is kept as one number: log offset * _PLACES_PER_RECORD + place in the record.
_PLACES_PER_RECORD = 1 << 16


@dataclass(frozen=True, slots=True)
class LoggedDocument:
    """A document in the log. `text`: its scope and the digest of its text; `compared`: what a plan
    compares; `hex`: the fingerprint in hexadecimal digits, as in headers.
    """

    log: LogPlace
    partition: Partition
    offset: int
    id: bytes
    text: tuple[int, bytes]
    compared: ComparedText
    hex: bytes


@dataclass(slots=True)
class LogOutline:
    """The parts of the log that an audit needs. Call `add_record` for each record in order.

    By log offset: `batches`, the records with documents that an index accepts, also seeds and
    releases; `appended_ms`, their times; `judgements`, those on each batch if `fold` has a scan.
    `refused`: the number of other records. `releases`: the log offsets of releases;
    `seeded_positions`: the positions of seeds. `epochs`: for each partition, the committed offset at
    which each epoch began.
    """

    fold: Fold
    batches: dict[int, Batch] = field(default_factory=dict)
    judgements: dict[int, Sequence[Judgement]] = field(default_factory=dict)
    appended_ms: dict[int, int] = field(default_factory=dict)
    releases: set[int] = field(default_factory=set)
    seeded_positions: set[tuple[Partition, int]] = field(default_factory=set)
    forgotten_ids: set[bytes] = field(default_factory=set)
    epochs: dict[Partition, dict[int, int]] = field(default_factory=dict)
    committed_epochs: dict[Partition, int] = field(default_factory=dict)
    records: int = 0
    documents: int = 0
    refused: int = 0
    _rules: list[tuple[int, PlanRules | None]] = field(default_factory=list)
    _places: dict[Partition, dict[int, int]] = field(default_factory=dict)

    def add_record(self, log_offset: int, append_ms: int, record: object) -> None:
        """Add the next record. Pass None for a record that could not be read."""
        judgements = self.fold.judge(log_offset, append_ms, record)
        self.records += 1
        if not self._rules or self._rules[-1][1] != self.fold.rules:
            self._rules.append((log_offset, self.fold.rules))
        if isinstance(record, Control):
            if record.type == "forget":
                self.forgotten_ids |= forgotten_ids(record.fields)
            return
        batch = record.batch if isinstance(record, Seed | Release) else record
        if isinstance(batch, Batch) and self.fold.accepts(batch):
            self.appended_ms[log_offset] = append_ms
            self.batches[log_offset] = batch
            self.documents += len(batch)
            if judgements is not None:
                self.judgements[log_offset] = judgements
            self._add_positions(log_offset, batch)
            if isinstance(record, Batch):
                self._add_epochs(batch)
            elif isinstance(record, Seed):
                self._add_seeds(batch)
            else:
                self.releases.add(log_offset)
        else:
            self.refused += 1

    def rules_at(self, log_offset: int) -> PlanRules | None:
        """Return the rules of the plan in force for a record."""
        latest_rules = None
        for since, rules in self._rules:
            if since > log_offset:
                break
            latest_rules = rules
        return latest_rules

    def document(self, place: LogPlace) -> LoggedDocument | None:
        """Return the document at a place in the log; None if no index accepts a document there."""
        batch = self.batches.get(place.offset)
        if batch is None or place.place >= len(batch):
            return None
        row = place.place
        source = batch.sources[int(batch.source[row])]
        digits = batch.prints[row][::-1].astype(">u8").tobytes().hex().encode()
        return LoggedDocument(
            place,
            (source.topic, source.topic_id, source.partition),
            int(batch.offset[row]),
            batch.ids[row],
            (int(batch.scope[row]), batch.text_digest[row].tobytes()),
            ComparedText.of(batch, row),
            digits,
        )

    def find_first(self, partition: Partition, offset: int) -> LoggedDocument | None:
        """Return the first document in the log with a source position, or None."""
        packed_place = self._places.get(partition, {}).get(offset)
        return (
            None
            if packed_place is None
            else self.document(
                LogPlace(packed_place // _PLACES_PER_RECORD, packed_place % _PLACES_PER_RECORD)
            )
        )

    def partitions_named(self, topic: str, number: int, first: Partition) -> list[Partition]:
        """Return the partitions with a topic name and number, of all topic ids. Those with the topic id
        of `first` come first.
        """
        partitions = [
            partition
            for partition in self._places
            if (partition[0], partition[2]) == (topic, number)
        ]
        return sorted(partitions, key=lambda partition: partition[1] != first[1])

    def reads_max(self, partition: Partition, offset: int) -> int:
        """Return how often a position may have been read: once, and once more for each rewind to this
        position or an earlier one.

        An epoch began at the committed offset of its first log record, or earlier: before that
        offset it read only records that are not in the log (dead letters, empty texts), if any.
        An epoch without a record in the log has read only such records.
        """
        epochs = self.epochs.get(partition, {})
        places = self._places.get(partition, {})
        if offset in places:
            lowest = min(epochs, default=0)
            return 1 + sum(offset >= start for epoch, start in epochs.items() if epoch > lowest)
        starts = [start for epoch, start in epochs.items() if epoch > 0]
        next_logged = next(
            (
                later_offset
                for later_offset in range(offset, max(starts, default=0))
                if later_offset in places
            ),
            1 << 63,
        )
        return (
            1
            + sum(offset >= start or next_logged >= start for start in starts)
            + self.rewinds_max(partition)
            - len(starts)
        )

    def rewinds_max(self, partition: Partition) -> int:
        """Return the maximum number of rewinds of a partition: its highest epoch."""
        return max(
            self.committed_epochs.get(partition, 0), max(self.epochs.get(partition, {}), default=0)
        )

    def _add_positions(self, log_offset: int, batch: Batch) -> None:
        partitions = [(source.topic, source.topic_id, source.partition) for source in batch.sources]
        places = [self._places.setdefault(partition, {}) for partition in partitions]
        first = log_offset * _PLACES_PER_RECORD
        for place, (source_index, offset) in enumerate(
            zip(batch.source.tolist(), batch.offset.tolist(), strict=True)
        ):
            places[source_index].setdefault(offset, first + place)

    def _add_epochs(self, batch: Batch) -> None:
        for source in batch.sources:
            starts = self.epochs.setdefault((source.topic, source.topic_id, source.partition), {})
            starts[source.epoch] = min(source.committed, starts.get(source.epoch, source.committed))

    def _add_seeds(self, batch: Batch) -> None:
        for place in range(len(batch)):
            position = batch.position(place)
            self.seeded_positions.add(
                ((position.topic, position.topic_id, position.partition), position.offset)
            )
