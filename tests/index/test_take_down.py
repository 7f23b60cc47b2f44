"""Take-downs and retractions: found by CRC-32s of ids, with a beat, at a cost that does not grow; and
no id of them is left."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.rules import positions
from stream_dedup.index.storage.entries import Entries
from stream_dedup.index.storage.layout import (
    PREFIX_LAST_TEXT,
    PREFIX_PAGE,
)
from stream_dedup.index.storage.memory import MemoryStore
from tests.index.logs import (
    APPEND_MS,
    Doc,
    batch,
    control,
    declare,
    forget,
    read_judgements,
    retract,
)

SEED = int(os.environ["TEST_SEED"])
ENTRIES = 13_000
STEP = 997


class Counting(MemoryStore):
    """A store that counts the pages of entries that are read of it."""

    pages = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.pages += sum(key.startswith(PREFIX_PAGE) for key in keys)
        return super().get_many(keys)

    def scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for key, value in super().scan(prefix, first):
            self.pages += key.startswith(PREFIX_PAGE)
            yield key, value


def unlike(number: int, chance: random.Random) -> Doc:
    """Return a document that is like no other; every fifth has its id from an earlier one, every
    seventh none."""
    name = number - chance.randrange(1, 5000) if number > 5000 and number % 5 == 0 else number
    identifier = b"" if number % 7 == 0 else b"https://a.example/page/%d" % name
    return Doc(0, number, number, chance.randbytes(16), chance.getrandbits(128), id=identifier)


@pytest.fixture(scope="module")
def docs() -> list[Doc]:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    return [unlike(number, chance) for number in range(ENTRIES)]


@pytest.fixture(scope="module")
def written(docs: list[Doc]) -> tuple[dict[bytes, bytes], int]:
    """A volume with all documents, and the next log offset."""
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    index.bind("cluster/0123")
    index.apply([(0, APPEND_MS, declare(PLANS["classic"]))])
    for offset, first in enumerate(range(0, ENTRIES, STEP), 1):
        index.apply([(offset, APPEND_MS, batch(docs[first : first + STEP], {0: (0, first)}))])
        index.mark_delivered(offset + 1)
    index.flush()
    index.close()
    return volume, offset + 1


def kept(index: LogIndex, docs: Sequence[Doc]) -> list[int]:
    """Return which documents are still found, by their texts."""
    found = []
    for number, doc in enumerate(docs):
        limbs = [doc.print & (2**64 - 1), doc.print >> 64]
        if any(
            entry.text_digest == doc.digest
            for _, entry in index.similar(limbs, doc.digest, doc.features).found
        ):
            found.append(number)
    return found


def test_a_take_down_removes_exactly_the_documents_of_its_ids(
    written: tuple[dict[bytes, bytes], int], docs: list[Doc]
) -> None:
    """Ids that occur often, once, only in the last page or nowhere, some retracted before; also
    opened anew in between."""
    chance = random.Random(SEED + 1)
    volume, offset = dict(written[0]), written[1]
    left = set(range(ENTRIES))
    for _ in range(4):
        index = LogIndex(MemoryStore(volume))
        for _ in range(2):
            gone = chance.sample(sorted(left), 3)
            index.apply(
                [
                    (offset + place, APPEND_MS, retract(docs[number]))
                    for place, number in enumerate(gone)
                ]
            )
            offset += len(gone)
            left -= set(gone)
            ids = {docs[chance.randrange(ENTRIES)].id for _ in range(30)} | {
                docs[-1 - chance.randrange(300)].id,
                docs[gone[0]].id,
            }
            ids = (ids | {b"nowhere"}) - {b""}
            before = index.statistics()["evicted_forget"]
            expected = {number for number in left if docs[number].id in ids}
            index.apply([(offset, APPEND_MS, forget(*ids))])
            offset += 1
            left -= expected

            assert index.statistics()["evicted_forget"] - before == len(expected)
        index.close()
        blobs = b"".join(value for key, value in volume.items() if key.startswith(PREFIX_PAGE))
        assert not any(name + b"h" in blobs for name in ids if name != b"nowhere"), (
            "an id is left in a page"
        )
    index = LogIndex(MemoryStore(volume))
    sample = sorted(chance.sample(range(ENTRIES), 500))

    assert [sample[place] for place in kept(index, [docs[number] for number in sample])] == [
        number for number in sample if number in left
    ]


def test_a_take_down_reads_only_the_pages_of_its_ids_and_beats(
    written: tuple[dict[bytes, bytes], int], docs: list[Doc]
) -> None:
    """For ten ids it reads some ten pages, however many entries there are."""
    volume, offset = dict(written[0]), written[1]
    beats: list[None] = []
    store = Counting(volume)
    index = LogIndex(store, beat=lambda: beats.append(None))
    ids = [docs[number].id for number in range(1, ENTRIES, ENTRIES // 10) if docs[number].id]
    places = [number for number, doc in enumerate(docs) if doc.id in ids]
    store.pages = 0
    beats.clear()
    index.apply([(offset, APPEND_MS, forget(*ids))])

    assert index.statistics()["evicted_forget"] == len(places)
    assert store.pages <= 2 * len(places)  # once to look at the ids, once to take them out
    assert beats


# What a retraction costs: a dead letter sends one for each page that is missing, so it must not
# grow with what is kept

_RECORD = 100
_PARTITIONS = 2


class Filled:
    """An index that keeps the verdicts of so many log records, of which each names a representative
    of the first."""

    def __init__(self, records: int, identifier: bytes = b"") -> None:
        self._id = identifier
        self.index = LogIndex(MemoryStore())
        self.kept = [
            [self._document(record, place) for place in range(_RECORD)] for record in range(records)
        ]
        self._next = 0
        self.apply(declare(PLANS["classic"]))
        for docs in self.kept:
            self.apply(batch(docs))

    def _document(self, record: int, place: int) -> Doc:
        chance = random.Random(
            place if record and place < 10 else record * _RECORD + place
        )  # of the first ten there are copies
        offset = record * _RECORD * 2 + place * 2
        return Doc(
            place % _PARTITIONS,
            offset,
            offset,
            chance.randbytes(16),
            chance.getrandbits(128),
            id=self._id,
        )

    def apply(self, *raws: bytes) -> None:
        records = [(self._next + place, APPEND_MS, raw) for place, raw in enumerate(raws)]
        self._next += len(raws)
        self.index.apply(records)


def instructions(work: Callable[[], None]) -> int:
    """Return how many instructions of Python `work` takes in the memory of positions."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != positions.__file__:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def costs(records: int) -> list[int]:
    """Return what retracting costs: what nobody knows, a duplicate, a representative in use, and
    ten of them."""
    filled = Filled(records)
    kept = filled.kept
    filled.apply(
        retract(kept[0][9])
    )  # which records name what is noted when a representative is retracted first
    last = kept[-1]
    gone = [
        (Doc(0, 7, 7, b"", 0),),
        (Doc(0, last[50].offset + 1, 7, b"", 0),),
        (kept[-2][3],),
        (last[20],),
        tuple(kept[-3][30:40]),
    ]
    return [instructions(lambda docs=docs: filled.apply(retract(*docs))) for docs in gone]  # type: ignore[misc]


