"""The tables in memory: whatever is added, removed and looked up, they equal a list."""

from __future__ import annotations

import errno
import os
import random
import re
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from stream_dedup.domain.errors import ConfigurationError, StoreError
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.domain.relations import Origin
from stream_dedup.domain.sketch import NOT_COMPARED, SKETCH_BYTES, SKETCH_VALUES, per_cent
from stream_dedup.index.storage.columns import (
    FULL,
    ORIGIN_BYTES,
    SHORT,
    Columns,
    StoredRows,
    make_columns,
    select_rows,
    with_origins,
)
from stream_dedup.index.storage.tags import crcs_of, digest_tags, position_tags
from stream_dedup.index.tables import budget, finder, keyed, near_kernels, neighbours
from stream_dedup.index.tables.blocks import compile_plan, table_count, to_limbs
from stream_dedup.index.tables.neighbours import Neighbours
from stream_dedup.index.tables.rows import OUTCOME_DIGEST, OUTCOME_NEAR, OUTCOME_NEW, OUTCOME_SHORT
from tests.index.logs import random_sketch
from tests.index.oracle import likeness, near, siblings
from tests.index.oracle import shared as oracle_keys

PLANS_TRIED = [
    *PLANS.values(),
    Plan(64, 0, 0, 6),
    Plan(64, 64, 0, 9),
    Plan(64, 64, 0, 9, asked=5),
    Plan(64, 3, 1, 7),
    Plan(100, 5, 2, 14),
    Plan(128, 3, 1, 9),
    Plan(256, 8, 1, 30),
    Plan(1, 1, 0, 0),
    Plan(192, 2, 0, 40),
    Plan(64, 6, 0, 3, key_blocks=3),
    Plan(32, 5, 2, 9, key_blocks=2),
    Plan(128, 7, 1, 15, key_blocks=2),
    Plan(64, 3, 3, 12),
    Plan(128, 8, 1, 15, by_length=((5, 22), (40, 18))),
    Plan(64, 4, 1, 9, ratio=60),
    Plan(128, 5, 0, 9, key_blocks=2, by_length=((8, 4),), ratio=90),
    Plan(128, 4, 0, 28, 1, (), 0, 16, 65, 3, 70, 80, 95),
    Plan(128, 4, 0, 60, 1, (), 0, 16, 30, 70, 40, 50, 80),
    Plan(128, 4, 0, 60, bands=16, similarity=30, asked=5),
    Plan(128, 4, 0, 60, bands=16, asked=5),
    Plan(128, 4, 0, 60, 1, (), 0, 16, 0, 4, 30, 60, 60),
    Plan(64, 0, 0, 12, similarity=40, unsure=50, same_site=60, other_title=90),
    Plan(64, 0, 0, 40, bands=8, similarity=20, asked=1),
    Plan(64, 0, 0, 20, bands=8, asked=2),
    Plan(128, 8, 0, 30, similarity=50, asked=4),
    Plan(64, 0, 0, 12, similarity=60),
    Plan(128, 8, 1, 21, similarity=65),
    Plan(32, 5, 0, 9, key_blocks=2, bands=5, similarity=30, asked=2, ratio=60),
    Plan(128, 4, 0, 40, bands=16, similarity=40),
]
FLOOR = 3
ROW_BYTES = SKETCH_BYTES + ORIGIN_BYTES


