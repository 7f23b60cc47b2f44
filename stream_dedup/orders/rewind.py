"""The rules of `rewind` for a group's committed offsets, as pure functions without Kafka.

A rewind writes (offset, epoch + 1) as the committed offset of a source partition. Its rules, and the
reason for each:

 1. The group must be empty. A running worker would commit its next batch over the new offset, with the
    old epoch. (Kafka also refuses the write if a worker joins meanwhile.)
 2. No transaction with the group's offsets may be open, because it is unknown whether these become
    the committed ones, and so how far the outputs are written.
 3. The new offset must not be above the committed one: the documents in between would never be
    judged. The exception is records that the topic has lost: a committed offset below the first
    stored record may move up to it.
 4. The new offset must be within the topic: a worker cannot start reading elsewhere.
 5. A rewind that makes records be read again raises the epoch. The index stores the highest (epoch,
    committed offset) of each partition as its watermark, and answers `stale` below it; only a higher
    epoch lowers the offset. The epoch also distinguishes documents that are read again from those that
    a worker appends after it lost the partition. A rewind to the committed offset writes nothing, so
    records that were judged and not committed keep their verdicts.
 6. If the committed offset is missing or has no epoch, the new epoch follows the highest one of the
    partition in the log (`LogWatermarks`), because only a record of the log can have raised the
    index's watermark. This reads the whole log: the newest record need not have the highest epoch,
    since a worker may append after it lost the partition.
 7. If one partition is refused, nothing is written.

If offsets are lost, the outputs prove how far a partition was processed: every record is written in
order, so all records below the highest position in the outputs were written (`find_proven_end`). The
highest position counts and not the last one, because a released document has an old position. The
outputs name the topic without its id: if the log has documents of an earlier topic of that name, they
prove nothing, and only the offsets count that workers logged as committed.
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

POSITION_PATTERN = re.compile(
    r"(?:(?P<topic>.+)-)?(?P<partition>[0-9]{1,10})@(?P<offset>[0-9]{1,19})\Z"
)


@dataclass(frozen=True, slots=True)
class RewindTarget:
    """The cluster's state of the source topic, by partition.

    `committed` contains (offset, metadata) of the partitions with a committed offset; `bounds`
    contains (first stored offset, offset of the next record) of at least those to rewind.
    """

    topic: str
    partitions: int
    committed: Mapping[int, tuple[int, str | None]]
    bounds: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A committed offset to write. The current offset `committed` and its `epoch` are None if missing;
    `warning` is a sentence or None.
    """

    partition: int
    committed: int | None
    epoch: int | None
    new_offset: int
    new_epoch: int
    warning: str | None = None

    @property
    def is_change(self) -> bool:
        """Whether the offset or the epoch changes."""
        return (self.new_offset, self.new_epoch) != (self.committed, self.epoch)

    @property
    def offsets_again(self) -> int | None:
        """The number of offsets to read again; None if no offset was committed."""
        return None if self.committed is None else max(0, self.committed - self.new_offset)

    def to_row(self, topic: str) -> list[str]:
        """Return the change as a row: partition, offset and new offset, epoch and new epoch, and the
        number of offsets to read again.
        """
        numbers = (self.committed, self.new_offset, self.epoch, self.new_epoch, self.offsets_again)
        return [f"{topic}-{self.partition}", *("none" if n is None else str(n) for n in numbers)]

    def to_fields(self, topic: str, *, is_written: bool) -> dict[str, object]:
        """Return the change as an object of the command's JSON."""
        return {
            "topic": topic,
            "partition": self.partition,
            "offset": {"current": self.committed, "new": self.new_offset},
            "epoch": {"current": self.epoch, "new": self.new_epoch},
            "offsets_again": self.offsets_again,
            "warning": self.warning,
            "written": is_written and self.is_change,
        }


@dataclass(slots=True)
class LogWatermarks:
    """The watermarks of a source topic in the log: the highest (epoch, committed offset) by
    partition.

    `fold` reads the records in the log's order. `group` is the declared group, None before the
    declaration.
    """

    topic_id: bytes
    topic: str = ""
    group: str | None = None
    is_recreated: bool = False
    """Whether the log has documents of an earlier topic of that name."""
    by_partition: dict[int, tuple[int, int]] = field(default_factory=dict)
    _recipe: str | None = None

    def fold(self, record: LogRecord) -> None:
        """Apply the next record; ignore batches of another recipe, which the index rejects."""
        if isinstance(record, Control):
            if record.type == "declare" and self._recipe is None:
                self._recipe = str(record.fields.get("recipe"))
                self.group = str(record.fields.get("group"))
        elif isinstance(record, Batch) and record.recipe == self._recipe:
            for source in record.sources:
                if source.topic_id == self.topic_id:
                    mark = (source.epoch, source.committed)
                    self.by_partition[source.partition] = max(
                        mark, self.by_partition.get(source.partition, mark)
                    )
                elif source.topic == self.topic:
                    self.is_recreated = True


