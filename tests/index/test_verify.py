"""The state digest: equal for equal states however they lie on disk, other for every
difference."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from stream_dedup.domain.document import LogPlace
from stream_dedup.domain.errors import StoreError
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.index.digest import state_digest
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.storage.store import RocksStore
from tests.index.logs import APPEND_MS, Doc, RandomLog, batch, bytes_in_page, declare, retract

SEED = int(os.environ["TEST_SEED"])
# Of the log below; a change of either line is another digest: raise its version.
FROZEN = "93d3c4b4cc2da596"


def small_log() -> list[bytes | None]:
    docs = [
        Doc(
            *(part, offset, 7 * offset + part, bytes([offset, part] * 8)),
            *(3**60 * (offset + 1) << part, 2 + 40 * part, part),
            id=b"id-%d" % offset,
        )
        for part in range(2)
        for offset in range(70)
    ]
    return [
        declare(Plan(128, 8, 1, 19)),
        batch(docs[:70]),
        None,
        batch(docs[70:] + docs[:5], {1: (0, 3)}),
        retract(docs[6]),
        batch([Doc(1, 90, 1, docs[3].digest, docs[3].print, scope=0, id=b"copy")]),
    ]


def apply_log(
    records: Sequence[bytes | None], store: MemoryStore | RocksStore, sizes: int = 3
) -> LogIndex:
    index = LogIndex(store)
    numbered = [(offset, APPEND_MS + offset, raw) for offset, raw in enumerate(records)]
    for first in range(0, len(numbered), sizes):
        index.apply(numbered[first : first + sizes])
    return index


def test_the_digest_is_frozen() -> None:
    """Two versions of the program that call one state by two digests would take replicas for
    diverged."""
    found = state_digest(MemoryStore(build_volume(small_log())))

    assert (found.log_offset, found.digest[:16]) == (6, FROZEN)


def build_volume(records: Sequence[bytes | None]) -> dict[bytes, bytes]:
    volume: dict[bytes, bytes] = {}
    apply_log(records, MemoryStore(volume))
    return volume


def test_the_digest_does_not_depend_on_layout_groups_or_answers(tmp_path: Path) -> None:
    """Steps of other sizes, another store, compaction, answers delivered or not, reopening: the
    same state, one digest."""
    records = RandomLog(SEED, PLANS["blocks"], plan_changes=True).records(120)
    in_memory = apply_log(records, MemoryStore(), sizes=1)
    on_disk = apply_log(records, RocksStore(tmp_path / "v"), sizes=17)
    on_disk.mark_delivered(60)
    on_disk.flush()
    expected = in_memory.state_digest()

    assert on_disk.state_digest() == expected
    assert expected.log_offset == 120
    on_disk.close()
    reader = RocksStore(tmp_path / "v", read_only=True)
    assert state_digest(reader) == expected
    reader.close()


def test_each_record_changes_the_digest() -> None:
    """Every batch, control record and malformed record leaves another state behind."""
    records = small_log()
    digests = [
        state_digest(MemoryStore(build_volume(records[:end]))).digest
        for end in range(len(records) + 1)
    ]

    assert len(set(digests)) == len(digests)


def change_entry_byte(volume: dict[bytes, bytes], position: int) -> dict[bytes, bytes]:
    key = layout.page_key(0)
    raw = bytearray(volume[key])
    raw[position] ^= 1
    return {**volume, key: bytes(raw)}


def test_a_changed_byte_of_an_entry_changes_the_digest() -> None:
    volume = build_volume(small_log())
    expected = state_digest(MemoryStore(volume))
    page = volume[layout.page_key(0)]
    tried = {
        position
        for field in layout.row_type(2).names or ()
        for position in bytes_in_page(page, 9, field)
    }  # entry 9: live
    changed = {position for position in tried if changes_digest(volume, position, expected)}

    assert len(changed) == layout.row_type(2).itemsize
    assert changed == tried
    assert changes_digest(volume, len(volume[layout.page_key(0)]) - 1, expected)


def changes_digest(volume: dict[bytes, bytes], position: int, expected: object) -> bool:
    try:
        return state_digest(MemoryStore(change_entry_byte(volume, position))) != expected
    except StoreError:
        return True


def test_the_row_of_a_removed_entry_does_not_change_the_digest() -> None:
    """The row of a retracted representative is no state: a layout may drop it."""
    volume = build_volume(small_log())
    gone = bytes_in_page(volume[layout.page_key(0)], 6, "print")  # entry 6 was retracted

    assert state_digest(MemoryStore(change_entry_byte(volume, gone[5]))) == state_digest(
        MemoryStore(volume)
    )


@pytest.mark.parametrize(
    "key", [layout.KEY_META, layout.page_key(0), layout.source_key(1), layout.watermark_key(0)]
)
def test_a_missing_part_is_an_error(key: bytes) -> None:
    volume = build_volume(small_log())
    del volume[key]
    with pytest.raises(StoreError):
        state_digest(MemoryStore(volume))


def test_similar_finds_equal_and_near_texts() -> None:
    base = 3**70
    docs = [
        Doc(0, 0, 1, b"a" * 16, base, id=b"first"),
        Doc(0, 1, 2, b"b" * 16, base ^ (2**40 - 2**20), id=b"near 20"),
        Doc(0, 2, 3, b"c" * 16, 0, features=1, id=b"short"),
    ]
    index = apply_log([declare(Plan(128, 8, 1, 19)), batch(docs)], MemoryStore())
    limbs = [base & (2**64 - 1), base >> 64]
    found = index.similar(limbs, b"b" * 16, 50)

    assert [(distance, entry.id) for distance, entry in found.found] == [
        (0, b"near 20"),
        (0, b"first"),
    ]
    assert (found.applied, found.total, found.by_digest_only) == (2, 2, False)
    assert index.similar(limbs, b"b" * 16, 50, limit=1).total == 2
    assert [entry.id for _, entry in index.similar(limbs, b"x" * 16, 50).found] == [b"first"]
    short = index.similar([0, 0], b"c" * 16, 2)
    assert ([entry.id for _, entry in short.found], short.by_digest_only) == ([b"short"], True)
    assert index.similar(limbs, b"x" * 16, 2).found == ()
    assert index.similar(limbs, b"a" * 16, 50, scope=5).found == ()
    assert index.similar(limbs, b"a" * 16, 50).found[0][1].decided == LogPlace(1, 0)
