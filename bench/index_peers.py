"""What `bench index` is held against: other layouts over the same prints, and other programs over texts.

    sorted arrays   as in the paper: a sorted array for each table, found by binary search, scanned with popcounts; what is
                    new lies in an array that is not sorted, and is merged in when it has grown to a sixteenth
    one value a key RocksDB as a map from (table, key) to all prints with that key; read, compared, and written again for
                    every document, with the same options and the same write-ahead log as ours
    texts           gaoya, simhash, datasketch in the peers' own environment: text in, signature, query, insert; nothing is
                    written anywhere. Beside them ours on the same texts, durable

Each runs over as many documents as it can do in a minute or so, and says how many; a rate falls as an index grows, so
a rate over fewer documents flatters its program.

Invariants: the first two get the stream that ours gets, and apply the plan's own predicate; rates are of CPU time, for
one thread each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.peers import Peers
from bench.quality import recipe_of
from bench.stream import WORDS, PrintStream, StreamRecord
from stream_dedup.demo.crawl import endless
from stream_dedup.ground.plan import Plan
from stream_dedup.ground.sketch import SKETCH_BYTES, SKETCH_VALUES, alike
from stream_dedup.index.tables.blocks import Tables, table_count, tables_of
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.local.api import Index

Say = Callable[[str], None]

PROBES_MAX: Final = 800_000
"""So many probes are made by a layout of Python's and numpy's hands; what a plan needs for a document tells how many fit."""

TEXTS: Final = {"gaoya minhash": 3000, "gaoya simhash": 3000, "simhash": 1000, "datasketch": 1500}
TEXT_BYTES: Final = 1000
_TEXT_WORDS: Final = WORDS + SKETCH_BYTES // 8
_OURS: Final = "stream-dedup, texts"
_MERGE_SHARE: Final = 16
_MERGE_MIN: Final = 4096
_WRITE_DOCUMENTS: Final = 1000
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Run:
    """One program's run over `documents`: seconds for all of them, and what it found; `planted` is None where not known."""

    name: str
    documents: int
    cpu_seconds: float
    found: int
    planted: int | None
    durable: bool
    note: str = ""

    @property
    def documents_per_cpu_second(self) -> float:
        """Documents for each second of CPU."""
        return self.documents / max(self.cpu_seconds, 1e-9)

    def as_json(self) -> dict[str, Any]:
        """Return the run by name."""
        return {**asdict(self), "documents_per_cpu_second": self.documents_per_cpu_second}


def run_peers(plan: Plan, documents: int, duplicates: float, seed: int, peers: Peers, folder: Path, say: Say) -> list[Run]:
    """Measure every other layout and program.

    Raises:
        StreamDedupError: a peer failed.
    """
    runs = run_layouts(plan, documents, duplicates, seed, folder, say)
    most = max(TEXTS.values())
    pages = list(endless(seed, most, size_bytes=TEXT_BYTES, duplicate_share=duplicates))
    texts, languages = [page.text for page in pages], [page.language for page in pages]
    say(f"{_OURS}: {most:,} texts of about {TEXT_BYTES} bytes")
    runs.append(_ours(plan, texts, folder / "texts"))
    for method in peers.methods:
        count = TEXTS.get(method.name)
        if count is not None:
            say(f"{method.name}: {count:,} texts")
            pairs, seconds = peers.timed_pairs(method, texts[:count], languages[:count])
            note = f"{method.plan}; texts of about {TEXT_BYTES} bytes; {method.does}"
            runs.append(Run(method.name, count, seconds, len({max(pair) for pair in pairs}), None, durable=False, note=note))
    return runs


