"""Records written in bulk are those that one call for each would have written, and what fails says
so as then."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer, cimpl

from stream_dedup.domain.document import Headers
from stream_dedup.domain.messages import NO_TIMESTAMP, Messages
from stream_dedup.kafka import Outcome as Ended
from stream_dedup.kafka import Output, PackedOutputs, RecordColumns, TransactionalOutput, bulk
from stream_dedup.log.header_columns import HeaderColumns
from tests.broker.harness import Filter, MakeFilter

pytestmark = pytest.mark.broker

NOW_MS = 1_790_000_000_000


class Packed(PackedOutputs):
    """Outputs in columns, of which only those at `packed` are written from there."""

    def __init__(self, outputs: Sequence[Output], packed: Sequence[bool]) -> None:
        self._outputs = outputs
        self._packed = packed
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self._outputs)

    def __getitem__(self, at: Any) -> Any:
        self.asked.append(at)
        return self._outputs[at]

    @property
    def columns(self) -> RecordColumns:
        topics = sorted({one.topic for one in self._outputs})
        names = sorted({name for one in self._outputs for name, _ in one.headers})
        headers = [(name, value or b"") for one in self._outputs for name, value in one.headers]
        return RecordColumns(
            topics,
            np.array([topics.index(one.topic) for one in self._outputs], np.uint8),
            np.array([one.partition for one in self._outputs], np.int32),
            [one.key for one in self._outputs],
            [one.value for one in self._outputs],
            np.array([one.timestamp_ms or NO_TIMESTAMP for one in self._outputs], np.int64),
            HeaderColumns(
                names,
                np.array([names.index(name) for name, _ in headers], np.uint8),
                np.cumsum([len(value) for _, value in headers], dtype=np.int64),
                np.cumsum([len(one.headers) for one in self._outputs], dtype=np.int64),
                np.frombuffer(b"".join(value for _, value in headers), np.uint8).copy(),
            ),
            np.array(self._packed, np.bool_),
        )


def outputs(crawl: Filter, count: int, chance: random.Random) -> list[Output]:
    """Return records with everything that a record can have, on two topics."""
    made = []
    for at in range(count):
        headers: Headers = [
            (
                chance.choice(["dedup.verdict", "größe"]),
                chance.choice([b"", b"new", bytes(range(256))]),
            )
            for _ in range(chance.randrange(4))
        ]
        made.append(
            Output(
                chance.choice([crawl.names.unique, crawl.names.duplicates]),
                chance.randrange(2),
                chance.choice([None, b"", b"key-%d" % at]),
                chance.choice([b"", b"value-%d" % at, bytes([at % 256]) * 5000]),
                chance.choice([None, NOW_MS + at]),
                headers,
            )
        )
    return made


def transactions_of(crawl: Filter, **properties: str) -> TransactionalOutput:
    settings = crawl.settings.model_copy(update={"kafka": {**crawl.settings.kafka, **properties}})
    return TransactionalOutput(settings, f"{crawl.settings.group}-bulk", "bulk")


def as_read(
    crawl: Filter, topic: str
) -> dict[int, list[tuple[bytes | None, bytes | None, int | None, Headers]]]:
    found: dict[int, list[tuple[bytes | None, bytes | None, int | None, Headers]]] = {}
    for one in crawl.read(topic):
        found.setdefault(one.partition, []).append(
            (one.key, one.value, one.timestamp_ms, one.headers)
        )
    return found


@pytest.mark.parametrize(("share", "room"), [(1.0, "100000"), (0.7, "100000"), (1.0, "7")])
def test_what_is_read_is_what_was_written(make_filter: MakeFilter, share: float, room: str) -> None:
    """Keys, values, timestamps, headers and the order within a partition; also among records that
    are written one by one, and through a queue that takes seven."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    crawl = make_filter(partitions=2)
    written = outputs(crawl, 300, chance)
    packed = Packed(written, [chance.random() < share for _ in written])
    transactions = transactions_of(crawl, **{"queue.buffering.max.messages": room})

    assert transactions.run(packed, [], b"").outcome is Ended.COMMITTED
    transactions.close()

    one_by_one = {at for at, one in enumerate(packed._packed) if not one}
    assert set(packed.asked) >= one_by_one
    if room == "100000":
        assert set(packed.asked) == one_by_one  # all others were in bulk
    for topic in (crawl.names.unique, crawl.names.duplicates):
        found = as_read(crawl, topic)
        for partition in range(2):
            expected = [one for one in written if (one.topic, one.partition) == (topic, partition)]
            assert len(found.get(partition, [])) == len(expected)
            for (key, value, time_ms, headers), one in zip(
                found.get(partition, []), expected, strict=True
            ):
                assert (key, value, headers) == (one.key, one.value, one.headers)
                assert time_ms == one.timestamp_ms


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [True, False])
def test_a_record_refused_while_others_are_written_is_named_too(
    make_filter: MakeFilter, packed: bool
) -> None:
    """librdkafka takes no more of a transaction once it has heard of a refusal; that ends the
    transaction, not the process."""
    crawl = make_filter(partitions=1)
    transactions = transactions_of(crawl, **{"compression.type": "none"})
    topic = crawl.names.unique
    large, small = (
        Output(topic, 0, b"k", value, NOW_MS, []) for value in (bytes(12_000_000), b"small")
    )

    class Hearing(Packed):
        def __getitem__(self, place: Any) -> Any:
            if place == 1:
                transactions._producer.flush(1.0)  # what was written before is refused meanwhile
            return super().__getitem__(place)

    refused = transactions.run(Hearing([large, small, small], [packed, False, packed]), [], b"")

    assert (refused.outcome, refused.refused) == (Ended.ABORTED, (0,))
    assert transactions.run(Packed([small], [packed]), [], b"").outcome is Ended.COMMITTED
    transactions.close()
    assert [one.value for one in crawl.read(topic)] == [b"small"]


