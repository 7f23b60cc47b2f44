"""The headers that each output must carry, by the log alone, and the representatives that
duplicates name.

With a fold that judges, every header of ours is compared with what the judgement makes it. Without
one (a log too large for a plain scan), what a duplicate says is held against the log: the same
text, or within reach under the plan of then.

Invariants: a duplicate's representative is in `unique`, or not committed yet, or a seed, or of a
topic that was since created again, or its part of `unique` was trimmed; what was passed on unjudged
(`fail-open`) is held to its fingerprint only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stream_dedup.audit.content import (
    Content,
    cut_of,
    of_dead_letter,
    of_output,
    split_dead_letter,
    split_verdict,
)
from stream_dedup.audit.controls import Partition
from stream_dedup.audit.findings import Findings, Kind, Waiting
from stream_dedup.audit.ledger import AuditLedger
from stream_dedup.audit.outline import InLog, Outline
from stream_dedup.domain.document import (
    OUTCOMES,
    Headers,
    LogPlace,
    Message,
    Position,
    Reason,
    Verdict,
)
from stream_dedup.domain.sketch import as_text, per_cent
from stream_dedup.log import headers
from stream_dedup.log.answers import Judgement

_RELEASE_MS = 60_000
_LOGLESS = {Reason.EMPTY.label, Reason.TOMBSTONE.label, Reason.BYPASS.label}


@dataclass(slots=True)
class AuditedOutputs:
    """The records that left, one after another; `close` looks at what needs all of them.

    `names` are the topics of uniques, duplicates and dead letters. `in_flight` are representatives
    that the group has not committed past yet, `unemitted` those that it has: duplicates may name
    them, and they are nowhere. `now_ms` is when the ends were noted: a release that was appended
    within a minute of it may still be on its way.
    """

    outline: Outline
    ledger: AuditLedger
    names: tuple[str, str, str]
    source: tuple[str, bytes]
    committed: Mapping[int, int]
    unique_lows: Mapping[int, int]
    findings: Findings
    now_ms: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    in_flight: Waiting = field(default_factory=Waiting)
    unemitted: Waiting = field(default_factory=Waiting)
    _left: dict[Partition, set[int]] = field(default_factory=lambda: defaultdict(set))
    _first_left: dict[Partition, int] = field(default_factory=dict)
    _named: dict[tuple[Partition, int], str] = field(default_factory=dict)
    _dead: set[tuple[Partition, int]] = field(default_factory=set)
    _released: set[tuple[Partition, int]] = field(default_factory=set)

    def take_message(self, message: Message) -> None:
        """Take in a record of an output, in its partition's order."""
        if message.topic == self.names[2]:
            self._dead_letter(message)
        else:
            self._verdict(message)

    def close(self) -> None:
        """Look at the representatives: each that is named, and each of the log, must be in
        `unique`.
        """
        for (partition, offset), where in self._named.items():
            self._check_named(partition, offset, where)
        for log_offset, judgements in self.outline.judged.items():
            batch = self.outline.batches[log_offset]
            for place, judgement in enumerate(judgements):
                if judgement.reason in (Reason.NEW, Reason.TOO_SHORT) and judgement.decided == (
                    log_offset,
                    place,
                ):
                    position = batch.position(place)
                    self._check_emitted(
                        (position.topic, position.topic_id, position.partition),
                        position.offset,
                        judgement,
                    )
        for log_offset in sorted(self.outline.releases):
            self._check_released(log_offset)

    # -- one record

    def _dead_letter(self, message: Message) -> None:
        _, own = split_dead_letter(message.headers)
        names = headers.DLQ_TOPIC, headers.DLQ_PARTITION, headers.DLQ_OFFSET
        topic, part, offset = (headers.text_of(own, name) for name in names)
        self.reasons[f"dead:{headers.text_of(own, headers.ERROR_STAGE)}"] += 1
        if topic != self.source[0] or not (_is_number(part) and _is_number(offset)):
            said = f"does not say in its headers which record of {self.source[0]} it was."
            self.findings.add_finding(Kind.NOWHERE, message.at, said)
            return
        partition = (*self.source, int(part))
        self._dead.add((partition, int(offset)))
        self.ledger.came(
            message, of_dead_letter(message), (partition, int(offset)), cut=cut_of(own)
        )

    def _verdict(self, message: Message) -> None:
        _, own = split_verdict(message.headers)
        content = of_output(message)
        reason = headers.text_of(own, headers.REASON)
        self.reasons[reason or "none"] += 1
        place = headers.place_of(headers.text_of(own, headers.LOG))
        document = None if place is None else self.outline.document(place)
        if document is not None:
            self._judged(message, content, own, reason, document)
            return
        self.ledger.came(message, content, None)
        if place is not None:
            said = f"names {place} in the log (dedup.log), and there is no document there that an index judges."
            self.findings.add_finding(Kind.VERDICT, message.at, said)
        elif reason not in _LOGLESS or message.topic != self.names[0]:
            said = f"names no place in the log (dedup.log), though its reason is {reason!r}."
            self.findings.add_finding(Kind.VERDICT, message.at, said)

    def _judged(
        self, message: Message, content: Content, own: Headers, reason: str, document: InLog
    ) -> None:
        is_released = reason == Reason.RELEASED.label
        position = (document.partition, document.offset)
        self.ledger.came(message, content, position, is_released=is_released)
        if (
            message.topic == self.names[0]
            and headers.text_of(own, headers.VERDICT) == Verdict.UNIQUE.value
        ):
            self._left[document.partition].add(document.offset)
            if (
                document.log.offset in self.outline.releases
            ):  # whether the command wrote it, or a worker that read it again
                self._released.add(position)
            if not is_released:
                self._first_left.setdefault(document.partition, document.offset)
        self._check_topic(message, own, document)
        expected = self._expected(own, reason, document)
        if expected is None:
            said = f"left as {reason!r}, and log {document.log} gives it no verdict of that kind."
            self.findings.add_finding(Kind.VERDICT, message.at, said)
        else:
            self.compared += 1
            if wrong := differences(own, expected):
                said = (
                    f"({_name(*position)}, log {document.log}) is not what the log gives: {wrong}."
                )
                self.findings.add_finding(Kind.VERDICT, message.at, said)
        if headers.text_of(own, headers.VERDICT) == Verdict.DUPLICATE.value:
            self._duplicate(message, own, reason, document)

    def _check_topic(self, message: Message, own: Headers, document: InLog) -> None:
        verdict = headers.text_of(own, headers.VERDICT)
        is_duplicate = verdict == Verdict.DUPLICATE.value
        goes_apart = self.outline.batches[document.log.offset].mode.name != "ANNOTATE"
        if is_duplicate is not (message.topic == self.names[1]) and (
            goes_apart or not is_duplicate
        ):
            self.findings.add_finding(
                Kind.VERDICT, message.at, f"says {verdict!r}, which does not belong on that topic."
            )

    def _expected(self, own: Headers, reason: str, document: InLog) -> Headers | None:
        """Return our headers as the log gives them; None if it gives no verdict there."""
        recipe = self.outline.verdicts.declared
        known = OUTCOMES.get(reason)
        if recipe is None or known is None:
            return None
        place, position = document.log, Position(*document.partition, document.offset)
        if reason == Reason.FAIL_OPEN.label:
            return headers.of_verdict(position, known, recipe.recipe, document.hex, place)
        if place.offset in self.outline.releases:
            # As it left, or, read again, as a redelivered document that represents itself.
            return (
                headers.of_verdict(position, known, recipe.recipe, document.hex, place)
                if known.verdict is Verdict.UNIQUE
                else None
            )
        judgements = self.outline.judged.get(place.offset)
        if (
            judgements is None
        ):  # the log is too large for a scan: what it says of itself is checked elsewhere
            return own
        judgement = judgements[place.place]
        if judgement.reason.verdict is None:
            return None
        if (
            judgement.of is not None
            and judgement.of.id in self.outline.forgotten
            and not headers.text_of(own, headers.OF_ID)
            and not headers.text_of(own, headers.SIBLING_ID)
        ):
            # Given again after its id was forgotten: the verdict is the same, and the id is gone
            # from it.
            judgement = judgement._replace(of=judgement.of._replace(id=b""))
        return expected_headers(position, judgement, recipe.recipe, document.hex)

    # -- duplicates

    def _duplicate(self, message: Message, own: Headers, reason: str, document: InLog) -> None:
        text = headers.text_of(own, headers.OF_POSITION)
        found = self._representative(document, text)
        if found is None:
            said = f"is a duplicate of {text!r}, and the log has no document there."
            self.findings.add_finding(Kind.REPRESENTATIVE, message.at, said)
            return
        self._named.setdefault((found.partition, found.offset), message.at)
        if why := self._not_within_reach(own, reason, document, found):
            self.findings.add_finding(
                Kind.REACH, message.at, f"is called {reason} to {text}: {why}."
            )

    def _representative(self, document: InLog, text: str) -> InLog | None:
        """Return the document that a duplicate names; its topic's id is told by the judgement, or
        is that of now.
        """
        judgements = self.outline.judged.get(document.log.offset)
        if (
            judgements is not None
            and (of := judgements[document.log.place].of) is not None
            and str(of.position) == text
        ):
            at = of.position
            return self.outline.first_at((at.topic, at.topic_id, at.partition), at.offset)
        name, _, number = text.rpartition("@")
        topic, _, part = name.rpartition("-")
        if not (_is_number(number) and _is_number(part)):
            return None
        for partition in self.outline.partitions(topic, int(part), document.partition):
            known = self.outline.first_at(partition, int(number))
            if known is not None:
                return known
        return None

    def _not_within_reach(self, own: Headers, reason: str, document: InLog, found: InLog) -> str:
        distance = headers.text_of(own, headers.DISTANCE)
        if reason in OUTCOMES and OUTCOMES[reason].has_same_text:
            return (
                ""
                if document.text == found.text
                else "their texts are not the same, or of different scopes"
            )
        plan = self.outline.plan_at(document.log.offset)
        if plan is None or document.text[0] != found.text[0]:
            return "they are of different scopes"
        bits = plan.distance(document.print, found.print)
        if distance != str(bits):
            return f"they differ in {bits} bits, and dedup.distance is {distance!r}"
        sketches = (document.sketch, found.sketch)
        told = as_text(per_cent(*sketches)) if all(sketches) else ""
        similarity = headers.text_of(own, headers.SIMILARITY)
        if similarity != told:
            return (
                f"their sketches are {told or 'not'} alike, and dedup.similarity is {similarity!r}"
            )
        is_near = plan.is_near(
            document.print,
            found.print,
            (document.features, found.features),
            sketches,
            (document.seal, found.seal),
        )
        return "" if is_near else f"at {bits} bits they are beyond the reach of the plan of then"

    # -- the end

    def _check_named(self, partition: Partition, offset: int, where: str) -> None:
        if offset in self._left.get(partition, ()) or self._is_exempt(partition, offset):
            return
        if offset >= self.committed.get(partition[2], 0):
            # its worker has not committed it yet, and another was quicker with the duplicate: it is
            # in flight
            return
        said = f"is a duplicate of {_name(partition, offset)}, which is not in {self.names[0]}."
        self.findings.add_finding(Kind.REPRESENTATIVE, where, said)

    def _is_exempt(self, partition: Partition, offset: int) -> bool:
        if (partition, offset) in self.outline.elsewhere or partition[:2] != self.source:
            return True
        low = self.unique_lows.get(partition[2], 0)
        if low > 0 and offset < self._first_left.get(partition, offset + 1):
            return True
        known = self.outline.first_at(partition, offset)
        return known is not None and known.id in self.outline.forgotten

    def _check_emitted(self, partition: Partition, offset: int, judgement: Judgement) -> None:
        if (
            offset in self._left.get(partition, ())
            or self._is_exempt(partition, offset)
            or (partition, offset) in self._dead
        ):
            return
        appended_ms = self.outline.appended_ms[judgement.decided.offset]
        if offset >= self.committed.get(partition[2], 0):
            self.in_flight = self.in_flight.with_one(appended_ms)
            return
        self.unemitted = self.unemitted.with_one(appended_ms)
        self.findings.add_finding(
            Kind.UNEMITTED,
            _name(partition, offset),
            f"became a representative at log {judgement.decided}, appended "
            f"{headers.rfc3339(appended_ms)}; it is not in {self.names[0]}, and the group has "
            "committed past it. "
            "Duplicates may name it.",
        )

    def _check_released(self, log_offset: int) -> None:
        document = self.outline.document(LogPlace(log_offset, 0))
        if document is None or (document.partition, document.offset) in self._released:
            return
        if self._is_exempt(document.partition, document.offset):
            return
        appended_ms = self.outline.appended_ms[log_offset]
        if appended_ms > self.now_ms - _RELEASE_MS:
            self.in_flight = self.in_flight.with_one(appended_ms)
            return
        self.unemitted = self.unemitted.with_one(appended_ms)
        self.findings.add_finding(
            Kind.UNEMITTED,
            _name(document.partition, document.offset),
            f"was released at log {document.log}, appended {headers.rfc3339(appended_ms)}, and is "
            "not in "
            f"{self.names[0]} as released. Finish it with: stream-dedup release "
            f"{document.partition[2]}@{document.offset}",
        )


def expected_headers(
    position: Position, judgement: Judgement, recipe: str, fingerprint: bytes
) -> Headers:
    """Return our headers for a judged document at a position in the source."""
    reason, decided, distance, of, similarity, copies, better = judgement
    return headers.of_verdict(
        position, reason, recipe, fingerprint, decided, distance, of, similarity, copies, better
    )


def differences(
    own: Sequence[tuple[str, bytes | None]], expected: Sequence[tuple[str, bytes | None]]
) -> str:
    """Return in words how headers differ from what they must be; nothing if they do not."""
    if list(own) == list(expected):
        return ""
    names = dict.fromkeys(name for name, _ in (*own, *expected))
    found = [
        f"{name} is {_shown(own, name)}, not {_shown(expected, name)}"
        for name in names
        if [value for one, value in own if one == name]
        != [value for one, value in expected if one == name]
    ]
    return "; ".join(found) or "the same headers stand in another order"


def _shown(found: Sequence[tuple[str, bytes | None]], name: str) -> str:
    values = [(value or b"").decode("utf-8", "replace") for one, value in found if one == name]
    return " and ".join(map(repr, values)) if values else "missing"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


def _name(partition: Partition, offset: int) -> str:
    return f"{partition[0]}-{partition[2]}@{offset}"
