"""What an outage leaves behind in a process that lives on: no thread of ours, and no client of
librdkafka."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from stream_dedup.domain.errors import BrokerError
from stream_dedup.domain.threads import SideThread
from stream_dedup.kafka import Admin, LogAppender, TransactionalOutput, admin, append, transaction
from stream_dedup.kafka.transaction import Outcome
from stream_dedup.settings.settings import Settings
from tests.kafka.scripted import Scripted, put, refusal

OUTAGES = 10
pytestmark = pytest.mark.usefixtures("without_collector")
TASKS = Path("/proc/self/task")
NOBODY = Settings(kafka_bootstrap_servers="127.0.0.1:1")


def threads() -> int:
    """Return how many threads this process has, those of librdkafka too."""
    return len(list(TASKS.iterdir()))


def come_back_to(before: int, count: Callable[[], int] = threads) -> int:
    """Return how many there are once there are no more than before, or after a while: threads end a
    moment later."""
    until = time.monotonic() + 10
    while count() > before and time.monotonic() < until:
        time.sleep(0.02)
    return count()


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(
    "question",
    [
        lambda one: one.topic_ids(["documents"]),
        lambda one: one.bounds([("documents", 0)]),
        lambda one: one.group_members("group"),
        lambda one: one.broker_count(),
    ],
)
def test_an_administrator_that_got_no_answer_goes(
    question: Callable[[Admin], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roles ask with a new one each time: after ten outages none is left."""
    for name in ("_TIMEOUT_SECONDS", "_FIRST_REQUEST_SECONDS", "_METADATA_SECONDS"):
        monkeypatch.setattr(admin, name, 0.05)
    before = threads()

    for _ in range(OUTAGES):
        with pytest.raises(BrokerError):
            question(Admin(NOBODY))

    assert come_back_to(before) <= before


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in /proc")
def test_an_appender_that_is_let_go_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun is written down by a new one each time."""
    monkeypatch.setattr(append, "_FLUSH_STEP_SECONDS", 0.01)
    before = threads()

    for _ in range(OUTAGES):
        appender = LogAppender(NOBODY, "begun", "begun")
        appender.send(b"", None, lambda _: None)
        with pytest.raises(BrokerError, match="1 records were not written"):
            appender.flush(0.0)
        del appender

    assert come_back_to(before) <= before


def test_a_fatal_error_is_still_told_by_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's callback keeps it, though it does not hold the appender."""
    heard: list[Callable[[KafkaError], None]] = []

    purged = Scripted(produce=refusal(KafkaError._PURGE_QUEUE))
    put(monkeypatch, append, lambda config: heard.append(config["error_cb"]) or purged)
    appender = LogAppender(NOBODY, "begun", "begun")
    heard[0](KafkaError(KafkaError._TRANSPORT, "passes"))
    heard[0](KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no", fatal=True))

    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        appender.send(b"", None, lambda _: None)


def test_steps_that_came_back_too_late_leave_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that hangs, far behind its time-out, is left behind in its thread, which ends when the
    step does."""
    back = threading.Event()
    put(
        monkeypatch,
        transaction,
        lambda _: Scripted(send_offsets_to_transaction=lambda *_: back.wait(60)),
    )
    monkeypatch.setattr(transaction, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(transaction, "_GRACE_SECONDS", 0.01)
    before = threading.active_count()
    output = TransactionalOutput(Settings(), "worker-0", "outputs")

    outcomes = [output.run([], [("documents", 0, 1, "")], b"").outcome for _ in range(OUTAGES)]
    back.set()

    assert outcomes == [Outcome.UNKNOWN] * OUTAGES
    assert come_back_to(before + 1, threading.active_count) == before + 1, (
        "the one that serves the next transaction"
    )


def test_a_thread_that_is_left_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with contextlib.suppress(TimeoutError):
        SideThread("slow").call(lambda: time.sleep(0.05), 0.0)

    assert come_back_to(before, threading.active_count) == before
