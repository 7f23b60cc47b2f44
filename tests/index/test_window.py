"""The window: expiry by log time, equal to a plain scan, and a bounded size."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from stream_dedup.audit.judgements import Fold
from stream_dedup.audit.scan import PlainScan
from stream_dedup.domain.errors import ConfigurationError, StoreError
from stream_dedup.domain.plan import PLANS, parse
from stream_dedup.index.index import LogIndex
from stream_dedup.index.rules.window import KEY_GENERATIONS, KEY_LOG_TIME, Generations
from stream_dedup.index.storage.contract import Writes
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.tables import neighbours
from stream_dedup.log import answers
from stream_dedup.log.answers import LogAnswer, Rejected
from stream_dedup.log.controls import Window
from stream_dedup.log.records import Batch
from tests.index.logs import (
    Doc,
    RandomLog,
    batch,
    control,
    declare,
    forget,
    number,
    read,
    read_judgements,
)
from tests.index.stored_copies import read_copies, read_fold_copies
from tests.tiers import few

SEEDS = [*range(6), int(os.environ["TEST_SEED"])]
BLOCKS = PLANS["blocks"]


@pytest.mark.parametrize("seed", few(SEEDS))
@pytest.mark.parametrize("kind", [*PLANS, "128:4:0:28~16:65%:3"])
def test_verdicts_and_copies_equal_a_plain_scan(kind: str, seed: int) -> None:
    """With windows and plans that change, seeds, releases and take-downs, opened anew between any
    two records or not at all."""
    print(f"seed {seed}")
    log = RandomLog(
        seed, parse(kind), windows=True, plan_changes=seed % 2 == 1 or kind not in PLANS
    ).records(200)
    volume: dict[bytes, bytes] = {}
    whole, plain, given = LogIndex(MemoryStore()), Fold(PlainScan()), []
    for offset, append_ms, raw in number(log):
        index = LogIndex(MemoryStore(volume))
        answered = index.apply([(offset, append_ms, raw)])
        index.close()
        given += answered
        record = read(raw)
        expected = plain.judge(offset, append_ms, record)
        got = answers.decode(answered[0][1]) if answered else None
        if expected is None:
            assert (
                isinstance(got, Rejected)
                if record is None or isinstance(record, Batch)
                else got is None
            ), offset
        else:
            assert isinstance(got, LogAnswer), offset
            assert (got.log_offset, got.judgements) == (offset, expected), offset

    assert whole.apply(number(log)) == given
    assert read_copies(volume) == read_fold_copies(plain)
    figures = whole.statistics()
    assert figures["representatives_full"] + figures["representatives_digest_only"] == len(
        plain._by_position
    )
    assert figures["evicted_window"] > 0 or seed not in range(
        6
    )  # in another seed's log windows may outlast it
    reopened = LogIndex(MemoryStore(volume)).statistics()
    for figure in (
        "entries",
        "removed",
        "representatives_full",
        "kept_verdicts",
        "generations",
        "log_time_ms",
    ):
        assert figures[figure] == reopened[figure], figure


def documents(step: int, count: int) -> list[Doc]:
    return [unlike(step * count + n) for n in range(count)]


def unlike(number: int) -> Doc:
    chance = random.Random(number)
    return Doc(0, number, 0, chance.randbytes(16), chance.getrandbits(128), id=b"id-%d" % number)


def limbs(doc: Doc) -> list[int]:
    return [doc.print & (2**64 - 1), doc.print >> 64]


@pytest.mark.parametrize("refresh", [False, True])
def test_size_is_flat_after_two_windows(refresh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second window on neither memory nor volume grows, whether or not a share of it is
    refreshed for ever."""
    monkeypatch.setattr(
        neighbours, "_ACTIVE_MIN", 500
    )  # rows are rebuilt after hundreds, not tens of thousands
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    index.apply(
        [(0, 0, declare(PLANS["classic"], window={"length_ms": 16_000, "refresh": refresh}))]
    )
    regulars = documents(10_000, 50)
    sizes = []
    for step in range(1, 81):  # each a second of log time, a slice of the window
        copies = [
            Doc(1, step * 50 + n, 0, regular.digest, regular.print, id=regular.id)
            for n, regular in enumerate(regulars)
        ]
        batches = [documents(step, 200), copies]
        for n, docs in enumerate(batches):
            watermark = {0: (0, docs[0].offset), 1: (0, step * 50)}
            index.apply([(2 * step - 1 + n, step * 1000, batch(docs, watermark))])
        figures = index.statistics()
        index.mark_delivered(index.applied)
        sizes.append(
            (
                figures["entries"] - figures["removed"],
                figures["bytes_in_memory"],
                figures["bytes_on_disk"],
                len(volume),
            )
        )

    second, last = sizes[31], sizes[-1]
    assert 16 * 200 < last[0] < 18 * 200 + 200
    for early, late in zip(second, last, strict=True):
        assert late <= 1.1 * early, (second, last)
    of = read_judgements(
        index.apply([(index.applied, 80_000, batch([replace(regulars[0], partition=2)]))])[0][1]
    )[0].of
    assert of is not None
    assert (
        of.position.offset == 50
    ) is refresh  # refreshed by its copies since the first step, or expired and new again


