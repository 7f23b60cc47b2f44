"""The bytes on disk: frozen, read back, and distinguished from damaged and newer ones."""

from __future__ import annotations

import json
import os
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stream_dedup.domain.errors import FormatError, OtherFormatError
from stream_dedup.domain.lazy_sequences import Ids
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import restore, take
from stream_dedup.index.storage import columns, layout
from stream_dedup.index.storage.columns import StoredRows
from stream_dedup.index.storage.contract import Writes
from stream_dedup.index.storage.entries import Entries
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.storage.pages import EntryPage, gather, same_ids, select_ids
from stream_dedup.index.storage.place import layout_of, volume_in
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.index.storage.tags import crcs_of
from stream_dedup.preflight.volume import check_volume
from stream_dedup.settings.settings import Settings
from tests.index.golden import VOLUME
from tests.index.logs import (
    APPEND_MS,
    Doc,
    RandomLog,
    append_time,
    batch,
    control,
    declare,
    read_judgements,
    retract,
)

A, B, C = (
    Doc(0, 7, 11, b"a" * 16, 0x0123456789ABCDEF << 64 | 3, id=b"one"),
    Doc(0, 8, 12, b"b" * 16, 5),
    Doc(3, 1, 13, b"c" * 16, 6),
)


def example_volume() -> dict[bytes, bytes]:
    """Return a volume with every kind of key."""
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    index.bind("cluster/topic")
    near = Doc(3, 2, 14, b"d" * 16, A.print ^ 0b11, features=120, id=b"two", time_ms=-5)
    revised = Doc(3, 9, 18, b"g" * 16, A.print ^ 0b101, id=b"one")
    log = [
        declare(
            Plan(128, 8, 1, 18), width=128, count_copies=True
        ),  # as in the frozen volume, whatever the default is
        batch([A, B, C], {0: (1, 7), 3: (0, 1)}),
        batch([near, Doc(3, 3, 15, b"e" * 16, 9, features=2, scope=1 << 63), revised]),
        retract(B),
        control("plan", plan=PLANS["classic"].to_fields()),
        b"rubbish",
        control("plan"),
    ]
    index.apply([(offset, APPEND_MS + offset, record) for offset, record in enumerate(log)])
    index.mark_delivered(2)
    index.flush()
    index.close()
    return volume


def test_bytes_are_frozen() -> None:
    golden = json.loads(VOLUME.read_text())

    assert {key.hex(): value.hex() for key, value in sorted(example_volume().items())} == golden


def test_the_frozen_volume_can_be_continued() -> None:
    """A volume as this version first wrote it opens, and judges what comes next as if it had never
    been closed."""
    golden = {
        bytes.fromhex(key): bytes.fromhex(value)
        for key, value in json.loads(VOLUME.read_text()).items()
    }
    index = LogIndex(MemoryStore(golden))
    index.bind("cluster/topic")
    assert index.applied == 7
    assert index.plan == PLANS["classic"]
    asked = [A, B, Doc(3, 4, 16, b"f" * 16, A.print ^ 0b111), Doc(3, 5, 17, b"b" * 16, 0xFF << 40)]
    asked.append(Doc(3, 10, 19, A.digest, A.print, id=A.id))
    ((_, raw),) = index.apply([(7, 0, batch(asked, {0: (1, 7), 3: (0, 1)}))])

    verdicts = [
        (
            judgement.reason.label,
            judgement.distance,
            str(judgement.of.position) if judgement.of else None,
            str(judgement.decided),
        )
        for judgement in read_judgements(raw)
    ]
    assert verdicts == [
        ("new", 0, None, "1/0"),
        ("retracted", 0, None, "3/0"),
        ("near", 3, "documents-0@7", "7/2"),
        ("new", 0, None, "7/3"),
        ("returned", 0, "documents-0@7", "7/4"),
    ]
    assert [offset for offset, _ in index.answers_since(0)] == [2, 5, 7]


