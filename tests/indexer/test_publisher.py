"""Who writes `representatives`, turn by turn: what it waits for, and that nothing that befalls the
topic reaches the index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import FencedError
from stream_dedup.ground.failpoints import Failpoints
from stream_dedup.ground.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.indexer.dependencies import IndexerDependencies, PublisherPace
from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.indexer.publisher import Publisher
from stream_dedup.kafka import Outcome, Output, Result
from stream_dedup.log.representatives import (
    PROGRESS_KEY,
    Progress,
    decode_progress,
    encode_progress,
)
from stream_dedup.settings.settings import Settings
from tests.index.logs import APPEND_MS, Doc, batch, control, declare, forget

TOPIC_ID = b"t" * 16
ALIKE = [Doc(0, at, at, at.to_bytes(16, "big"), 7, id=b"c%d" % at) for at in range(3)]
LOG = [(0, APPEND_MS, declare(PLANS["classic"], count_copies=True)), (1, APPEND_MS, batch(ALIKE))]


class Side:
    """A thread whose calls are over at once, and which makes one at a time."""

    def __init__(self, _: str) -> None:
        self._call: Callable[[], Any] | None = None
        self._result: Any = None

    def start(self, function: Callable[[], Any]) -> None:
        assert self._call is None, "a call runs"
        self._call = function

    def ended(self, _: float) -> bool:
        call, self._call = self._call, None
        assert call is not None, "no call runs"
        self._result = call()
        return True

    def take_result(self) -> Any:
        return self._result


class World:
    """The topic, its transactions, and the clock; all of them in the place of their makers."""

    def __init__(
        self, *outcomes: Outcome | Exception, log: Sequence[tuple[int, int, bytes]] = LOG
    ) -> None:
        self.outcomes = list(outcomes)
        self.records: list[Output] = []
        self.topic_ids_found = {"representatives": (TOPIC_ID, 1)}
        self.now = 100.0
        self.warnings: list[str] = []
        self.lives = 0
        self.metrics = IndexMetrics()
        self.index = LogIndex(MemoryStore(), publishes=True)
        self.index.bind("log")
        for one in log:
            self.index.apply([one])
        self.publisher = Publisher(
            Settings(),
            self.index,
            "log",
            self,  # type: ignore[arg-type]
            "index",
            self.metrics,
            Failpoints(None),
            IndexerDependencies(
                "host",
                None,
                monotonic=lambda: self.now,
                make_thread=Side,  # type: ignore[arg-type]
                make_transactions=self._live,
                make_last_reader=lambda *_: self,  # type: ignore[arg-type, return-value]
                logger=self,
            ),
        )

    def _live(self, *_: Any) -> Any:
        self.lives += 1
        return self

    def topic_ids(self, _: Sequence[str]) -> dict[str, tuple[bytes, int]]:
        return self.topic_ids_found

    def last(self, key: bytes) -> Message | None:
        return next(
            (
                Message("representatives", 0, 0, key, one.value, 0, [])
                for one in reversed(self.records)
                if one.key == key
            ),
            None,
        )

    def run(self, outputs: Sequence[Output], *_: Any, **__: Any) -> Result:
        outcome = self.outcomes.pop(0) if self.outcomes else Outcome.COMMITTED
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is Outcome.COMMITTED:
            self.records += outputs
        return Result(outcome, why="it did not work")

    def close(self) -> None: ...

    def info(self, *_: Any, **__: Any) -> None: ...

    def warning(self, sentence: str, **more: Any) -> None:
        self.warnings.append(f"{sentence}: {more.get('reason')}")

    def turn(self, times: int = 12) -> World:
        for _ in range(times):
            self.publisher.turn()
            self.now += 1
        return self

    @property
    def written(self) -> list[bytes | None]:
        return [one.key for one in self.records]

    @property
    def progress(self) -> Progress:
        last = self.last(PROGRESS_KEY)
        return decode_progress(None if last is None else last.value)

    def says(self, **fields: Any) -> World:
        progress = Progress("log", TOPIC_ID.hex())._replace(**fields)
        self.records.append(
            Output("representatives", 0, PROGRESS_KEY, encode_progress(progress), None, [])
        )
        return self


def test_what_is_owed_is_written_with_how_far() -> None:
    world = World().turn()
    assert world.written == [b"documents-0@0", PROGRESS_KEY]
    assert world.progress == Progress("log", TOPIC_ID.hex(), 2, 2, 0)
    assert world.publisher.behind == 0
    world.index.apply([(2, APPEND_MS, batch([Doc(0, 9, 9, b"n" * 16, 7)]))])
    assert world.publisher.behind == 1

    assert world.turn().written == [b"documents-0@0", PROGRESS_KEY] * 2
    assert world.progress.written_below == 3


def test_fenced_when_a_look_is_due_it_lets_go_first() -> None:
    world = World(FencedError("another has the id")).turn(3)  # it looked, took the id, and writes
    world.now += PublisherPace().look
    world.turn(1)
    assert world.outcomes == []
    assert world.written == []


def test_nothing_is_written_that_is_older_than_what_another_wrote() -> None:
    """Until this index has applied as much, it holds the id and its tongue."""
    world = World().says(written_below=0, applied=4).turn()
    assert world.lives == 1
    assert len(world.records) == 1
    world.index.apply([(at, APPEND_MS, control("plan")) for at in (2, 3)])

    assert world.turn().written == [PROGRESS_KEY, b"documents-0@0", PROGRESS_KEY]


def test_who_lost_the_id_waits_until_nobody_writes() -> None:
    """Half a minute in which the topic does not move, though it lacks something."""
    world = World(FencedError("another has it")).turn(4)
    assert world.lives == 1
    assert world.turn(20).lives == 1
    assert world.turn(20).lives == 2
    assert world.written == [b"documents-0@0", PROGRESS_KEY]
    assert not world.warnings


def test_a_topic_that_moves_is_left_to_whoever_writes_it() -> None:
    """Half a minute of it is over and over begun anew."""
    world = World(FencedError("another has it")).turn(4)
    for at in range(12):
        world.says(written_below=1, applied=at).turn(10)

    assert world.lives == 1
    assert b"documents-0@0" not in world.written


def test_whatever_happens_is_a_warning_and_tried_again() -> None:
    """A transaction that is aborted, one of which nobody knows, a fault of the client, a topic that
    is not there: once each."""
    world = World(Outcome.ABORTED, Outcome.UNKNOWN, ValueError("strange")).turn(60)
    reasons = [one.rpartition(": ")[2] for one in world.warnings]
    assert reasons == ["it did not work", "ValueError('strange')"], "the same is said once"
    assert world.written == [b"documents-0@0", PROGRESS_KEY]
    assert (
        world.metrics.registry.get_sample_value(
            "stream_dedup_representatives_transactions_total", {"result": "failed"}
        )
        == 3
    )
    assert world.metrics.registry.get_sample_value("stream_dedup_representatives_total") == 1
    world.topic_ids_found = {}
    world.turn(60)
    assert "does not exist; create it" in world.warnings[-1]
    assert len(world.warnings) == 3


def test_a_topic_that_was_created_anew_is_written_from_the_beginning() -> None:
    """Also where its writer did not know, and has written on."""
    world = World().turn()
    world.topic_ids_found = {"representatives": (b"u" * 16, 1)}
    world.records.clear()
    world.says(written_below=2, applied=2).turn(15)

    assert world.written == [PROGRESS_KEY, b"documents-0@0", PROGRESS_KEY]
    assert world.progress.topic_id == (b"u" * 16).hex()


def test_what_came_back_after_a_take_down_stays_when_its_first_entry_s_window_passes() -> None:
    """Another index told the topic of the take-down, and of what came back. Who writes next repeats
    no null: there is one key for both entries."""
    window = {"length_ms": 16_000, "refresh": False}
    other = batch([Doc(0, 3, 3, b"o" * 16, 0xFFFF << 40)], {0: (0, 3)})
    records = [
        declare(PLANS["classic"], count_copies=True, window=window),
        batch(ALIKE),
        other,
        forget(b"c0"),
    ]
    records += [control("plan")] * 5 + [batch(ALIKE, {0: (1, 0)})] + [control("plan")] * 10
    log = [(offset, APPEND_MS + 1_000 * offset, raw) for offset, raw in enumerate(records)]
    for told, nulls in ((log[:4], [True]), (log[:10], [True, False])):
        before = World(log=told).turn()
        assert [one.value is None for one in before.records if one.key == b"documents-0@0"] == nulls

    world = World(log=log).says(written_below=10, applied=10).turn(40)

    assert world.progress == Progress("log", TOPIC_ID.hex(), 20, 20, 2)
    assert world.publisher.behind == 0
    assert set(world.written) == {PROGRESS_KEY}


def test_the_topic_of_another_log_is_left_alone() -> None:
    world = World().says(log="another").turn(30)

    assert len(world.records) == 1
    assert "Delete the topic and create it again" in world.warnings[0]
