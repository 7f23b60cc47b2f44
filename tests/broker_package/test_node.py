"""One node: its settings and error messages without Java, and its life on the real broker."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stream_dedup.broker import LocalBroker, jars, node
from stream_dedup.domain.errors import LocalBrokerError
from tests.waiting import wait_until

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel ends a child with its parent on Linux only"
)


def is_running(pid: int) -> bool:
    """Return whether the process runs; one that ended and was not yet waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# Without Java


@contextlib.contextmanager
def serve_answer(answer: bytes) -> Iterator[int]:
    """Serve one connection's request with these bytes and hang up; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                connection.recv(1024)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (struct.pack(">iii", 30, 0, 1) + bytes(22), True),
        (struct.pack(">iii", 30, 0, 0) + bytes(22), False),
        (struct.pack(">ii", 30, 0), False),
        (b"", False),
    ],
    ids=["one live broker", "no live broker yet", "cut short", "hung up"],
)
def test_only_a_cluster_with_a_live_node_counts_as_an_answer(answer: bytes, expected: bool) -> None:
    """A port that listens, hangs up, or knows no live broker is not ready."""
    with serve_answer(answer) as port:
        assert node.is_answering(port) is expected


def test_a_taken_port_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(
            LocalBrokerError, match=rf"Port {port} .*cannot be used.*use another port"
        ):
            LocalBroker(port=port)


@pytest.mark.parametrize("act", [LocalBroker.kill, lambda broker: broker.pid])
def test_a_broker_that_does_not_run_says_so(act: Callable[[LocalBroker], object]) -> None:
    with pytest.raises(LocalBrokerError, match=r"is not running.*start\(\)"):
        act(LocalBroker())


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that replaces Java by a script; `$tool` is 1 while it formats."""

    def install(script: str) -> None:
        path = tmp_path / "java"
        path.write_text(
            f'#!/bin/sh\ncase "$*" in *StorageTool*) tool=1;; *) tool=0;; esac\n{script}\n'
        )
        path.chmod(0o755)
        monkeypatch.setattr(jars, "find_java", lambda: path)
        monkeypatch.setattr(jars, "class_path", lambda log: [])

    return install


@pytest.mark.parametrize(
    ("script", "why", "log"),
    [
        pytest.param(
            '[ $tool = 1 ] || { for line in $(seq 1 30); do echo "word $line."; done; exit 3; }',
            r"exit status 3(?!(.|\n)*word 10\.)(.|\n)*word 11\.\n",
            "word 1.\n",
            id="the last twenty lines of a broker that ends",
        ),
        pytest.param(
            "[ $tool = 1 ] && echo no good; exit $tool",
            r"could not format its folder(.|\n)*no good",
            "",
            id="no format",
        ),
    ],
)
def test_the_output_of_a_broker_that_does_not_start_is_shown(
    java: Callable[[str], None], tmp_path: Path, script: str, why: str, log: str
) -> None:
    """The error contains the output, and the folder is kept."""
    java(script)

    with pytest.raises(LocalBrokerError, match=why):
        LocalBroker(tmp_path / "node").start()
    assert not log or (tmp_path / "node" / "server.log").read_text().startswith(log)


STUBBORN = """
import re, signal, socket, struct
signal.signal(signal.SIGTERM, signal.SIG_IGN)
port = int(re.search(r"^listeners=PLAINTEXT://127.0.0.1:([0-9]+)", open("server.properties").read(), re.M)[1])
with socket.create_server(("127.0.0.1", port)) as server:
    while True:
        with server.accept()[0] as connection:
            connection.recv(1024)
            connection.sendall(struct.pack(">iii", 8, 0, 1))
"""


def test_a_broker_that_never_answers_is_ended_at_the_timeout(
    java: Callable[[str], None], tmp_path: Path
) -> None:
    """The error says so, and no process stays behind."""
    java("[ $tool = 1 ] || exec sleep 600")
    broker = LocalBroker(tmp_path / "node")

    with pytest.raises(LocalBrokerError, match=r"did not answer within 0\.5 s"):
        broker.start(timeout_seconds=0.5)
    assert not is_running(int((tmp_path / "node" / "broker.pid").read_text()))


def test_a_broker_that_ignores_sigterm_is_killed(
    java: Callable[[str], None], tmp_path: Path
) -> None:
    """After the timeout. The broker is in another process group, so Ctrl+C does not reach it."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    java(f"[ $tool = 1 ] || exec {sys.executable} {tmp_path / 'stubborn.py'}")
    log_lines: list[str] = []
    broker = LocalBroker(tmp_path / "node", log=log_lines.append)
    broker.start()
    pid, group = broker.pid, os.getpgid(broker.pid)

    broker.stop(timeout_seconds=0.1)

    assert not is_running(pid)
    assert group != os.getpgid(0)
    assert log_lines == ["The broker did not exit within 0.1 s and was killed."]


# A controller first replays old fences; it writes its new one some time after it made it.
CONTROLLER = """
import re, signal, sys, time
if sys.argv[-1] == "server.properties":
    sys.exit("the node")
