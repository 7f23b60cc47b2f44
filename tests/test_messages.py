"""Records in columns are equal to the same records in a list."""

from __future__ import annotations

import random
import sys

import pytest

from stream_dedup.domain.document import Headers, Message, Unreadable
from stream_dedup.domain.messages import Messages, sizes_of


def random_records(chance: random.Random, count: int) -> list[Message]:
    """Return records as they could have been read, some of them unreadable."""
    found: list[Message] = []
    for offset in range(count):
        if chance.random() < 0.1:
            unreadable = Unreadable("documents", chance.randrange(3), offset, None, None, None, [])
            unreadable.why = f"damaged {offset}"
            found.append(unreadable)
            continue
        key, value = chance.choice([None, b"", b"k"]), chance.choice([None, b"", b"v" * offset])
        given = [("a", b"%d" % offset)] if chance.random() < 0.3 else []
        part, time_ms = chance.randrange(3), chance.choice([None, 0, 7 + offset])
        found.append(Message("documents", part, offset, key, value, time_ms, given))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_columns_are_the_records(seed: int) -> None:
    """Columns and list agree on each record, slice and summary."""
    chance = random.Random(seed)
    parts = [random_records(chance, chance.choice([0, 1, 20])) for _ in range(chance.randrange(4))]
    records = [record for part in parts for record in part]
    columns = Messages.joined([Messages.of(part) for part in parts])

    assert len(columns) == len(records)
    assert list(columns) == records
    assert [columns[row] for row in range(len(records))] == records
    assert columns[3:-2] == records[3:-2]
    assert [record.why for record in columns if isinstance(record, Unreadable)] == [
        record.why for record in records if isinstance(record, Unreadable)
    ]
    assert columns.last_offsets() == {
        (record.topic, record.partition): record.offset for record in records
    }
    live = {("documents", 1), ("others", 2)}
    assert columns.are_from(live).tolist() == [record.partition == 1 for record in records]
    assert sizes_of(columns.values).tolist() == [len(record.value or b"") for record in records]
    assert [columns.key(row) for row in range(len(records))] == [
        (record.topic, record.partition) for record in records
    ]


def test_two_topics_are_refused() -> None:
    with pytest.raises(ValueError, match="expected records of one topic"):
        Messages.of([Message(topic, 0, 0, None, None, None, []) for topic in ("a", "b")])


def test_held_bytes_count_the_python_objects_of_headers() -> None:
    """A record may have nearly 100,000 headers in 300 kB, and each is three objects."""
    given: Headers = [(f"{number:04x}", b"1") for number in range(10_000)]
    size_bytes = sum(
        sys.getsizeof(header) + sys.getsizeof(name) + sys.getsizeof(value)
        for header in given
        for name, value in [header]
    )

    messages = Messages.of([Message("documents", 0, 7, b"k", b"v", 1, given)])

    assert size_bytes <= messages.held_bytes < 1.2 * size_bytes
