"""Where a decided record goes, and with which headers; and what the log is told of dead letters
before they leave."""

from __future__ import annotations

import gc
import random
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from stream_dedup.domain.document import (
    DeadLetter,
    Headers,
    LogPlace,
    Message,
    Mode,
    Position,
    Reason,
    Representative,
    UnreadableHeaders,
)
from stream_dedup.domain.errors import InvariantError
from stream_dedup.domain.messages import NO_TIMESTAMP
from stream_dedup.kafka import Output
from stream_dedup.log import records
from stream_dedup.log.answers import LogAnswer, decode, encode
from stream_dedup.log.controls import parse_retraction
from stream_dedup.log.records import value_digest
from stream_dedup.log.schema import Judgement, Verdicts
from stream_dedup.worker.delivery import Delivery
from stream_dedup.worker.outputs import EmittedBatch, EmittedCounts, OutputWriter
from stream_dedup.worker.prepare import Decision, InFlight, Part

PLACE = LogPlace(9, 0)
KEPT = Representative(Position("documents", bytes(16), 1, 5), b"https://a.example/", 0)
ELSEWHERE = Representative(
    Position("documents", bytes(16), 2, 77), b"https://b.example/", 1_700_000_000_000
)
COPY = Judgement(Reason.NEAR, LogPlace(8, 0), 3, KEPT, 71)
NEW = Judgement(Reason.NEW, LogPlace(8, 1))


def leave(
    decided: list[Decision | None], mode: Mode = Mode.ENFORCE, headers: Headers | None = None
) -> EmittedBatch:
    """Return what leaves for records 0, 1, ... of two partitions in turn, so decided."""
    messages = [
        Message("documents", n % 2, n, b"k", b"v%d" % n, 1000 + n, headers or [])
        for n in range(len(decided))
    ]
    live = {("documents", 0), ("documents", 1)}
    batch = InFlight(
        messages, decided, [b"00ff"] * len(decided), [], b"stamp", dict.fromkeys(live, 0), set(live)
    )
    return OutputWriter("unique", "duplicates", "dead", "group", "words:128:x:y", 10_000, mode).of(
        batch
    )


@pytest.mark.parametrize(
    ("mode", "topics"),
    [(Mode.ENFORCE, ["duplicates", "unique"]), (Mode.ANNOTATE, ["unique", "unique"])],
)
def test_annotating_changes_the_topic_and_nothing_else(mode: Mode, topics: list[str]) -> None:
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
        ("dedup.position", b"documents-0@0"),
        ("dedup.fingerprint", b"00ff"),
        ("dedup.log", b"8/1"),
    ]


def test_what_was_retracted_is_a_dead_letter() -> None:
    """A record that an output refused once never leaves on an output again, and is no longer the
    log's."""
    letter, retracted = leave(
        [DeadLetter("decode", "X", "why"), Judgement(Reason.RETRACTED, LogPlace(9, 0))]
    )

    assert [one.output.topic for one in (letter, retracted)] == ["dead", "dead"]
    assert not retracted.is_judged
    assert dict(retracted.output.headers)["dedup.error.class"] == b"Refused"


def test_a_letter_says_that_its_headers_could_not_be_read() -> None:
    """Key, value bytes and timestamp are as they came; one of the names is told, and the place is
    in the headers as ever."""
    message = UnreadableHeaders("documents", 0, 7, b"k", b"v", 1000, [])
    message.name = r"r\xe9f\xe9rent"
    keys = {("documents", 0)}
    letter = DeadLetter("decode", "UnreadableHeaders", "why")
    batch = InFlight([message], [letter], [None], [], b"s", dict.fromkeys(keys, 0), set(keys))

    (one,) = OutputWriter("unique", "duplicates", "dead", "g", "r", 10_000).of(batch)

    own = dict(one.output.headers)
    assert one.output[:5] == ("dead", 0, b"k", b"v", 1000)
    assert own["dedup.error.headers.unreadable"] == rb"r\xe9f\xe9rent"
    assert own["__dlq.errors.offset"] == b"7"
    assert "dedup.error.truncated" not in own


def test_records_of_a_lost_partition_stay() -> None:
    """Only records of partitions that are still ours leave, in the order in which they were
    read."""
    messages = [Message("documents", n % 2, n, None, b"v", 0, []) for n in range(4)]
    keys = {("documents", 0), ("documents", 1)}
    batch = InFlight(
        messages,
        [Reason.EMPTY] * 4,
        [None] * 4,
        [],
        b"s",
        dict.fromkeys(keys, 0),
        {("documents", 1)},
    )

    left = OutputWriter("unique", "duplicates", "dead", "g", "r", 1000).of(batch)

    assert [one.message.offset for one in left] == [1, 3]


def test_a_record_without_a_verdict_never_leaves() -> None:
    with pytest.raises(InvariantError, match="has no verdict"):
        list(leave([None]).outputs)


