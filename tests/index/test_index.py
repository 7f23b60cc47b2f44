"""The whole index: its answers are a function of the log alone, and equal those of a plain scan."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stream_dedup.domain.document import Mode, Reason
from stream_dedup.domain.errors import (
    ConfigurationError,
    InvariantError,
    OtherFormatError,
    StoreError,
)
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.log import answers
from stream_dedup.log.answers import CHAIN_START, LogAnswer, Rejected
from stream_dedup.log.record_frame import framed
from stream_dedup.log.records import MAGIC
from tests.index.logs import (
    RECIPE,
    TOPIC,
    TOPIC_ID,
    Doc,
    RandomLog,
    batch,
    control,
    declare,
    number,
    retract,
)
from tests.tiers import few

FRESH_SEED = int(os.environ["TEST_SEED"])  # set in tests/conftest.py
SEEDS = [*range(6), FRESH_SEED]
BLOCKS = PLANS["blocks"]
NOBODY = b"text of nobody.."
Opener = Callable[[], Store]


def fold(log: Sequence[bytes | None]) -> tuple[list[tuple[int, bytes]], bytes]:
    index = LogIndex(MemoryStore())
    return index.apply(number(log)), index.chain


def test_random_logs_contain_every_reason() -> None:
    """What the index is compared with a plain scan on (`test_window`) includes all that an index
    can answer."""
    given = [
        answers.decode(raw)
        for seed in range(8)
        for _, raw in fold(RandomLog(seed, BLOCKS).records(160))[0]
    ]
    seen = {
        judgement.reason
        for answer in given
        if isinstance(answer, LogAnswer)
        for judgement in answer.judgements
    }

    assert (
        set(Reason)
        - {Reason.EMPTY, Reason.TOMBSTONE, Reason.BYPASS, Reason.FAIL_OPEN, Reason.RELEASED}
        == seen
    )


@pytest.mark.parametrize("seed", few(SEEDS))
def test_grouping_and_restarts_change_nothing(seed: int, opener: Opener) -> None:
    """However the log is cut into calls, and wherever the volume is opened again, answers and chain
    are the same bytes."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    log = RandomLog(seed, PLANS[chance.choice(["blocks", "classic"])], plan_changes=True).records(
        120
    )
    expected, chain = fold(log)
    given: list[tuple[int, bytes]] = []
    records = number(log)
    index = LogIndex(opener())
    while index.applied < len(log):
        given += index.apply(
            records[index.applied : index.applied + chance.choice([1, 1, 2, 5, 40])]
        )
        if chance.random() < 0.3:
            index.close()
            index = LogIndex(opener())
        if chance.random() < 0.3:
            index.mark_delivered(chance.randint(0, index.applied))

    assert expected == given
    assert chain == index.chain
    assert [answer for answer in expected if answer[0] >= index.answered_offset] == list(
        index.answers_since(0)
    )
    index.close()


class Breaking(MemoryStore):
    """A store that fails at some writes, before or after they take effect, as when killed."""

    def __init__(self, volume: dict[bytes, bytes], chance: random.Random) -> None:
        super().__init__(volume)
        self._chance = chance

    def write(self, *given: Any) -> None:
        when = self._chance.choice([None, None, "before", "after"])
        if when != "before":
            super().write(*given)
        if when is not None:
            raise StoreError("The disk is full.")