def test_damaged_and_newer_values_raise_different_errors() -> None:
    for version in (1, layout.VERSION + 1):
        with pytest.raises(
            OtherFormatError,
            match=rf"format {version}, but this version reads \d+\. Open it with the version",
        ):
            layout.check_format(b"SDX1" + bytes((version, 0)))
    for cut in (b"", b"SDX", b"SDLG\x01\x00", layout.encode_format() + b"x"):
        with pytest.raises(FormatError, match="not written by stream_dedup"):
            layout.check_format(cut)
    for decode, value in (
        (layout.decode_meta, layout.encode_meta(layout.Meta())),
        (layout.decode_watermark, layout.encode_watermark(1, 2)),
        (layout.decode_source, layout.encode_source("documents", bytes(16), 3)),
        (layout.decode_cached, layout.encode_cached(np.zeros(2, layout.CACHED_VERDICT), b"")),
        (layout.decode_object, layout.encode_object({"a": 1})),
    ):
        decode(value)
        for damaged in (value[:-1], value + b"x", b""):
            with pytest.raises(FormatError):
                decode(damaged)


def test_pages_contain_64_entries_however_they_are_appended() -> None:
    pieces = [1, 62, 3, 64, 130, 1]
    store = MemoryStore()
    entries = Entries(store, 2)
    added = 0
    for piece in pieces:
        rows = np.zeros(piece, layout.row_type(2))
        rows["state"] = columns.FULL
        rows["offset"] = np.arange(added, added + piece)
        entries.append(
            rows,
            Ids.of([b"id-%d" % number * (number % 4) for number in range(added, added + piece)]),
        )
        added += piece
        rows, ids = entries.rows(np.arange(added))
        assert list(zip(rows["offset"].tolist(), ids, strict=True)) == [
            (number, b"id-%d" % number * (number % 4)) for number in range(added)
        ]
        writes = Writes()
        entries.add_writes(writes)
        store.write(writes.puts, writes.deletes, writes.ranges)
        assert entries.rows(np.arange(added)[::-1].copy())[0]["offset"].tolist() == list(
            range(added - 1, -1, -1)
        )
    again = Entries(store, 2)
    live = np.concatenate([part.numbers for part in again.load(261, 261)])

    assert again.count == added == 261
    assert len(list(store.scan(b"e"))) == 5
    assert live.tolist() == list(range(261))
    assert again.rows(np.array([260, 3, 64]))[1][2] == b""
    assert again.rows(np.array([259]))[1][0] == b"id-259" * 3


def test_the_last_write_of_a_key_wins() -> None:
    """A key put and then deleted is deleted, a key deleted and then put is put; never both."""
    writes = Writes()
    assert not writes
    writes.put(b"a", b"1")
    writes.delete(b"a")
    writes.delete(b"b")
    writes.put(b"b", b"2")

    assert (writes.puts, writes.deletes) == ({b"b": b"2"}, {b"a"})


def write_entries(entries: Entries, store: MemoryStore) -> None:
    writes = Writes()
    entries.add_writes(writes)
    store.write(writes.puts, writes.deletes, writes.ranges)


@pytest.mark.parametrize("count", [400, 4096, 10_000])
def test_dropped_entries_are_gone_from_the_volume(count: int) -> None:
    """Whole pages and segments leave the volume, single rows are marked; what is live stays as it
    was."""
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
        write_entries(entries, store)
    again = Entries(store, 1)
    live = sorted(set(range(count)) - set(gone.tolist()))
    stored = StoredRows(*map(np.concatenate, zip(*again.load(count, len(live)), strict=True)))

    assert stored.numbers.tolist() == live
    assert stored.states.tolist() == [number % 2 + 1 for number in live]
    assert stored.prints[:, 0].tolist() == [number * 7 for number in live]
    rows, ids = again.rows(np.array(live))
    assert list(zip(rows["offset"].tolist(), ids, strict=True)) == [
        (number, b"%d" % number) for number in live
    ]
    assert len(list(store.scan(b"e"))) == 4 if count == 400 else 5
    again.append(rows[:100].copy(), Ids.of([b"more"] * 100))
    again.drop(np.array(live[:5]))
    write_entries(again, store)
    expected = [*live[5:], *range(count, count + 100)]
    parts = Entries(store, 1).load(count + 100, len(expected))
    assert [number for part in parts for number in part.numbers.tolist()] == expected


# Pages of both forms are gathered

SOME = np.dtype([("place", "<u2"), ("print", "<u8", (3,)), ("state", "u1"), ("offset", "<i8")])
OFFSETS = np.dtype([("offset", "<i8")])


