"""The answers that the index gives when it judges the log once more, compared with what was given:
the headers of the outputs, and byte for byte the answers that `verdicts` still holds.

`fold` is the second implementation of the rules, and judges a log of a million documents; this
comparison is for a log of any size, and for a filter in shadow mode, which has no outputs.

Invariants: of each record a digest is kept, so memory grows with the number of records and not with
their size; a difference is one violation, at the position of the record that differs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stream_dedup.audit.content import split_verdict
from stream_dedup.audit.findings import Findings, Kind
from stream_dedup.audit.verdicts import expected_headers
from stream_dedup.domain.document import Headers, LogPlace, Message, Reason
from stream_dedup.log import answers, headers, records
from stream_dedup.log.answers import LogAnswer
from stream_dedup.log.frame import unless_damaged
from stream_dedup.log.records import Batch, Control, Release

LogGroup = Sequence[tuple[int, int, bytes | None]]
"""Log records as (log offset, LogAppendTime, bytes)."""


class _Delivered(NamedTuple):
    """A record of an output: the place in its log record, a digest of its headers, its position."""

    place: int
    digest: bytes
    where: str


class ReplayedAnswers:
    """What was given, by the log record that it answers, until `judge` compares it."""

    def __init__(self, findings: Findings, log_end: int) -> None:
        """Compare answers to log records below `log_end`."""
        self._findings = findings
        self._end = log_end
        self._delivered: defaultdict[int, list[_Delivered]] = defaultdict(list)
        self._sent: defaultdict[int, list[tuple[bytes, str]]] = defaultdict(list)
        self._without_id: list[tuple[bytes, int, _Delivered]] = []
        self._forgotten: set[bytes] = set()
        self.headers_compared = self.answers_compared = 0

    def take_output(self, message: Message) -> None:
        """Take in a record of `unique` or `duplicates`; one that names no place in the log, or was
        passed on unjudged, is not compared.
        """
        _, own = split_verdict(message.headers)
        place = headers.place_of(headers.text_of(own, headers.LOG))
        is_open = headers.text_of(own, headers.REASON) == Reason.FAIL_OPEN.label
        if place is not None and not is_open:
            delivered = _Delivered(place.place, _digest(repr(own).encode()), message.at)
            self._delivered[place.offset].append(delivered)

    def take_answer(self, message: Message) -> None:
        """Take in a record of `verdicts`, of any replica."""
        answer = unless_damaged(answers.decode, message.value, f"The record {message.at}")
        if answer is None:
            self._differs(message.at, "is damaged: it is no answer of an index.")
        elif not isinstance(answer, answers.Announce) and answer.log_offset < self._end:
            self._sent[answer.log_offset].append((_digest(message.value or b""), message.at))

    def judge(self, group: LogGroup, found: Iterable[tuple[int, bytes]]) -> None:
        """Compare the answers that the index gave to a group of log records, by log offset."""
        given = dict(found)
        for log_offset, raw in given.items():
            for digest, where in self._sent.pop(log_offset, []):
                self.answers_compared += 1
                if digest != _digest(raw):
                    self._differs(where, f"is not the index's answer to log record {log_offset}.")
        for log_offset, _, logged in group:
            delivered = self._delivered.pop(log_offset, [])
            record = unless_damaged(records.decode, logged)
            if isinstance(record, Control) and record.type == "forget":
                self._forgotten |= records.forgotten_ids(record.fields)
            if delivered:
                may_be = list(_headers_of(log_offset, record, given.get(log_offset)))
                for one in delivered:
                    self._compare(log_offset, one, may_be)

    def close(self) -> None:
        """Report what answers a log record to which the index gave nothing, and what lacks an id
        that was not forgotten.
        """
        for identifier, log_offset, one in self._without_id:
            if identifier not in self._forgotten:
                self._has_others(log_offset, one)
        for log_offset, sent in self._sent.items():
            for _, where in sent:
                self._differs(where, f"answers log record {log_offset}, which has no answer.")
        for log_offset, delivered in self._delivered.items():
            for one in delivered:
                self._differs(one.where, f"names log record {log_offset}, which is not in the log.")

    def _compare(
        self, log_offset: int, one: _Delivered, may_be: Sequence[tuple[int, Headers]]
    ) -> None:
        self.headers_compared += 1
        for place, own in may_be:
            if place == one.place and one.digest == _digest(repr(own).encode()):
                return
        for place, own in may_be:
            # Given again after its id was forgotten: the verdict is the same, and the id is gone.
            blank = [(name, b"" if name == headers.OF_ID else value) for name, value in own]
            if place == one.place and one.digest == _digest(repr(blank).encode()):
                self._without_id.append((dict(own)[headers.OF_ID] or b"", log_offset, one))
                return
        self._has_others(log_offset, one)

    def _has_others(self, log_offset: int, one: _Delivered) -> None:
        self._differs(
            one.where, f"has not the headers that the index gives for {log_offset}/{one.place}."
        )

    def _differs(self, where: str, sentence: str) -> None:
        self._findings.add_finding(Kind.VERDICT, where, sentence)


def _headers_of(
    log_offset: int, record: records.LogRecord | None, raw: bytes | None
) -> Iterator[tuple[int, Headers]]:
    """Yield (place, headers that a document there may have left with) of a log record."""
    if isinstance(record, Release):
        document = record.batch
        here = LogPlace(log_offset, 0)
        # As it left; or, read again, as a redelivered document that represents itself.
        for reason in (Reason.RELEASED, Reason.NEW, Reason.TOO_SHORT):
            yield (
                0,
                headers.of_verdict(
                    document.position(0), reason, document.recipe, _fingerprint(document, 0), here
                ),
            )
    elif isinstance(record, Batch) and raw is not None:
        answer = answers.decode(raw, f"The answer to log record {log_offset}")
        for place, judgement in enumerate(
            answer.judgements if isinstance(answer, LogAnswer) else ()
        ):
            if judgement.reason.verdict is not None:
                position = record.position(place)
                fingerprint = _fingerprint(record, place)
                yield place, expected_headers(position, judgement, record.recipe, fingerprint)


def _fingerprint(batch: Batch, place: int) -> bytes:
    limbs: bytes = batch.prints[place][::-1].astype(">u8").tobytes()
    return limbs.hex().encode()


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16).digest()