@pytest.mark.parametrize(
    "plan", [plan for plan in PLANS_TRIED if not plan.asked], ids=lambda plan: plan.id
)
def test_compiled_tables_and_reach_equal_plain_python(plan: Plan) -> None:
    chance, tables = random.Random(os.environ["TEST_SEED"]), compile_plan(plan)
    fields = plan.to_fields()
    for _ in range(200):
        number, other = [chance.getrandbits(256)] * 2
        for bit in chance.sample(
            range(plan.width), chance.randint(0, min(plan.width, plan.threshold_max + 2))
        ):
            other ^= 1 << bit
        features = (chance.randint(0, 60), chance.randint(0, 60))
        pair = make_columns(4, 2, ROW_BYTES)
        sketches = (
            bytes(SKETCH_BYTES),
            bytes(int(chance.random() < 0.4) for _ in range(SKETCH_BYTES)),
        )
        origins = [
            Origin(*(chance.choice([0, item, 2**63]) for item in (5, 8)), chance.choice([0, 7, 9]))
            for _ in range(2)
        ]
        sites, titles, ids = (np.array(column) for column in zip(*origins, strict=True))
        pair.sketches[:] = with_origins(
            np.array([list(sketch) for sketch in sketches], np.uint8),
            sites.astype(np.uint64),
            titles.astype(np.uint64),
            ids.astype(np.uint32),
        )
        pair.prints[0], pair.prints[1], pair.features[:] = (
            to_limbs(number, 4),
            to_limbs(other, 4),
            features,
        )
        keys = np.empty((2, table_count(tables)), np.uint64)
        near_kernels.hash_keys(tables, pair, keys)
        shared = [
            near_kernels.has_equal_key(tables, table, pair, 0, pair, 1)
            for table in range(table_count(tables))
        ]
        assert (keys[0] == keys[1]).tolist() == shared
        found = near_kernels.near_distance(tables, pair, 0, pair, 1) if any(shared) else -1
        text, other_text = zip((number, other), features, sketches, origins, strict=True)
        relation = (
            likeness(fields, text, other_text) if oracle_keys(fields, text, other_text) else ""
        )
        if relation == "near":
            assert found == plan.distance(number, other)
        elif relation == "sibling":
            assert found == -2
        else:
            assert found == -1


@pytest.mark.parametrize(
    ("plan", "tables", "bits"),
    [
        (Plan(64, 4, 0, 3), 4, {16}),
        (Plan(64, 6, 0, 3, key_blocks=3), 20, {31, 32, 33}),
        (Plan(128, 8, 1, 21), 16, {8}),  # one of two halves of a key within a bit is equal
        (Plan(64, 64, 0, 9), 1, {0}),  # each block of a bit would give half of all
        (Plan(64, 0, 0, 6), 1, {0}),
        (
            Plan(64, 64, 0, 9, asked=7),
            64,
            {1},
        ),  # of each block some are asked, so each has its own table
    ],
    ids=lambda value: value.id if isinstance(value, Plan) else "",
)
def test_a_plan_is_compiled_to_the_tables_that_compare_fewest_prints(
    plan: Plan, tables: int, bits: set[int]
) -> None:
    """By its own keys, by parts of them where some bits may differ, or by none where keys would
    give everybody many times."""
    found_by = compile_plan(plan).masks

    assert (len(found_by), set(np.bitwise_count(found_by).sum(axis=1).tolist())) == (tables, bits)


@dataclass
class Modelled:
    """A document, and later an entry, in the list."""

    print: int
    scope: int
    digest: bytes
    position: tuple[int, int, int]
    features: int
    sketch: bytes
    site: int
    title: int
    id: bytes = b""
    live: bool = True

    @property
    def full(self) -> bool:
        return self.features >= FLOOR

    @property
    def seen(self) -> tuple[int, int, bytes, Origin]:
        """What a plan compares."""
        origin = Origin(self.site, self.title, int(crcs_of([self.id])[0]))
        return self.print, self.features, self.sketch, origin


def has_same_id(entry: Modelled, other: Modelled) -> bool:
    return (entry.scope, entry.id) == (other.scope, other.id)


