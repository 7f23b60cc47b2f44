"""Where a decided record goes, and with which headers."""

from __future__ import annotations

import pytest

from stream_dedup.document import DeadLetter, Headers, LogPlace, Message, Mode, Position, Reason, Representative
from stream_dedup.errors import InvariantError
from stream_dedup.log.answers import Judgement
from stream_dedup.worker.outputs import Leaving, Outputs
from stream_dedup.worker.prepare import Decided, InFlight

KEPT = Representative(Position("documents", bytes(16), 1, 5), b"https://a.example/", 0)
COPY = Judgement(Reason.NEAR, LogPlace(8, 0), 3, KEPT)
NEW = Judgement(Reason.NEW, LogPlace(8, 1))


def leave(decided: list[Decided | None], mode: Mode = Mode.ENFORCE, headers: Headers | None = None) -> list[Leaving]:
    """Return what leaves for records 0, 1, ... of two partitions in turn, so decided."""
    messages = [Message("documents", n % 2, n, b"k", b"v%d" % n, 1000 + n, headers or []) for n in range(len(decided))]
    live = {("documents", 0), ("documents", 1)}
    batch = InFlight(messages, decided, [b"00ff"] * len(decided), [], b"stamp", dict.fromkeys(live, 0), set(live))
    return Outputs("unique", "duplicates", "dead", "group", "words:128:x:y", 10_000, mode).of(batch)


@pytest.mark.parametrize(("mode", "topics"), [(Mode.ENFORCE, ["duplicates", "unique"]), (Mode.ANNOTATE, ["unique", "unique"])])
def test_annotating_changes_the_topic_and_nothing_else(mode: Mode, topics: list[str]) -> None:
    """A duplicate that is only annotated leaves on `unique`, still named a duplicate on its headers."""
    copy, new = leave([COPY, NEW], mode)

    assert [one.output.topic for one in (copy, new)] == topics
    assert dict(copy.output.headers)["dedup.verdict"] == b"duplicate"
    assert dict(copy.output.headers)["dedup.of.position"] == b"documents-1@5"
    assert dict(new.output.headers)["dedup.verdict"] == b"unique"


def test_a_record_leaves_as_it_came() -> None:
    """Partition, key, value, timestamp and foreign headers are the record's own; ours follow."""
    (one,) = leave([NEW], headers=[("traceparent", b"00-1"), ("dedup.verdict", b"forged")])

    assert one.output[:5] == ("unique", 0, b"k", b"v0", 1000)
    assert one.output.headers == [
        ("traceparent", b"00-1"),
        ("dedup.prior.verdict", b"forged"),
        ("dedup.verdict", b"unique"),
        ("dedup.reason", b"new"),
        ("dedup.recipe", b"words:128:x:y"),
        ("dedup.fingerprint", b"00ff"),
        ("dedup.log", b"8/1"),
    ]


def test_what_was_retracted_is_a_dead_letter() -> None:
    """A record that an output refused once never leaves on an output again, and is no longer the log's."""
    letter, retracted = leave([DeadLetter("decode", "X", "why"), Judgement(Reason.RETRACTED, LogPlace(9, 0))])

    assert [one.output.topic for one in (letter, retracted)] == ["dead", "dead"]
    assert not retracted.is_judged
    assert dict(retracted.output.headers)["dedup.error.class"] == b"Refused"


def test_records_of_a_lost_partition_stay() -> None:
    """Only records of partitions that are still ours leave, in the order in which they were read."""
    messages = [Message("documents", n % 2, n, None, b"v", 0, []) for n in range(4)]
    keys = {("documents", 0), ("documents", 1)}
    batch = InFlight(messages, [Reason.EMPTY] * 4, [None] * 4, [], b"s", dict.fromkeys(keys, 0), {("documents", 1)})

    left = Outputs("unique", "duplicates", "dead", "g", "r", 1000).of(batch)

    assert [one.message.offset for one in left] == [1, 3]


def test_a_record_without_a_verdict_never_leaves() -> None:
    """Writing a record that nobody judged is an alarm."""
    with pytest.raises(InvariantError, match="without a verdict"):
        leave([None])
