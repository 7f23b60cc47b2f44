"""Records written in bulk equal records that are written with a call each."""

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
    """Outputs in columns, of which only those marked in `packed` are written in bulk."""

    def __init__(self, records: Sequence[Output], packed: Sequence[bool]) -> None:
        self._outputs = records
        self._packed = packed
        self.read_indexes: list[int] = []

    def __len__(self) -> int:
        return len(self._outputs)

    def __getitem__(self, index: Any) -> Any:
        self.read_indexes.append(index)
        return self._outputs[index]

    @property
    def columns(self) -> RecordColumns:
        topics = sorted({output.topic for output in self._outputs})
        names = sorted({name for output in self._outputs for name, _ in output.headers})
        headers = [
            (name, value or b"") for output in self._outputs for name, value in output.headers
        ]
        return RecordColumns(
            topics,
            np.array([topics.index(output.topic) for output in self._outputs], np.uint8),
            np.array([output.partition for output in self._outputs], np.int32),
            [output.key for output in self._outputs],
            [output.value for output in self._outputs],
            np.array([output.timestamp_ms or NO_TIMESTAMP for output in self._outputs], np.int64),
            HeaderColumns(
                names,
                np.array([names.index(name) for name, _ in headers], np.uint8),
                np.cumsum([len(value) for _, value in headers], dtype=np.int64),
                np.cumsum([len(output.headers) for output in self._outputs], dtype=np.int64),
                np.frombuffer(b"".join(value for _, value in headers), np.uint8).copy(),
            ),
            np.array(self._packed, np.bool_),
        )


def make_outputs(crawl: Filter, count: int, chance: random.Random) -> list[Output]:
    """Return random records on two topics, with every kind of key, value, timestamp and headers."""
    records = []
    for number in range(count):
        headers: Headers = [
            (
                chance.choice(["dedup.verdict", "größe"]),
                chance.choice([b"", b"new", bytes(range(256))]),
            )
            for _ in range(chance.randrange(4))
        ]
        records.append(
            Output(
                chance.choice([crawl.names.unique, crawl.names.duplicates]),
                chance.randrange(2),
                chance.choice([None, b"", b"key-%d" % number]),
                chance.choice([b"", b"value-%d" % number, bytes([number % 256]) * 5000]),
                chance.choice([None, NOW_MS + number]),
                headers,
            )
        )
    return records


def transactions_of(crawl: Filter, **properties: str) -> TransactionalOutput:
    settings = crawl.settings.model_copy(update={"kafka": {**crawl.settings.kafka, **properties}})
    return TransactionalOutput(settings, f"{crawl.settings.group}-bulk", "bulk")


def read_by_partition(
    crawl: Filter, topic: str
) -> dict[int, list[tuple[bytes | None, bytes | None, int | None, Headers]]]:
    found: dict[int, list[tuple[bytes | None, bytes | None, int | None, Headers]]] = {}
    for message in crawl.read(topic):
        found.setdefault(message.partition, []).append(
            (message.key, message.value, message.timestamp_ms, message.headers)
        )
    return found


@pytest.mark.parametrize(("share", "room"), [(1.0, "100000"), (0.7, "100000"), (1.0, "7")])
def test_read_records_equal_the_written_ones(
    make_filter: MakeFilter, share: float, room: str
) -> None:
    """Also between records that are written one by one, and with a queue of seven records."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    crawl = make_filter(partitions=2)
    written = make_outputs(crawl, 300, chance)
    packed = Packed(written, [chance.random() < share for _ in written])
    transactions = transactions_of(crawl, **{"queue.buffering.max.messages": room})

    assert transactions.run(packed, [], b"").outcome is Ended.COMMITTED
    transactions.close()

    one_by_one = {index for index, is_packed in enumerate(packed._packed) if not is_packed}
    assert set(packed.read_indexes) >= one_by_one
    if room == "100000":
        assert set(packed.read_indexes) == one_by_one  # all others were in bulk
    for topic in (crawl.names.unique, crawl.names.duplicates):
        found = read_by_partition(crawl, topic)
        for partition in range(2):
            expected = [
                output
                for output in written
                if (output.topic, output.partition) == (topic, partition)
            ]
            assert len(found.get(partition, [])) == len(expected)
            for (key, value, time_ms, headers), output in zip(
                found.get(partition, []), expected, strict=True
            ):
                assert (key, value, headers) == (output.key, output.value, output.headers)
                assert time_ms == output.timestamp_ms


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [True, False])
def test_a_record_refused_while_others_are_written_is_reported(
    make_filter: MakeFilter, packed: bool
) -> None:
    """A refusal in mid-transaction aborts the transaction, not the process."""
    crawl = make_filter(partitions=1)
    transactions = transactions_of(crawl, **{"compression.type": "none"})
    topic = crawl.names.unique
    large, small = (
        Output(topic, 0, b"k", value, NOW_MS, []) for value in (bytes(12_000_000), b"small")
    )

    class FlushingPacked(Packed):
        def __getitem__(self, index: Any) -> Any:
            if index == 1:
                transactions._producer.flush(60)  # the first record is refused meanwhile
            return super().__getitem__(index)

    refused = transactions.run(
        FlushingPacked([large, small, small], [packed, False, packed]), [], b""
    )

    assert (refused.outcome, refused.refused) == (Ended.ABORTED, (0,))
    assert transactions.run(Packed([small], [packed]), [], b"").outcome is Ended.COMMITTED
    transactions.close()
    assert [message.value for message in crawl.read(topic)] == [b"small"]


def test_the_layout_of_the_installed_client_is_known() -> None:
    """Before a client is upgraded, review its `struct Handle` and extend `bulk._KNOWN`."""
    producer = Producer(
        {"bootstrap.servers": "127.0.0.1:1", "client.id": "named-here", "log_level": 0}
    )
    no_messages = Messages.of([])
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
        no_messages.partitions,
        [],
        [],
        no_messages.timestamps_ms,
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
    ("version", "is_known"),
    [("2.0.2", True), ("2.16.1rc2", True), ("2.17.0", False), ("3rc1", False), ("1.9.2", False)],
)
def test_only_reviewed_client_versions_write_in_bulk(
    monkeypatch: pytest.MonkeyPatch, version: str, is_known: bool
) -> None:
    """Their layouts were reviewed from the oldest to the newest."""
    monkeypatch.setattr(bulk.metadata, "version", lambda _: version)
    bulk._can_write.cache_clear()
    try:
        assert bulk._can_write() is is_known
    finally:
        bulk._can_write.cache_clear()


def test_an_unknown_client_writes_one_by_one(
    make_filter: MakeFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a client whose layout was not reviewed, each record is written with a call."""
    monkeypatch.setattr(bulk, "_can_write", lambda: False)
    crawl = make_filter(partitions=2)
    written = make_outputs(crawl, 20, random.Random(1))
    packed = Packed(written, [True] * 20)
    transactions = transactions_of(crawl)

    assert transactions.run(packed, [], b"").outcome is Ended.COMMITTED
    transactions.close()
    assert sorted(packed.read_indexes) == list(range(20))
    assert len(crawl.read(crawl.names.unique)) + len(crawl.read(crawl.names.duplicates)) == 20
