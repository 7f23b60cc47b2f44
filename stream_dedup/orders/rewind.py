"""What `rewind` may do to a group's committed offsets: values in, changes or refusals out; nothing
here talks to Kafka.

A rewind writes (offset, epoch + 1) as the committed offset of a source partition. Its rules, and
what breaks without:

 1. The group is empty. A running worker would commit its next batch over the new offset, under the
 old epoch. (Kafka
    refuses the write too, so a worker that joins meanwhile is safe.)
 2. No transaction with the group's offsets is open. What it holds is not yet the committed offset,
 and may or may not
    become it; the operator would decide without knowing how far the outputs go.
 3. Never above the committed offset: the documents between would never be judged, and so be lost.
 Only what the topic
    itself has lost may be passed: a committed offset below the first record still held may move up
    to that.
 4. Within what the topic holds: elsewhere a worker cannot begin to read. 5. The epoch rises with
 every rewind that has something read again. The index keeps the highest (epoch, committed
    offset) of each partition as its watermark, and calls `stale` what lies below; only a higher
    epoch brings the watermark down. It also parts the documents that are read again from those that
    a lost worker of before still appends. Where the committed offset itself is asked for, nothing
    is written: what was judged and not committed keeps its verdicts.
 6. Where the committed offset carries no epoch, or there is none, the epoch to rise from is the
 highest that the log
    holds for the partition (`Marks`), because nothing but a record of the log can have raised the
    index's watermark. The whole log is read for it: the newest record need not carry the highest
    epoch, since a lost worker may append late.
 7. All or nothing: one refusal, and nothing is written.

Where offsets are lost, the outputs prove how far a partition came: its records leave in order and
each of them leaves, so all below the highest position that left have left (`left_up_to`). A
released document names an old position, which is why not the last record counts but the highest.
Positions name a topic without its id: where the log has documents of an earlier topic of that name,
the outputs prove nothing, and what workers confirmed to the log counts alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.printable import printable
from stream_dedup.log import epochs
from stream_dedup.log.headers import POSITION, text_of
from stream_dedup.log.records import Batch, Control, LogRecord

POSITION_FORM = re.compile(
    r"(?:(?P<topic>.+)-)?(?P<partition>[0-9]{1,10})@(?P<offset>[0-9]{1,19})\Z"
)


@dataclass(frozen=True, slots=True)
class RewindTarget:
    """What the cluster has of the source topic, by partition.

    `committed` holds (offset, metadata) of the partitions that have a committed offset; `bounds`
    (first offset held, offset of the next record) of at least those to rewind.
    """

    topic: str
    partitions: int
    committed: Mapping[int, tuple[int, str | None]]
    bounds: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A committed offset to write. What is there now is None where it is missing; `warning` is a
    sentence, if any.
    """

    partition: int
    committed: int | None
    epoch: int | None
    new_offset: int
    new_epoch: int
    warning: str | None = None

    @property
    def is_one(self) -> bool:
        """Whether anything changes. Else the epoch stays too: under a higher one what was in flight
        would be judged anew.
        """
        return (self.new_offset, self.new_epoch) != (self.committed, self.epoch)


@dataclass(slots=True)
class Marks:
    """What the log holds of one source topic: by partition, the highest (epoch, committed offset),
    the watermark.

    `fold` takes the records in the log's order. `group` is the one that the log was begun for, None
    before it is told.
    """

    topic_id: bytes
    topic: str = ""
    group: str | None = None
    is_made_anew: bool = False
    """Whether the log has documents of an earlier topic of that name."""
    by_partition: dict[int, tuple[int, int]] = field(default_factory=dict)
    _recipe: str | None = None

    def fold(self, record: LogRecord) -> None:
        """Take in the next record; batches of another recipe are passed over, as the index rejects
        them.
        """
        if isinstance(record, Control):
            if record.type == "declare" and self._recipe is None:
                self._recipe, self.group = (
                    str(record.fields.get("recipe")),
                    str(record.fields.get("group")),
                )
        elif isinstance(record, Batch) and record.recipe == self._recipe:
            for source in record.sources:
                if source.topic_id == self.topic_id:
                    seen = (source.epoch, source.committed)
                    self.by_partition[source.partition] = max(
                        seen, self.by_partition.get(source.partition, seen)
                    )
                elif source.topic == self.topic:
                    self.is_made_anew = True


