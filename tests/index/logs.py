"""Log records for tests: single documents in words, and random logs with everything that can happen
to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stream_dedup.domain.document import Mode
from stream_dedup.domain.errors import FormatError
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.sketch import SKETCH_BYTES, SKETCH_VALUES
from stream_dedup.index.storage import layout
from stream_dedup.log import answers
from stream_dedup.log.answers import LogAnswer
from stream_dedup.log.records import (
    Batch,
    Control,
    Release,
    Seed,
    Source,
    decode,
    encode_batch,
    encode_control,
    encode_release,
    encode_seed,
)
from stream_dedup.log.schema import Judgement

RECIPE = "words:128:test:000000"
TOPIC = "documents"
RULES = ("longest", "newest")
TOPIC_ID = bytes(range(16))
FLOOR = 3
APPEND_MS = 1_790_000_000_000


def read(raw: bytes | None) -> Batch | Control | Seed | Release | None:
    """Return the decoded log record, or None if it cannot be read."""
    try:
        return decode(raw)
    except FormatError:
        return None


def append_time(offset: int) -> int:
    """When the record at an offset was appended: some 40 ms after the one before, never in order,
    and now and then late."""
    return APPEND_MS + 40 * offset + offset * 7919 % 97 + (5000 if offset % 50 == 49 else 0)


def number(log: Sequence[bytes | None]) -> list[tuple[int, int, bytes | None]]:
    """Return (log offset, append time, record) of a whole log."""
    return [(offset, append_time(offset), value) for offset, value in enumerate(log)]


def read_judgements(raw: bytes) -> Sequence[Judgement]:
    """Return the judgements of an answer."""
    answer = answers.decode(raw)
    assert isinstance(answer, LogAnswer), answer
    return answer.judgements


@dataclass(frozen=True)
class Doc:
    """One document of a batch; `print` is a number."""

    partition: int
    offset: int
    value: int
    digest: bytes
    print: int
    features: int = 100
    scope: int = 0
    id: bytes = b""
    time_ms: int = APPEND_MS - 5_000
    sketch: bytes = b""
    site: int = 0
    title: int = 0


def declare(plan: Plan, **fields: Any) -> bytes:
    return control(
        "declare",
        **{
            "recipe": RECIPE,
            "plan": plan.to_fields(),
            "group": "test",
            "floor": FLOOR,
            "mode": 0,
            **fields,
        },
    )


def control(kind: str, **fields: Any) -> bytes:
    return encode_control(Control(kind, fields))


def retract(*docs: Doc) -> bytes:
    positions = [[doc.partition, doc.offset, doc.value] for doc in docs]
    return control("retract", topic=TOPIC, topic_id=TOPIC_ID.hex(), positions=positions)


def forget(*ids: bytes) -> bytes:
    return control("forget", ids=[identifier.hex() for identifier in ids])


def seed(docs: Sequence[Doc], **more: Any) -> bytes:
    return encode_seed(batch_of(docs, None, **more))


def release(doc: Doc, unique_from: int = 0, **more: Any) -> bytes:
    return encode_release(Release(batch_of([doc], None, **more), unique_from))


def batch(
    docs: Sequence[Doc], watermarks: dict[int, tuple[int, int]] | None = None, **more: Any
) -> bytes:
    """Return a batch record; `watermarks` are (epoch, committed) by partition, (0, 0) where none is
    given."""
    return encode_batch(batch_of(docs, watermarks, **more))


def batch_of(
    docs: Sequence[Doc],
    watermarks: dict[int, tuple[int, int]] | None = None,
    *,
    number: int = 1,
    limbs: int = 2,
    recipe: str = RECIPE,
    mode: Mode = Mode.ENFORCE,
    topic: str = TOPIC,
) -> Batch:
    partitions = sorted({doc.partition for doc in docs} | set(watermarks or ()))
    sources = tuple(
        Source(topic, TOPIC_ID, partition, *(watermarks or {}).get(partition, (0, 0)))
        for partition in partitions
    )
    values = max((len(doc.sketch) for doc in docs), default=0)
    sketches = np.array(
        [[*doc.sketch, *bytes(values - len(doc.sketch))] for doc in docs], np.uint8
    ).reshape(len(docs), values)
    return Batch(
        recipe=recipe,
        mode=mode,
        nonce=number.to_bytes(16, "big"),
        number=number,
        sources=sources,
        source=np.array([partitions.index(doc.partition) for doc in docs], np.uint16),
        offset=np.array([doc.offset for doc in docs], np.int64),
        value_digest=np.array([doc.value for doc in docs], np.uint64),
        text_digest=np.array([list(doc.digest) for doc in docs], np.uint8),
        prints=np.array(
            [[(doc.print >> (64 * limb)) & (2**64 - 1) for limb in range(limbs)] for doc in docs],
            np.uint64,
        ),
        sketches=sketches,
        features=np.array([doc.features for doc in docs], np.uint32),
        scope=np.array([doc.scope for doc in docs], np.uint64),
        site=np.array([doc.site for doc in docs], np.uint64),
        title=np.array([doc.title for doc in docs], np.uint64),
        time_ms=np.array([doc.time_ms for doc in docs], np.int64),
        ids=tuple(doc.id for doc in docs),
    )


def random_sketch(chance: random.Random) -> bytes:
    """Return a sketch some values from one that is all zero: spread at random, or so that few
    blocks are equal."""
    values = bytearray(SKETCH_VALUES)
    for position in chance.sample(range(SKETCH_VALUES), chance.choice([0, 8, 24, 28, 32, 70])):
        values[position] = chance.randrange(3)
    for first in range(0, SKETCH_VALUES, 5):
        if chance.random() < 0.4:
            values[first] = chance.randrange(256)
    judging = bytearray(SKETCH_BYTES - SKETCH_VALUES)
    for position in chance.sample(range(len(judging)), chance.choice([0, 4, 12, 20, 35])):
        judging[position] = chance.randrange(64)
    return bytes(values + judging)


@dataclass
class _Partition:
    documents: list[Doc] = field(default_factory=list)
    epoch: int = 0
    committed: int = 0
    next: int = 0


class RandomLog:
    """A seeded log as workers with faults and operators would write it: redelivery, rewinds,
    zombies, retractions, seeds, releases, take-downs, and nonsense; with `plan_changes` and
    `windows` these change on the way too. Without `orders` no operator seeds, releases or takes
    down, rightly or wrongly: builds that knew of no such records refuse each.
    """

    def __init__(
        self,
        seed: int,
        plan: Plan,
        *,
        plan_changes: bool = False,
        windows: bool = False,
        orders: bool = True,
    ) -> None:
        self._random = random.Random(seed)
        self._plan = plan
        self._plan_changes = plan_changes
        self._windows = windows
        self._orders = orders
        self._bases = [self._random.getrandbits(128) for _ in range(4)]
        self._has_sketches = plan.needs_sketch or seed % 3 == 0
        self._partitions = [_Partition() for _ in range(3)]
        self._better = self._random.choice(RULES)
        self._counts = self._random.random() < 0.7
        self._sent: list[tuple[list[Doc], dict[int, tuple[int, int]]]] = []

    def records(self, count: int) -> list[bytes | None]:
        """Return the first `count` records; the first declares the plan."""
        window = (
            {"window": {"length_ms": 1500, "refresh": self._random.random() < 0.5}}
            if self._windows
            else {}
        )
        counts = {"count_copies": True} if self._counts else {}
        return [
            declare(self._plan, better=self._better, **counts, **window),
            *(self._record() for _ in range(count - 1)),
        ]

    def _record(self) -> bytes | None:
        kind = self._random.random()
        if kind < (0.66 if self._orders else 0.72):
            return self._batch()
        if kind < 0.72:
            return self._order()
        if kind < 0.78 and self._sent:
            docs, watermarks = self._random.choice(
                self._sent
            )  # a zombie's append, or one whose acknowledgement was lost
            return batch(docs, watermarks)
        if kind < 0.86:
            return self._retraction()
        if kind < 0.90:
            partition = self._random.choice(
                self._partitions
            )  # a rewind: the group is empty, the epoch rises
            partition.epoch += 1
            partition.committed = partition.next = self._random.randint(0, partition.committed)
            return control("plan")
        return self._nonsense()

    def _batch(self) -> bytes:
        docs: list[Doc] = []
        watermarks = {}
        for number in self._random.sample(range(3), self._random.choice([1, 1, 2, 3])):
            partition = self._partitions[number]
            fate = self._random.random()
            if fate < 0.5:
                partition.committed = self._random.randint(
                    partition.committed, max(partition.committed, partition.next)
                )
            if fate > 0.8:
                partition.next = partition.committed
            for _ in range(self._random.randint(0, 6)):
                if partition.next == len(partition.documents):
                    partition.documents.append(self._document(number, partition.next))
                docs.append(partition.documents[partition.next])
                partition.next += 1
            watermarks[number] = (partition.epoch, partition.committed)
        if not docs:
            docs.append(self._document(0, 10_000 + self._random.randrange(1000)))
        if self._random.random() < 0.1:
            docs.append(self._random.choice(docs))
        self._sent.append((docs, watermarks))
        return batch(docs, watermarks, number=len(self._sent))

    def _document(self, partition: int, offset: int) -> Doc:
        chance = self._random
        base = chance.choice(self._bases)
        low = chance.randrange(100)
        bits = range(low, low + 28) if chance.random() < 0.4 else range(self._plan.width)
        print_bits = base
        for bit in chance.sample(
            bits, chance.choice([0, 1, 2, 3, 4, 7, 12, 15, 16, 17, 18, 19, 20, 22])
        ):
            print_bits ^= 1 << bit
        known = [doc for part in self._partitions for doc in part.documents]
        digest = (
            chance.choice(known).digest
            if known and chance.random() < 0.15
            else chance.randbytes(16)
        )
        doc = Doc(
            partition,
            offset,
            chance.getrandbits(64),
            digest,
            print_bits,
            features=chance.choice([0, 2, 3, 9, 50, 50, 60]),
            scope=chance.choice([0, 0, 0, 0, 7, 2**64 - 1]),
            site=chance.choice([0, 5, 5, 5, 6, 2**64 - 1]),
            title=chance.choice([0, 8, 8, 9, 2**64 - 1]),
            id=chance.choice([b"", b"a", b"b", b"c" * 512]),
            time_ms=chance.choice([-1, 0, APPEND_MS + offset]),
            sketch=random_sketch(chance) if self._has_sketches else b"",
        )
        for base_number in range(4):  # what is near wanders, so that there are chains
            if chance.random() < 0.05:
                self._bases[base_number] = print_bits
        return doc

    def _retraction(self) -> bytes:
        known = [doc for partition in self._partitions for doc in partition.documents]
        if not known:
            return control("retract", topic=TOPIC)
        docs = self._random.choices(known, k=self._random.choice([1, 1, 1, 2, 4]))
        if self._random.random() < 0.1:
            docs[0] = Doc(
                docs[0].partition, docs[0].offset, docs[0].value ^ 1, docs[0].digest, docs[0].print
            )
        return retract(*docs)

    def _order(self) -> bytes:
        """Return what an operator wrote: a take-down, seeds, or a release; of documents that are
        known, or not."""
        chance = self._random
        known = [doc for partition in self._partitions for doc in partition.documents]
        kind = chance.random()
        if kind < 0.2:
            return forget(
                *chance.sample([b"a", b"b", b"c" * 512, b"never seen"], chance.choice([1, 1, 2]))
            )
        if kind < 0.6 and known:
            return release(chance.choice(known), chance.randrange(100))
        docs = [
            self._document(chance.randrange(2), chance.randrange(30))
            for _ in range(chance.randint(1, 4))
        ]
        if known and chance.random() < 0.3:
            docs.append(chance.choice(known))
        return seed(
            docs, topic=chance.choice(["elsewhere", "seed:pages.jsonl", "elsewhere", TOPIC])
        )

    def _window(self) -> bytes:
        length = self._random.choice([1000, 1000, 1600, 2400, 4000])
        window = (
            {"length_ms": length, "refresh": self._random.random() < 0.5}
            if self._random.random() < 0.8
            else None
        )
        plan = {"plan": self._plan.to_fields()} if self._random.random() < 0.2 else {}
        return control("plan", window=window, **plan)

    def _nonsense(self) -> bytes | None:
        doc = self._document(1, 5)
        if self._windows and self._random.random() < 0.4:
            return self._window()
        if self._plan_changes and self._random.random() < 0.3:
            return control("plan", better=self._random.choice([*RULES, "shortest", 7]))
        if self._plan_changes and self._random.random() < 0.5:
            threshold = self._random.randrange(25)
            plan = (
                Plan(128, 8, self._random.randrange(3), threshold)
                if threshold % 2
                else Plan(64, 4, 0, min(threshold, 9))
            )
            if threshold % 3 == 0:
                plan = Plan(
                    128,
                    4,
                    0,
                    threshold,
                    bands=16,
                    similarity=self._random.choice([0, 50]),
                    asked=threshold % 4,
                )
            return control("plan", plan=plan.to_fields())
        orders = [seed([doc], recipe="another"), release(doc, mode=Mode.SHADOW), seed([doc])[:-1]]
        return self._random.choice(
            [
                *(orders if self._orders else []),
                None,
                b"",
                batch([doc])[:-1],
                batch([doc], recipe="another"),
                batch([doc], mode=Mode.SHADOW),
                batch([doc], limbs=1),
                batch([doc], {1: (3, 1 << 63)}),
                batch([Doc(1, -1, 0, bytes(16), 0)]),
                declare(self._plan),
                declare(self._plan, group="another"),
                control("forget"),
                control("forget", ids=["78", "x"]),
                control("plan"),
                control("plan", window={"length_ms": 1, "refresh": False}),
                control("plan", plan=self._plan.to_fields(), window=7),
                control("plan", plan={"width": 1024}),
                control("retract", topic=TOPIC, topic_id="zz", positions=[[0, 0, 0]]),
            ]
        )


def bytes_in_page(value: bytes, row: int, field: str, limbs: int = 2) -> range:
    """Return where a page's value holds a field of one of its rows."""
    count = int.from_bytes(value[:2], "little")
    kind, before, *_ = (layout.row_type(limbs).fields or {})[field]
    first = 2 + before * count + row * kind.itemsize
    return range(first, first + kind.itemsize)