def columns_of_all(documents: Sequence[Modelled], limbs: int) -> Columns:
    columns = make_columns(limbs, len(documents), ROW_BYTES)
    for row, document in enumerate(documents):
        columns.prints[row] = to_limbs(document.print, limbs)
        columns.scopes[row] = document.scope
        columns.digests[row] = np.frombuffer(document.digest, np.uint64)
        columns.sources[row], columns.offsets[row], columns.value_digests[row] = document.position
        columns.features[row] = document.features
        columns.sketches[row, :SKETCH_BYTES] = np.frombuffer(document.sketch, np.uint8)
    ids = crcs_of([document.id for document in documents])
    sites = np.array([document.site for document in documents], np.uint64)
    titles = np.array([document.title for document in documents], np.uint64)
    sketches = with_origins(columns.sketches[:, :SKETCH_BYTES], sites, titles, ids)
    return columns._replace(ids=ids, sketches=sketches)


class HoldsNoTable(budget.Budget):
    """A budget for what must be in memory, without room for frozen tables."""

    def free_bytes(self, needed_bytes: int) -> int:
        """Return -1, so that everything that may be in files is moved there."""
        assert needed_bytes >= 0
        return -1

    def require(self, needed_bytes: int) -> None:
        assert needed_bytes >= 0