def batches(chance: random.Random) -> list[InFlight]:
    """Return some batches of one or more log records, in which some records are the index's and
    some were decided before."""
    found = []
    for number in range(chance.choice([1, 1, 3])):
        count, partitions = chance.choice([0, 1, 40]), chance.choice([1, 3])
        messages = [
            Message(
                *(
                    "documents",
                    chance.randrange(partitions),
                    at,
                    chance.choice([None, b"", b"key"]),
                    b"v" * chance.randrange(9),
                ),
                *(
                    chance.choice([None, 1, 1_700_000_000_000 + at]),
                    [("a", b"1")] if chance.random() < 0.1 else [],
                ),
            )
            for at in range(count)
        ]
        decided: list[Decision | None] = [None] * count
        judged = []
        for at in range(count):
            if chance.random() < 0.9:
                judged.append(at)
            else:
                others = (
                    Reason.EMPTY,
                    Reason.TOMBSTONE,
                    DeadLetter("size", "X", "why"),
                    Judgement(Reason.FAIL_OPEN, PLACE),
                )
                decided[at] = chance.choice(others)
        parts = []
        for first in range(0, len(judged), 15):
            places = judged[first : first + 15]
            others = (COPY, COPY._replace(of=ELSEWHERE), Judgement(Reason.RETRACTED, PLACE))
            verdicts = [chance.choice([NEW, NEW, *others]) for _ in places]
            raw, _ = encode(LogAnswer(number, bytes(16), first, verdicts), bytes(8))
            answer = decode(raw)
            assert isinstance(answer, LogAnswer)
            parts.append(
                Part(
                    first,
                    b"",
                    places,
                    0,
                    True,
                    Verdicts.of(chance.choice([verdicts, answer.judgements])),
                )
            )
        prints = [
            None if decided[at] in (Reason.EMPTY, Reason.TOMBSTONE) else b"%032x" % at
            for at in range(count)
        ]
        keys = {("documents", part) for part in range(partitions)}
        live = keys if chance.random() < 0.8 else {("documents", 0)}
        found.append(
            InFlight(messages, decided, prints, parts, b"s", dict.fromkeys(keys, 0), set(live))
        )
    return found


@pytest.mark.parametrize("seed", range(60))
def test_columns_are_the_records_one_by_one(seed: int) -> None:
    """What is written from columns is what the long way says of each record, and so is what is
    counted."""
    chance = random.Random(seed)
    mode = chance.choice([Mode.ENFORCE, Mode.ANNOTATE])
    leaving = batches(chance)
    writer = OutputWriter("unique", "duplicates", "dead", "g", "r", 10_000, mode)
    leavings = writer.of(*leaving)
    columns = leavings.columns
    stops, ends = (
        [0, *columns.headers.record_ends.tolist()],
        [0, *columns.headers.value_ends.tolist()],
    )
    texts = columns.headers.values.tobytes()

    for at, expected in enumerate(leavings.outputs):
        if columns.packed[at]:
            headers = [
                (
                    columns.headers.names[columns.headers.name_numbers[j]],
                    texts[ends[j] : ends[j + 1]],
                )
                for j in range(stops[at], stops[at + 1])
            ]
            output = Output(
                columns.topics[columns.topic_numbers[at]],
                int(columns.partitions[at]),
                columns.keys[at],
                columns.values[at],
                int(columns.timestamps_ms[at]),
                headers,
            )
            assert output == expected._replace(
                timestamp_ms=expected.timestamp_ms or NO_TIMESTAMP
            ), f"seed {seed}"
    assert all(
        columns.packed[at]
        == (
            isinstance(one.decision, Judgement)
            and one.decision.reason is not Reason.FAIL_OPEN
            and not one.message.headers
        )
        for at, one in enumerate(leavings)
        if len(leavings._batches) == 1 and leavings._batches[0].is_whole
    ), f"seed {seed}"
    counted, one_by_one = leavings.counts(), EmittedCounts.of(leavings)
    assert counted.stages == one_by_one.stages
    for name in ("documents", "bytes", "distances", "similarities", "timestamps_ms"):
        assert sorted(getattr(counted, name).tolist()) == sorted(
            getattr(one_by_one, name).tolist()
        ), f"seed {seed}: {name}"
    assert counted.documents.tolist() == one_by_one.documents.tolist()


def test_what_left_is_forgotten_without_a_search_for_cycles() -> None:
    """A worker hardly ever looks for cycles: a transaction that held itself would keep its
    documents for minutes."""
    leavings = OutputWriter("unique", "duplicates", "dead", "g", "r", 10_000).of(
        *batches(random.Random(3))
    )
    assert len(list(leavings.outputs)) == len(leavings.columns.packed) > 0
    assert leavings.counts().documents.sum() > 0
    gone = weakref.ref(leavings)

    gc.disable()
    try:
        del leavings
        assert gone() is None
    finally:
        gc.enable()


def test_the_dead_letters_of_a_batch_are_retracted_together() -> None:
    """As many positions in a record as a batch may have; the log is run_and_flush once, behind the
    last."""
    said: list[Any] = []
    appender = SimpleNamespace(
        send=lambda raw, key, done: said.append(records.decode(raw)),
        flush=lambda *, retry_policy: said.append(retry_policy),
    )
    sources = {
        ("documents", part): SimpleNamespace(topic="documents", topic_id=b"t" * 16, partition=part)
        for part in range(2)
    }
    worker: Any = SimpleNamespace(
        _flow=SimpleNamespace(source=sources.__getitem__),
        _appender=appender,
        _retry_policy="patience",
    )
    gone = [Message("documents", n % 2, n, None, b"%d" % n, 0, []) for n in range(2500)]

    Delivery._send_retractions(worker, gone)

    *orders, run_and_flush = said
    assert run_and_flush == "patience"
    assert [len(one.fields["positions"]) for one in orders] == [1000, 1000, 500]
    found = [position for one in orders for position in parse_retraction(one.fields)]
    assert found == [
        (("documents", b"t" * 16, one.partition), one.offset, value_digest(one.value))
        for one in gone
    ]