def parse(texts: Iterable[str], topic: str) -> dict[int, int]:
    """Parse texts such as `3@8812`, or `documents-3@8812` if `topic` is `documents`; return offsets
    by partition.

    Raises:
        InputError: texts are malformed, name another topic, or a partition twice; all problems are
        reported at once.
    """
    new_offsets: dict[int, int] = {}
    problems = []
    for text in texts:
        match = POSITION_PATTERN.match(text)
        if match is None:
            problems.append(
                f"{printable(text)!r} is not PARTITION@OFFSET, such as 3@8812 or {topic}-3@8812."
            )
        elif match["topic"] not in (None, topic):
            problems.append(
                f"{printable(text)!r} is not a position in the source topic: workers read only "
                f"{topic}."
            )
        elif int(match["partition"]) in new_offsets:
            problems.append(
                f"Partition {int(match['partition'])} is given twice; give each partition once."
            )
        else:
            new_offsets[int(match["partition"])] = int(match["offset"])
    if problems:
        raise InputError("\n".join(problems))
    return new_offsets


def find_proven_end(outputs: Iterable[Message], topic: str, partition: int) -> int | None:
    """Return the offset after the highest position of a source partition in records of the outputs;
    None without any.
    """
    matches = (POSITION_PATTERN.match(text_of(output.headers, POSITION)) for output in outputs)
    offsets = [
        int(match["offset"])
        for match in matches
        if match and (match["topic"], int(match["partition"])) == (topic, partition)
    ]
    return max(offsets) + 1 if offsets else None


def find_restored_offsets(
    cluster: RewindTarget, watermarks: LogWatermarks, proven: Mapping[int, int]
) -> dict[int, int]:
    """Return new offsets for the partitions whose committed offset is lost, by partition: after all
    records that were certainly written.

    `proven` are the offsets that the outputs prove (`find_proven_end`), by partition.
    """
    new_offsets = {}
    for partition, (low, _) in cluster.bounds.items():
        if epochs.from_metadata(cluster.committed.get(partition, (0, None))[1]) is None:
            _, confirmed = watermarks.by_partition.get(partition, (0, low))
            new_offsets[partition] = max(
                low, confirmed, 0 if watermarks.is_recreated else proven.get(partition, 0)
            )
    return new_offsets


def needs_log(new_offsets: Iterable[int], committed: Mapping[int, tuple[int, str | None]]) -> bool:
    """Return whether the epoch of some partition must be read from the log."""
    return any(
        partition not in committed or epochs.from_metadata(committed[partition][1]) is None
        for partition in new_offsets
    )


def plan(
    new_offsets: Mapping[int, int],
    cluster: RewindTarget,
    watermarks: LogWatermarks | None,
    proven: Mapping[int, int] | None = None,
) -> tuple[list[OffsetChange], list[str]]:
    """Return (changes, refusals as sentences); with any refusal nothing may be written.

    `watermarks` are those of the whole log; they may be None if `needs_log` returns False. `proven` are the
    ends that the outputs prove, by partition.
    """
    changes: list[OffsetChange] = []
    refusals: list[str] = []
    for partition, offset in sorted(new_offsets.items()):
        refusal = _find_refusal(partition, offset, cluster)
        if refusal is None:
            changes.append(
                _change(partition, offset, cluster, watermarks, (proven or {}).get(partition, 0))
            )
        else:
            refusals.append(refusal)
    return changes, refusals


def _find_refusal(partition: int, offset: int, cluster: RewindTarget) -> str | None:
    name = f"{cluster.topic}-{partition}"
    if partition >= cluster.partitions:
        return (
            f"{name} does not exist: the partitions of {cluster.topic} are 0 to "
            f"{cluster.partitions - 1}."
        )
    low, high = cluster.bounds[partition]
    if offset < low:
        return (
            f"{name}@{offset} is below {low}, the first offset that the topic still contains. Give at "
            f"least {low}."
        )
    committed, _ = cluster.committed.get(partition, (high, None))
    if offset > max(committed, low):
        return (
            f"{name}@{offset} is above the committed offset {committed}: the documents between "
            f"would never be judged, and would be lost. Give at most {max(committed, low)}."
            if partition in cluster.committed
            else f"{name}@{offset} is above {high}, the partition's end. Give at most {high}."
        )
    if offset > high:
        return (
            f"{name}@{offset} is above {high}, the partition's end. The committed offset is "
            f"{committed}, so the topic was created again. Give at most {high}."
        )
    return None


def _change(
    partition: int,
    offset: int,
    cluster: RewindTarget,
    watermarks: LogWatermarks | None,
    proven_offset: int,
) -> OffsetChange:
    low, _ = cluster.bounds[partition]
    committed, metadata = cluster.committed.get(partition, (None, None))
    epoch = epochs.from_metadata(metadata)
    if epoch is not None and offset == committed:
        return OffsetChange(
            partition,
            committed,
            epoch,
            offset,
            epoch,
            "This is already the committed offset; nothing changes.",
        )
    if epoch is not None:
        warning = None
        if committed is not None and committed < low:
            warning = (
                f"The topic lost the records from {committed} to {low - 1} before they were judged."
            )
        return OffsetChange(partition, committed, epoch, offset, epoch + 1, warning)
    highest, confirmed = (
        watermarks.by_partition.get(partition, (0, low)) if watermarks is not None else (0, low)
    )
    warning, safe_offset = None, max(low, confirmed, proven_offset)
    if offset > safe_offset:
        warning = (
            f"It is unknown whether the documents from {safe_offset} to {offset - 1} were "
            f"delivered already; if not, they are lost. {cluster.topic}-{partition}@{safe_offset} "
            "skips none."
        )
    return OffsetChange(partition, committed, None, offset, highest + 1, warning)