class AgainstAList(RuleBasedStateMachine):
    """Batches, removals, look-ups and changes of plan, beside a list that is searched from its
    beginning."""

    @initialize(seed=st.integers(0, 2**32 - 1), limbs=st.sampled_from([2, 4]))
    def begin(self, seed: int, limbs: int) -> None:
        self.chance = random.Random(seed)
        self.plans = [plan for plan in PLANS_TRIED if plan.limbs <= limbs]
        self.plan = self.chance.choice(self.plans)
        self.limbs = limbs
        self.model: list[Modelled] = []
        self.tables = self.new_tables()
        self.bases = [self.chance.getrandbits(64 * limbs) for _ in range(3)]

    def new_tables(self) -> Neighbours:
        def identities(numbers: NDArray[np.int64]) -> Columns:
            return columns_of_all([self.model[number] for number in numbers.tolist()], self.limbs)

        # Sketches and tables are in memory or in files; the answers must be the same.
        folder = Path(tempfile.gettempdir())
        sometimes = self.chance.choice(
            [None, budget.Budget(0, folder), HoldsNoTable(1 << 20, folder)]
        )
        threads = self.chance.choice([1, 2])
        return Neighbours(
            self.plan,
            self.limbs,
            identities,
            threads=threads,
            budget=sometimes,
            sketch_bytes=SKETCH_BYTES,
        )

    def document(self) -> Modelled:
        chance, number = self.chance, self.chance.choice(self.bases)
        bits = range(self.plan.width) if chance.random() < 0.7 else range(min(self.plan.width, 24))
        for bit in chance.sample(
            bits, chance.randint(0, min(len(bits), self.plan.threshold_max + 3))
        ):
            number ^= 1 << bit
        return Modelled(
            sketch=random_sketch(chance),
            site=chance.choice([0, 5, 5, 5, 6, 2**64 - 1]),
            title=chance.choice([0, 8, 8, 9, 1 << 63]),
            print=number,
            scope=chance.choice([0, 0, 0, 1 << 32, 2**64 - 1]),
            digest=chance.choice([chance.randbytes(16), bytes([chance.randrange(6)] * 16)]),
            position=(chance.randrange(3), chance.randrange(50), chance.randrange(2)),
            features=chance.choice([0, FLOOR - 1, FLOOR, 4, 5, 20, 39, 40, 41, 100, 100, 100]),
            id=chance.choice(
                [b"", b"", b"often", b"now and then %d" % chance.randrange(9), b"\x9d\x0a\xd9\x6d"]
            ),
        )

    def near(self, document: Modelled) -> list[int]:
        peers = [
            number
            for number, entry in enumerate(self.model)
            if entry.live and entry.full and entry.scope == document.scope
        ]
        return [
            peers[position]
            for position in near(
                self.plan.to_fields(), document.seen, (self.model[number].seen for number in peers)
            )
        ]

    def sibling(self, document: Modelled) -> int:
        peers = [
            number
            for number, entry in enumerate(self.model)
            if entry.live and entry.full and entry.scope == document.scope
        ]
        seen = (self.model[number].seen for number in peers)
        found = siblings(self.plan.to_fields(), document.seen, seen)
        return next((peers[index] for index in found), -1)

    def judge_by_list(self, document: Modelled) -> tuple[int, int, int, int]:
        peers = [
            (number, entry)
            for number, entry in enumerate(self.model)
            if entry.live and entry.scope == document.scope
        ]
        for number, entry in peers:
            if entry.digest == document.digest:
                return OUTCOME_DIGEST, number, 0, -1
        for number in self.near(document) if document.full else []:
            return (
                OUTCOME_NEAR,
                number,
                self.plan.distance(document.print, self.model[number].print),
                -1,
            )
        sibling = self.sibling(document) if document.full else -1
        self.model.append(document)
        return OUTCOME_NEW if document.full else OUTCOME_SHORT, len(self.model) - 1, 0, sibling

    @rule(count=st.integers(1, 60))
    def judge(self, count: int) -> None:
        documents = [self.document() for _ in range(count)]
        columns = columns_of_all(documents, self.limbs)
        before = len(self.model)
        found = self.tables.judge(columns, columns.features, FLOOR)
        expected = [self.judge_by_list(document) for document in documents]

        assert expected == list(
            zip(
                found.outcome.tolist(),
                found.entry.tolist(),
                found.distance.tolist(),
                found.sibling.tolist(),
                strict=True,
            )
        )
        named = [
            entry if outcome == OUTCOME_NEAR else sibling for outcome, entry, _, sibling in expected
        ]
        assert found.similarity.tolist() == [
            NOT_COMPARED if entry < 0 else per_cent(document.sketch, self.model[entry].sketch)
            for document, entry in zip(documents, named, strict=True)
        ]

        found_entries = self.tables.find_positions(columns).tolist()
        for document, entry in zip(documents, found_entries, strict=True):
            same = [
                number
                for number, other in enumerate(self.model)
                if other.live and other.position == document.position
            ]
            assert (entry in same) if same else entry == -1

        named = [document for document in documents if document.id]
        asked = columns_of_all(named, self.limbs)
        for end in (before, len(self.model)):
            latest = self.tables.find_ids(
                asked.ids, asked.scopes, self.have_the_id_of(named), len(self.model) - end
            ).tolist()
            for document, entry in zip(named, latest, strict=True):
                same = [
                    number
                    for number, other in enumerate(self.model[:end])
                    if other.live and has_same_id(document, other)
                ]
                assert entry == (same[-1] if same else -1)

    def have_the_id_of(self, documents: list[Modelled]) -> neighbours.IsSame:
        def same(places: NDArray[np.int64], entries: NDArray[np.int64]) -> NDArray[np.bool_]:
            pairs = zip(places.tolist(), entries.tolist(), strict=True)
            return np.array(
                [has_same_id(documents[place], self.model[entry]) for place, entry in pairs],
                np.bool_,
            )

        return same

    @precondition(lambda self: any(entry.live for entry in self.model))
    @rule(share=st.sampled_from([0.1, 0.5, 1.0]))
    def drop(self, share: float) -> None:
        live = [number for number, entry in enumerate(self.model) if entry.live]
        gone = sorted(self.chance.sample(live, max(1, int(share * len(live)))))
        self.tables.drop(np.array(gone))
        for number in gone:
            self.model[number].live = False

    @rule()
    def look_up(self) -> None:
        document, plan = self.document(), self.plan
        self.plan = replace(plan, unsure=0, same_site=0, other_title=0)
        expected = sorted(
            (self.plan.distance(document.print, self.model[number].print), number)
            for number in self.near(document)
        )
        self.plan = plan
        limbs = to_limbs(document.print, self.limbs)

        found = self.tables.find_near(limbs, document.scope, document.features, document.sketch)
        assert found == expected

    @rule()
    def change_plan(self) -> None:
        self.plan = self.chance.choice(self.plans)
        self.tables.change_plan(self.plan)

    @rule()
    def open_again(self) -> None:
        live = np.array([number for number, entry in enumerate(self.model) if entry.live], np.int64)
        documents = columns_of_all([entry for entry in self.model if entry.live], self.limbs)
        states = np.array(
            [FULL if entry.full else SHORT for entry in self.model if entry.live], np.uint8
        )
        texts = digest_tags(documents.digests, documents.scopes)
        positions = position_tags(documents.sources, documents.offsets, documents.value_digests)
        tags = (texts, positions, documents.ids)
        self.tables = self.new_tables()
        whole = StoredRows(
            live,
            documents.prints,
            documents.scopes,
            documents.features,
            states,
            documents.sketches,
            *tags,
        )
        cuts = np.flatnonzero(
            np.random.default_rng(self.chance.getrandbits(32)).random(len(live)) < 0.1
        )
        parts = [
            StoredRows(*columns)
            for columns in zip(*(np.split(column, cuts) for column in whole), strict=True)
        ]
        self.tables.load([part for part in parts if len(part.numbers)], len(live), len(self.model))

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "model"):
            live = [entry for entry in self.model if entry.live]
            assert (len(self.model), len(live)) == (self.tables.entries, self.tables.live)
            assert sum(entry.full for entry in live) == self.tables.full


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze, double and compact after tens of entries, chain, and search with two threads, as at
    scale."""
    monkeypatch.setattr(neighbours, "_ACTIVE_MIN", 40)
    monkeypatch.setattr(finder, "_BUCKETS_MIN", 8)
    monkeypatch.setattr(finder, "_BUCKET_ENTRIES", 4)
    monkeypatch.setattr(finder, "_ROOM_BUCKETS", 16)
    monkeypatch.setattr(finder, "_ENTRIES_AT_ONCE", 50)
    monkeypatch.setattr(keyed, "_MATCHES", 3)
    monkeypatch.setattr(neighbours, "_THREAD_DOCUMENTS", 8)


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def columns_of(prints: list[int], limbs: int = 2) -> Columns:
    columns = make_columns(limbs, len(prints))
    for row, number in enumerate(prints):
        columns.prints[row] = to_limbs(number, limbs)
        columns.digests[row] = row, 1
        columns.offsets[row] = row
    return columns


def strangers(numbers: NDArray[np.int64]) -> Columns:
    """Return identities that are none of the documents' that these tests make: all of them are
    distinct."""
    return make_columns(2, len(numbers))._replace(sources=np.full(len(numbers), 9, np.uint32))


def random_columns(count: int, seed: int | None = None) -> Columns:
    """Return texts of random prints and sketches, each with a digest and a position of its own."""
    chance = np.random.default_rng(int(os.environ["TEST_SEED"]) if seed is None else seed)
    columns = make_columns(2, count, ROW_BYTES)
    columns.prints[:] = chance.integers(0, 1 << 63, (count, 2), np.uint64)
    columns.sketches[:, :SKETCH_BYTES] = chance.integers(0, 256, (count, SKETCH_BYTES), np.uint8)
    columns.digests[:, 0] = columns.offsets[:] = np.arange(count)
    return columns


def fill_tables(columns: Columns, *, is_frozen: bool) -> Neighbours:
    """Return tables that contain these texts."""
    tables, count = (
        Neighbours(PLANS["bands"], 2, strangers, sketch_bytes=SKETCH_BYTES),
        len(columns.prints),
    )
    if is_frozen:
        tags = np.arange(count, dtype=np.uint32)
        tables.load(
            [stored(columns.prints, tags)._replace(sketches=columns.sketches)], count, count
        )
    else:
        tables.add(columns, np.ones(count, np.bool_))
    return tables


def stored(prints: NDArray[np.uint64], tags: NDArray[np.uint32]) -> StoredRows:
    """Return texts of enough features, in no scope and without sketches, with such tags of their
    digests and positions."""
    count = len(prints)
    return StoredRows(
        numbers=np.arange(count),
        prints=prints,
        scopes=np.zeros(count, np.uint64),
        features=np.full(count, FLOOR, np.uint32),
        states=np.full(count, FULL, np.uint8),
        sketches=np.zeros((count, 0), np.uint8),
        digest_tags=tags,
        position_tags=tags,
        ids=tags,
    )


@pytest.mark.parametrize("is_frozen", [False, True])
def test_buckets_are_measured_one_table_at_a_time(is_frozen: bool) -> None:
    """A bucket of 300 in the last of 24 tables is seen when that table has its turn, and from
    then on."""
    columns = random_columns(300)
    columns.sketches[:, SKETCH_VALUES - 4 : SKETCH_VALUES] = 7
    tables = fill_tables(columns, is_frozen=is_frozen)
    seen = [tables.measure_next_table() for _ in range(29)]

    assert max(seen[:23]) < 300
    assert seen[23:] == [300] * 6
    tables.change_plan(PLANS["blocks"])
    assert tables.measure_next_table() < 300


@pytest.mark.parametrize("is_frozen", [False, True])
def test_full_blocks_are_counted(is_frozen: bool) -> None:
    """A block of 60 entries is not full, one of 65 is; a plan that asks all has no full block. (Tags tell keys apart
    but for a chance.)"""
    columns = random_columns(300)
    columns.sketches[:60, :4], columns.sketches[:65, 4:8], columns.sketches[:, 8:12] = 1, 2, 3
    columns.sketches[100:170, 4:8] = 4
    tables = fill_tables(columns, is_frozen=is_frozen)

    for _ in range(2):  # counting changes nothing
        assert [tables.full_blocks(table) for table in range(24)] == [0] * 5 + [2, 1] + [0] * 17
    assert tables.full_blocks() == 0
    for _ in range(24):
        tables.measure_next_table()
    assert tables.full_blocks() == 3
    tables.change_plan(PLANS["blocks"])
    assert tables.full_blocks(0) == tables.full_blocks() == 0


def test_the_earliest_entry_wins_whatever_table_finds_it() -> None:
    """A later copy, the last of as many as are looked up together, ends the search of its own
    bucket and of no other."""
    earlier, later = (
        1 | 1 << 32 | 1 << 48,
        1 << 17 | 1 << 33 | 1 << 49,
    )  # by the second block, and by the first
    strangers_of_the_first = [
        number << 24 | number << 40 | number << 56
        for number in (0b111 << shift for shift in range(5))
    ]
    kept = [earlier, *strangers_of_the_first[: keyed._MATCHES - 1], later]
    tables = Neighbours(PLANS["classic"], 2, strangers)
    tables.judge(columns_of(kept), np.full(len(kept), FLOOR, np.uint32), FLOOR)
    assert tables.entries == len(kept)
    asked = columns_of([0])
    asked.digests[:, 1] = 2

    assert tables.judge(asked, np.full(1, FLOOR, np.uint32), FLOOR).entry.tolist() == [0]


def test_searches_are_counted_by_how_many_prints_they_compare() -> None:
    """With one bucket for all, the n-th new document is compared with the n before it; one known by
    its text with none."""
    columns = columns_of(list(range(9)))
    tables = Neighbours(
        Plan(128, 0, 0, 0), 2, lambda numbers: select_rows(columns, np.array(numbers))
    )
    for number in range(9):
        tables.judge(
            select_rows(columns, slice(number, number + 1)), np.full(1, FLOOR, np.uint32), FLOOR
        )
    tables.judge(columns, np.full(9, FLOOR, np.uint32), FLOOR)

    assert tables.candidates == sum(range(9))
    assert tables.searches[:6] == (1, 1, 2, 4, 1, 0)  # 0 | 1 | 2, 3 | 4 to 7 | 8
    assert sum(tables.searches) == 9


@pytest.mark.parametrize(
    "plan", [PLANS["blocks"], Plan(128, 0, 0, 0)], ids=["small buckets", "one bucket"]
)
def test_memory_of_dropped_entries_is_used_again(plan: Plan) -> None:
    tables = Neighbours(plan, 2, strangers)
    chance = random.Random(5)
    used = []
    for _ in range(12):
        first = tables.entries
        columns = columns_of([chance.getrandbits(128) for _ in range(1500)])
        columns.digests[:, 1] = first + 10
        tables.judge(columns, np.full(1500, FLOOR, np.uint32), FLOOR)
        tables.drop(np.arange(first, tables.entries))
        used.append(tables.bytes_used)

    assert used[0] > 0
    assert used[-1] < 1.5 * used[0]


@pytest.mark.parametrize("plan", ["bands", "blocks"])
def test_tables_are_frozen_one_at_a_time(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step waits for few of them, also when buckets double, and each is frozen as often as if all
    were frozen at once."""
    limit, step, steps = 400, 10, 180
    monkeypatch.setattr(neighbours, "_ACTIVE_MIN", limit)
    monkeypatch.setattr(finder, "_ROOM_BUCKETS", 1 << 12)
    index = Neighbours(PLANS[plan], 2, strangers, sketch_bytes=SKETCH_BYTES)
    tables = index._tables.finder
    columns, frozen = random_columns(step * steps), np.zeros((steps, tables.count), np.bool_)
    for number in range(steps):
        before = tables.active.copy()
        batch = select_rows(columns, slice(step * number, step * number + step))
        index.judge(batch, np.full(step, FLOOR, np.uint32), FLOOR)
        frozen[number] = tables.active < before + step
        assert tables.active.sum() <= (tables.count + 1) * limit / 2

    assert frozen.sum(axis=1).max() <= 1 + tables.count * step // limit
    rounds = frozen.sum(axis=0)
    assert rounds.max() - rounds.min() <= 1
    assert rounds.max() <= steps * step / limit + 1
    assert np.allclose(
        np.sort(tables.active), np.arange(tables.count) * limit / tables.count, atol=limit / 8
    )


