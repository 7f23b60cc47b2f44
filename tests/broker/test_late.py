"""What arrives too late must change nothing: a delayed commit request, a worker that lost its
partitions, an answer.

Each guard is also taken away, in a child or by a patch that no setting can reach, and then the
damage must show: a test that stays green without the guard would prove nothing.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from stream_dedup.domain.errors import AbortableError, BrokerError
from stream_dedup.kafka import Outcome as Ended
from stream_dedup.kafka import Output, TransactionalOutput
from stream_dedup.settings.properties import child_environment
from stream_dedup.settings.settings import Settings
from tests.broker import kproxy
from tests.broker.harness import Filter, MakeFilter, Outcome, synthetic
from tests.broker.kproxy import KafkaProxy
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

SOCKET_TIMEOUT_MS = 2000


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[KafkaProxy]:
    with KafkaProxy(int(bootstrap.rpartition(":")[2])) as kafka_proxy:
        yield kafka_proxy


@pytest.mark.thorough
@pytest.mark.parametrize("guard", ["kept", "removed"])
@pytest.mark.parametrize("action", ["hold", "strand"])
def test_a_late_end_of_a_transaction_does_not_end_the_next(
    make_filter: MakeFilter,
    proxy: KafkaProxy,
    monkeypatch: pytest.MonkeyPatch,
    guard: str,
    action: kproxy.Action,
) -> None:
    """KAFKA-17754: a commit's request is held in the network, its repetition succeeds, and the
    first arrives inside the next transaction. The producer was thrown away, so it ends nothing;
    with the producer kept, readers see what was aborted.

    The client repeats a late request after the socket's time-out, and at once if its connection
    broke."""
    crawl = make_filter(partitions=1)
    settings = Settings(
        kafka_bootstrap_servers=proxy.bootstrap,
        kafka={"socket.timeout.ms": str(SOCKET_TIMEOUT_MS)},
        topic_prefix=crawl.settings.topic_prefix,
        group=crawl.settings.group,
    )
    if guard == "removed":
        monkeypatch.setattr(TransactionalOutput, "_replace_producer", lambda self: None)
    transactions = TransactionalOutput(settings, f"{crawl.settings.group}-late", "late")
    member = Consumer({"bootstrap.servers": crawl.bootstrap, "group.id": crawl.settings.group})
    group_metadata = member.consumer_group_metadata()
    late_request = proxy.add(kproxy.END_TXN, action)

    def output(text: bytes) -> Output:
        return Output(crawl.names.unique, 0, None, text, None, [])

    first = transactions.run(
        [output(b"first")], [(crawl.names.documents, 0, 1, "")], group_metadata
    )
    assert late_request.struck.is_set()
    assert first.outcome is Ended.COMMITTED

    def release(step: str) -> None:
        if step == "flushed":
            proxy.release(late_request)
            assert late_request.delivered.wait(20), "the broker never answered the late request"
            raise AbortableError("This transaction is given up.")

    try:
        second = transactions.run(
            [output(b"never")],
            [(crawl.names.documents, 0, 2, "")],
            group_metadata,
            report_step=release,
        )
        assert second.outcome is Ended.ABORTED or guard == "removed"
    except BrokerError:
        # Without the guard the client may also find that the transaction it aborts no longer
        # exists.
        assert guard == "removed"
    transactions.close()
    member.close()

    values = [message.value for message in crawl.read(crawl.names.unique)]
    assert values == ([b"first"] if guard == "kept" else [b"first", b"never"])


def start_zombie(crawl: Filter, guard: str) -> tuple[subprocess.Popen[bytes], Path, Path]:
    """Start a worker that will be held before its transaction; return it, its log and the file that
    lets it go on."""
    log_path, go_on = crawl.folder / f"zombie-{guard}.log", crawl.folder / "go-on"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.broker.zombie_child", str(go_on), guard],
            env=child_environment({}) | crawl.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    return process, log_path, go_on


def test_a_zombie_commits_nothing(make_filter: MakeFilter) -> None:
    """A worker hangs before its transaction until another has one of its partitions and has
    committed it: its own commit is refused, because the group's metadata came with the batch. Read
    at the commit, it would commit what it lost, doubled."""
    filters = {guard: make_filter(partitions=2) for guard in ("kept", "removed")}
    documents = synthetic(300, 12, partitions=2)
    sizes = Counter(part for part, *_ in documents)
    children = {}
    try:
        for guard, crawl in filters.items():
            crawl.produce(documents)
            crawl.start("index")
            children[guard] = start_zombie(crawl, guard)
        for guard, crawl in filters.items():
            _, log_path, _ = children[guard]
            wait_until(
                lambda path=log_path: "held before its transaction" in path.read_text(),
                "the worker is held",
            )
            crawl.start("worker")
        for guard, crawl in filters.items():
            wait_until(
                lambda observed=crawl: any(
                    sizes[part] == offset
                    for part, offset in observed.committed_by_partition().items()
                ),
                "the other worker has committed a partition",
            )
            children[guard][2].touch()
        filters["kept"].wait_until_committed(len(documents))
        wait_until(
            lambda: count_delivered(filters["removed"]) > len(documents),
            "the zombie without its guard has committed",
            60,
        )
        assert "a transaction did not commit" in children["kept"][1].read_text()
    finally:
        for process, log_path, _ in children.values():
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            print(log_path.read_text()[-3000:])

    Outcome(filters["kept"]).check()
    with pytest.raises(AssertionError, match="went in and"):
        Outcome(filters["removed"]).check()


def count_delivered(crawl: Filter) -> int:
    return len(crawl.read(crawl.names.unique)) + len(crawl.read(crawl.names.duplicates))
