"""The bytes on disk: frozen, read back, told apart from damage and from the future."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stream_dedup.ground.errors import FormatError, OtherFormatError
from stream_dedup.ground.lazy import Ids
from stream_dedup.ground.plan import PLANS, Plan
from stream_dedup.index.index import LogIndex
from stream_dedup.index.tables.rows import StoredRows
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.entries import Entries
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.index.volume.writes import Writes
from stream_dedup.log import answers
from tests.index.golden import VOLUME
from tests.index.logs import APPEND_MS, Doc, batch, control, declare, retract

A, B, C = (
    Doc(0, 7, 11, b"a" * 16, 0x0123456789ABCDEF << 64 | 3, id=b"one"),
    Doc(0, 8, 12, b"b" * 16, 5),
    Doc(3, 1, 13, b"c" * 16, 6),
)


def example_volume() -> dict[bytes, bytes]:
    """Return a volume with something of everything in it."""
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    index.bind("cluster/topic")
    near = Doc(3, 2, 14, b"d" * 16, A.print ^ 0b11, features=120, id=b"two", time_ms=-5)
    revised = Doc(3, 9, 18, b"g" * 16, A.print ^ 0b101, id=b"one")
    log = [
        declare(Plan(128, 8, 1, 18), width=128, count_copies=True),  # what the frozen volume holds, whatever the default is
        batch([A, B, C], {0: (1, 7), 3: (0, 1)}),
        batch([near, Doc(3, 3, 15, b"e" * 16, 9, features=2, scope=1 << 63), revised]),
        retract(B),
        control("plan", plan=PLANS["classic"].to_fields()),
        b"rubbish",
        control("plan"),
    ]
    index.apply([(offset, APPEND_MS + offset, record) for offset, record in enumerate(log)])
    index.answered(2)
    index.flush()
    index.close()
    return volume


def test_bytes_are_frozen() -> None:
    golden = json.loads(VOLUME.read_text())

    assert {key.hex(): value.hex() for key, value in sorted(example_volume().items())} == golden


def test_an_old_volume_goes_on() -> None:
    """A volume as this version first wrote it opens, and judges what comes next as if it had never been closed."""
    golden = {bytes.fromhex(key): bytes.fromhex(value) for key, value in json.loads(VOLUME.read_text()).items()}
    index = LogIndex(MemoryStore(golden))
    index.bind("cluster/topic")
    assert index.applied == 7
    assert index.plan == PLANS["classic"]
    asked = [A, B, Doc(3, 4, 16, b"f" * 16, A.print ^ 0b111), Doc(3, 5, 17, b"b" * 16, 0xFF << 40)]
    asked.append(Doc(3, 10, 19, A.digest, A.print, id=A.id))
    ((_, raw),) = index.apply([(7, 0, batch(asked, {0: (1, 7), 3: (0, 1)}))])
    answer = answers.decode(raw)
    assert isinstance(answer, answers.LogAnswer)

    told = [
        (one.reason.label, one.distance, str(one.of.position) if one.of else None, str(one.decided))
        for one in answer.judgements
    ]
    assert told == [
        ("new", 0, None, "1/0"),
        ("retracted", 0, None, "3/0"),
        ("near", 3, "documents-0@7", "7/2"),
        ("new", 0, None, "7/3"),
        ("returned", 0, "documents-0@7", "7/4"),
    ]
    assert [offset for offset, _ in index.answers_since(0)] == [2, 5, 7]


def test_what_is_damaged_or_newer_is_told_apart() -> None:
    for version in (1, layout.VERSION + 1):
        with pytest.raises(OtherFormatError, match=rf"version {version}, and this program reads \d+; open it with the version"):
            layout.check_format(b"SDX1" + bytes((version, 0)))
    for cut in (b"", b"SDX", b"SDLG\x01\x00", layout.encode_format() + b"x"):
        with pytest.raises(FormatError, match="not written by stream_dedup"):
            layout.check_format(cut)
    for decode, value in (
        (layout.decode_meta, layout.encode_meta(layout.Meta())),
        (layout.decode_watermark, layout.encode_watermark(1, 2)),
        (layout.decode_source, layout.encode_source("documents", bytes(16), 3)),
        (layout.decode_kept, layout.encode_kept(np.zeros(2, layout.KEPT), b"")),
        (layout.decode_object, layout.encode_object({"a": 1})),
    ):
        decode(value)
        for damaged in (value[:-1], value + b"x", b""):
            with pytest.raises(FormatError):
                decode(damaged)


def test_pages_hold_64_entries_whatever_comes_in_which_pieces() -> None:
    pieces = [1, 62, 3, 64, 130, 1]
    store = MemoryStore()
    entries = Entries(store, 2)
    added = 0
    for piece in pieces:
        rows = np.zeros(piece, layout.row_type(2))
        rows["state"] = layout.STATE_FULL
        rows["offset"] = np.arange(added, added + piece)
        entries.append(rows, Ids.of([b"id-%d" % number * (number % 4) for number in range(added, added + piece)]))
        added += piece
        found = entries.details(range(added))
        assert [(one.offset, one.id) for one in found] == [
            (number, b"id-%d" % number * (number % 4)) for number in range(added)
        ]
        writes = Writes()
        entries.add_writes(writes)
        store.write(writes.puts, writes.deletes, writes.ranges)
        assert [one.offset for one in entries.details(range(added - 1, -1, -1))] == list(range(added - 1, -1, -1))
    again = Entries(store, 2)
    live = np.concatenate([part.numbers for part in again.load(261, 261)])

    assert again.count == added == 261
    assert len(list(store.scan(b"e"))) == 5
    assert live.tolist() == list(range(261))
    assert again.details([260, 3, 64])[2].id == b""
    assert again.details([259])[0].id == b"id-259" * 3


def test_the_last_word_on_a_key_counts() -> None:
    """A key put and then deleted is deleted, a key deleted and then put is put; never both."""
    writes = Writes()
    assert not writes
    writes.put(b"a", b"1")
    writes.delete(b"a")
    writes.delete(b"b")
    writes.put(b"b", b"2")

    assert (writes.puts, writes.deletes) == ({b"b": b"2"}, {b"a"})


def written(entries: Entries, store: MemoryStore) -> None:
    writes = Writes()
    entries.add_writes(writes)
    store.write(writes.puts, writes.deletes, writes.ranges)


@pytest.mark.parametrize("count", [400, 4096, 10_000])
def test_dropped_entries_are_gone_from_the_volume(count: int) -> None:
    """Whole pages and segments leave the volume, single rows are marked; what is live stays as it was."""
    store = MemoryStore()
    entries = Entries(store, 1)
    rows = np.zeros(count, layout.row_type(1))
    rows["state"] = np.arange(count) % 2 + 1
    rows["offset"] = np.arange(count)
    rows["print"][:, 0] = np.arange(count) * 7
    entries.append(rows, Ids.of([b"%d" % number for number in range(count)]))
    gone = np.array([3, *range(60, 200), *range(250, count - 40), count - 1])
    for part in (gone[:100], gone[100:]):
        entries.drop(part)
        written(entries, store)
    again = Entries(store, 1)
    live = sorted(set(range(count)) - set(gone.tolist()))
    stored = StoredRows(*map(np.concatenate, zip(*again.load(count, len(live)), strict=True)))

    assert stored.numbers.tolist() == live
    assert stored.states.tolist() == [number % 2 + 1 for number in live]
    assert stored.prints[:, 0].tolist() == [number * 7 for number in live]
    assert [(one.offset, one.id) for one in again.details(live)] == [(number, b"%d" % number) for number in live]
    assert len(list(store.scan(b"e"))) == 4 if count == 400 else 5
    again.append(rows[:100].copy(), Ids.of([b"more"] * 100))
    again.drop(np.array(live[:5]))
    written(again, store)
    expected = [*live[5:], *range(count, count + 100)]
    parts = Entries(store, 1).load(count + 100, len(expected))
    assert [number for part in parts for number in part.numbers.tolist()] == expected
