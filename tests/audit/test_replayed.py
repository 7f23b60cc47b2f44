"""The index's own answers beside what was given: nothing to say of what it gave itself, and a
finding for each record that is otherwise."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from stream_dedup.audit.findings import Findings, Kind
from stream_dedup.audit.replayed import ReplayedAnswers
from stream_dedup.domain.document import Headers, Message
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.log import answers, headers, records
from stream_dedup.log.answers import LogAnswer
from stream_dedup.log.frame import unless_damaged
from stream_dedup.log.headers import of_verdict
from stream_dedup.log.records import Batch
from tests.index.logs import RandomLog, append_time, forget

SEED = int(os.environ["TEST_SEED"])

Log = Sequence[tuple[int, int, bytes | None]]


def log_and_answers(*, orders: bool = True) -> tuple[Log, dict[int, bytes]]:
    """Return a random log, and what an index answers to it."""
    raws = RandomLog(SEED, PLANS["blocks"], plan_changes=True, orders=orders).records(60)
    log = [(offset, append_time(offset), raw) for offset, raw in enumerate(raws)]
    return log, dict(LogIndex(MemoryStore()).apply(log))


def delivered(log: Log, given: dict[int, bytes]) -> list[Message]:
    """Return the records of the outputs that these answers lead to."""
    found: list[Message] = []
    for offset, raw in given.items():
        answer = answers.decode(raw, "an answer")
        batch = unless_damaged(records.decode, log[offset][2])
        if not isinstance(answer, LogAnswer) or not isinstance(batch, Batch):
            continue
        for place, judgement in enumerate(answer.judgements):
            if judgement.reason.verdict is not None:
                limbs = batch.prints[place].tolist()
                fingerprint = "".join(f"{limb:016x}" for limb in reversed(limbs)).encode()
                own = of_verdict(batch.position(place), batch.recipe, fingerprint, judgement)
                found.append(output(len(found), own))
    return found


def output(offset: int, own: Headers) -> Message:
    return Message("unique", 0, offset, b"key", b"value", 1, [("kept", b"yes"), *own])


def sent(given: dict[int, bytes]) -> list[Message]:
    return [Message("verdicts", 0, at, None, raw, 1, []) for at, raw in enumerate(given.values())]


def compared(log: Log, outputs: Sequence[Message], replies: Sequence[Message]) -> ReplayedAnswers:
    """Have an index judge the log in groups of seven, and compare."""
    replayed = ReplayedAnswers(Findings(1000), len(log))
    for message in outputs:
        replayed.add_output(message)
    for message in replies:
        replayed.add_answer(message)
    index = LogIndex(MemoryStore())
    for first in range(0, len(log), 7):
        group = log[first : first + 7]
        replayed.judge(group, index.apply(group))
    replayed.close()
    return replayed


def wrong(replayed: ReplayedAnswers) -> list[tuple[Kind, str]]:
    return [(one.kind, one.where) for one in replayed._findings.shown]


def test_what_an_index_gave_has_no_findings() -> None:
    log, given = log_and_answers()
    outputs, replies = delivered(log, given), sent(given)
    replayed = compared(log, outputs, replies)

    assert wrong(replayed) == []
    assert (replayed.headers_compared, replayed.answers_compared) == (len(outputs), len(replies))
    assert min(len(outputs), len(replies)) > 20


@pytest.mark.parametrize("changed", ["fingerprint", "reason", "log"])
def test_a_record_with_another_header_is_a_finding(changed: str) -> None:
    log, given = log_and_answers()
    outputs = delivered(log, given)
    values = {"fingerprint": b"0" * 32, "reason": b"unchanged", "log": b"999999/0"}
    name = f"dedup.{changed}"
    spoilt = [
        (one, values[changed] if one == name else value) for one, value in outputs[9].headers or ()
    ]
    outputs[9] = outputs[9]._replace(headers=spoilt)

    assert headers.text_of(spoilt, name) == values[changed].decode()
    assert wrong(compared(log, outputs, [])) == [(Kind.VERDICT, "unique-0@9")]


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

    assert sorted(where for _, where in wrong(compared(log, [], replies))) == [
        "verdicts-0@3",
        "verdicts-0@5",
    ]
    assert wrong(compared(log[: offsets[3]], [], [*replies[:3], replies[3]])) == []


def test_what_answers_nothing_of_the_log_is_a_finding() -> None:
    log, given = log_and_answers()
    log = [(at, ms, None if at == list(given)[2] else raw) for at, ms, raw in log[:-1]]
    replies = sent(given)[:3]

    assert ("verdict", "verdicts-0@2") in wrong(compared(log, [], replies))


def test_an_id_may_lack_only_where_it_was_forgotten() -> None:
    """A verdict that is given again after a forget is the same, without the id."""
    log, given = log_and_answers(orders=False)
    outputs = delivered(log, given)
    at, identifier = next(
        (at, value)
        for at, one in enumerate(outputs)
        for name, value in one.headers or ()
        if name == headers.OF_ID and value
    )
    blank = [(name, b"" if name == headers.OF_ID else value) for name, value in outputs[at].headers]
    outputs[at] = outputs[at]._replace(headers=blank)

    assert wrong(compared(log, outputs, [])) == [(Kind.VERDICT, f"unique-0@{at}")]
    taken_down = (len(log), append_time(len(log)), forget(identifier))
    assert wrong(compared([*log, taken_down], outputs, [])) == []
