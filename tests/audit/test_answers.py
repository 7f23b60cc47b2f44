"""Answers compared with those of an index that judges the log again: no finding for its own, and
one for each that differs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stream_dedup.audit.answers import WrittenAnswers
from stream_dedup.audit.findings import Findings
from stream_dedup.audit.replay import apply_group
from stream_dedup.domain.document import Message
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from tests.index.logs import RandomLog, append_time

SEED = int(os.environ["TEST_SEED"])

Log = Sequence[tuple[int, int, bytes | None]]


def log_and_answers() -> tuple[Log, dict[int, bytes]]:
    """Return a random log, and what an index answers to it."""
    raws = RandomLog(SEED, PLANS["blocks"], plan_changes=True).records(60)
    log = [(offset, append_time(offset), raw) for offset, raw in enumerate(raws)]
    return log, dict(LogIndex(MemoryStore()).apply(log))


def to_messages(index_answers: dict[int, bytes]) -> list[Message]:
    return [
        Message("verdicts", 0, offset, None, raw, 1, [])
        for offset, raw in enumerate(index_answers.values())
    ]


def compare_answers(log: Log, replies: Sequence[Message]) -> tuple[list[str], int]:
    """Have an index judge the log in groups of seven; return the places that differ, and how many
    answers were compared."""
    findings = Findings(1000)
    written = WrittenAnswers(findings, len(log))
    for message in replies:
        written.add_answer(message)
    index = LogIndex(MemoryStore())
    for first in range(0, len(log), 7):
        written.compare(apply_group(index, log[first : first + 7]))
    written.close()
    return [finding.position for finding in findings.shown], written.compared


def test_answers_of_an_index_have_no_findings() -> None:
    log, given = log_and_answers()

    assert compare_answers(log, to_messages(given)) == ([], len(given))
    assert len(given) > 20


def test_a_wrong_answer_is_a_finding_and_one_after_the_log_is_skipped() -> None:
    """An answer of a replica that has lost a record, and one that is damaged; what is answered
    behind the end of the log is compared by a later audit."""
    log, given = log_and_answers()
    offsets = list(given)
    lost = [(offset, ms, None if offset == offsets[1] else raw) for offset, ms, raw in log]
    diverged = dict(LogIndex(MemoryStore()).apply(lost))
    replies = to_messages(given)
    replies[3] = replies[3]._replace(value=diverged[offsets[3]])
    replies[5] = replies[5]._replace(value=b"SDVD" + bytes(40))

    assert sorted(compare_answers(log, replies)[0]) == ["verdicts-0@3", "verdicts-0@5"]
    assert compare_answers(log[: offsets[3]], replies[:4]) == ([], 3)


def test_an_answer_without_its_request_is_a_finding() -> None:
    log, given = log_and_answers()
    log = [(offset, ms, None if offset == list(given)[2] else raw) for offset, ms, raw in log[:-1]]
    replies = to_messages(given)[:3]

    assert "verdicts-0@2" in compare_answers(log, replies)[0]