def make_page(
    chance: random.Random, limbs: int
) -> tuple[EntryPage | bytes, NDArray[Any], list[bytes]]:
    """Return a page of random entries in one of its forms, their rows and their ids."""
    count = chance.randint(1, layout.PAGE_ENTRIES)
    kind = layout.row_type(limbs)
    rows = np.frombuffer(chance.randbytes(count * kind.itemsize), kind).copy()
    ids = [chance.randbytes(chance.choice([0, 1, 300])) for _ in range(count)]
    rows["ids_end"] = np.cumsum([len(identifier) for identifier in ids])
    if chance.random() < 0.5:
        return EntryPage(rows.tobytes(), b"".join(ids)), rows, ids
    return layout.encode_rows(layout.encode_parts(rows, 1)[0], count, b"".join(ids)), rows, ids


@seed(int(os.environ["TEST_SEED"]))
@settings(deadline=None)  # the first call may compile
@given(number=st.integers(0, 2**32 - 1))
def test_gather_returns_what_the_pages_contain(number: int) -> None:
    """Any fields of any entries of any pages, asked for in any order, some more than once."""
    chance = random.Random(number)
    pages = [make_page(chance, 3) for _ in range(chance.randint(1, 6))]
    asked = [
        (which, chance.randrange(len(pages[which][2])))
        for which in (chance.randrange(len(pages)) for _ in range(chance.randrange(20)))
    ]
    which, places = (np.array([pair[part] for pair in asked], np.int64) for part in (0, 1))
    for wanted in (SOME, OFFSETS, layout.row_type(3)):
        found = gather([page for page, _, _ in pages], which, places, layout.row_type(3), wanted)
        ids = found.ids()

        for name in wanted.names or ():
            assert found.rows[name].tolist() == [
                pages[page][1][name][place].tolist() for page, place in asked
            ]
        assert list(ids) == [pages[page][2][place] for page, place in asked]
        assert ids.joined == b"".join(ids)


@seed(int(os.environ["TEST_SEED"]))
@settings(deadline=None)
@given(ids=st.lists(st.binary(max_size=13)), number=st.integers(0, 2**32 - 1))
def test_joined_ids_equal_a_list_of_ids(ids: list[bytes], number: int) -> None:
    """Some of them in any order, whether they are others' too, and their CRC-32; an empty one is
    nobody's and has none."""
    chance = random.Random(number)
    blob, others = (
        Ids.of(ids),
        [
            chance.choice([identifier, identifier[1:], identifier + b"x", b"x" * len(identifier)])
            for identifier in ids
        ],
    )
    places = [chance.randrange(len(ids)) for _ in range(len(ids))]

    assert list(blob) == [blob[place] for place in range(len(blob))] == ids
    assert list(select_ids(blob, np.array(places, np.int64))) == [ids[place] for place in places]
    assert same_ids(blob, Ids.of(others)).tolist() == [
        identifier == other != b"" for identifier, other in zip(ids, others, strict=True)
    ]
    assert crcs_of(ids).tolist() == [
        zlib.crc32(identifier) or bool(identifier) for identifier in ids
    ]
    assert crcs_of([bytes.fromhex("ffffffff"), bytes.fromhex("9d0ad96d")]).tolist() == [
        0xFFFFFFFF,
        1,
    ]  # which has 0


def test_a_damaged_page_is_an_error() -> None:
    """Cut anywhere, too short for the place, or with ids that end before they begin or behind the
    page."""
    kind = layout.row_type(2)
    rows = np.zeros(3, kind)
    rows["ids_end"] = [4, 4, 6]
    value = layout.encode_rows(layout.encode_parts(rows, 1)[0], 3, b"abcdef")
    first = np.zeros(1, np.int64)

    assert gather([value], first, first + 2, kind, OFFSETS).ids()[0] == b"ef"
    for cut in range(len(value)):
        with pytest.raises(FormatError, match=r"damaged\. Start the index with an empty volume"):
            gather([b"a page before", value[:cut]], first + 1, first + 2, kind, OFFSETS)
    with pytest.raises(FormatError, match="damaged"):
        gather([value], first, first + 3, kind, OFFSETS)
    rows["ids_end"] = [4, 3, 6]
    with pytest.raises(FormatError, match="damaged"):
        gather(
            [layout.encode_rows(layout.encode_parts(rows, 1)[0], 3, b"abcdef")],
            first,
            first + 1,
            kind,
            OFFSETS,
        )
    with pytest.raises(FormatError, match="damaged"):
        gather([EntryPage(rows.tobytes(), b"abc")], first, first, kind, OFFSETS)