@pytest.mark.parametrize(("plan", "tables"), [("bands", 20), ("blocks", 8)])
def test_rebuilding_the_tables_beats_in_the_caller_s_thread(plan: str, tables: int) -> None:
    """Among a hundred million it takes minutes; a role that said nothing meanwhile would be
    restarted, and begin again.

    The same number of times whatever the threads, and from the thread of its caller, who may let
    others run meanwhile.
    """
    beats: list[int] = []
    index = Neighbours(
        PLANS["classic"],
        2,
        strangers,
        threads=2,
        sketch_bytes=SKETCH_BYTES,
        beat=lambda: beats.append(threading.get_ident()),
    )
    index.judge(make_columns(2, 1, ROW_BYTES), np.full(1, FLOOR, np.uint32), FLOOR)
    beats.clear()

    index.change_plan(PLANS[plan])

    assert len(beats) >= tables
    assert set(beats) == {threading.get_ident()}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_rows_that_do_not_fit_in_memory_are_found(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With some or all tables in files, look-ups find what they find in memory; what cannot be held
    is refused."""
    monkeypatch.setattr(budget, "_FIXED_BYTES", 0)
    kept = random_columns(40_000, seed=4)
    asked = select_rows(kept, slice(0, 300))
    asked = asked._replace(
        prints=asked.prints ^ np.uint64(3), digests=asked.digests + np.uint64(1 << 20)
    )
    rows = stored(kept.prints, np.arange(40_000, dtype=np.uint32))._replace(sketches=kept.sketches)
    found, mapped = [], []

    def look_up(memory: int) -> None:
        tables = Neighbours(
            plan, 2, strangers, budget=budget.Budget(memory, tmp_path), sketch_bytes=SKETCH_BYTES
        )
        tables.load([rows], 40_000, 40_000)
        judgements = tables.judge(asked, np.full(300, FLOOR, np.uint32), FLOOR)
        found.append(judgements.entry.tolist())
        mapped.append(tables.bytes_mapped - kept.sketches.nbytes - kept.prints.nbytes)

    look_up(0)
    look_up(60 << 20)
    with pytest.raises(ConfigurationError, match=r"need at least \d+ MiB") as refused:
        look_up(1 << 20)
    least = int(re.findall(r"at least (\d+) MiB", str(refused.value))[0])
    look_up(least + 2 << 20)
    assert found[0][:300] == list(range(300))
    assert found == [found[0]] * len(found)
    assert mapped[:2] == [0, 0]
    assert mapped == sorted(mapped)
    assert mapped[-1] > 0
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """More entries than four bytes can number are refused with a sentence, before anything
    changes."""
    monkeypatch.setattr(neighbours, "ROWS_MAX", 10)
    tables = Neighbours(PLANS["blocks"], 2, strangers)
    tables.judge(columns_of(list(range(0, 1 << 60, 1 << 57))), np.full(8, 0, np.uint32), FLOOR)
    with pytest.raises(ConfigurationError, match=r"has used 8 of 10 row numbers.* new log"):
        tables.judge(columns_of([1, 2, 3]), np.full(3, 0, np.uint32), FLOOR)

    assert tables.entries == 8


@pytest.mark.parametrize("seed", range(20))
def test_a_column_in_a_file_returns_the_rows_written_to_it(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Growing, writing, leaving some out and moving to a file change nothing of what is read."""
    monkeypatch.setattr(budget, "_ROWS_AT_ONCE", 7)
    chance = np.random.default_rng(seed)
    column = budget.Column(np.uint8, SKETCH_BYTES)
    model = np.zeros((0, SKETCH_BYTES), np.uint8)
    for _ in range(12):
        more = chance.integers(0, 256, (int(chance.integers(1, 900)), SKETCH_BYTES), dtype=np.uint8)
        column.reserve(len(model) + len(more) + 11)  # with room that is not taken yet
        column.write(len(model), more)
        model = np.concatenate([model, more])
        kept = chance.random(len(model)) < chance.choice([0.2, 0.9, 1.0])
        column.keep_rows(kept)
        model = model[kept]
        assert np.array_equal(column.read(0, len(model)), model)
        assert column.bytes_in_file + column.array.nbytes == model.nbytes
        assert (column.descriptor >= 0) == (column.bytes_in_file > 0)
        column.move_to_file(tmp_path)
    assert list(tmp_path.iterdir()) == []  # the file has no name: it goes with the process


def test_a_full_disk_is_reported_for_sketches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketches = budget.Column(np.uint8, SKETCH_BYTES, folder=tmp_path)
    sketches.reserve(4)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(
        StoreError, match=r"could not write its table files .*No space left.*Free space"
    ):
        sketches.write(0, np.zeros((4, SKETCH_BYTES), np.uint8))


@pytest.mark.parametrize("lost", ["prints", "features", "sketches", "rows", "known"])
def test_a_file_that_cannot_be_read_is_reported(lost: str, tmp_path: Path) -> None:
    """Whatever of an index lies in files: a search that misses it ends with a sentence, not with
    another answer."""
    documents = random_columns(3_000, seed=5)
    plan = PLANS["blocks" if lost == "features" else "bands"]  # which looks at lengths
    tables = Neighbours(
        plan, 2, strangers, budget=HoldsNoTable(1, tmp_path), sketch_bytes=SKETCH_BYTES
    )
    tables.judge(documents, np.full(3_000, FLOOR, np.uint32), FLOOR)
    finders = {"rows": tables._tables.finder, "known": tables._tag_finder}
    columns = (
        [*finders[lost]._row_files.values()]
        if lost in finders
        else [tables._columns._columns[lost]]
    )
    asked = documents._replace(digests=documents.digests + np.uint64(lost != "known"))
    assert columns
    for column in columns:
        assert os.fstat(column.descriptor).st_size > 0
        os.truncate(column.descriptor, 0)

    with pytest.raises(StoreError, match=r"could not read its table files .*Check the disk"):
        tables.judge(asked, np.full(3_000, FLOOR, np.uint32), FLOOR)
