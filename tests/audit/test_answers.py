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


def sent(given: dict[int, bytes]) -> list[Message]:
    return [Message("verdicts", 0, at, None, raw, 1, []) for at, raw in enumerate(given.values())]


def compared(log: Log, replies: Sequence[Message]) -> tuple[list[str], int]:
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
    return [one.position for one in findings.shown], written.compared


def test_what_an_index_gave_has_no_findings() -> None:
    log, given = log_and_answers()

    assert compared(log, sent(given)) == ([], len(given))
    assert len(given) > 20


def test_another_answer_is_a_finding_and_one_beyond_the_log_is_left() -> None:
    """An answer of a replica that has lost a record, and one that is damaged; what is answered
    behind the end of the log is compared by a later audit."""
    log, given = log_and_answers()
    offsets = list(given)
    lost = [(at, ms, None if at == offsets[1] else raw) for at, ms, raw in log]
    diverged = dict(LogIndex(MemoryStore()).apply(lost))
    replies = sent(given)
    replies[3] = replies[3]._replace(value=diverged[offsets[3]])
    replies[5] = replies[5]._replace(value=b"SDVD" + bytes(40))

    assert sorted(compared(log, replies)[0]) == ["verdicts-0@3", "verdicts-0@5"]
    assert compared(log[: offsets[3]], replies[:4]) == ([], 3)


def test_what_answers_nothing_of_the_log_is_a_finding() -> None:
    log, given = log_and_answers()
    log = [(at, ms, None if at == list(given)[2] else raw) for at, ms, raw in log[:-1]]
    replies = sent(given)[:3]

    assert "verdicts-0@2" in compared(log, replies)[0]