written = []
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("ended in order", *written, flush=True)))
settings = open(sys.argv[-1]).read()
print("alone:", *re.findall("^(?:process.roles|listeners|broker.session.timeout.ms)=.*", settings, re.M), flush=True)
record = "Replayed BrokerRegistrationChangeRecord(brokerId=1, brokerEpoch=11, fenced=1, inControlledShutdown=0)"
print(record, "Processed maybeFenceStaleBroker(6) in 3 us", flush=True, sep="\\n")
time.sleep(0.2)
print("Fencing broker 1 at epoch 11 because its session has timed out.", record, flush=True, sep="\\n")
print("Read-write operation maybeFenceStaleBroker(77) will be completed when the log reaches offset 17.", flush=True)
time.sleep(0.2)
print("Processed maybeFenceStaleBroker(7) in 3 us", flush=True)
time.sleep(0.2)
written.append("with the fence")
print("Processed maybeFenceStaleBroker(77) in 34828 us", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("files", "voters", "expected"),
    [
        (["__cluster_metadata-0"], 1, True),
        (["__cluster_metadata-0", ".kafka_cleanshutdown"], 1, False),
        ([], 1, False),
        (["__cluster_metadata-0"], 3, False),
    ],
    ids=["killed", "stopped", "never-run", "killed-of-three"],
)
def test_a_killed_node_is_fenced_before_it_starts(
    java: Callable[[str], None], tmp_path: Path, files: list[str], voters: int, expected: bool
) -> None:
    """The controller runs alone until the fence is written; other nodes start at once."""
    (tmp_path / "controller.py").write_text(CONTROLLER)
    java(f'exec {sys.executable} {tmp_path / "controller.py"} "$@"')
    for name in ("meta.properties", *files):
        (tmp_path / "node" / "data" / name).mkdir(parents=True)
    quorum = ",".join(f"{number}@127.0.0.1:{9000 + number}" for number in range(1, voters + 1))

    with pytest.raises(LocalBrokerError, match="the node"):
        LocalBroker(tmp_path / "node", settings={"controller.quorum.voters": quorum}).start()

    log_lines = (tmp_path / "node" / "server.log").read_text().splitlines()
    alone = [line for line in log_lines if line.startswith("alone: ")]
    found = [line for line in log_lines if line.startswith("ended")]
    assert found == ["ended in order with the fence"] * expected
    assert log_lines[-1] == "the node"
    assert [re.sub("[0-9]{4,}", "N", line) for line in alone] == [
        (
            "alone: process.roles=controller listeners=CONTROLLER://127.0.0.1:N "
            "broker.session.timeout.ms=100"
        )
    ] * expected


def test_a_folder_in_use_is_refused(java: Callable[[str], None], tmp_path: Path) -> None:
    """Two brokers do not share a folder; the second is refused before it touches anything."""
    java("exit 0")
    (tmp_path / "node").mkdir()

    with (
        filelock.FileLock(tmp_path / "node" / "owner.lock"),
        pytest.raises(LocalBrokerError, match="belongs to another running broker"),
    ):
        LocalBroker(tmp_path / "node").start()
    assert not (tmp_path / "node" / "server.properties").exists()


# With the real broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    # A folder whose name has a space and letters beyond ASCII, as home directories do.
    with LocalBroker(tmp_path_factory.mktemp("bröker 目录")) as running:
        yield running


def list_topics(broker: LocalBroker) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20).topics)


def create_topic(broker: LocalBroker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(name, 1, 1)]).values():
        created.result(20)


def send(broker: LocalBroker, topic: str, value: bytes, **settings: str) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap}
        | {k.replace("_", "."): v for k, v in settings.items()}
    )
    producer.produce(topic, value)
    assert producer.flush(20) == 0


def read_all(broker: LocalBroker, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, timeout=20)]
    finally:
        consumer.close()


@pytest.mark.broker
def test_a_started_broker_takes_topics_and_every_codec_at_once(broker: LocalBroker) -> None:
    """Topics can be created and written when start returns, without retries."""
    create_topic(broker, "codecs")
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        send(broker, "codecs", codec.encode() * 500, compression_type=codec)

    assert read_all(broker, "codecs", 5) == [codec.encode() * 500 for codec in codecs]


