"""How many bytes a worker keeps in memory: at most its share, but always one record."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from stream_dedup.domain.document import Message
from stream_dedup.domain.messages import Messages
from stream_dedup.serving import process as memory
from stream_dedup.settings.settings import Settings
from stream_dedup.worker.budget import RecordSizes, WorkerBudget, limit_of
from stream_dedup.worker.prepare import InFlight
from stream_dedup.worker.questions import Questions
from tests.worker.parts import make_context

GIB, MIB = 1 << 30, 1 << 20


class Sized(list[int]):
    """Records of some sizes, without their bytes."""

    @property
    def held_bytes(self) -> int:
        return sum(self) + 700 * len(self)


def of_sizes(sizes: list[int]) -> Messages:
    values = [bytes(size) for size in sizes]
    count = len(sizes)
    return Messages(
        "documents",
        np.zeros(count, np.int32),
        np.arange(count),
        [b"key"] * count,
        values,
        np.zeros(count, np.int64),
        {},
        {},
    )


def test_the_limit_is_what_is_set_or_what_the_group_allows_or_a_part_of_the_machine() -> None:
    assert limit_of(700 * MIB, 2 * GIB, 64 * GIB) == 700 * MIB
    assert limit_of(None, 2 * GIB, 64 * GIB) == 2 * GIB
    assert limit_of(None, None, 64 * GIB) == GIB
    assert limit_of(None, None, 2 * GIB) == 512 * MIB


def test_the_budget_excludes_used_memory_and_a_tenth() -> None:
    """Under 1 GiB a batch of 8,000 documents of 1 kB fits, as it always did."""
    budget = WorkerBudget.of(GIB, 260 * MIB)

    assert 8000 * 2000 < budget.part_bytes < 32 * MIB
    assert not budget.is_tight
    assert WorkerBudget.of(2 * GIB, 260 * MIB).part_bytes > 2 * budget.part_bytes


def test_with_too_little_memory_the_smallest_budget_is_used() -> None:
    budget = WorkerBudget.of(400 * MIB, 500 * MIB)

    assert budget.is_tight
    assert budget.part_bytes == MIB


@pytest.mark.parametrize("part", [MIB, 5 * MIB, 60 * MIB])
@pytest.mark.parametrize("record", [MIB, 100 * MIB])
def test_a_record_fits_into_the_queues(part: int, record: int) -> None:
    """librdkafka waits for ever with a record that is larger than its queue. What an operator sets
    wins."""
    budget = WorkerBudget(GIB, part)
    queues = budget.queues(record)

    assert int(queues["queue.buffering.max.kbytes"]) * 1024 >= max(2 * part, record)
    assert int(queues["queued.max.messages.kbytes"]) * 1024 <= part
    assert int(queues["fetch.max.bytes"]) <= max(MIB, part // 4)
    operator_settings = Settings(kafka={"fetch.max.bytes": "77", "client.rack": "a"})
    assert budget.settings_for_clients(operator_settings, record).kafka == queues | {
        "fetch.max.bytes": "77",
        "client.rack": "a",
    }


@pytest.mark.parametrize("is_slow", [False, True])
def test_records_in_memory_stay_within_their_share(is_slow: bool) -> None:
    """Records of 100 bytes to 1 MB, in runs of one size and mixed, while batches leave quickly or
    hardly ever."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    budget, sizes = WorkerBudget(GIB, 8 * MIB), RecordSizes()
    queued_max = int(budget.queues(MIB)["queued.max.messages.kbytes"]) * 1024
    batches: deque[Any] = deque()
    read = waits = 0
    for _ in range(400):
        run = dice.choice([100, 1000, 12_000, 58_000, 1_000_000, 0])
        for _ in range(dice.randint(1, 8)):
            room = budget.room(sum(batch.held_bytes for batch in batches))
            wanted = sizes.records(8000, room)
            ready = Sized()  # what Kafka's client has ready is bounded by bytes
            room_left = queued_max
            while len(ready) < wanted and room_left > 0:
                ready.append(run or dice.choice([100, 1000, 12_000, 1_000_000]))
                room_left -= ready[-1] + 700
            if ready:
                batches.append(ready)
                sizes.observe(batches[-1])
                read += len(ready)
            else:
                waits += 1
            assert sum(batch.held_bytes for batch in batches) <= 7 * budget.part_bytes + MIB
            assert batches or ready
            if batches and dice.random() < (0.2 if is_slow else 0.9):
                batches.popleft()
    assert read > 1000
    assert (waits > 0) is is_slow or not is_slow


def test_the_number_of_records_to_read_depends_on_their_size() -> None:
    """As many are read as fit by the mean size of the last reads; at least one if there is room."""
    sizes = RecordSizes()
    for _ in range(20):
        sizes.observe(of_sizes([10_000] * 5))

    assert 700 < sizes.records(8000, 8 * MIB) < 900
    assert sizes.records(100, 8 * MIB) == 100
    assert sizes.records(8000, 1) == 1
    assert sizes.records(8000, 0) == sizes.records(0, MIB) == sizes.records(-5, MIB) == 0


def test_all_parts_of_a_record_are_counted() -> None:
    """Key, value and headers count, and the overhead of each record."""
    messages = Messages(
        *(
            "documents",
            np.zeros(2, np.int32),
            np.arange(2),
            [None, bytes(1000)],
            [bytes(50_000), None],
        ),
        *(np.zeros(2, np.int64), {1: [("name", bytes(7000)), ("none", None)]}, {}),
    )

    assert 58_000 < messages.held_bytes < 61_000


@pytest.mark.parametrize(
    ("count", "value_bytes", "trim_count"),
    [(8000, 1100, 0), (1, 20 << 20, 0), (4, 9 << 20, 1), (1, 250 << 20, 1)],
)
def test_memory_is_returned_after_a_large_batch(
    count: int, value_bytes: int, trim_count: int
) -> None:
    """The total size of the values decides, because texts and buffers are as large."""
    value = bytes(value_bytes)
    messages = Messages.of(
        [Message("documents", 0, offset, None, value, None, []) for offset in range(count)]
    )
    flow = SimpleNamespace(admit=lambda _: [], in_flight=1)
    freed = memory.FreedMemory(1 << 50, 32 << 20)
    questions = Questions(make_context(flow), mock.Mock(), mock.Mock(), mock.Mock(), freed, None)

    with mock.patch.object(memory, "trim_memory") as trim_memory:
        questions.ask(InFlight(messages, [None] * count, [None] * count, [], b"", {}))

    assert trim_memory.call_count == trim_count


@pytest.mark.parametrize(("resident", "trim_count"), [(700 << 20, 0), (800 << 20, 1)])
def test_memory_is_returned_when_the_process_is_near_its_limit(
    resident: int, trim_count: int
) -> None:
    """This holds for small batches too, at most once a second."""
    freed = memory.FreedMemory(1 << 30, 32 << 20)

    with (
        mock.patch.object(memory, "trim_memory") as trim_memory,
        mock.patch.object(memory, "resident_bytes", return_value=resident),
    ):
        freed.trim_after_batch(1000)
        freed.trim_after_batch(1000)

    assert trim_memory.call_count == trim_count