@pytest.mark.parametrize("seed", few(SEEDS))
def test_a_failed_write_changes_nothing_after_a_restart(seed: int) -> None:
    """A write that fails, before or after it took effect, ends the index; opened again it goes on
    to the same answers."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    log = RandomLog(seed, BLOCKS).records(120)
    expected, chain = fold(log)
    volume: dict[bytes, bytes] = {}
    records = number(log)
    failures = 0
    index = LogIndex(Breaking(volume, chance))
    while index.applied < len(log):
        try:
            index.apply(records[index.applied : index.applied + chance.choice([1, 3, 10])])
        except StoreError:
            failures += 1
            with pytest.raises(StoreError, match="The index has stopped"):
                index.apply([])
            with pytest.raises(StoreError, match="The index has stopped"):
                index.similar([0, 0], NOBODY, 100)
            index = LogIndex(Breaking(volume, chance))

    assert failures > 3
    assert chain == index.chain
    assert expected == list(index.answers_since(0))


def test_answers_are_kept_until_their_delivery_is_confirmed(opener: Opener) -> None:
    """Stored answers are those given out; confirmed ones are gone, for good once anything was
    written."""
    index = LogIndex(opener())
    given = index.apply(
        number(
            [
                declare(BLOCKS),
                *(batch([Doc(0, n, n, bytes([n] * 16), 1 << 9 * n)]) for n in range(6)),
            ]
        )
    )

    assert given == list(index.answers_since(0))
    assert given[2:] == list(index.answers_since(3))

    index.mark_delivered(4)
    index.flush()
    index.close()
    index = LogIndex(opener())

    assert index.answered_offset == 4
    assert given[3:] == list(index.answers_since(0))

    index.mark_delivered(2)

    assert index.answered_offset == 4
    index.close()


def test_answers_below_the_confirmed_offset_are_not_stored() -> None:
    """A rebuilt replica that answers from log offset 3 on stores nothing below, and gives out the
    same bytes."""
    log = [declare(BLOCKS), *(batch([Doc(0, n, n, bytes([n] * 16), 1 << 9 * n)]) for n in range(4))]
    expected, _ = fold(log)
    index = LogIndex(MemoryStore())
    index.mark_delivered(3)
    given = index.apply(number(log))

    assert expected == given
    assert expected[2:] == list(index.answers_since(0))


def test_records_must_follow_the_last_applied_offset() -> None:
    """A gap, a repetition and a start in mid-log are broken invariants, and leave the index as it
    was."""
    log = number(
        [declare(BLOCKS), batch([Doc(0, 0, 0, bytes(16), 0)]), batch([Doc(0, 1, 1, bytes(16), 0)])]
    )
    index = LogIndex(MemoryStore())
    with pytest.raises(InvariantError, match="offset 0 is missing before 1"):
        index.apply(log[1:])
    index.apply(log[:2])
    with pytest.raises(InvariantError, match="received log offset"):
        index.apply(log[1:])
    with pytest.raises(InvariantError, match="offset 3 is missing before 7"):
        index.apply([log[2], (7, 0, None)])

    assert index.applied == 2
    assert len(index.apply(log[2:])) == 1


def test_a_record_of_a_newer_format_stops_the_index_after_earlier_records() -> None:
    """Records before one of a newer version are applied and their answers stored; the newer one is
    never passed."""
    log = number(
        [declare(BLOCKS), batch([Doc(0, 0, 0, bytes(16), 0)]), framed(MAGIC, 9, 1, b"?"), None]
    )
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    for _ in range(2):
        with pytest.raises(OtherFormatError, match="upgrade"):
            index.apply(log[index.applied :])

    assert index.applied == 2
    assert LogIndex(MemoryStore(volume)).applied == 2
    assert [offset for offset, _ in LogIndex(MemoryStore(volume)).answers_since(0)] == [1]


FIRST = Doc(0, 0, 0, bytes(16), 0)


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ([batch([FIRST])], "must begin with the declaration"),
        ([declare(BLOCKS), batch([FIRST], recipe="words:128:other")], "'words:128:other'"),
        ([declare(BLOCKS), batch([FIRST], mode=Mode.SHADOW)], "another STREAM_DEDUP_TOPIC_PREFIX"),
        ([declare(PLANS["classic"], mode=2), batch([FIRST])], "the log declares 'shadow'"),
        ([declare(BLOCKS), batch([FIRST], limbs=1)], "64 bits, but the plan blocks compares 128"),
        ([declare(BLOCKS, width=128), batch([FIRST], limbs=4)], "recipe have 128"),
        (
            [declare(BLOCKS), batch([FIRST]), batch([Doc(0, 1, 0, bytes(16), 0)], limbs=3)],
            "have 128",
        ),
        ([declare(BLOCKS), batch([Doc(0, -4, 0, bytes(16), 0)])], "no Kafka partition"),
        (
            [declare(BLOCKS), batch([Doc(0, 4, 0, bytes(16), 0)], {0: (0, 1 << 63)})],
            "no Kafka partition",
        ),
        (
            [control("declare", recipe=RECIPE, group="g", floor=1, plan=None), batch([FIRST])],
            "must begin with the declaration",
        ),
        ([declare(BLOCKS, width=64), batch([FIRST])], "must begin with the declaration"),
        ([declare(BLOCKS), b"rubbish"], "too short to be a record"),
    ],
)
def test_a_record_that_cannot_be_judged_is_rejected_with_a_reason(
    log: list[bytes], why: str
) -> None:
    """A batch that breaks a rule gets a sentence instead of verdicts, and leaves nothing behind."""
    given, _ = fold(log)
    rejected = answers.decode(given[-1][1])

    assert isinstance(rejected, Rejected)
    assert why in rejected.why

    index = LogIndex(MemoryStore())
    index.apply(number(log))

    assert index.statistics()["rejected"] == 1
    assert len(given) - 1 == index.statistics()["entries"]


def escaped(kind: str, **fields: Any) -> bytes:
    """Return a control record with whatever JSON can escape, lone surrogates too."""
    return framed(MAGIC, 1, 2, json.dumps({"type": kind, **fields}).encode("ascii"))


HOSTILE = [
    escaped("declare", recipe="\ud800", plan=BLOCKS.to_fields(), group="g", floor=1),
    escaped("declare", recipe=7, plan=[], group=None, floor=-1),
    escaped("declare", recipe="r" * 300, plan=BLOCKS.to_fields(), group="g", floor=10**30),
    escaped(
        "declare", recipe=RECIPE, plan={**BLOCKS.to_fields(), "radius": True}, group="g", floor=1
    ),
    escaped(
        "declare", recipe=RECIPE, plan={**BLOCKS.to_fields(), "radius": 1.0}, group="g", floor=1
    ),
    escaped(
        "declare",
        recipe=RECIPE,
        plan={"width": 64, "blocks": 1, "radius": 3, "threshold": 64},
        group="g",
        floor="3",
    ),
    escaped("plan", plan={"width": 10**40, "blocks": 0, "radius": 0, "threshold": 0}),
    escaped("plan", plan={"width": 256, "blocks": 8, "radius": 0, "threshold": 0}),
    escaped("plan", plan=None),
    escaped("plan"),
    escaped("retract"),
    escaped("retract", topic={}, topic_id=[], positions=[["0", None, 1.5]]),
    escaped("retract", topic=TOPIC, topic_id="00", positions=[[0, 0, 0]]),
    escaped("retract", topic="\udcff", topic_id=TOPIC_ID.hex(), positions=[[0, 0, 1 << 64]]),
    *(
        escaped("retract", topic=TOPIC, topic_id=TOPIC_ID.hex(), positions=bad)
        for bad in (
            [[-1, 0, 0]],
            [[0, 1 << 70, 0]],
            [[0, 0, True]],
            [[0] * 3, [0] * 2],
            [],
            [[0] * 3] * 1001,
            {"0": [0] * 3},
        )
    ),
    framed(MAGIC, 1, 2, b'{"type":"plan","plan":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    framed(MAGIC, 1, 2, b'{"type":"retract","positions":' + b"9" * 5000 + b"}"),
    framed(MAGIC, 1, 2, b'{"type":["declare"]}'),
    framed(MAGIC, 1, 2, b"\xff\xfe"),
    framed(MAGIC, 1, 1, b""),
    framed(answers.MAGIC, 1, 1, b""),
    bytes(100_000),
    batch(
        [
            Doc(
                2**32 - 1,
                2**63 - 1,
                2**64 - 1,
                b"\xff" * 16,
                2**128 - 1,
                2**32 - 1,
                2**64 - 1,
                b"\xff" * 512,
                -(2**63),
            )
        ]
    ),
    batch([Doc(0, 0, 0, bytes(16), 0)], {0: (2**64 - 1, 2**63 - 1), 7: (2**64 - 1, 0)}),
]


@pytest.mark.parametrize("record", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "undeclared"])
def test_no_record_can_stop_the_index(record: bytes, declared: bool) -> None:
    """Whatever a record holds, the index goes on to the next one, and its volume can be opened
    again."""
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    other = batch([Doc(5, 0, 0, bytes(16), 0)])
    log = [declare(BLOCKS, width=128)] * declared + [record, record, declare(BLOCKS), other, record]
    given = index.apply(number(log))
    index.close()

    assert len(log) == LogIndex(MemoryStore(volume)).applied
    assert given == list(LogIndex(MemoryStore(volume)).answers_since(0))
    assert isinstance(answers.decode(dict(given)[len(log) - 2]), LogAnswer)


def test_ignored_control_records_are_counted() -> None:
    """A type of another topic, a second and different declaration, and an impossible plan change
    nothing but a count."""
    index = LogIndex(MemoryStore())
    index.apply(
        number(
            [
                declare(BLOCKS),
                declare(BLOCKS),
                declare(BLOCKS, group="b"),
                control("opened"),
                control("plan", plan={}),
            ]
        )
    )
    declared = index.declared

    assert index.statistics()["ignored_control_records"] == 3
    assert declared is not None
    assert (declared.group, declared.plan, declared.floor) == ("test", BLOCKS, 3)
    assert index.chain == CHAIN_START


def test_neighbours_are_listed_nearest_first_in_their_scope(opener: Opener) -> None:
    """A look-up gives every live representative within reach with its details; short, far and
    foreign ones stay out."""
    docs = [
        Doc(0, 0, 10, b"a" * 16, 0b111, id=b"first"),
        Doc(0, 1, 11, b"b" * 16, (1 << 40) - 1, id=b"far"),
        Doc(0, 2, 12, b"c" * 16, ((1 << 17) - 1) << 3, id=b"second", features=90),
        Doc(0, 3, 13, b"d" * 16, 0b1, scope=5),
        Doc(0, 4, 14, b"e" * 16, 0b1, features=1),
        Doc(1, 7, 15, b"f" * 16, 1 << 60, id=b"third"),
    ]
    index = LogIndex(opener())
    index.apply(
        number([declare(PLANS["classic"]), batch(docs), control("plan", plan=BLOCKS.to_fields())])
    )
    index.close()
    index = LogIndex(opener())
    found = index.similar([0, 0], NOBODY, 100).found

    assert [(distance, entry.id) for distance, entry in found] == [
        (1, b"third"),
        (3, b"first"),
        (17, b"second"),
    ]
    entry = found[2][1]
    assert ("documents-0@2", "1/2", 90, docs[2].print) == (
        str(entry.position),
        str(entry.decided),
        entry.features,
        entry.print,
    )
    assert [distance for distance, _ in index.similar([0, 0], NOBODY, 100, scope=5).found] == [1]
    with pytest.raises(
        ConfigurationError, match="fingerprints of 128 bits, but the request has one of 64"
    ):
        index.similar([0], NOBODY, 100)
    index.close()


def test_look_ups_from_another_thread_see_whole_states() -> None:
    """While one thread applies, another one's look-ups never fail and only ever find more."""
    index = LogIndex(MemoryStore())
    index.apply(number([declare(PLANS["classic"])]))
    counts: list[int] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def look() -> None:
        try:
            while not stop.is_set():
                counts.append(index.similar([0, 0], NOBODY, 100).total)
                index.statistics()
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append(error)

    thread = threading.Thread(target=look)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for offset in range(1, 22):  # each 3 bits from zero, and any two 6 bits apart
            docs = [Doc(0, offset, 0, offset.to_bytes(16, "big"), 0b111 << 3 * (offset - 1))]
            docs += [
                Doc(1, n, offset, bytes(15) + bytes([n]), (1 << 64) - 1 - n, scope=offset)
                for n in range(100)
            ]
            index.apply([(offset, 0, batch(docs))])
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)

    assert failures == []
    assert counts == sorted(counts)
    assert index.similar([0, 0], NOBODY, 100).total == 21


