"""The topic `decisions` as an index has it: what is found in it, in any order, and what is said
where it cannot be used."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import BrokerError
from stream_dedup.ground.plan import parse
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.indexer import decisions as topic
from stream_dedup.indexer.decisions import CatchUpPace, DecisionReader, DecisionTopic
from stream_dedup.indexer.dependencies import IndexerDependencies
from stream_dedup.log import decisions
from stream_dedup.settings.settings import Settings
from tests.index.test_decisions import decided, random_log
from tests.log.test_answers import DECISION

PLAN = parse("64:4:0:3")


def on(log_offset: int) -> bytes:
    return decisions.encode(replace(DECISION, log_offset=log_offset))


class Reader:
    """A topic of one partition that brings some records at a time, and sometimes none."""

    def __init__(self, values: Sequence[bytes], chance: random.Random) -> None:
        self.values = values
        self._chance = chance
        self._at = 0

    def watermarks(self) -> tuple[int, int]:
        return 0, len(self.values)

    def start(self, offset: int) -> None:
        self._at = offset

    def take_messages(self, most: int, _: float) -> list[Message]:
        end = min(len(self.values), self._at + self._chance.randint(0, most))
        found = [
            Message("decisions", 0, at, None, self.values[at], 0, []) for at in range(self._at, end)
        ]
        self._at = end
        return found

    def close(self) -> None:
        pass


@pytest.mark.parametrize("salt", range(8))
def test_whatever_order_they_lie_in_they_are_found(salt: int) -> None:
    """Replicas write side by side, one is rebuilt beside another, records are damaged: what is
    there is found, once each."""
    chance = random.Random(int(os.environ["TEST_SEED"]) + salt)
    print("seed", os.environ["TEST_SEED"], salt)
    logged = sorted(chance.sample(range(400), 200))
    held = [at for at in logged if chance.random() < 0.9]
    values = [on(at) for at in held]
    if salt % 2:  # another replica, somewhat behind; and a damaged record
        late = chance.choice([1, 7, 30])
        values = [
            on(one)
            for at in range(len(held) + late)
            for one in held[at : at + 1] + held[max(0, at - late) : at - late + 1]
        ]
        values.insert(chance.randrange(len(values)), b"damaged")
    first = 0 if salt % 2 else chance.choice([0, *logged])
    reader = DecisionReader(Reader(values, chance))  # type: ignore[arg-type]

    reader.start(first)
    wanted, found = [at for at in logged if at >= first], {}
    while wanted:
        some = wanted[: chance.choice([1, 3, 40])]
        wanted = wanted[len(some) :]
        found |= reader.of(some)

    assert list(found) == [at for at in held if at >= first]
    assert all(one.log_offset == at for at, one in found.items())


def test_what_lies_far_ahead_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So much is held and no more; what was held is found when its turn comes."""
    monkeypatch.setattr(topic, "_AHEAD_BYTES", 10 * len(on(0)))
    monkeypatch.setattr(topic, "_AT_ONCE", 1)
    chance = mock.Mock(randint=lambda _, most: most)
    reader = DecisionReader(Reader([on(at) for at in [*range(100, 130), 5]], chance))  # type: ignore[arg-type]

    assert reader.of([5]) == {}
    assert list(reader.of([100, 109])) == [100, 109]
    assert list(reader.of([120, 129])) == [120, 129]


def topic_over(
    values: Sequence[bytes], index: LogIndex, *, exists: bool = True
) -> tuple[DecisionTopic, Any]:
    """Return the topic with these values, beside a log of a thousand records, and what it is said
    to."""
    made: Any = Reader(values, random.Random(1))
    logger, writer = mock.Mock(), mock.Mock()
    around = IndexerDependencies(
        "host",
        None,
        monotonic=lambda: 0.0,
        make_log_reader=lambda *_: made,
        make_verdict_writer=lambda *_: writer,
        logger=logger,
    )
    found = DecisionTopic(Settings(), index, "index", mock.Mock(), around)
    found.begin(lambda: exists, lambda: 1000)
    return found, logger


def said(logger: Any) -> str:
    return " ".join(call.args[0] for call in logger.warning.call_args_list)


def test_what_cannot_be_used_is_said() -> None:
    """A topic that is missing, is of another log, or cannot be read: the index judges, and writes
    nothing there."""
    for values, more, told in (
        ([], {"exists": False}, "does not exist"),
        ([on(7), on(1200)], {}, "tells of log record 1200, and the log ends at 1000"),
    ):
        index = LogIndex(MemoryStore())
        found, logger = topic_over(values, index, **more)

        index.apply(random_log(3, PLAN, 10))
        assert told in said(logger)
        assert found.known([Message("fingerprints", 0, 1, None, b"", 0, [])]) == {}
        assert index.take_decisions() == []


@pytest.mark.parametrize("is_right", [True, False])
def test_a_rebuild_reads_what_was_decided(is_right: bool) -> None:
    """As far as the topic goes; one of another log is found out by its first decision, and then
    neither read nor written."""
    log = random_log(4, PLAN, 100)
    given, judged = decided(log)
    values = (
        list(given.values()) if is_right else list(decided(random_log(5, PLAN, 100))[0].values())
    )
    index = LogIndex(MemoryStore())
    found, logger = topic_over(values, index)
    messages = [
        Message("fingerprints", 0, at, None, raw, append_ms, []) for at, append_ms, raw in log
    ]

    for first in range(0, 100, 10):
        part = messages[first : first + 10]
        index.apply(
            [(one.offset, one.timestamp_ms or 0, one.value) for one in part], found.known(part)
        )
        found.applied()

    assert index.state_digest() == judged.state_digest()
    assert ("contradicts the log" in said(logger)) is not is_right
    assert (index.statistics()["candidates"] == 0) is is_right
    assert found.reads_until == 0
    assert index.take_decisions() == []


def test_the_pace_is_that_of_the_last_minute() -> None:
    """It is told once it is known, and follows what becomes slower."""
    pace = CatchUpPace()

    assert pace.seconds_to(1000, 0, 0.0) is None
    assert pace.seconds_to(1000, 100, 10.0) == 90.0
    for second in range(11, 100):
        left = pace.seconds_to(1000, 100 + second, float(second))
    assert left == 801.0


def test_a_reader_that_brings_nothing_is_given_up() -> None:
    reader = DecisionReader(mock.Mock(take_messages=lambda *_: [], watermarks=lambda: (0, 5)))

    with pytest.raises(BrokerError, match="do not come"):
        reader.of([1])