def test_this_client_is_known() -> None:
    """The client that is installed is one whose layout was read; whoever takes a newer one reads
    `struct Handle` first, and says so in `bulk._KNOWN`. The handle that was found names itself as
    the producer does."""
    producer = Producer(
        {"bootstrap.servers": "127.0.0.1:1", "client.id": "named-here", "log_level": 0}
    )
    none = Messages.of([])
    no_headers = HeaderColumns(
        [],
        np.zeros(0, np.uint8),
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        np.zeros(0, np.uint8),
    )
    columns = RecordColumns(
        ["t"],
        np.zeros(0, np.uint8),
        none.partitions,
        [],
        [],
        none.timestamps_ms,
        no_headers,
        np.zeros(0, np.bool_),
    )
    writer = bulk.BulkWriter.of(producer, columns)

    assert writer is not None
    name = ctypes.CDLL(cimpl.__file__).rd_kafka_name
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    assert name(writer._handle).startswith(b"named-here#producer-")
    assert bulk.BulkWriter.of(object(), columns) is None


@pytest.mark.parametrize(
    ("version", "known"),
    [("2.0.2", True), ("2.16.1rc2", True), ("2.17.0", False), ("3rc1", False), ("1.9.2", False)],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, version: str, known: bool) -> None:
    """Only a client between the oldest and the newest whose layout was read is written with in
    bulk."""
    monkeypatch.setattr(bulk.metadata, "version", lambda _: version)
    bulk._can_write.cache_clear()
    try:
        assert bulk._can_write() is known
    finally:
        bulk._can_write.cache_clear()


def test_an_unknown_client_writes_one_by_one(
    make_filter: MakeFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a client whose layout nobody has read, everything is written as by any program."""
    monkeypatch.setattr(bulk, "_can_write", lambda: False)
    crawl = make_filter(partitions=2)
    written = outputs(crawl, 20, random.Random(1))
    packed = Packed(written, [True] * 20)
    transactions = transactions_of(crawl)

    assert transactions.run(packed, [], b"").outcome is Ended.COMMITTED
    transactions.close()
    assert sorted(packed.asked) == list(range(20))
    assert len(crawl.read(crawl.names.unique)) + len(crawl.read(crawl.names.duplicates)) == 20
