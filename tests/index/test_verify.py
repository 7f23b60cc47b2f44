"""The state digest: equal for equal states however they lie on disk, other for every difference;
and what `verify` says."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.ground.document import LogPlace, Reason
from stream_dedup.ground.errors import StoreError
from stream_dedup.ground.plan import PLANS, Plan
from stream_dedup.index import verify
from stream_dedup.index.digest import state_digest
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.index.volume.store import RocksStore
from tests.index.logs import APPEND_MS, Doc, RandomLog, batch, bytes_in_page, declare, retract

SEED = int(os.environ["TEST_SEED"])
# Of the log below; a change of either line is another digest: raise its version.
FROZEN = "60f524c5488f9339"


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
    assert index.similar(limbs, b"b" * 16, 50, most=1).total == 2
    assert [entry.id for _, entry in index.similar(limbs, b"x" * 16, 50).found] == [b"first"]
    short = index.similar([0, 0], b"c" * 16, 2)
    assert ([entry.id for _, entry in short.found], short.by_digest_only) == ([b"short"], True)
    assert index.similar(limbs, b"x" * 16, 2).found == ()
    assert index.similar(limbs, b"a" * 16, 50, scope=5).found == ()
    assert index.similar(limbs, b"a" * 16, 50).found[0][1].decided == LogPlace(1, 0)


def test_buckets_tell_how_full_they_are() -> None:
    docs = [
        Doc(0, offset, offset, bytes([offset] * 16), (offset * 2**100) | 0xABCD, scope=0)
        for offset in range(40)
    ]
    index = applied([declare(PLANS["classic"]), batch(docs[:1])], MemoryStore())
    index.apply(
        [
            (
                2,
                APPEND_MS,
                batch(
                    [
                        Doc(1, doc.offset, doc.value, doc.digest, doc.offset << 40 | 0xABCD)
                        for doc in docs
                    ]
                ),
            )
        ]
    )
    found = index.buckets(3)
    full = index.statistics()["representatives_full"]

    assert sum(entries for _, _, entries in index.buckets(10_000).hottest) == 4 * full
    assert sum(count for _, count in found.sizes) == found.used
    assert found.buckets == 4 << 15
    table, _, most = found.hottest[0]
    assert (table, most) == (0, full)
    assert index.buckets(0).hottest == ()
    assert [entries for _, _, entries in found.hottest] == sorted(
        (e for _, _, e in found.hottest), reverse=True
    )


# Folding the log again: nothing to say of a sound volume, and a readable line for whatever is
# otherwise


def compared(
    volume: dict[bytes, bytes], records: list[bytes | None], end: int | None = None
) -> verify.Comparison:
    again: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(again))
    result, given = verify.Comparison(), verify.GivenAnswers()
    for key, value in volume.items():
        if key.startswith(layout.PREFIX_ANSWER):
            given.add(layout.number_of(key), value, "stored in the volume", of_volume=True)
    groups = [[(offset, APPEND_MS + offset, raw)] for offset, raw in enumerate(records[:end])]
    verify.fold(index, groups, given, 0, result)
    verify.compare(MemoryStore(volume), MemoryStore(again), result)
    return result


def test_a_sound_volume_has_no_differences() -> None:
    """The digests are equal, every stored answer was compared, and no line is said."""
    records = RandomLog(SEED, PLANS["blocks"], plan_changes=True).records(80)
    volume = volume_of(records)
    result = compared(volume, records)

    assert (result.differences, result.lines, result.notes) == (0, [], [])
    assert result.volume == result.fold
    assert (
        result.answers_compared == sum(key.startswith(layout.PREFIX_ANSWER) for key in volume) > 0
    )


def test_a_part_of_the_log_is_compared_in_what_was_made_by_then() -> None:
    """A fold that ends earlier agrees with a sound volume, and says what it could not compare."""
    records = RandomLog(SEED, PLANS["blocks"]).records(80)
    result = compared(volume_of(records), records, 40)

    assert result.lines == []
    assert "ended at log offset 40, and the volume stands at 80" in result.notes[0]


def spoil_entry(volume: dict[bytes, bytes], entry: int, field: str) -> None:
    key = layout.page_key(entry // layout.PAGE_ENTRIES)
    raw = bytearray(volume[key])
    raw[bytes_in_page(volume[key], entry % layout.PAGE_ENTRIES, field)[0]] ^= 1
    volume[key] = bytes(raw)


def spoil_kept(volume: dict[bytes, bytes], value: Reason | None) -> None:
    key = next(key for key in volume if key.startswith(layout.PREFIX_KEPT))
    if value is None:
        del volume[key]
        return
    raw = bytearray(volume[key])
    raw[2 + layout.KEPT.fields["reason"][1]] = value  # type: ignore[index]
    volume[key] = bytes(raw)


def drop_entry(volume: dict[bytes, bytes], entry: int) -> None:
    key = layout.page_key(entry // layout.PAGE_ENTRIES)
    raw = bytearray(volume[key])
    raw[bytes_in_page(volume[key], entry % layout.PAGE_ENTRIES, "state")[0]] = layout.STATE_REMOVED
    volume[key] = bytes(raw)
    set_meta(volume, live=layout.decode_meta(volume[layout.KEY_META]).live - 1)


def set_meta(volume: dict[bytes, bytes], **changed: Any) -> None:
    volume[layout.KEY_META] = layout.encode_meta(
        layout.decode_meta(volume[layout.KEY_META])._replace(**changed)
    )


def spoil_answer(volume: dict[bytes, bytes]) -> None:
    key = layout.answer_key(1)
    volume[key] = volume[key][:-1] + bytes([volume[key][-1] ^ 1])


SPOILT = {
    "an entry's print": (
        lambda v: spoil_entry(v, 9, "print"),
        r"representative 1/9 \(documents-0@9, id 'id-9'\): print [0-9a-f]{32} in the volume, [0-9a-f]{32} in the fold",
    ),
    "an entry's digest": (
        lambda v: spoil_entry(v, 9, "text_digest"),
        r"representative 1/9 .*: text_digest 08000900\w+ in the volume, 09000900",
    ),
    "an entry's time": (
        lambda v: spoil_entry(v, 70, "time_ms"),
        r"representative 3/3 .*: time_ms \d+ in the volume, \d+ in the fold",
    ),
    "an entry lost": (
        lambda v: drop_entry(v, 9),
        r"representative 1/9: only in the fold \(documents-0@9, id 'id-9'\)",
    ),
    "a verdict lost": (
        lambda v: spoil_kept(v, None),
        r"verdict kept of documents-0@0: the volume has none, the fold too-short",
    ),
    "a verdict changed": (
        lambda v: spoil_kept(v, Reason.NEW),
        r"verdict kept of documents-0@0: the volume has new \(log 1/0\), the fold too-short",
    ),
    "the chain": (
        lambda v: set_meta(v, chain=bytes(8)),
        "chain of answers: the volume has 0000000000000000, the fold [0-9a-f]{16}",
    ),
    "a count": (
        lambda v: set_meta(v, rejected=9),
        "records rejected: the volume has 9, the fold 1",
    ),
    "a watermark": (
        lambda v: v.update({layout.watermark_key(0): layout.encode_watermark(3, 0)}),
        r"watermark of documents-0 .*: the volume has \(3, 0\), the fold \(0, 0\)",
    ),
    "a source": (
        lambda v: v.update({layout.source_key(1): layout.encode_source("other", bytes(16), 1)}),
        "source partition 1: the volume has other-1 .*, the fold documents-1",
    ),
    "a stored answer": (
        spoil_answer,
        "answer to log record 1: the one stored in the volume differs from the fold's",
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_each_difference_is_a_line(what: str) -> None:
    spoil, line = SPOILT[what]
    volume = volume_of(small_log())
    spoil(volume)
    result = compared(volume, small_log())

    assert result.differences >= 1
    assert any(re.search(line, one) for one in result.lines), result.lines


def test_many_differences_are_counted_and_some_shown() -> None:
    """A hundred changed entries make twenty lines and a count."""
    volume = volume_of(small_log())
    for entry in range(10, 60):
        spoil_entry(volume, entry, "scope")
    result = compared(volume, small_log())

    assert result.differences == 50
    assert len(result.lines) == verify.LINES_MAX + 1
    assert result.lines[-1] == "... and 30 more like these"


def test_an_answer_of_another_replica_is_no_difference_of_this_volume() -> None:
    """What some replica sent otherwise is told and counted, and the volume is not blamed for it."""
    records = small_log()
    given = verify.GivenAnswers()
    given.add(1, b"other", "at verdicts-0@7", of_volume=False)
    result = verify.Comparison()
    verify.fold(
        LogIndex(MemoryStore()),
        [[(0, APPEND_MS, records[0]), (1, APPEND_MS, records[1])]],
        given,
        0,
        result,
    )

    assert (result.differences, result.answers_differing, result.answers_compared) == (0, 1, 1)
    assert (
        result.notes[0] == "answer to log record 1: the one at verdicts-0@7 differs from the fold's"
    )
    assert "verify the volume of every replica" in result.notes[1]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("prefix", "told"),
    [(layout.PREFIX_COPIES, r"copies 1, features \d+, .*"), (layout.PREFIX_BEST_ID, "b'better'")],
)
def test_what_differs_of_copies_is_told(prefix: bytes, told: str, number: int) -> None:
    """A row or an id that is changed, lost, or too much."""
    docs = []
    for at in range(2):
        kept = Doc(0, at, at, b"k%015d" % at, 0xFFFF << 40 * at)
        docs += [
            kept,
            replace(kept, offset=9 + at, digest=b"c%015d" % at, features=120, id=b"better"),
        ]
    records: list[bytes | None] = [declare(PLANS["blocks"], count_copies=True), batch(docs)]
    key = prefix + number.to_bytes(8, "big")
    volume = volume_of(records)
    assert compared(volume, records).lines == []
    for spoilt in (
        {name: value for name, value in volume.items() if name != key},
        volume | {key: bytes([volume[key][0] ^ 1]) + volume[key][1:]},
        volume | {prefix + bytes([9] * 8): volume[key]},
    ):
        (line,) = compared(spoilt, records).lines
        has = r"copies of entry \d+: the volume has (nothing|.+), the fold (nothing|.+)"
        assert re.fullmatch(has, line)
        assert re.search(told, line)