def run_layouts(plan: Plan, documents: int, duplicates: float, seed: int, folder: Path, say: Say) -> list[Run]:
    """Measure the other layouts over the stream; they know no bound on who is asked."""
    most = PROBES_MAX // table_count(tables_of(plan))
    count = max(2 * _WRITE_DOCUMENTS, min(documents, most) // _WRITE_DOCUMENTS * _WRITE_DOCUMENTS)
    stream = PrintStream(plan, count, duplicates, plan.distance_guaranteed, seed)
    if plan.blocks == 0:
        return []
    runs = []
    for name, layout, durable in (
        ("sorted arrays, scanned", SortedArrays(plan), False),
        ("RocksDB, one value per key", ValuePerKey(plan, folder / "values"), True),
    ):
        say(f"{name}: {count:,} documents")
        planted = found = 0
        seconds = 0.0
        for record in stream.records():
            started = time.process_time()
            named = layout.judge(record)
            seconds += time.process_time() - started
            planted += int(np.count_nonzero(record.originals >= 0))
            found += int(np.count_nonzero((named == record.originals) & (record.originals >= 0)))
        layout.close()
        runs.append(Run(name, count, seconds, found, planted, durable, "the same prints and sketches as ours"))
    return runs


class SortedArrays:
    """The layout of the 2007 paper in numpy."""

    def __init__(self, plan: Plan) -> None:
        self._reach = _Reach(plan)
        tables = table_count(self._reach.tables)
        self._keys = [np.empty(0, np.int64) for _ in range(tables)]
        self._numbers = [np.empty(0, np.int64) for _ in range(tables)]
        self._prints = np.empty((0, _TEXT_WORDS), np.uint64)
        self._documents = np.empty(0, np.int64)
        self._sorted = 0

    def judge(self, record: StreamRecord) -> NDArray[np.int64]:
        """Return the document that each one duplicates, or -1, and take the new ones in."""
        prints = _texts(record)
        reach, first = self._reach, (record.offset - 1) * len(prints)
        named = np.full(len(prints), -1)
        keys = reach.keys(prints)
        added: list[int] = []
        for place, print_limbs in enumerate(prints):
            best = -1
            for table, key in enumerate(keys[place]):
                begin, end = (np.searchsorted(self._keys[table], key, side=side) for side in ("left", "right"))
                numbers = self._numbers[table][begin:end]
                near = numbers[reach.near(self._prints[numbers], print_limbs)]
                if len(near) and (best < 0 or near[0] < best):
                    best = int(near.min())
            if best < 0:
                tail = self._sorted + np.flatnonzero(reach.near(self._prints[self._sorted :], print_limbs))
                mine = prints[added]
                near = np.flatnonzero(reach.near(mine, print_limbs))
                if len(tail):
                    best = int(tail[0])
                elif len(near):
                    named[place] = first + added[int(near[0])]
                    continue
            if best < 0:
                added.append(place)
            else:
                named[place] = self._documents[best]
        self._prints = np.concatenate([self._prints, prints[added]])
        self._documents = np.concatenate([self._documents, first + np.array(added, np.int64)])
        if len(self._prints) - self._sorted > max(_MERGE_MIN, self._sorted // _MERGE_SHARE):
            self._merge()
        return named

    def close(self) -> None:
        """Nothing is held."""

    def _merge(self) -> None:
        new = np.arange(self._sorted, len(self._prints))
        keys = self._reach.keys(self._prints[self._sorted :])
        for table in range(len(self._keys)):
            both, numbers = np.concatenate([self._keys[table], keys[:, table]]), np.concatenate([self._numbers[table], new])
            order = np.argsort(both, kind="stable")
            self._keys[table], self._numbers[table] = both[order], numbers[order]
        self._sorted = len(self._prints)


class ValuePerKey:
    """RocksDB as a map of lists: the obvious layout."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._reach = _Reach(plan)
        self._store = RocksStore(folder)
        self._row = np.dtype([("document", "<i8"), ("print", "<u8", (_TEXT_WORDS,))])

    def judge(self, record: StreamRecord) -> NDArray[np.int64]:
        """Return the document that each one duplicates, or -1, and write the new ones."""
        prints = _texts(record)
        reach, first = self._reach, (record.offset - 1) * len(prints)
        named = np.full(len(prints), -1)
        keys = reach.keys(prints)
        for place, print_limbs in enumerate(prints):
            names = [self._name(table, key) for table, key in enumerate(keys[place].tolist())]
            values = self._store.get_many(names)
            best = -1
            for value in values:
                if value is not None:
                    rows = np.frombuffer(value, self._row)
                    near = rows["document"][reach.near(rows["print"], print_limbs)]
                    if len(near) and (best < 0 or near[0] < best):
                        best = int(near[0])
            named[place] = best
            if best >= 0:
                continue
            row = np.zeros(1, self._row)
            row["document"], row["print"] = first + place, print_limbs
            self._store.write({name: (rows or b"") + row.tobytes() for name, rows in zip(names, values, strict=True)}, [])
        return named

    def close(self) -> None:
        """Close the volume."""
        self._store.close()

    def _name(self, table: int, key: int) -> bytes:
        return bytes((table,)) + key.to_bytes(8, "big", signed=True)


def _texts(record: StreamRecord) -> NDArray[np.uint64]:
    """Return the prints of a record with their sketches behind them, as limbs (n, 12)."""
    return np.concatenate([record.prints, record.sketches.view(np.uint64)], 1)


class _Reach:
    """The plan's keys and predicate for arrays of `_texts`, in numpy; lengths do not matter here, all are equal."""

    def __init__(self, plan: Plan) -> None:
        self.tables: Tables = tables_of(plan)
        self._plan = plan

    def keys(self, prints: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the keys (n, T): of the print hashed, of the sketch its values."""
        tables = self.tables
        keys = np.zeros((len(prints), len(tables.masks)), np.uint64)
        for table, mask in enumerate(tables.masks):
            for limb, bits in enumerate(mask):
                keys[:, table] = (keys[:, table] ^ (prints[:, limb] & bits)) * _ODD
                keys[:, table] ^= keys[:, table] >> np.uint64(32)
        bands = np.zeros((len(prints), tables.bands), np.int64)
        first = _sketches(prints)[:, :SKETCH_VALUES].reshape(len(prints), max(1, tables.bands), -1)
        for value in first.transpose(2, 0, 1) if tables.bands else ():
            bands = bands * 257 + value
        return np.concatenate([keys.view(np.int64), bands], 1)

    def near(self, prints: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which texts (n, W) are within reach of another (W,)."""
        whole, plan = self.tables.whole, self._plan
        masks = self.tables.keys if len(self.tables.keys) else self.tables.masks
        differing = (prints[:, : len(whole)] ^ wanted[: len(whole)]) & whole
        near: NDArray[np.bool_] = np.bitwise_count(differing).sum(axis=1) <= plan.threshold
        for row in np.flatnonzero(near).tolist():
            one, other = _sketches(prints[row]), _sketches(wanted)
            equal = (one[:SKETCH_VALUES] == other[:SKETCH_VALUES]).reshape(max(1, plan.bands), -1)
            is_found = bool(np.bitwise_count(differing[row] & masks).sum(axis=1).min() <= plan.radius)
            is_found |= bool(plan.bands and equal.all(axis=1).any())
            near[row] = is_found and alike(one.tobytes(), other.tobytes()) >= plan.alike_min
        return near


def _sketches(texts: NDArray[np.uint64]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(texts[..., WORDS:]).view(np.uint8)


def _ours(plan: Plan, texts: Sequence[str], folder: Path) -> Run:
    recipe = recipe_of("words")
    with Index(folder, recipe=recipe, plan=plan) as index:
        index.add("warm", texts[0])
        started = time.process_time()
        answers = index.add_many((str(number), text) for number, text in enumerate(texts[1:]))
        seconds = time.process_time() - started
    found = sum(answer.is_duplicate for answer in answers)
    note = f"{plan.name}, recipe words; texts of about {TEXT_BYTES} bytes"
    return Run(_OURS, len(texts) - 1, seconds, found, None, durable=True, note=note)
