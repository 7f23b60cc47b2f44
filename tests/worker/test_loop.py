"""A whole worker, with its own loop and parts, on clients that are handed in."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from stream_dedup.ground.document import Message, TopicPartitionKey
from stream_dedup.ground.messages import Messages
from stream_dedup.ground.topics import TopicNames
from stream_dedup.kafka import Outcome, OwnedOffset, Result
from stream_dedup.log import epochs
from stream_dedup.settings.settings import Settings
from stream_dedup.worker.role import Worker
from stream_dedup.worker.startup import SourceCluster
from stream_dedup.worker.surroundings import IntakePace, WorkerSurroundings
from tests.worker.parts import VirtualClock

KEY = ("documents", 0)
READ_SECONDS = 0.001
TURNS_MAX = 5000
NO_JSON = b"{ no JSON"  # a dead letter: no index is asked
RECIPE: Any = SimpleNamespace(
    id="test:64:0", width=64, limbs=1, key=b"key", floor=3, method=SimpleNamespace(takes_vectors=False, is_at_once=False)
)


class Source:
    """A source with one partition, in which there is always one more record; the worker is to end once `lasts` is False."""

    def __init__(self, listener: Any, clock: VirtualClock, lasts: Callable[[], bool], stop: threading.Event) -> None:
        self._listener = listener
        self._clock = clock
        self._lasts = lasts
        self._stop = stop
        self.reads: list[float] = []

    def take(self, _most: int, _seconds: float) -> Messages:
        if not self.reads:
            self._listener.assigned([KEY])
            self._listener.settled(b"")
        if not self._lasts():
            self._stop.set()
        self.reads.append(self._clock.now)
        self._clock.now += READ_SECONDS
        return Messages.of([Message(*KEY, len(self.reads) - 1, None, NO_JSON, None, [])])

    def committed(self, keys: Iterable[TopicPartitionKey]) -> Mapping[TopicPartitionKey, OwnedOffset]:
        return dict.fromkeys(keys, OwnedOffset(0, epochs.to_metadata(0)))

    def stamp(self) -> bytes:
        return b""

    def lag(self, *_: object) -> None:
        return None

    def close(self) -> None: ...


class AtOnce:
    """A thread in which everything has ended as soon as it is begun."""

    def __init__(self, _name: str) -> None:
        self._result: Any = None

    def start(self, function: Callable[[], Any]) -> None:
        self._result = function()

    def ended(self, _seconds: float) -> bool:
        return True

    def take_result(self) -> Any:
        return self._result

    def call(self, function: Callable[[], Any], _seconds: float) -> None:
        function()


def test_the_loop_rests_while_nothing_is_on_its_way(tmp_path: Path) -> None:
    """It sleeps until it may read again: a turn for each read, and one behind it. What was read is committed, the last too."""
    clock, stop = VirtualClock(), threading.Event()
    beats = mock.Mock(side_effect=itertools.chain([None] * TURNS_MAX, [AssertionError("it turns and turns")]))
    ends = clock.now + 1.0
    sources: list[Source] = []
    transactions = mock.Mock(run=mock.Mock(return_value=Result(Outcome.COMMITTED)))

    def make_source(_settings: Settings, _topic: str, _client: str, listener: Any, _patience: Any) -> Any:
        sources.append(Source(listener, clock, lambda: clock.now < ends, stop))
        return sources[-1]

    around: dict[str, Any] = {
        "clock": clock,
        "make_thread": AtOnce,
        "make_source": make_source,
        "make_verdicts": lambda *_: mock.Mock(take=lambda *_: []),
        "make_appender": mock.Mock(),
        "make_transactions": lambda *_, **__: transactions,
        "make_beginnings": mock.Mock(),
        "make_fingerprinter": lambda _: mock.Mock(recipe=RECIPE),
        "inspect": lambda *_: SourceCluster(TopicNames(""), b"l" * 16, b"s" * 16, 1, 1, 1 << 20, 1 << 20, mock.Mock()),
        "logger": mock.Mock(),
    }
    settings = Settings(worker_id="worker", state_dir=tmp_path, value_format="json", insights=False)
    health = mock.Mock(beat=beats)
    watch = mock.Mock(is_silent=lambda: False, begin=lambda _, make: make())
    worker = Worker(settings, RECIPE, mock.MagicMock(), health, mock.Mock(), watch, stop, WorkerSurroundings(**around))

    worker.run()

    (source,) = sources
    apart = [after - before for before, after in zip(source.reads, source.reads[1:], strict=False)]
    assert len(apart) > 30
    assert min(apart) >= IntakePace().gather_seconds - 1e-9
    assert max(clock.slept) <= IntakePace().gather_seconds
    assert beats.call_count <= 2 * len(source.reads) + 2
    committed = [given.args[1][0][2] for given in transactions.run.call_args_list]
    assert committed == list(range(1, len(source.reads) + 1))
    assert transactions.close.called
