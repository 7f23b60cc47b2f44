"""A decided record becomes the record that leaves: topic, headers, and what the metrics count.

Invariants: key, value bytes, timestamp and foreign headers leave as they came; the output partition is the source
partition, so order within a partition is kept; a record leaves on exactly one of the three topics. The one exception to
"as they came": a dead letter that its topic could not hold is cut, and a header states its full size.
"""

from __future__ import annotations

from typing import NamedTuple

from stream_dedup.document import DeadLetter, Headers, Message, Mode, Position, Reason, Verdict, maker_of
from stream_dedup.errors import InvariantError
from stream_dedup.log import headers
from stream_dedup.log.answers import Judgement
from stream_dedup.log.kafka import Output
from stream_dedup.worker.prepare import Decided, InFlight

_REFUSED = DeadLetter(
    "size",
    "Refused",
    "An output topic refused this record when it was first judged; it was retracted and represents no other document. See "
    "max.message.bytes and the timestamp bounds of the output topics.",
)


class Leaving(NamedTuple):
    """One record to write, the record it came from, and why it leaves the way it does."""

    output: Output
    message: Message
    decided: Decided

    @property
    def is_judged(self) -> bool:
        """Whether the log knows it, so that it can be retracted."""
        return isinstance(self.decided, Judgement)


_output, _leaving = maker_of(Output), maker_of(Leaving)


class Outputs:
    """Writes the headers, and says where each record goes.

    `unique`, `duplicates` and `dead` are names of topics; in mode `annotate` duplicates go to `unique` too. What leaves in
    mode `shadow` is for the metrics: nobody writes it.
    """

    def __init__(
        self, unique: str, duplicates: str, dead: str, group: str, recipe: str, dead_bytes_max: int, mode: Mode = Mode.ENFORCE
    ) -> None:
        self._unique = unique
        self._duplicates = unique if mode is Mode.ANNOTATE else duplicates
        self._dead = dead
        self._group = group
        self._recipe = recipe
        self._dead_bytes_max = dead_bytes_max

    def of(self, batch: InFlight) -> list[Leaving]:
        """Return what leaves for a batch whose records are all decided, in the order in which they were read.

        Raises:
            InvariantError: a record has no verdict, or one that is no outcome.
        """
        live = batch.live
        is_whole = batch.is_whole
        recipe, unique, duplicates, of_verdict = self._recipe, self._unique, self._duplicates, headers.of_verdict
        leaving = []
        for message, decided, fingerprint in zip(batch.messages, batch.decided, batch.prints, strict=True):
            topic, partition, _, key, value, timestamp_ms, given = message
            if not is_whole and (topic, partition) not in live:
                continue
            if type(decided) is Judgement and not given and (reason := decided[0]) is not Reason.RETRACTED:
                # What nearly all records are; all others go the long way.
                _, place, distance, of = decided
                own = of_verdict(reason, recipe, fingerprint, place, distance, of)
                output = _output((unique if of is None else duplicates, partition, key, value, timestamp_ms, own))
                leaving.append(_leaving((output, message, decided)))
            else:
                output, outcome = self._output(message, decided, fingerprint)
                leaving.append(Leaving(output, message, outcome))
        return leaving

    def _output(self, message: Message, decided: Decided | None, fingerprint: bytes | None) -> tuple[Output, Decided]:
        passed = headers.passed_on(message.headers) if message.headers else []
        if isinstance(decided, Judgement):
            reason, place, distance, of = decided
            if reason is Reason.RETRACTED:
                return self._dead_letter(message, _REFUSED, passed), _REFUSED
            own = headers.of_verdict(reason, self._recipe, fingerprint, place, distance, of)
            topic = self._duplicates if reason.verdict is Verdict.DUPLICATE else self._unique
        elif isinstance(decided, Reason):
            own = headers.of_verdict(decided, self._recipe, None, None)
            topic = self._unique
        elif decided is not None:
            return self._dead_letter(message, decided, passed), decided
        else:
            raise InvariantError(
                f"The record {message.topic}-{message.partition}@{message.offset} is to be written without a verdict."
            )
        if passed:
            own = passed + own
        return Output(topic, message.partition, message.key, message.value, message.timestamp_ms, own), decided

    def _dead_letter(self, message: Message, letter: DeadLetter, passed: Headers) -> Output:
        position = Position(message.topic, b"", message.partition, message.offset)
        passed += headers.of_dead_letter(letter, position, self._group, message.timestamp_ms)
        value = message.value
        over = headers.record_bytes(message.key, value, message.headers) - self._dead_bytes_max
        if value is not None and over > 0:
            passed.append((headers.ERROR_TRUNCATED, b"%d" % len(value)))
            value = value[: max(0, len(value) - over)]
        return Output(self._dead, message.partition, message.key, value, message.timestamp_ms, passed)
