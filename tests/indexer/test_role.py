"""What an index says of records that it rejected, at `/readyz` and once in its log; and where its
log is made anew, it ends."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import ConfigurationError, GoneError, StreamDedupError
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.tables import neighbours
from stream_dedup.indexer import role as indexer_role
from stream_dedup.indexer.role import Indexer
from stream_dedup.kafka import ExistingTopic, LostTopicError, TopicIdWatcher
from stream_dedup.settings.settings import Settings
from tests.index.logs import APPEND_MS, Doc, batch, control, declare
from tests.worker.parts import ThreadStub, VirtualClock


def role(**fields: Any) -> Any:
    """Return a role that was not begun, with these fields."""
    made = Indexer.__new__(Indexer)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def read_readiness(log: list[bytes | None]) -> tuple[list[tuple[bool, str]], mock.Mock]:
    """Return whether an index is ready, and why, after a log, after a second look, and opened
    again; and what it logged."""
    volume: dict[bytes, bytes] = {}
    first = LogIndex(MemoryStore(volume))
    first.apply([(offset, APPEND_MS, raw) for offset, raw in enumerate(log)])
    logger, found = mock.Mock(), []
    for log_index in (first, LogIndex(MemoryStore(volume))):
        index = role(_index=log_index, _log="fingerprints", _logger=logger, _rejected=0)
        found += [index._readiness(log_index.applied, log_index.statistics()) for _ in range(2)]
    return found, logger


def test_rejected_records_are_reported_before_and_after_a_restart() -> None:
    """How many, and the last one's log offset; a line in the log each time that it grew, not at
    each look."""
    record = batch([Doc(0, 0, 0, bytes(16), 0)])
    found, logger = read_readiness(
        [declare(PLANS["classic"]), record[:-1], record, b"another program", record]
    )

    assert set(found) == {
        (
            True,
            (
                "applied up to log offset 5; 2 records of the log were rejected, the last at log "
                "offset 3"
            ),
        )
    }
    assert [call.kwargs for call in logger.warning.call_args_list] == [
        {"rejected": 2, "last_log_offset": 3}
    ] * 2


def test_an_index_without_rejected_records_reports_none() -> None:
    found, logger = read_readiness([declare(PLANS["classic"]), batch([Doc(0, 0, 0, bytes(16), 0)])])

    assert set(found) == {(True, "applied up to log offset 2")}
    assert not logger.warning.called


def test_an_index_of_a_foreign_log_is_not_ready() -> None:
    found, _ = read_readiness([b"another program's record"] * 59)

    assert {ready for ready, _ in found} == {False}
    assert (
        "no record of fingerprints declares a recipe; 59 records of the log were rejected, the "
        "last at" in found[0][1]
    )


def make_role_of_log(topic_id: bytes, statistics: dict[str, int], catch_up_to: int = 7) -> Any:
    """Return a role whose index has applied seven records of a log that was `before`."""
    now = iter(range(0, 100_000, 20))
    index = role(
        _monotonic=lambda: float(next(now)),
        _next_gauges=0.0,
        _log="fingerprints",
        _log_topic_id=b"before",
        _snapshots=None,
        _index=mock.Mock(
            applied=7,
            plan=None,
            window=None,
            declared=None,
            statistics=lambda: statistics,
            searches=dict,
        ),
        _metrics=mock.Mock(),
        _health=mock.Mock(),
        _log_reader=mock.Mock(),
        _memory=0,
        _rejected=0,
        _end_at_start=catch_up_to,
        _warned=set(),
        _logger=mock.Mock(),
        _pace=mock.Mock(seconds_to=lambda *_: None),
        _next_log=0.0,
    )
    index._topic_ids = TopicIdWatcher(
        lambda: {"fingerprints": ExistingTopic(topic_id, 1)},
        ThreadStub(VirtualClock()),
        lambda: float(next(now)),
        mock.Mock(),
    )  # type: ignore[arg-type]
    return index


@pytest.mark.parametrize(("catch_up_to", "ends"), [(7, True), (8, False)])
def test_only_an_index_that_has_caught_up_ends_when_numbers_run_out(
    catch_up_to: int, ends: bool
) -> None:
    """Before that a window may be declared in what it has not read yet."""
    statistics = defaultdict(int, numbers_used=indexer_role.NUMBERS_MAX + 1)
    index = make_role_of_log(b"before", statistics, catch_up_to)

    with pytest.raises(ConfigurationError, match="declare") if ends else nullcontext():
        index._do_periodic_tasks()


@pytest.mark.parametrize(("topic_id", "ends"), [(b"before", False), (b"after", True)])
def test_a_log_created_again_ends_the_index(topic_id: bytes, ends: bool) -> None:
    """Its client would read on in the new log from the offset of the old one, into a volume that is
    of the old one."""
    index = make_role_of_log(topic_id, defaultdict(int))

    with (
        pytest.raises(StreamDedupError, match="fingerprints was deleted and created again")
        if ends
        else nullcontext()
    ):
        for _ in range(10):
            index._do_periodic_tasks()


def test_answers_are_written_again_once_their_topic_exists() -> None:
    """An index whose topic of answers is deleted waits for it inside of the role, and then sends
    what nobody has durably, in order."""
    stop, topics, sent = threading.Event(), [{}, {}, {"verdicts": ExistingTopic(b"", 1)}], []

    class Writer:
        def __init__(self, is_lost: bool) -> None:
            self._is_lost = is_lost

        def send(self, raw: bytes, _key: bytes, _delivered: object) -> None:
            if not self._is_lost:
                sent.append(raw)

        def poll(self) -> None:
            if self._is_lost:
                raise LostTopicError("The topic verdicts was deleted.")
            stop.set()

        def flush(self) -> None:
            """Everything sent is durable."""

    def retry(make: Callable[[], Writer]) -> Writer:
        while True:
            try:
                return make()
            except GoneError as error:
                waits.append(str(error))

    waits: list[str] = []
    index = role(
        _writer=Writer(is_lost=True),
        _make_writer=lambda: Writer(is_lost=False),
        _fetch_answers_topic=lambda: topics.pop(0),
        _retry=retry,
        _durable_by_offset={4: False},
        _name=b"index",
        _index=mock.Mock(
            applied=6, answered_offset=4, answers_since=lambda offset: answers[offset - 4 :]
        ),
        _health=mock.Mock(),
        _logger=mock.Mock(),
        _log_reader=mock.Mock(take_messages=lambda *_: []),
        _snapshots=None,
        _api=mock.Mock(),
        _do_periodic_tasks=lambda: None,
    )
    answers = [(4, b"four"), (5, b"five")]

    index.run(stop)

    assert sent == [b"four", b"five"]
    assert waits == ["The topic verdicts was deleted."] * 2
    assert index._durable_by_offset == {4: False, 5: False}


def test_an_index_ends_before_its_numbers_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 78 and a remedy that works: a window that is declared while it is down lets it go on, and
    frees numbers."""
    monkeypatch.setattr(indexer_role, "NUMBERS_MAX", 50)
    monkeypatch.setattr(neighbours, "_ACTIVE_MIN", 1)
    window = {"length_ms": 60_000, "refresh": False}
    log = [declare(PLANS["classic"])]
    log += [batch([Doc(0, n, n, n.to_bytes(16, "big"), 0, features=0)]) for n in range(1, 61)]
    index = LogIndex(MemoryStore())
    index.apply([(offset, APPEND_MS, raw) for offset, raw in enumerate(log)])
    checked = role(_index=index)

    used = index.statistics()["numbers_used"]
    with pytest.raises(ConfigurationError, match=f"has used {used} .*declare --window") as error:
        checked._check_numbers(used)
    assert (used, error.value.exit_code) == (60, 78)
    index.apply([(61, APPEND_MS, control("plan", window=window))])
    checked._check_numbers(index.statistics()["numbers_used"])
    late = batch([Doc(0, 61, 61, (61).to_bytes(16, "big"), 0, features=0)])
    for offset in range(62, 100):  # log time moves by a sixteenth of the window a record
        index.apply([(offset, APPEND_MS + offset * 60_000, late)])
    assert index.statistics()["numbers_used"] < 20


@pytest.mark.parametrize(
    ("low", "message"), [(9, "contains offsets 9 to 40"), (3, "does not exist")]
)
def test_an_index_ends_if_records_were_removed_before_it_applied_them(
    low: int, message: str
) -> None:
    """An index that is slower than the log's retention ends with 78 and the remedy of a log, not
    with that of `documents`."""

    def take(*_: object) -> list[Message]:
        raise GoneError("The topic fingerprints does not exist.")

    index = role(
        _health=mock.Mock(),
        _log_reader=mock.Mock(take_messages=take, watermarks=lambda: (low, 40)),
        _index=mock.Mock(applied=7),
        _settings=Settings(),
        _log="fingerprints",
    )

    with pytest.raises(ConfigurationError, match=message):
        index._run_once()
