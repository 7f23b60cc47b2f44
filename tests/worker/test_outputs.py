"""The topic and the headers of a decided record; and the retraction of dead letters before they are
written."""

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


def emit(
    decided: list[Decision | None], mode: Mode = Mode.ENFORCE, headers: Headers | None = None
) -> EmittedBatch:
    """Return the outputs of records 0, 1, ... of two partitions in turn, with these decisions."""
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
    copy, new = emit([COPY, NEW], mode)

    assert [emitted.output.topic for emitted in (copy, new)] == topics
    assert dict(copy.output.headers)["dedup.verdict"] == b"duplicate"
    assert dict(copy.output.headers)["dedup.of.position"] == b"documents-1@5"
    assert dict(new.output.headers)["dedup.verdict"] == b"unique"


def test_a_record_is_written_unchanged_before_our_headers() -> None:
    """Partition, key, value, timestamp and foreign headers are the record's own; ours follow."""
    (emitted,) = emit([NEW], headers=[("traceparent", b"00-1"), ("dedup.verdict", b"forged")])

    assert emitted.output[:5] == ("unique", 0, b"k", b"v0", 1000)
    assert emitted.output.headers == [
        ("traceparent", b"00-1"),
        ("dedup.prior.verdict", b"forged"),
        ("dedup.verdict", b"unique"),
        ("dedup.reason", b"new"),
        ("dedup.recipe", b"words:128:x:y"),
        ("dedup.position", b"documents-0@0"),
        ("dedup.fingerprint", b"00ff"),
        ("dedup.log", b"8/1"),
    ]


def test_a_retracted_record_is_a_dead_letter() -> None:
    """A record that an output refused once is never written to an output again, and is not
    judged."""
    letter, retracted = emit(
        [DeadLetter("decode", "X", "why"), Judgement(Reason.RETRACTED, LogPlace(9, 0))]
    )

    assert [emitted.output.topic for emitted in (letter, retracted)] == ["dead", "dead"]
    assert not retracted.is_judged
    assert dict(retracted.output.headers)["dedup.error.class"] == b"Refused"


def test_a_dead_letter_reports_unreadable_headers() -> None:
    """Key, value and timestamp are unchanged; headers contain one of the names, and the
    position."""
    message = UnreadableHeaders("documents", 0, 7, b"k", b"v", 1000, [])
    message.name = r"r\xe9f\xe9rent"
    keys = {("documents", 0)}
    letter = DeadLetter("decode", "UnreadableHeaders", "why")
    batch = InFlight([message], [letter], [None], [], b"s", dict.fromkeys(keys, 0), set(keys))

    (emitted,) = OutputWriter("unique", "duplicates", "dead", "g", "r", 10_000).of(batch)

    letter_headers = dict(emitted.output.headers)
    assert emitted.output[:5] == ("dead", 0, b"k", b"v", 1000)
    assert letter_headers["dedup.error.headers.unreadable"] == rb"r\xe9f\xe9rent"
    assert letter_headers["__dlq.errors.offset"] == b"7"
    assert "dedup.error.truncated" not in letter_headers


def test_records_of_a_lost_partition_are_not_written() -> None:
    """Only records of partitions that are still ours are written, in the order of reading."""
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

    emitted_records = OutputWriter("unique", "duplicates", "dead", "g", "r", 1000).of(batch)

    assert [emitted.message.offset for emitted in emitted_records] == [1, 3]


def test_a_record_without_a_verdict_is_never_written() -> None:
    with pytest.raises(InvariantError, match="has no verdict"):
        list(emit([None]).outputs)


def random_batches(chance: random.Random) -> list[InFlight]:
    """Return some batches of one or more log records, in which some records are judged by the index
    and some were decided before."""
    found = []
    for number in range(chance.choice([1, 1, 3])):
        count, partitions = chance.choice([0, 1, 40]), chance.choice([1, 3])
        messages = [
            Message(
                *(
                    "documents",
                    chance.randrange(partitions),
                    index,
                    chance.choice([None, b"", b"key"]),
                    b"v" * chance.randrange(9),
                ),
                *(
                    chance.choice([None, 1, 1_700_000_000_000 + index]),
                    [("a", b"1")] if chance.random() < 0.1 else [],
                ),
            )
            for index in range(count)
        ]
        decided: list[Decision | None] = [None] * count
        judged = []
        for index in range(count):
            if chance.random() < 0.9:
                judged.append(index)
            else:
                others = (
                    Reason.EMPTY,
                    Reason.TOMBSTONE,
                    DeadLetter("size", "X", "why"),
                    Judgement(Reason.FAIL_OPEN, PLACE),
                )
                decided[index] = chance.choice(others)
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
            None if decided[index] in (Reason.EMPTY, Reason.TOMBSTONE) else b"%032x" % index
            for index in range(count)
        ]
        keys = {("documents", part) for part in range(partitions)}
        live = keys if chance.random() < 0.8 else {("documents", 0)}
        found.append(
            InFlight(messages, decided, prints, parts, b"s", dict.fromkeys(keys, 0), set(live))
        )
    return found


