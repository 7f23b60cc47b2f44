"""A whole worker, with its own loop and parts, and with fake clients."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from stream_dedup.domain.document import Message, TopicPartitionKey
from stream_dedup.domain.errors import GoneError, NoAnswerError, StreamDedupError
from stream_dedup.domain.messages import Messages
from stream_dedup.domain.topics import TopicNames
from stream_dedup.kafka import CommittedOffset, ExistingTopic, Outcome, Result
from stream_dedup.log import epochs
from stream_dedup.serving.kafka_role import RunningRole
from stream_dedup.settings.settings import Settings
from stream_dedup.worker.dependencies import IntakePace, WorkerDependencies
from stream_dedup.worker.role import build_worker
from stream_dedup.worker.startup import SourceCluster
from tests.tiers import few
from tests.worker.parts import ThreadStub, VirtualClock

KEY = ("documents", 0)
SOURCE_ID, LOG_ID, ANSWERS_ID = b"s" * 16, b"l" * 16, b"v" * 16
READ_SECONDS = 0.001
TURNS_MAX = 5000
NO_JSON = b"{ no JSON"  # a dead letter: no index is asked
RECIPE: Any = SimpleNamespace(
    id="test:64:0",
    width=64,
    limbs=1,
    key=b"key",
    languages=SimpleNamespace(fold_han=False),
    floor=3,
    method=SimpleNamespace(takes_vectors=False, is_batched=False),
)


class Source:
    """A source with one partition, in which there is always one more record; the worker is to end
    once `lasts` is False."""

    def __init__(
        self, listener: Any, clock: VirtualClock, lasts: Callable[[], bool], stop: threading.Event
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._lasts = lasts
        self._stop = stop
        self.reads: list[float] = []

    def take_messages(self, _most: int, _seconds: float) -> Messages:
        if not self.reads:
            self._listener.assigned([KEY])
            self._listener.group_metadata_changed(b"")
        if not self._lasts():
            self._stop.set()
        self.reads.append(self._clock.now)
        self._clock.now += READ_SECONDS
        return Messages.of([Message(*KEY, len(self.reads) - 1, None, NO_JSON, None, [])])

    def committed(
        self, keys: Iterable[TopicPartitionKey]
    ) -> Mapping[TopicPartitionKey, CommittedOffset]:
        return dict.fromkeys(keys, CommittedOffset(0, epochs.to_metadata(0)))

    def group_metadata(self) -> bytes:
        return b""

    def lag(self, *_: object) -> None:
        return None

    def restart_at(self, *_: object) -> None: ...

    def close(self) -> None: ...


class Loop:
    """A worker that reads for `seconds`, and the calls that it made; `overrides` replace
    dependencies."""

    def __init__(self, folder: Path, seconds: float, **overrides: Any) -> None:
        self.clock, stop = VirtualClock(), threading.Event()
        self.ends = self.clock.now + seconds
        self.beats = mock.Mock(
            side_effect=itertools.chain([None] * TURNS_MAX, [AssertionError("it turns and turns")])
        )
        self.sources: list[Source] = []
        self.is_away = False
        self.logger = mock.Mock()
        self.make_verdicts = mock.Mock(
            side_effect=lambda *_: mock.Mock(take_messages=mock.Mock(return_value=[]))
        )
        self.transactions = mock.Mock(run=mock.Mock(return_value=Result(Outcome.COMMITTED)))

        def make_source(
            _settings: Settings, _topic: str, _client: str, listener: Any, _patience: Any
        ) -> Any:
            self.sources.append(
                Source(listener, self.clock, lambda: self.clock.now < self.ends, stop)
            )
            return self.sources[-1]

        defaults: dict[str, Any] = {
            "clock": self.clock,
            "make_thread": lambda _: ThreadStub(self.clock),
            "make_source": make_source,
            "make_verdicts": self.make_verdicts,
            "make_appender": mock.Mock(),
            "make_transactions": lambda *_, **__: self.transactions,
            "make_beginnings": mock.Mock(),
            "make_admin": mock.Mock(return_value=mock.Mock(topic_ids=lambda _: {})),
            "make_fingerprinter": lambda _: mock.Mock(recipe=RECIPE),
            "inspect": lambda *_: SourceCluster(
                TopicNames(""), LOG_ID, SOURCE_ID, 1, 1, 1 << 20, 1 << 20, mock.Mock(), ANSWERS_ID
            ),
            "logger": self.logger,
        }
        settings = Settings(worker_id="worker", state_dir=folder, value_format="json")
        health = mock.Mock(beat=self.beats)
        watch = mock.Mock(is_silent=lambda: self.is_away, begin=lambda _, make: make())
        dependencies = WorkerDependencies(**(defaults | overrides))
        running = RunningRole(settings, health, mock.Mock(), watch, stop)
        self.worker = build_worker(running, RECIPE, mock.MagicMock(), dependencies)

    @property
    def reads(self) -> list[float]:
        """Return the times of the reads."""
        (source,) = self.sources
        return source.reads


def test_the_loop_sleeps_while_nothing_is_in_flight(tmp_path: Path) -> None:
    """It sleeps until the next read, and turns at most twice for each; every record is
    committed."""
    loop = Loop(tmp_path, 1.0)

    loop.worker.run()

    apart = [after - before for before, after in itertools.pairwise(loop.reads)]
    assert len(apart) > 30
    assert min(apart) >= IntakePace().gather_seconds - 1e-9
    assert max(loop.clock.slept) <= IntakePace().gather_seconds
    assert loop.beats.call_count <= 2 * len(loop.reads) + 2
    committed = [given.args[1][0][2] for given in loop.transactions.run.call_args_list]
    assert committed == list(range(1, len(loop.reads) + 1))
    assert loop.transactions.close.called


def test_the_loop_goes_on_while_the_topics_are_asked_for(tmp_path: Path) -> None:
    """The controller, which alone knows the topics, may be unavailable; reads do not wait for it.

    Only the first assignment waits for the topics.
    """
    asking = ThreadStub(VirtualClock(), is_stuck=True)
    make_admin = mock.Mock(
        side_effect=[mock.Mock(topic_ids=lambda _: {}), AssertionError("the loop asks itself")]
    )
    loop = Loop(
        tmp_path,
        70.0,
        make_admin=make_admin,
        make_thread=lambda name: asking if name == "asking" else ThreadStub(asking.clock),
    )

    loop.worker.run()

    assert asking.started, "nothing was asked"
    assert (
        max(after - before for before, after in itertools.pairwise(loop.reads))
        <= 3 * IntakePace().gather_seconds
    )
    assert loop.reads[-1] >= loop.ends


def make_admin_that_finds(topic: str, topic_id: bytes) -> mock.Mock:
    """Return a factory of admins that find a topic with this id, except at the first assignment."""
    found = itertools.chain([{}], itertools.repeat({topic: ExistingTopic(topic_id, 1)}))
    return mock.Mock(return_value=mock.Mock(topic_ids=lambda _: next(found)))


@pytest.mark.parametrize(
    ("topic", "topic_id", "ends"),
    few(
        [
            ("documents", b"t" * 16, True),
            ("documents", SOURCE_ID, False),
            ("fingerprints", LOG_ID, False),
            ("fingerprints", b"t" * 16, True),
        ]
    ),
)
def test_a_topic_created_again_ends_the_worker(
    tmp_path: Path, topic: str, topic_id: bytes, ends: bool
) -> None:
    """Topics are looked up every half minute; an unchanged id changes nothing."""
    make_admin = make_admin_that_finds(topic, topic_id)
    loop = Loop(tmp_path, 70.0, make_admin=make_admin)

    with (
        pytest.raises(StreamDedupError, match="created again") if ends else contextlib.nullcontext()
    ):
        loop.worker.run()

    assert make_admin.call_count == (2 if ends else 3)
    assert (loop.reads[-1] >= loop.ends) == (not ends)


@pytest.mark.parametrize(("topic_id", "readers"), few([(b"t" * 16, 2), (ANSWERS_ID, 1)]))
def test_a_topic_of_answers_created_again_is_read_from_then_on(
    tmp_path: Path, topic_id: bytes, readers: int
) -> None:
    """The worker reads the new topic, and its documents again from the committed offsets."""
    make_admin = make_admin_that_finds("verdicts", topic_id)
    loop = Loop(tmp_path, 70.0, make_admin=make_admin)

    loop.worker.run()

    assert loop.make_verdicts.call_count == readers
    assert make_admin.call_count == 3


def test_a_worker_whose_topic_of_answers_is_gone_waits_until_it_is_back(tmp_path: Path) -> None:
    """The worker looks for the topic every few seconds, and goes on by itself."""
    gone = mock.Mock(
        take_messages=mock.Mock(side_effect=GoneError("The topic verdicts does not exist."))
    )
    back = mock.Mock(take_messages=mock.Mock(return_value=[]))
    topic_ids = mock.Mock(
        side_effect=[
            {},
            {"verdicts": ExistingTopic(ANSWERS_ID, 1)},
            {"verdicts": ExistingTopic(ANSWERS_ID, 1)},
            {},
        ]
    )
    loop = Loop(tmp_path, 20.0, make_admin=mock.Mock(return_value=mock.Mock(topic_ids=topic_ids)))
    loop.make_verdicts.side_effect = [NoAnswerError("its leader is not elected yet"), back]
    loop.worker._questions._verdicts = gone

    loop.worker.run()

    assert gone.take_messages.call_count == 1
    assert gone.close.called
    assert back.take_messages.called
    assert topic_ids.call_count == 3, "then nothing is late any more"


def _run_and_list_allowed(
    loop: Loop, results: list[Result], seconds: float, *, falls_silent: bool = False
) -> list[int]:
    """Run a worker whose first transactions take `seconds` and have these results; return the
    number of documents allowed after each."""
    ends = iter(results)

    def transact(*_: object, **__: object) -> Result:
        loop.clock.now += seconds
        loop.is_away = falls_silent
        result = next(ends, Result(Outcome.COMMITTED))
        if not ends.__length_hint__():
            loop.ends = loop.clock.now
        return result

    loop.transactions.run.side_effect = transact
    loop.worker.run()
    warnings = [given.kwargs for given in loop.logger.warning.call_args_list]
    return [
        warning["next_documents_max"] for warning in warnings if "next_documents_max" in warning
    ]


def test_outputs_that_are_late_make_transactions_smaller(tmp_path: Path) -> None:
    loop = Loop(tmp_path, 3000.0)

    allowed = _run_and_list_allowed(loop, [Result(Outcome.ABORTED, is_late=True)] * 3, 25.0)

    documents_min = (
        Settings().batch_documents // 1024
    )  # a transaction here carries a document or two
    assert allowed == [documents_min] * 3


@pytest.mark.parametrize(
    ("result", "falls_silent"),
    [
        (Result(Outcome.UNKNOWN), False),
        (Result(Outcome.ABORTED), False),
        (Result(Outcome.ABORTED, is_late=True), True),
        (Result(Outcome.UNKNOWN, is_late=True), True),
    ],
)
def test_an_outage_does_not_reduce_the_allowance(
    tmp_path: Path, result: Result, falls_silent: bool
) -> None:
    """Neither a step without an answer nor outputs that are late in an outage reduce what is
    allowed."""
    loop = Loop(tmp_path, 3000.0)
    documents_max = Settings().batch_documents

    assert (
        _run_and_list_allowed(loop, [result] * 5, 30.0, falls_silent=falls_silent)
        == [documents_max] * 5
    )
