"""Records as columns are the records."""

from __future__ import annotations

import random
import sys

import pytest

from stream_dedup.domain.document import Headers, Message, Unreadable
from stream_dedup.domain.messages import Messages, sizes_of


def read(chance: random.Random, count: int) -> list[Message]:
    """Return records as they could have been read, some of them unreadable."""
    found: list[Message] = []
    for at in range(count):
        if chance.random() < 0.1:
            unreadable = Unreadable("documents", chance.randrange(3), at, None, None, None, [])
            unreadable.why = f"damaged {at}"
            found.append(unreadable)
            continue
        key, value = chance.choice([None, b"", b"k"]), chance.choice([None, b"", b"v" * at])
        given = [("a", b"%d" % at)] if chance.random() < 0.3 else []
        part, time_ms = chance.randrange(3), chance.choice([None, 0, 7 + at])
        found.append(Message("documents", part, at, key, value, time_ms, given))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_columns_are_the_records(seed: int) -> None:
    """One by one, by slice, joined, and by what is asked of all of them."""
    chance = random.Random(seed)
    parts = [read(chance, chance.choice([0, 1, 20])) for _ in range(chance.randrange(4))]
    every = [one for part in parts for one in part]
    columns = Messages.joined([Messages.of(part) for part in parts])

    assert len(columns) == len(every)
    assert list(columns) == every
    assert [columns[at] for at in range(len(every))] == every
    assert columns[3:-2] == every[3:-2]
    assert [one.why for one in columns if isinstance(one, Unreadable)] == [
        one.why for one in every if isinstance(one, Unreadable)
    ]
    assert columns.last_offsets() == {(one.topic, one.partition): one.offset for one in every}
    live = {("documents", 1), ("others", 2)}
    assert columns.are_from(live).tolist() == [one.partition == 1 for one in every]
    assert sizes_of(columns.values).tolist() == [len(one.value or b"") for one in every]
    assert [columns.key(at) for at in range(len(every))] == [
        (one.topic, one.partition) for one in every
    ]


def test_two_topics_are_refused() -> None:
    with pytest.raises(ValueError, match="expected records of one topic"):
        Messages.of([Message(topic, 0, 0, None, None, None, []) for topic in ("a", "b")])


def test_headers_weigh_what_python_makes_of_them() -> None:
    """A record may have nearly 100,000 headers in 300 kB, and each is three objects."""
    given: Headers = [(f"{at:04x}", b"1") for at in range(10_000)]
    held = sum(
        sys.getsizeof(one) + sys.getsizeof(name) + sys.getsizeof(value)
        for one in given
        for name, value in [one]
    )

    messages = Messages.of([Message("documents", 0, 7, b"k", b"v", 1, given)])

    assert held <= messages.held_bytes < 1.2 * held
