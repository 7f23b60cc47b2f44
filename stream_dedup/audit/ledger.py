"""Match source records with outputs: each must be delivered once, in the order of its partition,
unchanged.

The header `dedup.log` identifies the source of a judged record, and the error headers that of a dead
letter. Records that were delivered without the log (empty, tombstone, bypass) name no source; they
are matched by content, in order.

Invariants: a record is reported as lost only if the group has committed past it, and no retention
can have removed its output; as delivered twice only if no rewind explains it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stream_dedup.audit.content_digests import Content, Cut
from stream_dedup.audit.findings import (
    EARLIER_TOPIC,
    OUTPUTS_TRIMMED,
    REDELIVERED,
    RELEASED,
    SOURCE_TRIMMED,
    Findings,
    Kind,
)
from stream_dedup.audit.log_contents import LogOutline
from stream_dedup.domain.document import Message
from stream_dedup.log.controls import Partition


class Span(NamedTuple):
    """A partition at the start of the audit: its first offset, its end, and the committed offset of the
    group.
    """

    low: int
    end: int
    committed: int


@dataclass(slots=True)
class _SourcePartition:
    """The records of a source partition: their offsets and digests; `claims`: the number of outputs of
    each, up to 255; `first_outputs`: the position of the first output, by index.
    """

    offsets: array[int] = field(default_factory=lambda: array("q"))
    envelope_digests: array[int] = field(default_factory=lambda: array("Q"))
    full_digests: array[int] = field(default_factory=lambda: array("Q"))
    claims: bytearray = field(default_factory=bytearray)
    first_outputs: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _OutputPartition:
    """The records of an output partition in order: their offsets; `sources`: the source offset of each,
    -1 if unknown; `unresolved`: the content of records that name no source, by index.
    """

    sources: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    unresolved: dict[int, Content] = field(default_factory=dict)


@dataclass(slots=True)
class AuditLedger:
    """Matches source records with outputs. Add all sources, then all outputs, then call `close`.

    `spans`: the partitions of the source topic; `lows`: the first offsets of the outputs' partitions;
    `compacted`: outputs from which compaction may have removed any record. `counts`: the numbers of
    records that violate no guarantee, such as those that were delivered again after a rewind.
    """

    outline: LogOutline
    topic: str
    topic_id: bytes
    spans: Mapping[int, Span]
    lows: Mapping[tuple[str, int], int]
    findings: Findings
    compacted: Collection[str] = ()
    counts: Counter[str] = field(default_factory=Counter)
    _first_sources: dict[tuple[str, int], int | None] = field(default_factory=dict)
    _outputs: dict[tuple[str, int], _OutputPartition] = field(
        default_factory=lambda: defaultdict(_OutputPartition)
    )
    _released: Counter[tuple[int, int]] = field(default_factory=Counter)
    _sources: dict[int, _SourcePartition] = field(init=False)

    def __post_init__(self) -> None:
        self._sources = {part: _SourcePartition() for part in self.spans}

    def add_source(self, message: Message, content: Content) -> None:
        """Add a source record. Call this in the order of the partition."""
        partition = self._sources[message.partition]
        partition.offsets.append(message.offset)
        partition.envelope_digests.append(content.envelope)
        partition.full_digests.append(content.full)
        partition.claims.append(0)

    def add_output(
        self,
        message: Message,
        content: Content,
        source: tuple[Partition, int] | None,
        *,
        is_released: bool = False,
        cut: Cut = Cut.NOTHING,
    ) -> None:
        """Add a record of an output. `source`: the source position that it names, None without one."""
        output = self._outputs[message.topic, message.partition]
        output.offsets.append(message.offset)
        offset = -1
        if source is None:
            output.unresolved[len(output.sources)] = content
        elif source[0][1] != self.topic_id:
            self.counts[EARLIER_TOPIC] += 1
        elif source[0][2] != message.partition:
            position = self._position(source[0][2], source[1])
            self.findings.add_finding(
                Kind.ORDER,
                message.position,
                f"comes from {position}, which is in another partition.",
            )
        elif is_released:
            self._release(message, source)
        else:
            offset = source[1]
            self._claim(message.position, message.partition, offset, content, cut)
        output.sources.append(offset)

    def close(self) -> None:
        """Match the outputs that name no source; report records that are lost or out of order."""
        for (topic, part), output in sorted(self._outputs.items()):
            self._match(topic, part, output)
            self._check_order(topic, part, output)
            self._first_sources[topic, part] = next(
                (source for source in output.sources if source >= 0), None
            )
        for part in sorted(self._sources):
            self._find_lost(part)

    # -- a single record

    def _release(self, message: Message, source: tuple[Partition, int]) -> None:
        self.counts[RELEASED] += 1
        key = (source[0][2], source[1])
        self._released[key] += 1
        if self._released[key] > 1:
            self.findings.add_finding(
                Kind.TWICE,
                message.position,
                f"releases {self._position(*key)} a second time or later.",
            )

    def _claim(
        self, output_position: str, part: int, offset: int, content: Content, cut: Cut
    ) -> None:
        partition, span = self._sources.get(part), self.spans.get(part)
        if partition is None or span is None or offset >= span.end:
            position = self._position(part, offset)
            self.findings.add_finding(
                Kind.NOWHERE,
                output_position,
                f"names {position}, which does not exist in the source topic.",
            )
            return
        index = bisect_left(partition.offsets, offset)
        if partition.offsets[index : index + 1] != array("q", [offset]):
            self.counts[SOURCE_TRIMMED] += 1  # retention or compaction has removed it
            return
        is_envelope_same = content.envelope == partition.envelope_digests[index]
        part_name = "value" if is_envelope_same else "key, timestamp or headers"
        if (cut is Cut.NOTHING and content.full != partition.full_digests[index]) or (
            cut is Cut.VALUE and not is_envelope_same
        ):
            position = self._position(part, offset)
            self.findings.add_finding(
                Kind.CHANGED,
                output_position,
                f"differs from its source record {position} in its {part_name}.",
            )
        self._count_claim(partition, index, output_position, part, offset)

    def _count_claim(
        self, partition: _SourcePartition, index: int, output_position: str, part: int, offset: int
    ) -> None:
        partition.claims[index] = claims = min(255, partition.claims[index] + 1)
        if claims == 1:
            partition.first_outputs[index] = output_position
        elif claims <= self._reads_max(part, offset):
            self.counts[REDELIVERED] += 1
        else:
            predicate = (
                f"delivers {self._position(part, offset)}, which was delivered {claims} times, "
                f"first at {partition.first_outputs[index]}."
            )
            self.findings.add_finding(Kind.TWICE, output_position, predicate)

    def _reads_max(self, part: int, offset: int) -> int:
        return self.outline.reads_max((self.topic, self.topic_id, part), offset)

    # -- all records

    def _match(self, topic: str, part: int, output: _OutputPartition) -> None:
        """Match each output that names no source with the earliest unclaimed source record of the
        same content, in order.
        """
        if not output.unresolved:
            return
        partition = self._sources.get(part, _SourcePartition())
        by_content: dict[int, list[int]] = defaultdict(list)
        wanted = {content.full for content in output.unresolved.values()}
        for row, digest in enumerate(partition.full_digests):
            if digest in wanted:
                by_content[digest].append(row)
        low = self.spans[part].low if part in self.spans else 0
        is_after_low = False  # an earlier output matches a record that the source still contains
        for index, offset in enumerate(output.offsets):
            content = output.unresolved.get(index)
            if content is None:
                is_after_low = is_after_low or output.sources[index] >= low
                continue
            output_position = f"{topic}-{part}@{offset}"
            unclaimed = self._next_unclaimed(part, partition, by_content[content.full])
            if unclaimed is not None:
                is_after_low = True
                output.sources[index] = partition.offsets[unclaimed]
                self._count_claim(
                    partition, unclaimed, output_position, part, partition.offsets[unclaimed]
                )
            elif not is_after_low and low > 0:
                self.counts[SOURCE_TRIMMED] += 1
            elif self._has_earlier_topic():
                self.counts[EARLIER_TOPIC] += 1
            else:
                self.findings.add_finding(
                    Kind.NOWHERE,
                    output_position,
                    f"has no source record: no record of {self.topic}-{part} has its key, value, "
                    "timestamp and headers, or all such records were delivered elsewhere.",
                )

    def _next_unclaimed(
        self, part: int, partition: _SourcePartition, indexes: list[int]
    ) -> int | None:
        # First the records without an output, then those that a rewind may have delivered again.
        for may_repeat in (False, True):
            for index in indexes:
                claims = partition.claims[index]
                if claims == 0 or (
                    may_repeat and claims < self._reads_max(part, partition.offsets[index])
                ):
                    return index
        return None

    def _has_earlier_topic(self) -> bool:
        return any(
            partition[0] == self.topic and partition[1] != self.topic_id
            for partition in self.outline.epochs
        )

    def _check_order(self, topic: str, part: int, output: _OutputPartition) -> None:
        rewinds_left, last_source, position_before = (
            self.outline.rewinds_max((self.topic, self.topic_id, part)),
            -1,
            "",
        )
        for offset, source in zip(output.offsets, output.sources, strict=True):
            if source < 0:
                continue
            output_position = f"{topic}-{part}@{offset}"
            if source <= last_source:
                if rewinds_left:
                    rewinds_left -= 1
                else:
                    self.findings.add_finding(
                        Kind.ORDER,
                        output_position,
                        f"comes from {self._position(part, source)}, but {position_before}, an "
                        f"earlier record, comes from {self._position(part, last_source)}: the "
                        f"order of {self.topic}-{part} was not preserved.",
                    )
            last_source, position_before = source, output_position

    def _find_lost(self, part: int) -> None:
        partition, span = self._sources[part], self.spans[part]
        for index, offset in enumerate(partition.offsets):
            if partition.claims[index]:
                continue
            if offset >= span.committed:
                break
            if self._may_be_trimmed(part, offset):
                self.counts[OUTPUTS_TRIMMED] += 1
                continue
            logged = self.outline.find_first((self.topic, self.topic_id, part), offset)
            log_clause = (
                "the log does not contain it"
                if logged is None
                else f"it is in the log at {logged.log}"
            )
            predicate = (
                "is in no output, although the group has committed up to "
                f"{span.committed}; {log_clause}."
            )
            self.findings.add_finding(Kind.LOST, self._position(part, offset), predicate)

    def _may_be_trimmed(self, part: int, offset: int) -> bool:
        """Return whether retention or compaction may have removed the output of a record."""
        for (topic, number), low in self.lows.items():
            if number == part and topic in self.compacted:
                return True
            if number == part and low > 0:
                first = self._first_sources.get((topic, part))
                if first is None or offset < first:
                    return True
        return False

    def _position(self, part: int, offset: int) -> str:
        return f"{self.topic}-{part}@{offset}"
