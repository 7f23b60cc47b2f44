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
FROZEN = "bb30bb1b3fb7cc86"


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


def applied(
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
    found = state_digest(MemoryStore(volume_of(small_log())))

    assert (found.log_offset, found.digest[:16]) == (6, FROZEN)


def volume_of(records: Sequence[bytes | None]) -> dict[bytes, bytes]:
    volume: dict[bytes, bytes] = {}
    applied(records, MemoryStore(volume))
    return volume


def test_it_does_not_depend_on_layout_groups_or_answers(tmp_path: Path) -> None:
    """Steps of other sizes, another store, compaction, answers delivered or not, reopening: the
    same state, one digest."""
    records = RandomLog(SEED, PLANS["blocks"], plan_changes=True).records(120)
    one = applied(records, MemoryStore(), sizes=1)
    other = applied(records, RocksStore(tmp_path / "v"), sizes=17)
    other.answered(60)
    other.flush()
    expected = one.state_digest()

    assert other.state_digest() == expected
    assert expected.log_offset == 120
    other.close()
    beside = RocksStore(tmp_path / "v", read_only=True)
    assert state_digest(beside) == expected
    beside.close()


def test_each_record_moves_it() -> None:
    """Every batch, control record and malformed record leaves another state behind."""
    records = small_log()
    digests = [
        state_digest(MemoryStore(volume_of(records[:end]))).digest
        for end in range(len(records) + 1)
    ]

    assert len(set(digests)) == len(digests)


def one_entry_changed(volume: dict[bytes, bytes], at: int) -> dict[bytes, bytes]:
    key = layout.page_key(0)
    raw = bytearray(volume[key])
    raw[at] ^= 1
    return {**volume, key: bytes(raw)}


def test_a_changed_byte_of_an_entry_moves_it() -> None:
    volume = volume_of(small_log())
    expected = state_digest(MemoryStore(volume))
    page = volume[layout.page_key(0)]
    tried = {
        at for field in layout.row_type(2).names or () for at in bytes_in_page(page, 9, field)
    }  # entry 9: live
    changed = {at for at in tried if moves(volume, at, expected)}

    assert len(changed) == layout.row_type(2).itemsize
    assert changed == tried
    assert moves(volume, len(volume[layout.page_key(0)]) - 1, expected)


def moves(volume: dict[bytes, bytes], at: int, expected: object) -> bool:
    try:
        return state_digest(MemoryStore(one_entry_changed(volume, at))) != expected
    except StoreError:
        return True


def test_what_a_removed_entry_was_does_not_count() -> None:
    """The row of a retracted representative is no state: a layout may drop it."""
    volume = volume_of(small_log())
    gone = bytes_in_page(volume[layout.page_key(0)], 6, "print")  # entry 6 was retracted

    assert state_digest(MemoryStore(one_entry_changed(volume, gone[5]))) == state_digest(
        MemoryStore(volume)
    )


@pytest.mark.parametrize(
    "key", [layout.KEY_META, layout.page_key(0), layout.source_key(1), layout.watermark_key(0)]
)
def test_a_missing_part_is_an_error(key: bytes) -> None:
    """Nothing that is gone makes a smaller state with a digest of its own."""
    volume = volume_of(small_log())
    del volume[key]
    with pytest.raises(StoreError):
        state_digest(MemoryStore(volume))


def test_similar_finds_by_digest_and_within_reach() -> None:
    base = 3**70
    docs = [
        Doc(0, 0, 1, b"a" * 16, base, id=b"first"),
        Doc(0, 1, 2, b"b" * 16, base ^ (2**40 - 2**20), id=b"near 20"),
        Doc(0, 2, 3, b"c" * 16, 0, features=1, id=b"short"),
    ]
    index = applied([declare(Plan(128, 8, 1, 19)), batch(docs)], MemoryStore())
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
