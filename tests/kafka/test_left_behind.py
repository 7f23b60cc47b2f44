"""An outage leaves no thread and no librdkafka client behind in a running process."""

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
from tests.kafka.scripted import Scripted, patch_producers, refusal

OUTAGES = 10
pytestmark = pytest.mark.usefixtures("without_collector")
TASKS = Path("/proc/self/task")
NOBODY = Settings(kafka_bootstrap_servers="127.0.0.1:1")


def count_threads() -> int:
    """Return how many threads this process has, those of librdkafka too."""
    return len(list(TASKS.iterdir()))


def wait_for_count(before: int, count: Callable[[], int] = count_threads) -> int:
    """Wait up to 10 s until there are no more than `before`, because threads end late; return the
    count."""
    until = time.monotonic() + 10
    while count() > before and time.monotonic() < until:
        time.sleep(0.02)
    return count()


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(
    "question",
    [
        lambda client: client.topic_ids(["documents"]),
        lambda client: client.bounds([("documents", 0)]),
        lambda client: client.group_members("group"),
        lambda client: client.broker_count(),
    ],
)
def test_an_administrator_without_an_answer_is_freed(
    question: Callable[[Admin], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roles use a new administrator for each request; after ten outages none is left."""
    for name in ("_TIMEOUT_SECONDS", "_FIRST_REQUEST_SECONDS", "_METADATA_SECONDS"):
        monkeypatch.setattr(admin, name, 0.05)
    before = count_threads()

    for _ in range(OUTAGES):
        with pytest.raises(BrokerError):
            question(Admin(NOBODY))

    assert wait_for_count(before) <= before


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in /proc")
def test_a_released_appender_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write of a beginning uses a new appender."""
    monkeypatch.setattr(append, "_FLUSH_STEP_SECONDS", 0.01)
    before = count_threads()

    for _ in range(OUTAGES):
        appender = LogAppender(NOBODY, "begun", "begun")
        appender.send(b"", None, lambda _: None)
        with pytest.raises(BrokerError, match="1 records were not written"):
            appender.flush(0.0)
        del appender

    assert wait_for_count(before) <= before


def test_a_fatal_error_is_reported_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's callback stores the cause without a reference to the appender."""
    callbacks: list[Callable[[KafkaError], None]] = []

    purged = Scripted(produce=refusal(KafkaError._PURGE_QUEUE))
    patch_producers(
        monkeypatch, append, lambda config: callbacks.append(config["error_cb"]) or purged
    )
    appender = LogAppender(NOBODY, "begun", "begun")
    callbacks[0](KafkaError(KafkaError._TRANSPORT, "passes"))
    callbacks[0](KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no", fatal=True))

    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        appender.send(b"", None, lambda _: None)


def test_steps_that_end_too_late_leave_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that hangs beyond its time-out is left in its thread, which ends with the step."""
    release = threading.Event()
    patch_producers(
        monkeypatch,
        transaction,
        lambda _: Scripted(send_offsets_to_transaction=lambda *_: release.wait(60)),
    )
    monkeypatch.setattr(transaction, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(transaction, "_GRACE_SECONDS", 0.01)
    before = threading.active_count()
    output = TransactionalOutput(Settings(), "worker-0", "outputs")

    outcomes = [output.run([], [("documents", 0, 1, "")], b"").outcome for _ in range(OUTAGES)]
    release.set()

    assert outcomes == [Outcome.UNKNOWN] * OUTAGES
    assert wait_for_count(before + 1, threading.active_count) == before + 1, (
        "the one that serves the next transaction"
    )


def test_a_thread_that_is_left_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with contextlib.suppress(TimeoutError):
        SideThread("slow").call(lambda: time.sleep(0.05), 0.0)

    assert wait_for_count(before, threading.active_count) == before