# A volume of another layout stays as it is, and this program creates its own in a folder next to
# it: after a rollback the older version finds its volume

SEED = int(os.environ["TEST_SEED"])
OTHER = layout.VERSION + 1


def judge(folder: Path, log: list[bytes | None], end: int) -> tuple[int, list[tuple[int, bytes]]]:
    """Apply a log up to an offset as a role does in its folder; return where the volume stood, and
    the answers."""
    index = LogIndex(RocksStore(volume_in(folder)))
    index.bind("cluster/topic")
    begun = index.applied
    answers = index.apply(
        [(offset, append_time(offset), log[offset]) for offset in range(begun, end)]
    )
    index.mark_delivered(end)
    index.flush()
    index.close()
    return begun, answers


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of a volume's files, without the logs of RocksDB."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.suffix == ".sst" or path.name.startswith("MANIFEST")
    }


def test_a_volume_of_another_layout_stays_and_can_be_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program with another layout rebuilds beside it, and goes on there; rolled back, the old one
    goes on with its own."""
    print("seed", SEED)
    log = RandomLog(SEED, PLANS["classic"]).records(60)
    _, expected = judge(tmp_path / "plain", log, 60)
    folder = tmp_path / "index"
    judge(folder, log, 20)
    before = files(folder)

    with monkeypatch.context() as newer:
        newer.setattr(layout, "VERSION", OTHER)
        begun, answers = judge(folder, log, 40)
        assert (begun, answers) == (0, [answer for answer in expected if answer[0] < 40])
        assert judge(folder, log, 41)[0] == 40
        assert volume_in(folder) == folder / f"layout-{OTHER}"
        assert files(folder) == before

    begun, answers = judge(folder, log, 60)
    assert (begun, answers) == (20, [answer for answer in expected if answer[0] >= 20])
    with monkeypatch.context() as newer:
        newer.setattr(layout, "VERSION", OTHER)
        assert judge(folder, log, 60)[0] == 41


def test_the_first_layout_in_a_folder_uses_the_folder_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new folder, one of this layout, and one whose first volume was removed once nobody went
    back to it."""
    log = RandomLog(SEED, PLANS["classic"]).records(8)
    folder = tmp_path / "index"
    assert volume_in(folder) == folder
    judge(folder, log, 8)
    assert volume_in(folder) == folder
    monkeypatch.setattr(layout, "VERSION", OTHER)
    judge(folder, log, 8)
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()

    assert volume_in(folder) == folder / f"layout-{OTHER}"
    assert judge(folder, log, 8)[0] == 8


def test_doctor_reports_the_volume_of_another_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding has the command that removes it and keeps the volume in use."""
    log = RandomLog(SEED, PLANS["classic"]).records(8)
    folder = tmp_path / "index"
    judge(folder, log, 8)
    monkeypatch.setattr(layout, "VERSION", OTHER)
    judge(folder, log, 6)
    first, *others = check_volume(Settings(state_dir=folder.parent), None, lambda: 8)

    assert "created by a version with another layout" in first.sentence
    assert f"find {folder} -maxdepth 1 -type f -delete" in first.sentence
    assert f"{folder / f'layout-{OTHER}'} contains" in others[0].sentence


def test_a_snapshot_of_another_layout_is_refused_before_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older or newer; so an index that finds one begins with the log, once, and never meets it in
    its volume."""
    log = RandomLog(SEED, PLANS["classic"]).records(8)
    judge(tmp_path / "index", log, 8)
    manifest = take(tmp_path / "index", tmp_path / "snapshot").manifest
    copied: list[int] = []
    for version in (layout.VERSION - 1, layout.VERSION + 1):
        monkeypatch.setattr(layout, "VERSION", version)
        with pytest.raises(
            OtherFormatError,
            match=rf"format {manifest.volume_format}, but this version reads {version}\.",
        ):
            restore(tmp_path / "snapshot", tmp_path / "new", advance=copied.append)

    assert copied == []
    assert layout_of(tmp_path / "index") == manifest.volume_format
