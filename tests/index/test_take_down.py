"""Take-downs in an index of several segments: found by the tags of their ids, with a beat, and nothing of them left."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from zlib import crc32

import pytest

from stream_dedup.ground.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.layout import PREFIX_ID_TAGS, PREFIX_PAGE, SEGMENT_ENTRIES
from stream_dedup.index.volume.memory import MemoryStore
from tests.index.logs import APPEND_MS, Doc, batch, declare, forget, retract

SEED = int(os.environ["TEST_SEED"])
ENTRIES = 3 * SEGMENT_ENTRIES + 700
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
    """Return a document that is like no other; every fifth has its id from an earlier one, every seventh none."""
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
    """A volume with all of them, and the next log offset."""
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    index.bind("cluster/0123")
    index.apply([(0, APPEND_MS, declare(PLANS["classic"]))])
    for offset, first in enumerate(range(0, ENTRIES, STEP), 1):
        index.apply([(offset, APPEND_MS, batch(docs[first : first + STEP], {0: (0, first)}))])
        index.answered(offset + 1)
    index.flush()
    index.close()
    return volume, offset + 1


def kept(index: LogIndex, docs: Sequence[Doc]) -> list[int]:
    """Return which documents are still found, by their texts."""
    found = []
    for number, doc in enumerate(docs):
        limbs = [doc.print & (2**64 - 1), doc.print >> 64]
        if any(one.text_digest == doc.digest for _, one in index.similar(limbs, doc.digest, doc.features).found):
            found.append(number)
    return found


def test_what_is_taken_down_is_what_a_plain_look_at_every_id_finds(
    written: tuple[dict[bytes, bytes], int], docs: list[Doc]
) -> None:
    """Ids that occur often, once, only in the open tail or nowhere, some retracted before; also opened anew in between."""
    chance = random.Random(SEED + 1)
    volume, offset = dict(written[0]), written[1]
    left = set(range(ENTRIES))
    for _ in range(4):
        index = LogIndex(MemoryStore(volume))
        for _ in range(2):
            gone = chance.sample(sorted(left), 3)
            index.apply([(offset + at, APPEND_MS, retract(docs[number])) for at, number in enumerate(gone)])
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
        assert not any(one + b"h" in blobs for one in ids if one != b"nowhere"), "an id is left in a page"
    index = LogIndex(MemoryStore(volume))
    sample = sorted(chance.sample(range(ENTRIES), 500))

    assert [sample[at] for at in kept(index, [docs[number] for number in sample])] == [one for one in sample if one in left]


def test_a_take_down_reads_the_pages_of_its_ids_and_beats(written: tuple[dict[bytes, bytes], int], docs: list[Doc]) -> None:
    """However many entries there are: for ten ids some ten pages, and a sign of life."""
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


def test_nothing_tells_of_an_id_that_was_taken_down(written: tuple[dict[bytes, bytes], int], docs: list[Doc]) -> None:
    """Neither the id nor its tag stays in the volume, in a whole segment or behind the last."""
    volume, offset = dict(written[0]), written[1]
    index = LogIndex(MemoryStore(volume))
    gone = [docs[1].id, docs[SEGMENT_ENTRIES + 2].id]
    assert all(tagged(volume, one) for one in gone)
    index.apply([(offset, APPEND_MS, forget(*gone, docs[-1].id or docs[-2].id))])
    chance = random.Random(SEED + 2)
    more = [unlike(ENTRIES + number, chance) for number in range(SEGMENT_ENTRIES)]
    more = [Doc(0, doc.offset, doc.value, doc.digest, doc.print, id=b"") for doc in more]
    for first in range(0, len(more), STEP):
        offset += 1
        index.apply([(offset, APPEND_MS, batch(more[first : first + STEP], {0: (0, more[first].offset)}))])

    assert sum(key.startswith(PREFIX_ID_TAGS) for key in volume) == 4
    assert not any(tagged(volume, one) for one in [*gone, docs[-1].id or docs[-2].id])


def tagged(volume: dict[bytes, bytes], identifier: bytes) -> bool:
    wanted = crc32(identifier).to_bytes(4, "little")
    return any(
        wanted in (value[at : at + 4] for at in range(0, len(value), 4))
        for key, value in volume.items()
        if key.startswith(PREFIX_ID_TAGS)
    )