def test_a_volume_follows_one_log(opener: Opener) -> None:
    """A volume bound to one log refuses another with a sentence, also after it was opened again."""
    index = LogIndex(opener())
    index.bind("cluster/topic-1")
    index.apply(number([declare(BLOCKS)]))
    index.close()
    index = LogIndex(opener())
    index.bind("cluster/topic-1")
    with pytest.raises(
        ConfigurationError,
        match="belongs to the log 'cluster/topic-1', but the log of this cluster is 'cluster/topic-2'",
    ):
        index.bind("cluster/topic-2")
    index.close()
    other = LogIndex(MemoryStore())
    other.apply(number([declare(BLOCKS)]))
    with pytest.raises(InvariantError, match="bind"):
        other.bind("cluster/topic-1")


def test_a_page_lost_while_running_stops_the_index() -> None:
    """A duplicate whose representative can no longer be read is not answered; the index stops."""
    volume: dict[bytes, bytes] = {}
    docs = [
        Doc(0, n, n, n.to_bytes(16, "big"), random.Random(n).getrandbits(128)) for n in range(200)
    ]
    index = LogIndex(MemoryStore(volume))
    index.apply(number([declare(BLOCKS), batch(docs)]))
    del volume[b"e" + bytes(8)]
    with pytest.raises(StoreError, match="does not contain a page"):
        index.apply([(2, 0, batch([Doc(0, 900, 0, docs[3].digest, 0)]))])
    with pytest.raises(StoreError, match="The index has stopped"):
        index.apply([])