@pytest.mark.broker
def test_topics_are_not_created_by_asking_for_them(broker: LocalBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.list_topics("unheard-of", timeout=20)

    assert "unheard-of" not in list_topics(broker)


@pytest.mark.broker
def test_a_killed_broker_recovers_its_topics_on_the_same_port(broker: LocalBroker) -> None:
    """After SIGKILL the port refuses; start brings back topic and record at the same address, as a
    new process."""
    create_topic(broker, "kept")
    send(broker, "kept", b"before the crash")
    address, pid = broker.bootstrap, broker.pid

    broker.kill()
    is_refused = not node.is_answering(int(address.rpartition(":")[2]))
    has_ended = not is_running(pid)
    broker.start()

    assert (is_refused, has_ended) == (True, True)
    assert (broker.bootstrap, broker.pid != pid) == (address, True)
    assert read_all(broker, "kept", 1) == [b"before the crash"]


def write_transactions(broker: LocalBroker, name: str, stop: threading.Event) -> None:
    """Write transactions of one record each until `stop` is set or the broker is gone."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": name,
            "linger.ms": 0,
            "transaction.timeout.ms": 5000,
        }
    )
    with contextlib.suppress(KafkaException):
        producer.init_transactions(20)
        while not stop.is_set():
            producer.begin_transaction()
            producer.produce(name, b"whole")
            while not stop.is_set():
                try:
                    producer.commit_transaction(2)
                    break
                except KafkaException as error:  # the machine is busy
                    if not error.args[0].retriable():
                        raise


@pytest.mark.thorough
@pytest.mark.broker
def test_transactions_that_a_kill_interrupted_end_after_it(broker: LocalBroker) -> None:
    """An end without its markers (KAFKA-20734) would block every reader."""
    names = [f"ending-{number}" for number in range(16)]
    for name in names:
        create_topic(broker, name)
    stop = threading.Event()
    writers = [
        threading.Thread(target=write_transactions, args=(broker, name, stop)) for name in names
    ]
    for writer in writers:
        writer.start()
    clients = [
        Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "reader",
                "isolation.level": f"read_{level}",
            }
        )
        for level in ("committed", "uncommitted")
    ]

    def ends(name: str) -> list[int]:
        try:
            return [
                client.get_watermark_offsets(TopicPartition(name, 0), timeout=20)[1]
                for client in clients
            ]
        except KafkaException:  # a new topic, or one whose leader has just come back
            for client in clients:
                client.list_topics(name, timeout=20)
            return [0, -1]

    wait_until(lambda: min(ends(name)[0] for name in names) > 10, "all write")
    before = len((broker.folder / "server.log").read_text())

    broker.kill()
    stop.set()
    broker.start()

    for writer in writers:
        writer.join()
    wait_until(lambda: all(len(set(ends(name))) == 1 for name in names), "no transaction is open")
    for client in clients:
        client.close()
    log = (broker.folder / "server.log").read_text()[before:]
    assert re.findall("Couldn't find leader endpoint for partitions .*", log) == []
    # A coordinator that is elected before the node is fenced has transactions to end while there
    # are no leaders.
    assert log.index("Fencing broker 1 ") < log.index("Elected as the txn coordinator")


@pytest.mark.thorough
@pytest.mark.broker
def test_a_stopped_temporary_broker_leaves_nothing() -> None:
    """Stop ends the process in order, also a paused one, and its temporary folder goes."""
    log_lines: list[str] = []
    with LocalBroker(log=log_lines.append) as temporary:
        folder, pid = temporary.folder, temporary.pid
        has_written = (folder / "server.log").stat().st_size > 0
        os.kill(pid, signal.SIGSTOP)

    assert has_written
    assert log_lines == []  # it ended in order and was not killed
    assert not is_running(pid)
    assert not folder.exists()


@pytest.mark.thorough
@on_linux
@pytest.mark.broker
def test_a_broker_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    """`kill -9` of the owner ends the broker; the end of the thread that started it, or of a forked
    child, does not.

    The owner runs with an empty PATH: Java comes from the wheel alone.
    """
    program = """
import os, sys, threading, time
from stream_dedup.broker import LocalBroker
broker = LocalBroker()
starting = threading.Thread(target=broker.start)
starting.start()
starting.join()
forked = os.fork()
if not forked:
    sys.exit()
os.waitpid(forked, 0)
print(broker.pid, broker.bootstrap, broker.folder, flush=True)
time.sleep(600)
"""
    environment = os.environ | {
        "PATH": "",
        "STREAM_DEDUP_CACHE_DIR": str(jars.cache_folder().parent.parent.absolute()),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(node.__file__).parent.parent.parent),
    }
    environment.pop("JAVA_HOME", None)
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert owner.stdout is not None
    try:
        pid, bootstrap, folder = owner.stdout.readline().split()
        was_running = is_running(int(pid)) and node.is_answering(int(bootstrap.rpartition(":")[2]))
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()

    assert was_running
    wait_until(lambda: not is_running(int(pid)), "the broker ended with its owner")
    shutil.rmtree(folder)