@pytest.mark.parametrize("seed", range(60))
def test_columns_equal_the_records_written_one_by_one(seed: int) -> None:
    """Columns have the outputs and the counts of the records written one by one."""
    chance = random.Random(seed)
    mode = chance.choice([Mode.ENFORCE, Mode.ANNOTATE])
    in_flight = random_batches(chance)
    writer = OutputWriter("unique", "duplicates", "dead", "g", "r", 10_000, mode)
    emitted_batch = writer.of(*in_flight)
    columns = emitted_batch.columns
    stops, ends = (
        [0, *columns.headers.record_ends.tolist()],
        [0, *columns.headers.value_ends.tolist()],
    )
    texts = columns.headers.values.tobytes()

    for index, expected in enumerate(emitted_batch.outputs):
        if columns.packed[index]:
            headers = [
                (
                    columns.headers.names[columns.headers.name_numbers[j]],
                    texts[ends[j] : ends[j + 1]],
                )
                for j in range(stops[index], stops[index + 1])
            ]
            output = Output(
                columns.topics[columns.topic_numbers[index]],
                int(columns.partitions[index]),
                columns.keys[index],
                columns.values[index],
                int(columns.timestamps_ms[index]),
                headers,
            )
            assert output == expected._replace(
                timestamp_ms=expected.timestamp_ms or NO_TIMESTAMP
            ), f"seed {seed}"
    assert all(
        columns.packed[index]
        == (
            isinstance(emitted.decision, Judgement)
            and emitted.decision.reason is not Reason.FAIL_OPEN
            and not emitted.message.headers
        )
        for index, emitted in enumerate(emitted_batch)
        if len(emitted_batch._batches) == 1 and emitted_batch._batches[0].is_whole
    ), f"seed {seed}"
    counted, expected_counts = emitted_batch.counts(), EmittedCounts.of(emitted_batch)
    assert counted.stages == expected_counts.stages
    for name in ("documents", "bytes", "distances", "similarities", "timestamps_ms"):
        assert sorted(getattr(counted, name).tolist()) == sorted(
            getattr(expected_counts, name).tolist()
        ), f"seed {seed}: {name}"
    assert counted.documents.tolist() == expected_counts.documents.tolist()


def test_an_emitted_batch_is_freed_without_the_cycle_collector() -> None:
    """The collector rarely runs: a transaction in a cycle would keep its documents for minutes."""
    emitted_batch = OutputWriter("unique", "duplicates", "dead", "g", "r", 10_000).of(
        *random_batches(random.Random(3))
    )
    assert len(list(emitted_batch.outputs)) == len(emitted_batch.columns.packed) > 0
    assert emitted_batch.counts().documents.sum() > 0
    reference = weakref.ref(emitted_batch)

    gc.disable()
    try:
        del emitted_batch
        assert reference() is None
    finally:
        gc.enable()


def test_the_dead_letters_of_a_batch_are_retracted_together() -> None:
    """An order has at most as many positions as a batch; the log is flushed once, after the
    last."""
    calls: list[Any] = []
    appender = SimpleNamespace(
        send=lambda raw, key, done: calls.append(records.decode(raw)),
        flush=lambda *, retry_policy: calls.append(retry_policy),
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
    refused_messages = [Message("documents", n % 2, n, None, b"%d" % n, 0, []) for n in range(2500)]

    Delivery._send_retractions(worker, refused_messages)

    *orders, flushed_with = calls
    assert flushed_with == "patience"
    assert [len(order.fields["positions"]) for order in orders] == [1000, 1000, 500]
    found = [position for order in orders for position in parse_retraction(order.fields)]
    assert found == [
        (("documents", b"t" * 16, message.partition), message.offset, value_digest(message.value))
        for message in refused_messages
    ]