def test_statistics_add_up(opener: Opener) -> None:
    docs = [
        Doc(0, n, n, n.to_bytes(16, "big"), random.Random(n).getrandbits(128), 50 if n % 4 else 1)
        for n in range(100)
    ]
    index = LogIndex(opener())
    index.apply(
        number(
            [
                declare(BLOCKS),
                batch(docs, {0: (0, 10)}),
                retract(docs[21]),
                retract(docs[24]),
                retract(docs[99]),
            ]
        )
    )
    figures = index.statistics()

    assert figures["entries"] == 90
    assert (
        figures["representatives_full"],
        figures["representatives_digest_only"],
        figures["removed"],
    ) == (66, 21, 3)
    assert (
        figures["kept_verdicts"],
        figures["applied"],
        figures["answered"],
        figures["unanswered"],
    ) == (90, 5, 0, 1)
    assert figures["hottest_bucket"] >= 1
    assert figures["bytes_on_disk"] > 90 * 100
    assert figures["bytes_in_memory"] > 90 * 60
    index.close()
    index = LogIndex(opener())
    reopened = index.statistics()
    for name in (
        "entries",
        "representatives_full",
        "representatives_digest_only",
        "removed",
        "kept_verdicts",
        "applied",
    ):
        assert figures[name] == reopened[name], name
    index.close()
