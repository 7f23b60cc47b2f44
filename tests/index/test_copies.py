"""How many copies a representative has, and which is the best: in answers, and as it stands in the
volume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import Position
from stream_dedup.domain.errors import VolumeError
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.memory import MemoryStore
from tests.index.logs import (
    APPEND_MS,
    TOPIC,
    TOPIC_ID,
    Doc,
    batch,
    declare,
    forget,
    read_judgements,
)
from tests.index.stored_copies import describe_position, read_copies

KEPT = Doc(0, 0, 0, b"k" * 16, 7, features=100, id=b"kept", time_ms=1000)


def describe_offset(offset: int) -> str:
    """Return the position of a document of these logs as text."""
    return describe_position(Position(TOPIC, TOPIC_ID, 0, offset))


def copy(offset: int, **more: Any) -> Doc:
    """Return a copy of `KEPT`, another text one bit away."""
    return replace(
        KEPT,
        offset=offset,
        value=offset,
        digest=offset.to_bytes(16, "big"),
        id=b"c%d" % offset,
        **more,
    )


def apply_docs(
    index: LogIndex, docs: Sequence[Doc], watermarks: Any = None
) -> list[tuple[int, int]]:
    """Apply a batch of documents; return (copies, better) of each judgement."""
    ((_, raw),) = index.apply([(index.applied, APPEND_MS + index.applied, batch(docs, watermarks))])
    return [(judgement.copies, judgement.better) for judgement in read_judgements(raw)]


def open_index(volume: dict[bytes, bytes], **declared: Any) -> LogIndex:
    index = LogIndex(MemoryStore(volume))
    index.bind("log")
    if not index.applied:
        index.apply(
            [(0, APPEND_MS, declare(PLANS["classic"], **{"count_copies": True, **declared}))]
        )
    return index


BETTER = {
    # after a longer copy, the next has to be a tenth longer than that one; a tie keeps the earlier
    "longest": ("features", [100, 109, 110, 110, 120, 121, 60, 134], [0, 0, 1, 0, 0, 1, 0, 1]),
    "newest": ("time_ms", [1000, 1001, 900, 1001, 5000], [0, 1, 0, 0, 1]),
}


@pytest.mark.parametrize("rule", BETTER)
@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_which_copy_is_better(rule: str, at_once: int) -> None:
    """The representative counts, in one batch or across several; and each copy is counted."""
    field, values, is_better = BETTER[rule]
    index, found = open_index({}, better=rule), []
    docs = [KEPT, *(copy(offset, **{field: value}) for offset, value in enumerate(values, 1))]
    for first in range(0, len(docs), at_once):
        found += apply_docs(index, docs[first : first + at_once])

    label = next(better_rule for better_rule in BetterRule if better_rule.label == rule)
    assert found == [
        (copies, label if better else 0) for copies, better in enumerate([0, *is_better])
    ]


def test_a_forgotten_id_is_removed_from_the_best_copies() -> None:
    """Whether the copy was written before or not; its position stays."""
    volume: dict[bytes, bytes] = {}
    index = open_index(volume)
    apply_docs(index, [KEPT, copy(1, features=200)])
    other = Doc(0, 50, 50, b"o" * 16, 0xFFFF << 40, id=b"other")
    bigger = replace(other, offset=51, value=51, digest=b"p" * 16, features=900, id=b"c1")
    index.apply(
        [
            (index.applied, APPEND_MS, batch([other, bigger])),
            (index.applied + 1, APPEND_MS, forget(b"c1")),
        ]
    )

    assert not any(
        b"c1" in value for key, value in volume.items() if key[:1] != layout.PREFIX_ANSWER
    )
    assert {
        position: (copies[1], copies[2]) for position, copies in read_copies(volume).items()
    } == {
        f"{describe_offset(0)}, value 0": (describe_offset(1), b""),
        f"{describe_offset(50)}, value 32": (describe_offset(51), b""),
    }


def test_a_damaged_row_is_an_error() -> None:
    """A row that was cut stops the index, and says what to do."""
    volume: dict[bytes, bytes] = {}
    index = open_index(volume)
    apply_docs(index, [KEPT, copy(1)])
    index.close()
    volume[layout.copies_key(0)] = volume[layout.copies_key(0)][:-1]

    with pytest.raises(VolumeError, match="Start the index with an empty volume"):
        apply_docs(open_index(volume), [copy(2)])


def test_the_table_of_copies_grows_beyond_its_first_size() -> None:
    """In one log record after another, and in one write: every one of them is counted by itself."""
    volume: dict[bytes, bytes] = {}
    index = open_index(volume)
    count = 1800
    kept = [
        Doc(
            1,
            number,
            number,
            b"%016d" % number,
            number * 0x9E3779B97F4A7C15 % 2**64,
            id=b"r%d" % number,
        )
        for number in range(count)
    ]
    copies = [replace(doc, partition=2, value=doc.value + 9) for doc in kept for _ in range(2)]
    copies = [replace(doc, offset=number) for number, doc in enumerate(copies)]
    parts = [kept[first : first + 900] for first in range(0, count, 900)]
    parts += [copies[first : first + 900] for first in range(0, len(copies), 900)]
    index.apply(
        [
            (index.applied + number, APPEND_MS + number, batch(part))
            for number, part in enumerate(parts)
        ]
    )

    assert [row[0] for row in read_copies(volume).values()] == [2] * count
    assert apply_docs(index, [replace(copies[0], offset=9000)]) == [(3, 0)]
