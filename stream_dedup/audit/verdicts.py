"""Check the headers of each output, and the representatives that duplicates name, against the log.

If the log was judged again, every `dedup.*` header is compared with the judgement. If it was not,
because the log is too large for a scan, a duplicate is compared with its representative in the log: it
must have the same text, or be near under the plan that was in force.

The representative of a duplicate must be on `unique`, unless it is not committed yet, is a seed, is
from a topic that was recreated, or retention has removed its part of `unique`. For records that were
delivered unjudged (`fail-open`) only the fingerprint is checked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stream_dedup.audit.content_digests import (
    Content,
    cut_of,
    digest_dead_letter,
    digest_output,
    split_verdict,
)
from stream_dedup.audit.findings import Findings, Kind, Waiting
from stream_dedup.audit.ledger import AuditLedger
from stream_dedup.audit.log_contents import LoggedDocument, LogOutline
from stream_dedup.audit.scan import per_cent
from stream_dedup.domain.document import (
    OUTCOMES,
    Headers,
    LogPlace,
    Message,
    Position,
    Reason,
    Verdict,
)
from stream_dedup.domain.sketch import NOT_COMPARED, as_text
from stream_dedup.log import headers
from stream_dedup.log.controls import Partition
from stream_dedup.log.dead_letters import split_dead_letter
from stream_dedup.log.schema import Judgement

_RELEASE_MS = 60_000
_REASONS_WITHOUT_LOG = {Reason.EMPTY.label, Reason.TOMBSTONE.label, Reason.BYPASS.label}


@dataclass(slots=True)
class AuditedOutputs:
    """Checks the outputs one by one. `close` makes the checks that need all of them.

    `names`: the topics of uniques, duplicates and dead letters. `in_flight`: representatives that are
    not on `unique`, because the group has not committed them yet; `unemitted`: representatives that
    are missing although it has. `now_ms`: the time at which the ends were read; a release that was
    appended less than a minute before may still be in flight.
    """

    outline: LogOutline
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
    _delivered: dict[Partition, set[int]] = field(default_factory=lambda: defaultdict(set))
    _first_delivered: dict[Partition, int] = field(default_factory=dict)
    _named_positions: dict[tuple[Partition, int], str] = field(default_factory=dict)
    _dead_lettered: set[tuple[Partition, int]] = field(default_factory=set)
    _released: set[tuple[Partition, int]] = field(default_factory=set)
    _answered_again: set[LogPlace] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Collect the log places of representatives that were redelivered. The later answers name
        no sibling.
        """
        for log_offset, judgements in self.outline.judgements.items():
            self._answered_again.update(
                judgement.decided
                for judgement in judgements
                if judgement.decided.offset != log_offset and judgement.of is None
            )

    def add_message(self, message: Message) -> None:
        """Check a record of an output. Call this in the order of the partition."""
        if message.topic == self.names[2]:
            self._add_dead_letter(message)
        else:
            self._add_verdict(message)

    def close(self) -> None:
        """Check that each representative of the log, and each that is named, is on `unique`."""
        for (partition, offset), duplicate_position in self._named_positions.items():
            self._check_named(partition, offset, duplicate_position)
        for log_offset, judgements in self.outline.judgements.items():
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

    # -- a single record

    def _add_dead_letter(self, message: Message) -> None:
        _, error_headers = split_dead_letter(message.headers)
        names = headers.DLQ_TOPIC, headers.DLQ_PARTITION, headers.DLQ_OFFSET
        topic, part, offset = (headers.text_of(error_headers, name) for name in names)
        self.reasons[f"dead:{headers.text_of(error_headers, headers.ERROR_STAGE)}"] += 1
        if topic != self.source[0] or not (_is_number(part) and _is_number(offset)):
            predicate = f"has no headers with its source record on {self.source[0]}."
            self.findings.add_finding(Kind.NOWHERE, message.position, predicate)
            return
        partition = (*self.source, int(part))
        self._dead_lettered.add((partition, int(offset)))
        self.ledger.add_output(
            message,
            digest_dead_letter(message),
            (partition, int(offset)),
            cut=cut_of(error_headers),
        )

    def _add_verdict(self, message: Message) -> None:
        _, dedup_headers = split_verdict(message.headers)
        content = digest_output(message)
        reason = headers.text_of(dedup_headers, headers.REASON)
        self.reasons[reason or "none"] += 1
        place = headers.parse_log_place(headers.text_of(dedup_headers, headers.LOG))
        document = None if place is None else self.outline.document(place)
        if document is not None:
            self._check_judged(message, content, dedup_headers, reason, document)
            return
        self.ledger.add_output(message, content, None)
        if place is not None:
            predicate = (
                f"has the log position {place} (dedup.log), but the log contains no document there."
            )
            self.findings.add_finding(Kind.VERDICT, message.position, predicate)
        elif reason not in _REASONS_WITHOUT_LOG or message.topic != self.names[0]:
            predicate = f"has no log position (dedup.log), although its reason is {reason!r}."
            self.findings.add_finding(Kind.VERDICT, message.position, predicate)

    def _check_judged(
        self,
        message: Message,
        content: Content,
        dedup_headers: Headers,
        reason: str,
        document: LoggedDocument,
    ) -> None:
        is_released = reason == Reason.RELEASED.label
        position = (document.partition, document.offset)
        self.ledger.add_output(message, content, position, is_released=is_released)
        if (
            message.topic == self.names[0]
            and headers.text_of(dedup_headers, headers.VERDICT) == Verdict.UNIQUE.value
        ):
            self._delivered[document.partition].add(document.offset)
            if document.log.offset in self.outline.releases:
                # `release` wrote it, or a worker that read the record again.
                self._released.add(position)
            if not is_released:
                self._first_delivered.setdefault(document.partition, document.offset)
        self._check_topic(message, dedup_headers, document)
        expected = self._expected_headers(dedup_headers, reason, document)
        if expected is None:
            predicate = (
                f"was delivered as {reason!r}, but the log has another verdict at {document.log}."
            )
            self.findings.add_finding(Kind.VERDICT, message.position, predicate)
        else:
            self.compared += 1
            if difference := describe_differences(dedup_headers, expected):
                predicate = f"({_position_text(*position)}, log {document.log}) differs from the log: {difference}."
                self.findings.add_finding(Kind.VERDICT, message.position, predicate)
        if headers.text_of(dedup_headers, headers.VERDICT) == Verdict.DUPLICATE.value:
            self._check_duplicate(message, dedup_headers, reason, document)

    def _check_topic(
        self, message: Message, dedup_headers: Headers, document: LoggedDocument
    ) -> None:
        verdict = headers.text_of(dedup_headers, headers.VERDICT)
        is_duplicate = verdict == Verdict.DUPLICATE.value
        has_duplicates_topic = self.outline.batches[document.log.offset].mode.name != "ANNOTATE"
        if is_duplicate is not (message.topic == self.names[1]) and (
            has_duplicates_topic or not is_duplicate
        ):
            self.findings.add_finding(
                Kind.VERDICT,
                message.position,
                f"has the verdict {verdict!r}, which does not belong on that topic.",
            )

    def _expected_headers(
        self, dedup_headers: Headers, reason: str, document: LoggedDocument
    ) -> Headers | None:
        """Return the `dedup.*` headers that follow from the log; None without a verdict in the log."""
        declaration = self.outline.fold.declaration
        outcome = OUTCOMES.get(reason)
        if declaration is None or outcome is None:
            return None
        place, position = document.log, Position(*document.partition, document.offset)
        unique = headers.of_verdict(
            position, declaration.recipe, document.hex, Judgement(outcome, place)
        )
        if reason == Reason.FAIL_OPEN.label:
            return unique
        if place.offset in self.outline.releases:
            # `release` delivered it, or a worker that read it again.
            return unique if outcome.verdict is Verdict.UNIQUE else None
        judgements = self.outline.judgements.get(place.offset)
        if judgements is None:
            return dedup_headers  # the log is too large for a scan; `_check_duplicate` checks them
        judgement = judgements[place.place]
        if judgement.reason.verdict is None:
            return None
        if (
            judgement.of is not None
            and judgement.of.id in self.outline.forgotten_ids
            and not headers.text_of(dedup_headers, headers.OF_ID)
            and not headers.text_of(dedup_headers, headers.SIBLING_ID)
        ):
            # Redelivered after its id was forgotten: the same verdict without the id.
            judgement = judgement._replace(of=judgement.of._replace(id=b""))
        if (
            judgement.sibling is not None
            and place in self._answered_again
            and not headers.text_of(dedup_headers, headers.SIBLING_POSITION)
        ):
            # Read again after a rewind: an index stores the reason of a representative, not its sibling.
            judgement = judgement._replace(of=None, similarity=NOT_COMPARED)
        return headers.of_verdict(position, declaration.recipe, document.hex, judgement)

    # -- duplicates

    def _check_duplicate(
        self, message: Message, dedup_headers: Headers, reason: str, document: LoggedDocument
    ) -> None:
        text = headers.text_of(dedup_headers, headers.OF_POSITION)
        representative = self._find_representative(document, text)
        if representative is None:
            predicate = (
                f"is a duplicate of {text!r}, but the log contains no document at that position."
            )
            self.findings.add_finding(Kind.REPRESENTATIVE, message.position, predicate)
            return
        self._named_positions.setdefault(
            (representative.partition, representative.offset), message.position
        )
        if reason_not_duplicate := self._reason_not_duplicate(
            dedup_headers, reason, document, representative
        ):
            self.findings.add_finding(
                Kind.REACH, message.position, f"is {reason} to {text}, but {reason_not_duplicate}."
            )

    def _find_representative(self, document: LoggedDocument, text: str) -> LoggedDocument | None:
        """Return the document at the position that a duplicate names; None without one. A
        judgement contains the topic id; without one, search the duplicate's own topic id first.
        """
        judgements = self.outline.judgements.get(document.log.offset)
        if (
            judgements is not None
            and (of := judgements[document.log.place].of) is not None
            and str(of.position) == text
        ):
            position = of.position
            return self.outline.find_first(
                (position.topic, position.topic_id, position.partition), position.offset
            )
        name, _, number = text.rpartition("@")
        topic, _, part = name.rpartition("-")
        if not (_is_number(number) and _is_number(part)):
            return None
        for partition in self.outline.partitions_named(topic, int(part), document.partition):
            representative = self.outline.find_first(partition, int(number))
            if representative is not None:
                return representative
        return None

    def _reason_not_duplicate(
        self,
        dedup_headers: Headers,
        reason: str,
        document: LoggedDocument,
        representative: LoggedDocument,
    ) -> str:
        distance = headers.text_of(dedup_headers, headers.DISTANCE)
        if reason in OUTCOMES and OUTCOMES[reason].has_same_text:
            return "" if document.text == representative.text else "their texts or scopes differ"
        rules = self.outline.rules_at(document.log.offset)
        if rules is None or document.text[0] != representative.text[0]:
            return "their scopes differ"
        texts = document.compared, representative.compared
        bits = rules.distance(*texts)
        if distance != str(bits):
            return f"they differ in {bits} bits, not {distance!r} as in dedup.distance"
        sketches = [text.sketch for text in texts]
        computed = as_text(per_cent(*sketches)) if all(map(len, sketches)) else ""
        similarity = headers.text_of(dedup_headers, headers.SIMILARITY)
        if similarity != computed:
            return f"their similarity is {computed or 'unknown'}, not {similarity!r} as in dedup.similarity"
        is_near = rules.is_near(*texts)
        return (
            "" if is_near else f"they differ in {bits} bits, which is too far for the plan in force"
        )

    # -- all records

    def _check_named(self, partition: Partition, offset: int, duplicate_position: str) -> None:
        if offset in self._delivered.get(partition, ()) or self._is_exempt(partition, offset):
            return
        if offset >= self.committed.get(partition[2], 0):
            # In flight: another worker has delivered the duplicate first.
            return
        predicate = f"is a duplicate of {_position_text(partition, offset)}, which is not on {self.names[0]}."
        self.findings.add_finding(Kind.REPRESENTATIVE, duplicate_position, predicate)

    def _is_exempt(self, partition: Partition, offset: int) -> bool:
        if (partition, offset) in self.outline.seeded_positions or partition[:2] != self.source:
            return True
        low = self.unique_lows.get(partition[2], 0)
        if low > 0 and offset < self._first_delivered.get(partition, offset + 1):
            return True
        document = self.outline.find_first(partition, offset)
        return document is not None and document.id in self.outline.forgotten_ids

    def _check_emitted(self, partition: Partition, offset: int, judgement: Judgement) -> None:
        if (
            offset in self._delivered.get(partition, ())
            or self._is_exempt(partition, offset)
            or (partition, offset) in self._dead_lettered
        ):
            return
        appended_ms = self.outline.appended_ms[judgement.decided.offset]
        if offset >= self.committed.get(partition[2], 0):
            self.in_flight = self.in_flight.with_another(appended_ms)
            return
        self.unemitted = self.unemitted.with_another(appended_ms)
        self.findings.add_finding(
            Kind.UNEMITTED,
            _position_text(partition, offset),
            f"became a representative at log {judgement.decided}, appended "
            f"{headers.rfc3339(appended_ms)}; it is not on {self.names[0]}, although the group "
            "has committed past it. dedup.of.* of duplicates may name it.",
        )

    def _check_released(self, log_offset: int) -> None:
        document = self.outline.document(LogPlace(log_offset, 0))
        if document is None or (document.partition, document.offset) in self._released:
            return
        if self._is_exempt(document.partition, document.offset):
            return
        appended_ms = self.outline.appended_ms[log_offset]
        if appended_ms > self.now_ms - _RELEASE_MS:
            self.in_flight = self.in_flight.with_another(appended_ms)
            return
        self.unemitted = self.unemitted.with_another(appended_ms)
        self.findings.add_finding(
            Kind.UNEMITTED,
            _position_text(document.partition, document.offset),
            f"was released at log {document.log}, appended {headers.rfc3339(appended_ms)}, but "
            f"{self.names[0]} does not contain it. Complete the release with: stream-dedup "
            f"release {document.partition[2]}@{document.offset}",
        )


def describe_differences(
    actual: Sequence[tuple[str, bytes | None]], expected: Sequence[tuple[str, bytes | None]]
) -> str:
    """Return how headers differ from the expected ones; empty if they are equal."""
    if list(actual) == list(expected):
        return ""
    names = dict.fromkeys(name for name, _ in (*actual, *expected))
    differing = [
        f"{name} is {_values_text(actual, name)}, not {_values_text(expected, name)}"
        for name in names
        if [value for header, value in actual if header == name]
        != [value for header, value in expected if header == name]
    ]
    return "; ".join(differing) or "the headers are in another order"


def _values_text(headers_shown: Sequence[tuple[str, bytes | None]], name: str) -> str:
    values = [
        (value or b"").decode("utf-8", "replace")
        for header, value in headers_shown
        if header == name
    ]
    return " and ".join(map(repr, values)) if values else "missing"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


def _position_text(partition: Partition, offset: int) -> str:
    return f"{partition[0]}-{partition[2]}@{offset}"
