"""What went in, and where it came out: each record once, in its partition's order, as it was.

A record that the log judged is found by `dedup.log`, a dead letter by its error headers. What was
passed on without the log (empty, tombstone, bypass) says nowhere where it came from; it is matched
by its content, in order.

Invariants: a record is called lost only if the group has committed past it and no output that could
have held it was trimmed; twice only if no rewind explains it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stream_dedup.audit.content import Content, Cut
from stream_dedup.audit.controls import Partition
from stream_dedup.audit.findings import AGAIN, EARLIER, RELEASED, TRIMMED, UNTOLD, Findings, Kind
from stream_dedup.audit.outline import Outline
from stream_dedup.domain.document import Message


class Span(NamedTuple):
    """A partition when the audit began: the first offset held, the end, and how far the group had
    committed.
    """

    low: int
    end: int
    committed: int


@dataclass(slots=True)
class _Went:
    """A source partition: what it holds, and how often each record came out."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    envelopes: array[int] = field(default_factory=lambda: array("Q"))
    wholes: array[int] = field(default_factory=lambda: array("Q"))
    claims: bytearray = field(default_factory=bytearray)
    first: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Came:
    """A partition of an output: its records in order, with the source offset of each, or -1."""

    sources: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    unresolved: dict[int, Content] = field(default_factory=dict)


