"""Compare the answers of an index that judges the log again with those written: the headers of the
outputs, and byte for byte the answers that `verdicts` still contains.

`fold` is the second implementation of the rules, and judges logs of up to a million documents; this
comparison works for a log of any size, and in shadow mode, which writes no outputs.

Invariants: a digest of each record is stored, so memory grows with the number of records and not
with their size; a difference is one violation, at the position of the record that differs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stream_dedup.audit.content import split_verdict
from stream_dedup.audit.findings import Findings, Kind
from stream_dedup.domain.document import Headers, LogPlace, Message, Reason
from stream_dedup.log import answers, headers, records
from stream_dedup.log.answers import LogAnswer
from stream_dedup.log.frame import unless_damaged
from stream_dedup.log.records import Batch, Control, Release
from stream_dedup.log.schema import Judgement

LogGroup = Sequence[tuple[int, int, bytes | None]]
"""Log records as (log offset, LogAppendTime, bytes)."""


class _Delivered(NamedTuple):
    """A record of an output: its document's place in the log record, a digest of its headers, its
    own position.
    """

    place: int
    digest: bytes
    where: str


class ReplayedAnswers:
    """The outputs and answers that were written, by log record, until `judge` compares them."""

    def __init__(self, findings: Findings, log_end: int) -> None:
        """Compare answers to log records below `log_end`."""
        self._findings = findings
        self._end = log_end
        self._delivered: defaultdict[int, list[_Delivered]] = defaultdict(list)
        self._sent: defaultdict[int, list[tuple[bytes, str]]] = defaultdict(list)
        self._without_id: list[tuple[bytes, int, _Delivered]] = []
        self._forgotten: set[bytes] = set()
        self.headers_compared = self.answers_compared = 0

    def add_output(self, message: Message) -> None:
        """Add a record of `unique` or `duplicates`; one that names no place in the log, or was
        passed on unjudged, is skipped.
        """
        _, dedup_headers = split_verdict(message.headers)
        place = headers.parse_log_place(headers.text_of(dedup_headers, headers.LOG))
        is_fail_open = headers.text_of(dedup_headers, headers.REASON) == Reason.FAIL_OPEN.label
        if place is not None and not is_fail_open:
            delivered = _Delivered(
                place.place, _digest(repr(dedup_headers).encode()), message.position
            )
            self._delivered[place.offset].append(delivered)

    def add_answer(self, message: Message) -> None:
        """Add a record of `verdicts`, of any replica."""
        answer = unless_damaged(answers.decode, message.value, f"The record {message.position}")
        if answer is None:
            self._report(message.position, "is damaged: it is not an answer of an index.")
        elif not isinstance(answer, answers.Announce) and answer.log_offset < self._end:
            self._sent[answer.log_offset].append((_digest(message.value or b""), message.position))

    def judge(self, group: LogGroup, index_answers: Iterable[tuple[int, bytes]]) -> None:
        """Compare the index's answers (log offset, bytes) to a group of log records."""
        answer_by_offset = dict(index_answers)
        for log_offset, raw in answer_by_offset.items():
            for digest, where in self._sent.pop(log_offset, []):
                self.answers_compared += 1
                if digest != _digest(raw):
                    self._report(where, f"is not the index's answer to log record {log_offset}.")
        for log_offset, _, raw_record in group:
            delivered = self._delivered.pop(log_offset, [])
            record = unless_damaged(records.decode, raw_record)
            if isinstance(record, Control) and record.type == "forget":
                self._forgotten |= records.forgotten_ids(record.fields)
            if delivered:
                expected = list(_headers_of(log_offset, record, answer_by_offset.get(log_offset)))
                for output in delivered:
                    self._compare(log_offset, output, expected)

    def close(self) -> None:
        """Report answers and outputs of log records that the index did not answer, and outputs that
        lack an id that was not forgotten.
        """
        for identifier, log_offset, output in self._without_id:
            if identifier not in self._forgotten:
                self._report_headers(log_offset, output)
        for log_offset, sent in self._sent.items():
            for _, where in sent:
                self._report(where, f"answers log record {log_offset}, which has no answer.")
        for log_offset, delivered in self._delivered.items():
            for output in delivered:
                self._report(
                    output.where, f"names log record {log_offset}, which is not in the log."
                )

    def _compare(
        self, log_offset: int, output: _Delivered, expected: Sequence[tuple[int, Headers]]
    ) -> None:
        self.headers_compared += 1
        for place, dedup_headers in expected:
            if place == output.place and output.digest == _digest(repr(dedup_headers).encode()):
                return
        for place, dedup_headers in expected:
            # Redelivered after its id was forgotten: the same verdict without the id.
            blank = [
                (name, b"" if name == headers.OF_ID else value) for name, value in dedup_headers
            ]
            if place == output.place and output.digest == _digest(repr(blank).encode()):
                self._without_id.append(
                    (dict(dedup_headers)[headers.OF_ID] or b"", log_offset, output)
                )
                return
        self._report_headers(log_offset, output)

    def _report_headers(self, log_offset: int, output: _Delivered) -> None:
        self._report(
            output.where, f"lacks the headers that the index gives for {log_offset}/{output.place}."
        )

    def _report(self, where: str, sentence: str) -> None:
        self._findings.add_finding(Kind.VERDICT, where, sentence)


def _headers_of(
    log_offset: int, record: records.LogRecord | None, raw: bytes | None
) -> Iterator[tuple[int, Headers]]:
    """Yield (place, headers that the document there may carry) for a log record."""
    if isinstance(record, Release):
        document = record.batch
        log_place = LogPlace(log_offset, 0)
        # As released; or, if it was read again, as a redelivered representative.
        for reason in (Reason.RELEASED, Reason.NEW, Reason.TOO_SHORT):
            yield (
                0,
                headers.of_verdict(
                    document.position(0),
                    document.recipe,
                    _fingerprint(document, 0),
                    Judgement(reason, log_place),
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
                yield place, headers.of_verdict(position, record.recipe, fingerprint, judgement)


def _fingerprint(batch: Batch, place: int) -> bytes:
    limbs: bytes = batch.prints[place][::-1].astype(">u8").tobytes()
    return limbs.hex().encode()


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16).digest()