def test_the_cost_of_a_retraction_does_not_grow_with_the_index() -> None:
    few, many = costs(6), costs(60)
    assert all(count > 0 for count in few)
    assert [
        count for count, fewer in zip(many, few, strict=True) if count > 1.3 * fewer + 300
    ] == []


def test_positions_are_dropped_with_their_records() -> None:
    """What tells which records name a representative does not outlive them."""
    filled = Filled(8)
    filled.apply(retract(filled.kept[0][0]))
    end = filled.kept[-1][-1].offset + 1
    docs = [
        Doc(partition, end, end, bytes([partition]) * 16, partition << 90)
        for partition in range(_PARTITIONS)
    ]
    filled.apply(batch(docs, dict.fromkeys(range(_PARTITIONS), (0, end))))
    memory = filled.index._state.positions

    assert len(memory) == _PARTITIONS
    assert (len(memory._records), memory._offsets_by_handle, memory._handles_by_offset) == (
        1,
        {},
        {},
    )


# The last text of an id is removed with its entry, and found in one step


def ids_written(volume: dict[bytes, bytes]) -> set[int]:
    return {int.from_bytes(key[1:], "big") for key in volume if key.startswith(PREFIX_LAST_TEXT)}


@pytest.mark.parametrize("how", ["retract", "forget", "window"])
def test_the_last_text_of_an_id_is_removed_with_its_entry(how: str) -> None:
    """A volume contains last texts only for ids of live entries."""
    chance = random.Random(5)
    prints = [chance.getrandbits(128) for _ in range(4)]
    kept = [
        Doc(0, number, number, bytes([number] * 16), prints[number], id=b"%d" % (number % 2))
        for number in range(4)
    ]
    again = [
        Doc(0, 10 + number, number, bytes([number] * 16), prints[number], id=b"%d" % (number % 2))
        for number in (0, 1)
    ]
    end = {
        "retract": [retract(kept[3])],
        "forget": [forget(b"1")],
        "window": [control("plan", window={"length_ms": 1000, "refresh": False})],
    }[how]
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    log = [declare(PLANS["classic"]), batch(kept), batch(again)]
    index.apply([(offset, 0, record) for offset, record in enumerate(log)])
    assert ids_written(volume) == {2, 3}
    late = [] if how != "window" else [control("plan")] * 2000
    index.apply(
        [(len(log) + number, number * 1000, record) for number, record in enumerate([*end, *late])]
    )

    assert ids_written(volume) == (set() if how == "window" else {2})


def test_the_latest_text_of_an_id_is_found_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where records are keyed by host, thousands of entries have one id."""
    chance = random.Random(6)
    docs = [
        Doc(0, number, number, chance.randbytes(16), chance.getrandbits(128), id=b"a.example")
        for number in range(3000)
    ]
    index = LogIndex(MemoryStore())
    records = [
        declare(PLANS["classic"]),
        *(batch(docs[first : first + 500]) for first in range(0, len(docs), 500)),
    ]
    index.apply([(offset, 0, record) for offset, record in enumerate(records)])
    looked_at: list[int] = []
    texts = Entries.texts

    def counted(self: Entries, numbers: NDArray[np.int64]) -> list[tuple[int, bytes, bytes]]:
        looked_at.extend(numbers.tolist())
        return texts(self, numbers)

    monkeypatch.setattr(Entries, "texts", counted)
    new = Doc(0, 3002, 2, chance.randbytes(16), chance.getrandbits(128), id=b"a.example")
    asked = [
        replace(docs[-1], offset=3000),
        replace(docs[0], offset=3001),
        new,
        replace(docs[0], offset=3003),
    ]
    ((_, raw),) = index.apply([(len(records), 0, batch(asked))])

    assert [judgement.reason.label for judgement in read_judgements(raw)] == [
        "unchanged",
        "returned",
        "new",
        "returned",
    ]
    assert looked_at == []
    index.apply(
        [
            (
                len(records) + 1,
                0,
                batch(
                    [replace(docs[-1], id=b"b.example", offset=3004), replace(docs[7], offset=3005)]
                ),
            )
        ]
    )
    assert looked_at == [3000]
