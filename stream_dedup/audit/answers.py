"""Compare the answers that `verdicts` still contains, byte for byte, with those of an index that
judges the log again.

Invariants: only a digest of each answer is in memory; each answer that differs is one violation, at
its position.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping

from stream_dedup.audit.findings import Findings, Kind
from stream_dedup.domain.document import Message
from stream_dedup.log import answers
from stream_dedup.log.record_frame import decode_unless_damaged


class WrittenAnswers:
    """The answers that indexes wrote, by log record, until `compare` checks them."""

    def __init__(self, findings: Findings, log_end: int) -> None:
        """Compare answers to log records below `log_end`."""
        self._findings = findings
        self._end = log_end
        self._written: defaultdict[int, list[tuple[bytes, str]]] = defaultdict(list)
        self.compared = 0

    def add_answer(self, message: Message) -> None:
        """Add a record of `verdicts`, of any replica."""
        answer = decode_unless_damaged(
            answers.decode, message.value, f"The record {message.position}"
        )
        if answer is None:
            self._report(message.position, "is damaged, or no index wrote it.")
        elif not isinstance(answer, answers.Announce) and answer.log_offset < self._end:
            written = _digest(message.value or b""), message.position
            self._written[answer.log_offset].append(written)

    def compare(self, index_answers: Mapping[int, bytes]) -> None:
        """Compare the written answers with those of the index, by log offset."""
        for log_offset, raw in index_answers.items():
            for digest, position in self._written.pop(log_offset, []):
                self.compared += 1
                if digest != _digest(raw):
                    self._report(position, f"is not the index's answer to log record {log_offset}.")

    def close(self) -> None:
        """Report answers to log records that the index did not answer."""
        for log_offset, written in self._written.items():
            for _, position in written:
                self._report(
                    position, f"answers log record {log_offset}, which the index does not answer."
                )

    def _report(self, position: str, predicate: str) -> None:
        self._findings.add_finding(Kind.VERDICT, position, predicate)


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16).digest()