def test_forgetting_leaves_no_trace_in_the_volume() -> None:
    """Neither the rows of a forgotten id nor its name are in any value, expired, retracted or kept
    verdicts included."""
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    name = b"https://secret.example/page"
    docs = [replace(doc, id=name) if doc.offset % 7 == 0 else doc for doc in documents(0, 150)]
    copies = [Doc(1, n, n, docs[n].digest, docs[n].print, id=b"copy") for n in range(150)]
    index.apply([(0, 0, declare(BLOCKS)), (1, 0, batch(docs)), (2, 0, batch(copies))])
    index.mark_delivered(3)
    before = index.statistics()
    assert any(name in value for value in volume.values())
    index.apply([(3, 0, forget(name, b"nobody"))])

    assert not any(name in value for value in volume.values())
    assert index.statistics()["removed"] == index.statistics()["evicted_forget"] == 22
    assert index.statistics()["kept_verdicts"] == before["kept_verdicts"]
    again = LogIndex(MemoryStore(volume))
    assert again.similar(limbs(docs[8]), bytes(16), docs[8].features).found[0][1].id == docs[8].id
    assert again.statistics()["removed"] == 22


def test_log_time_is_a_running_maximum_with_steps_of_at_most_a_slice() -> None:
    """The first record sets it; earlier times do not move it, later ones by one slice a record."""
    generations = Generations()
    window = Window(16_000)
    times = []
    for append_ms in (5_000, 4_000, 5_500, 90_000, 90_000, -1, 1 << 63):
        generations.advance(append_ms, window)
        times.append(generations.now_ms)

    assert times == [5_000, 5_000, 5_500, 6_500, 7_500, 7_500, 8_500]


def test_generations_round_trip_and_damage_is_reported() -> None:
    """What is stored opens to the same; a cut or missing value is damage."""
    writes = Writes()
    generations = Generations()
    generations.add_writes(writes)
    assert not writes
    generations.advance(7, None)
    generations.open(3, None)
    generations.add_writes(writes)
    again = Generations((writes.puts[KEY_LOG_TIME], writes.puts[KEY_GENERATIONS]))

    assert (again.now_ms, len(again), again.first(9), again.current(9)) == (7, 1, 3, 3)
    index = LogIndex(MemoryStore(volume := {}))
    index.apply([(0, 5, declare(BLOCKS)), (1, 6, batch(documents(1, 3)))])
    for key, damaged in (
        (KEY_LOG_TIME, b"x"),
        (KEY_LOG_TIME, None),
        (KEY_GENERATIONS, b"x"),
        (KEY_GENERATIONS, None),
    ):
        broken = {name: value for name, value in volume.items() if name != key}
        if damaged is not None:
            broken[key] = damaged
        with pytest.raises(StoreError, match="rebuilt"):
            LogIndex(MemoryStore(broken))


def test_a_declared_window_is_in_force_and_stays_so() -> None:
    """A window comes with the declaration or a control record, alone or beside a plan, and outlives
    a restart."""
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    index.apply([(0, 0, declare(BLOCKS, window={"length_ms": 60_000, "refresh": True}))])
    assert LogIndex(MemoryStore(volume))._state.window == Window(60_000, refresh=True)
    index.apply([(1, 0, control("plan", window={"length_ms": 5_000, "refresh": False}))])
    assert (LogIndex(MemoryStore(volume))._state.window, LogIndex(MemoryStore(volume)).plan) == (
        Window(5_000),
        BLOCKS,
    )
    index.apply([(2, 0, control("plan", plan=PLANS["classic"].to_fields()))])
    assert (index._state.window, index.plan) == (Window(5_000), PLANS["classic"])
    index.apply([(3, 0, control("plan", plan=BLOCKS.to_fields(), window=None))])
    reopened = LogIndex(MemoryStore(volume))

    assert (reopened._state.window, reopened.plan) == (None, BLOCKS)
    assert reopened.declared is not None
    assert reopened.declared.window == Window(60_000, refresh=True)
    assert reopened.statistics()["ignored_control_records"] == 0
    assert reopened.past_plans == [(2, 0, BLOCKS.id), (3, 0, PLANS["classic"].id)]


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {},
        {"length_ms": 5000},
        {"length_ms": 999, "refresh": False},
        {"length_ms": True, "refresh": False},
        {"length_ms": 5000, "refresh": 1},
        {"length_ms": 10**20, "refresh": False},
        {"length_ms": 5e3, "refresh": False},
    ],
)
def test_invalid_window_fields_are_refused(fields: object) -> None:
    with pytest.raises(ConfigurationError, match=r"window"):
        Window.from_fields(fields)