def parse(texts: Iterable[str], topic: str) -> dict[int, int]:
    """Return the offset asked for by partition, of texts such as `3@8812`, or `documents-3@8812`
    where `topic` is `documents`.

    Raises:
        InputError: a text is none of that, names another topic, or a partition twice; all are named
        at once.
    """
    wanted: dict[int, int] = {}
    problems = []
    for text in texts:
        found = POSITION_FORM.match(text)
        if found is None:
            problems.append(
                f"{printable(text)!r} is not PARTITION@OFFSET, such as 3@8812 or {topic}-3@8812."
            )
        elif found["topic"] not in (None, topic):
            problems.append(
                f"{printable(text)!r} does not name the source topic: only {topic} is read by the "
                "workers."
            )
        elif int(found["partition"]) in wanted:
            problems.append(f"Partition {int(found['partition'])} is named twice.")
        else:
            wanted[int(found["partition"])] = int(found["offset"])
    if problems:
        raise InputError("\n".join(problems))
    return wanted


def left_up_to(outputs: Iterable[Message], topic: str, partition: int) -> int | None:
    """Return the offset behind the highest position of a source partition that outputs name; None
    if they name none.
    """
    places = (POSITION_FORM.match(text_of(one.headers, POSITION)) for one in outputs)
    offsets = [
        int(one["offset"])
        for one in places
        if one and (one["topic"], int(one["partition"])) == (topic, partition)
    ]
    return max(offsets) + 1 if offsets else None


def restored(cluster: RewindTarget, marks: Marks, left: Mapping[int, int]) -> dict[int, int]:
    """Return from where on to read the partitions whose committed offset is lost: behind all that
    is known to have left.

    `left` is what outputs prove, by partition.
    """
    wanted = {}
    for part, (low, _) in cluster.bounds.items():
        if epochs.from_metadata(cluster.committed.get(part, (0, None))[1]) is None:
            _, confirmed = marks.by_partition.get(part, (0, low))
            wanted[part] = max(low, confirmed, 0 if marks.is_made_anew else left.get(part, 0))
    return wanted


def needs_log(wanted: Iterable[int], committed: Mapping[int, tuple[int, str | None]]) -> bool:
    """Return whether some partition's epoch can be told by the log only."""
    return any(
        part not in committed or epochs.from_metadata(committed[part][1]) is None for part in wanted
    )


def plan(
    wanted: Mapping[int, int],
    cluster: RewindTarget,
    marks: Marks | None,
    left: Mapping[int, int] | None = None,
) -> tuple[list[OffsetChange], list[str]]:
    """Return (changes, refusals as sentences); with any refusal nothing may be written.

    `marks` is what the whole log holds; it may be None where `needs_log` says no. `left` is what
    outputs prove, by partition.
    """
    changes: list[OffsetChange] = []
    refusals: list[str] = []
    for part, offset in sorted(wanted.items()):
        refusal = _refusal(part, offset, cluster)
        if refusal is None:
            changes.append(_change(part, offset, cluster, marks, (left or {}).get(part, 0)))
        else:
            refusals.append(refusal)
    return changes, refusals


def _refusal(part: int, offset: int, cluster: RewindTarget) -> str | None:
    name = f"{cluster.topic}-{part}"
    if part >= cluster.partitions:
        return f"{name} does not exist: the partitions of {cluster.topic} are 0 to {cluster.partitions - 1}."
    low, high = cluster.bounds[part]
    if offset < low:
        return f"{name}@{offset} lies below {low}, the first offset that the topic still holds. Give at least {low}."
    committed, _ = cluster.committed.get(part, (high, None))
    if offset > max(committed, low):
        return (
            f"{name}@{offset} lies above the committed offset {committed}: the documents between "
            "would never be judged, "
            f"and so be lost. Give at most {max(committed, low)}."
            if part in cluster.committed
            else f"{name}@{offset} lies above {high}, the partition's end. Give at most {high}."
        )
    if offset > high:
        return (
            f"{name}@{offset} lies above {high}, the partition's end, though the committed offset "
            f"is {committed}: the topic "
            f"was created again. Give at most {high}."
        )
    return None


def _change(
    part: int, offset: int, cluster: RewindTarget, marks: Marks | None, left: int
) -> OffsetChange:
    low, _ = cluster.bounds[part]
    committed, metadata = cluster.committed.get(part, (None, None))
    epoch = epochs.from_metadata(metadata)
    if epoch is not None and offset == committed:
        return OffsetChange(
            part,
            committed,
            epoch,
            offset,
            epoch,
            "The committed offset is there already; nothing changes.",
        )
    if epoch is not None:
        warning = None
        if committed is not None and committed < low:
            warning = (
                f"The topic lost the records from {committed} to {low - 1} before they were judged."
            )
        return OffsetChange(part, committed, epoch, offset, epoch + 1, warning)
    highest, confirmed = marks.by_partition.get(part, (0, low)) if marks is not None else (0, low)
    warning, sure = None, max(low, confirmed, left)
    if offset > sure:
        warning = (
            f"Nothing here tells whether the documents from {sure} to {offset - 1} have left "
            "already; if not, they are "
            f"lost. {cluster.topic}-{part}@{sure} is sure to skip none."
        )
    return OffsetChange(part, committed, None, offset, highest + 1, warning)
