"""What the log says without judging anybody: where each document stands in it, epochs, plans in
force, operators' orders.

Invariant: everything here can be told of a log of any size, in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stream_dedup.audit.controls import Partition, forgotten
from stream_dedup.audit.fold import Fold
from stream_dedup.audit.scan import Reach, Seal, as_number, seal_of
from stream_dedup.domain.document import LogPlace
from stream_dedup.domain.errors import FormatError
from stream_dedup.log.answers import Judgement
from stream_dedup.log.records import Batch, Control, Release, Seed

_PLACES = 1 << 16


@dataclass(frozen=True, slots=True)
class InLog:
    """A document as the log has it; `print` is a number, `hex` its digits, as headers have it."""

    log: LogPlace
    partition: Partition
    offset: int
    id: bytes
    text: tuple[int, bytes]
    print: int
    hex: bytes
    features: int
    sketch: bytes
    seal: Seal


@dataclass(slots=True)
class Outline:
    """All that an audit needs of the log; `fold` takes the records in their order.

    `judged` has the judgements by log offset if the fold has a scan; `batches` the
    records with documents that an index accepts, orders of operators among them;
    `refused` how many it does not.
    """

    verdicts: Fold
    batches: dict[int, Batch] = field(default_factory=dict)
    judged: dict[int, tuple[Judgement, ...]] = field(default_factory=dict)
    appended_ms: dict[int, int] = field(default_factory=dict)
    releases: set[int] = field(default_factory=set)
    elsewhere: set[tuple[Partition, int]] = field(default_factory=set)
    forgotten: set[bytes] = field(default_factory=set)
    epochs: dict[Partition, dict[int, int]] = field(default_factory=dict)
    committed_epochs: dict[Partition, int] = field(default_factory=dict)
    records: int = 0
    documents: int = 0
    refused: int = 0
    _plans: list[tuple[int, Reach | None]] = field(default_factory=list)
    _places: dict[Partition, dict[int, int]] = field(default_factory=dict)

    def fold(self, log_offset: int, append_ms: int, record: object) -> None:
        """Take in the next record; None if it could not be read."""
        judgements = self.verdicts.judge(log_offset, append_ms, record)
        self.records += 1
        if not self._plans or self._plans[-1][1] != self.verdicts.plan:
            self._plans.append((log_offset, self.verdicts.plan))
        if isinstance(record, Control):
            self._control(record)
            return
        batch = record.batch if isinstance(record, Seed | Release) else record
        if isinstance(batch, Batch) and self.verdicts.accepts(batch):
            self.appended_ms[log_offset] = append_ms
            self.batches[log_offset] = batch
            self.documents += len(batch)
            if judgements is not None:
                self.judged[log_offset] = judgements
            self._positions(log_offset, batch)
            if isinstance(record, Batch):
                self._epochs(batch)
            elif isinstance(record, Seed):
                self._seeds(batch)
            else:
                self.releases.add(log_offset)
        else:
            self.refused += 1

    def plan_at(self, log_offset: int) -> Reach | None:
        """Return the plan in force for a record."""
        found = None
        for since, plan in self._plans:
            if since > log_offset:
                break
            found = plan
        return found

    def document(self, place: LogPlace) -> InLog | None:
        """Return the document at a place in the log, or None if there is none that an index
        accepted.
        """
        batch = self.batches.get(place.offset)
        if batch is None or place.place >= len(batch):
            return None
        at = place.place
        source = batch.sources[int(batch.source[at])]
        digits = batch.prints[at][::-1].astype(">u8").tobytes().hex().encode()
        text = (int(batch.scope[at]), batch.text_digest[at].tobytes())
        return InLog(
            place,
            (source.topic, source.topic_id, source.partition),
            int(batch.offset[at]),
            batch.ids[at],
            text,
            as_number(batch.prints[at]),
            digits,
            int(batch.features[at]),
            batch.sketches[at].tobytes(),
            seal_of(batch, at),
        )

    def first_at(self, partition: Partition, offset: int) -> InLog | None:
        """Return what the log first had of the document at a position."""
        handle = self._places.get(partition, {}).get(offset)
        return (
            None if handle is None else self.document(LogPlace(handle // _PLACES, handle % _PLACES))
        )

    def partitions(self, topic: str, number: int, first: Partition) -> list[Partition]:
        """Return the partitions of that name, of all topic ids; those of the topic that `first` is
        of stand first.
        """
        found = [one for one in self._places if (one[0], one[2]) == (topic, number)]
        return sorted(found, key=lambda one: one[1] != first[1])

    def readings(self, partition: Partition, offset: int) -> int:
        """Return how often a position may have been read: once, and once more for each rewind to it
        or before.

        Where an epoch began is told by its first record in the log. What was read and committed
        before that, because it needs no verdict (a dead letter, an empty text), lies directly
        below, with nothing of the log between; and an epoch of which the log has nothing read
        nothing else.
        """
        epochs = self.epochs.get(partition, {})
        places = self._places.get(partition, {})
        if offset in places:
            lowest = min(epochs, default=0)
            return 1 + sum(offset >= start for epoch, start in epochs.items() if epoch > lowest)
        starts = [start for epoch, start in epochs.items() if epoch > 0]
        logged = next(
            (one for one in range(offset, max(starts, default=0)) if one in places), 1 << 63
        )
        return (
            1
            + sum(offset >= start or logged >= start for start in starts)
            + self.rewinds(partition)
            - len(starts)
        )

    def rewinds(self, partition: Partition) -> int:
        """Return how often a partition was rewound at most, as its epochs tell."""
        return max(
            self.committed_epochs.get(partition, 0), max(self.epochs.get(partition, {}), default=0)
        )

    def _positions(self, log_offset: int, batch: Batch) -> None:
        names = [(source.topic, source.topic_id, source.partition) for source in batch.sources]
        places = [self._places.setdefault(name, {}) for name in names]
        first = log_offset * _PLACES
        for place, (number, offset) in enumerate(
            zip(batch.source.tolist(), batch.offset.tolist(), strict=True)
        ):
            places[number].setdefault(offset, first + place)

    def _epochs(self, batch: Batch) -> None:
        for source in batch.sources:
            starts = self.epochs.setdefault((source.topic, source.topic_id, source.partition), {})
            starts[source.epoch] = min(source.committed, starts.get(source.epoch, source.committed))

    def _seeds(self, batch: Batch) -> None:
        for place in range(len(batch)):
            position = batch.position(place)
            self.elsewhere.add(
                ((position.topic, position.topic_id, position.partition), position.offset)
            )

    def _control(self, record: Control) -> None:
        try:
            if record.type == "forget":
                self.forgotten |= forgotten(record.fields)
        except FormatError:
            return
