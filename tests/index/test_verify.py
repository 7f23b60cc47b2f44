"""Folding the log again: nothing to say of a sound volume, and a readable line for whatever is otherwise."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

import pytest

from stream_dedup.ground.document import Reason
from stream_dedup.ground.plan import PLANS
from stream_dedup.index import verify
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.memory import MemoryStore
from tests.index.logs import APPEND_MS, Doc, RandomLog, batch, bytes_in_page, declare
from tests.index.test_digest import small_log, volume_of

SEED = int(os.environ["TEST_SEED"])


def compared(volume: dict[bytes, bytes], records: list[bytes | None], end: int | None = None) -> verify.Comparison:
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
    assert result.answers_compared == sum(key.startswith(layout.PREFIX_ANSWER) for key in volume) > 0


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
    meta = layout.decode_meta(volume[layout.KEY_META])
    volume[layout.KEY_META] = layout.encode_meta(meta._replace(live=meta.live - 1))


def set_meta(volume: dict[bytes, bytes], **changed: Any) -> None:
    meta = layout.decode_meta(volume[layout.KEY_META])
    volume[layout.KEY_META] = layout.encode_meta(meta._replace(**changed))


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
    "an entry lost": (lambda v: drop_entry(v, 9), r"representative 1/9: only in the fold \(documents-0@9, id 'id-9'\)"),
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
    "a count": (lambda v: set_meta(v, rejected=9), "records rejected: the volume has 9, the fold 1"),
    "a watermark": (
        lambda v: v.update({layout.watermark_key(0): layout.encode_watermark(3, 0)}),
        r"watermark of documents-0 .*: the volume has \(3, 0\), the fold \(0, 0\)",
    ),
    "a source": (
        lambda v: v.update({layout.source_key(1): layout.encode_source("other", bytes(16), 1)}),
        "source partition 1: the volume has other-1 .*, the fold documents-1",
    ),
    "a stored answer": (spoil_answer, "answer to log record 1: the one stored in the volume differs from the fold's"),
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
    verify.fold(LogIndex(MemoryStore()), [[(0, APPEND_MS, records[0]), (1, APPEND_MS, records[1])]], given, 0, result)

    assert (result.differences, result.answers_differing, result.answers_compared) == (0, 1, 1)
    assert result.notes[0] == "answer to log record 1: the one at verdicts-0@7 differs from the fold's"
    assert "verify the volume of every replica" in result.notes[1]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("prefix", "told"), [(layout.PREFIX_COPIES, r"copies 1, first_ms \d+, .*"), (layout.PREFIX_BEST_ID, "b'better'")]
)
def test_what_differs_of_copies_is_told(prefix: bytes, told: str, number: int) -> None:
    """A row or an id that is changed, lost, or too much."""
    docs = []
    for at in range(2):
        kept = Doc(0, at, at, b"k%015d" % at, 0xFFFF << 40 * at)
        docs += [kept, replace(kept, offset=9 + at, digest=b"c%015d" % at, features=120, id=b"better")]
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