@dataclass(slots=True)
class AuditLedger:
    """Sources first, then outputs, then `close`.

    `spans` are those of the source topic, `lows` the outputs' first offsets; an output that is
    `compacted` may lack anything.

    `counts` says what is no violation: records that retention removed, that a rewind delivered
    again, and the like.
    """

    outline: Outline
    topic: str
    topic_id: bytes
    spans: Mapping[int, Span]
    lows: Mapping[tuple[str, int], int]
    findings: Findings
    compacted: Collection[str] = ()
    counts: Counter[str] = field(default_factory=Counter)
    _first_held: dict[tuple[str, int], int | None] = field(default_factory=dict)
    _came: dict[tuple[str, int], _Came] = field(default_factory=lambda: defaultdict(_Came))
    _released: Counter[tuple[int, int]] = field(default_factory=Counter)
    _went: dict[int, _Went] = field(init=False)

    def __post_init__(self) -> None:
        self._went = {part: _Went() for part in self.spans}

    def source(self, message: Message, content: Content) -> None:
        """Take in a source record, in its partition's order."""
        went = self._went[message.partition]
        went.offsets.append(message.offset)
        went.envelopes.append(content.envelope)
        went.wholes.append(content.whole)
        went.claims.append(0)

    def came(
        self,
        message: Message,
        content: Content,
        source: tuple[Partition, int] | None,
        *,
        is_released: bool = False,
        cut: Cut = Cut.NOTHING,
    ) -> None:
        """Take in a record of an output; `source` is the position that it names, None if it names
        none.
        """
        came = self._came[message.topic, message.partition]
        came.offsets.append(message.offset)
        offset = -1
        if source is None:
            came.unresolved[len(came.sources)] = content
        elif source[0][1] != self.topic_id:
            self.counts[EARLIER] += 1
        elif source[0][2] != message.partition:
            position = self._position(source[0][2], source[1])
            self.findings.add_finding(
                Kind.ORDER, message.at, f"came from {position}, another partition."
            )
        elif is_released:
            self._release(message, source)
        else:
            offset = source[1]
            self._claim(message.at, message.partition, offset, content, cut)
        came.sources.append(offset)

    def close(self) -> None:
        """Match what named no source, and find what is missing or out of order."""
        for (topic, part), came in sorted(self._came.items()):
            self._match(topic, part, came)
            self._check_order(topic, part, came)
            self._first_held[topic, part] = next((one for one in came.sources if one >= 0), None)
        for part in sorted(self._went):
            self._find_lost(part)

    # -- one record

    def _release(self, message: Message, source: tuple[Partition, int]) -> None:
        self.counts[RELEASED] += 1
        key = (source[0][2], source[1])
        self._released[key] += 1
        if self._released[key] > 1:
            self.findings.add_finding(
                Kind.TWICE,
                message.at,
                f"is {self._position(*key)} as released, which was released before.",
            )

    def _claim(self, where: str, part: int, offset: int, content: Content, cut: Cut) -> None:
        went, span = self._went.get(part), self.spans.get(part)
        if went is None or span is None or offset >= span.end:
            position = self._position(part, offset)
            self.findings.add_finding(
                Kind.NOWHERE, where, f"names {position}, which the source topic does not have."
            )
            return
        at = bisect_left(went.offsets, offset)
        if went.offsets[at : at + 1] != array("q", [offset]):
            self.counts[TRIMMED] += 1  # below what is held, or compacted away
            return
        is_envelope_same = content.envelope == went.envelopes[at]
        what = "value" if is_envelope_same else "key, timestamp or headers"
        if (cut is Cut.NOTHING and content.whole != went.wholes[at]) or (
            cut is Cut.VALUE and not is_envelope_same
        ):
            position = self._position(part, offset)
            self.findings.add_finding(
                Kind.CHANGED, where, f"differs from {position}, which it came from, in its {what}."
            )
        self._count(went, at, where, part, offset)

    def _count(self, went: _Went, at: int, where: str, part: int, offset: int) -> None:
        went.claims[at] = claims = min(255, went.claims[at] + 1)
        if claims == 1:
            went.first[at] = where
        elif claims <= self._readings(part, offset):
            self.counts[AGAIN] += 1
        else:
            said = f"is {self._position(part, offset)}, which left {claims} times, first at {went.first[at]}."
            self.findings.add_finding(Kind.TWICE, where, said)

    def _readings(self, part: int, offset: int) -> int:
        return self.outline.readings((self.topic, self.topic_id, part), offset)

    # -- the end

    def _match(self, topic: str, part: int, came: _Came) -> None:
        """Give each record that named no source the earliest one of its content that is still to
        come out, in order.
        """
        if not came.unresolved:
            return
        went = self._went.get(part, _Went())
        by_content: dict[int, list[int]] = defaultdict(list)
        wanted = {content.whole for content in came.unresolved.values()}
        for at, whole in enumerate(went.wholes):
            if whole in wanted:
                by_content[whole].append(at)
        low = self.spans[part].low if part in self.spans else 0
        is_held = False  # whether something that the source still holds has left before
        for index, offset in enumerate(came.offsets):
            content = came.unresolved.get(index)
            if content is None:
                is_held = is_held or came.sources[index] >= low
                continue
            where = f"{topic}-{part}@{offset}"
            free = self._next_unclaimed(part, went, by_content[content.whole])
            if free is not None:
                is_held = True
                came.sources[index] = went.offsets[free]
                self._count(went, free, where, part, went.offsets[free])
            elif not is_held and low > 0:
                self.counts[TRIMMED] += 1
            elif self._has_earlier():
                self.counts[EARLIER] += 1
            else:
                self.findings.add_finding(
                    Kind.NOWHERE,
                    where,
                    f"came from nowhere: every record of {self.topic}-{part} with its key, value, "
                    "timestamp and headers has "
                    "left elsewhere, or there is none.",
                )

    def _next_unclaimed(self, part: int, went: _Went, places: list[int]) -> int | None:
        for wanted in (0, 1):
            for at in places:
                claims = went.claims[at]
                if claims == 0 or (wanted and claims < self._readings(part, went.offsets[at])):
                    return at
        return None

    def _has_earlier(self) -> bool:
        return any(one[0] == self.topic and one[1] != self.topic_id for one in self.outline.epochs)

    def _check_order(self, topic: str, part: int, came: _Came) -> None:
        backs, last, before = self.outline.rewinds((self.topic, self.topic_id, part)), -1, ""
        for offset, source in zip(came.offsets, came.sources, strict=True):
            if source < 0:
                continue
            where = f"{topic}-{part}@{offset}"
            if source <= last:
                if backs:
                    backs -= 1
                else:
                    self.findings.add_finding(
                        Kind.ORDER,
                        where,
                        f"came from {self._position(part, source)}, and {before} before it from "
                        f"{self._position(part, last)}: the order of {self.topic}-{part} was not "
                        "kept.",
                    )
            last, before = source, where

    def _find_lost(self, part: int) -> None:
        went, span = self._went[part], self.spans[part]
        for at, offset in enumerate(went.offsets):
            if went.claims[at]:
                continue
            if offset >= span.committed:
                break
            if self._may_be_trimmed(part, offset):
                self.counts[UNTOLD] += 1
                continue
            known = self.outline.first_at((self.topic, self.topic_id, part), offset)
            log = "the log has nothing of it" if known is None else f"the log has it at {known.log}"
            said = f"is in none of the outputs, and the group has committed up to {span.committed}; {log}."
            self.findings.add_finding(Kind.LOST, self._position(part, offset), said)

    def _may_be_trimmed(self, part: int, offset: int) -> bool:
        """Return whether an output lost what it held first, and that may have been this record."""
        for (topic, number), low in self.lows.items():
            if number == part and topic in self.compacted:
                return True
            if number == part and low > 0:
                first = self._first_held.get((topic, part))
                if first is None or offset < first:
                    return True
        return False

    def _position(self, part: int, offset: int) -> str:
        return f"{self.topic}-{part}@{offset}"
