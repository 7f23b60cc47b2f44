"""A node of Apache Kafka in KRaft mode, as a child process.

Invariants: a started broker does not only listen: it has answered that its node is live; its
ports stay reserved from construction to `stop`, also while it is killed; its process never outlives
this one on Linux; it writes only to its folder, and a temporary folder is deleted with it.

Restart of a killed node. Its controller treats the former process as alive until that one's session
ends, and only then removes and restores the partitions' leaders. Before that, the new process
already loads transactions that were about to end, and writes their markers; Kafka 4.1 to 4.4 skips the
markers of a partition without a leader, as if its topic had been deleted, and records the
transaction as ended (KAFKA-20734). The transaction then stays open in the partition for ever:
consumers stop there, and a group waits for its offsets. To avoid this the controller first runs
alone, with a very short session, until it has fenced the node; a broker started after that finds
leaders.
"""

from __future__ import annotations

import atexit
import base64
import os
import re
import shutil
import signal
import socket
import struct
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import filelock

from stream_dedup.broker import jars
from stream_dedup.broker.configuration import (
    LOGGING,
    controller_settings,
    is_alone,
    node_settings,
    render_properties,
)
from stream_dedup.broker.process import HOST, BoundChild, Port
from stream_dedup.domain.errors import LocalBrokerError
from stream_dedup.domain.paths import make_folder

NODE_ID = 1
LOG_LINES_SHOWN = 20
ANSWER_TIMEOUT_SECONDS = 2.0
START_SECONDS = 300.0  # a broker that loads its logs may take long on a busy machine
POLL_SECONDS = 0.02

# The controller's log lines for the end of the session and for the operation that ended it. Records
# are batched, so the operation's record is written some 30 ms later, and a controller that is stopped
# before loses it.
_FENCED = re.compile(
    rb"(?s)Fencing broker %d .*?Read-write operation (maybeFenceStaleBroker\(\d+\)) .*Processed \1 in "
    % NODE_ID
)

_FENCE_SECONDS = 10.0
# Makes Java compile each method once with few optimisations, for a fast start and a small load.
QUICK_START = "-XX:TieredStopAtLevel=1"

JAVA_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)


class LocalBroker:
    """A KRaft node of Apache Kafka on this machine, with its own folder and ports; a context manager.

    `with LocalBroker() as broker:` runs a broker at `broker.bootstrap` and removes all its files at
    the end. Not thread-safe.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        heap_mb: int = 384,
        settings: Mapping[str, str] | None = None,
        cluster_id: str | None = None,
        is_long_running: bool = False,
        log: Callable[[str], None] = jars.ignore,
    ) -> None:
        """Reserve the ports; `start` runs the broker.

        Args:
            folder: the folder of data, settings and log; None uses a temporary one, which `stop`
                deletes.
            port: the port for clients on 127.0.0.1; None uses any free one.
            heap_mb: the maximum of the Java heap in MB; the process needs about 150 MB more.
            settings: server properties that extend or replace those of `node_settings`.
            cluster_id: the id of a new cluster, the same for all its nodes; None creates one.
            is_long_running: use all compiler optimisations, as Kafka's scripts do; this takes CPU in
                the first minutes, and saves a busy broker about 15 % afterwards.
            log: called with a sentence about each slow step.

        Raises:
            LocalBrokerError: the port is in use, or this system is not Linux or macOS.
        """
        if os.name != "posix":
            raise LocalBrokerError(
                "The local broker runs on Linux and macOS only; use another broker with "
                "BROKER=host:port."
            )
        self._temporary = folder is None
        self.folder: Path = (
            Path(tempfile.gettempdir()) / f"stream-dedup-broker-{uuid.uuid4().hex}"
            if folder is None
            else folder.resolve()
        )
        self._port = Port(port)
        self._controller_port = Port(None)
        self._heap_mb = heap_mb
        self._extra_settings = dict(settings or {})
        self._cluster_id = cluster_id or new_cluster_id()
        self._is_long_running = is_long_running
        self._log = log
        self._child: BoundChild | None = None
        self._owner_pid = os.getpid()
        self._owner = filelock.FileLock(self.folder / "owner.lock", thread_local=False)
        self.bootstrap: str = f"{HOST}:{self._port.number}"

    @property
    def pid(self) -> int:
        """The process id of the running broker.

        Raises:
            LocalBrokerError: it is not running.
        """
        return self._running("has no process id").pid

    def check_alive(self) -> None:
        """Check that a started broker still runs.

        Raises:
            LocalBrokerError: it has ended unexpectedly.
        """
        if self._child is not None and not self._child.is_alive():
            raise self._failure(f"ended unexpectedly (exit status {self._child.status})")

    @property
    def data(self) -> Path:
        """The folder of the partitions' logs."""
        return self.folder / "data"

    def start(self, timeout_seconds: float = START_SECONDS) -> None:
        """Start the broker, and return once it answers as a live node; after `kill` it recovers its
        data on the same port.

        Fetch the jars and format the folder if needed.

        Raises:
            LocalBrokerError: it is already running; Java or jars are missing or damaged; the port
            is in use; the folder cannot be written or is in use; the broker ended or did not answer
            in time (with the end of its log).
        """
        if self._child is not None and self._child.is_alive():
            raise LocalBrokerError(
                f"The broker at {self.bootstrap} is already running; stop it before starting it again."
            )
        java = jars.find_java()
        class_path = jars.class_path(log=self._log)
        for port in (self._port, self._controller_port):
            port.take()
        settings = self._prepare_folder()
        command = [
            str(java),
            f"-Xmx{self._heap_mb}m",
            *JAVA_FLAGS,
            *(() if self._is_long_running else (QUICK_START,)),
            # compression codecs are unpacked there, and remain after a crash
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            "-Dlog4j2.configurationFile=log4j2.xml",
            "-cp",
            os.pathsep.join(map(str, class_path)),
        ]
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(command, timeout_seconds)
        elif _was_killed(self.data) and is_alone(settings):
            self._fence(command)
        self._child = BoundChild(
            [*command, "kafka.Kafka", "server.properties"], self.folder, self._server_log
        )
        (self.folder / "broker.pid").write_text(f"{self._child.pid}\n")
        self._owner_pid = os.getpid()
        atexit.register(self._stop_at_exit)
        self._wait_until_it_answers(self._child, timeout_seconds)

    def stop(self, timeout_seconds: float = 30) -> None:
        """Stop the broker, by force after the timeout, release its ports and delete a temporary
        folder.

        Safe if the broker does not run; `start` may follow.
        """
        atexit.unregister(self._stop_at_exit)
        if self._child is not None and self._child.is_alive():
            self._child.send(signal.SIGTERM)
            self._child.send(signal.SIGCONT)  # a paused process handles only SIGKILL and SIGCONT
            if not self._child.ended.wait(timeout_seconds):
                self._log(f"The broker did not exit within {timeout_seconds:g} s and was killed.")
                self._child.end()
        self._child = None
        self._port.release()
        self._controller_port.release()
        self._owner.release(force=True)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill the broker like a crash (SIGKILL); folder and ports remain, and `start` recovers."""
        self._running("cannot be killed").end()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _server_log(self) -> Path:
        return self.folder / "server.log"

    def _stop_at_exit(self) -> None:
        if (
            os.getpid() == self._owner_pid
        ):  # a forked child inherits the registration, not the broker
            self.stop()

    def _running(self, what: str) -> BoundChild:
        if self._child is None or not self._child.is_alive():
            raise LocalBrokerError(
                f"The broker at {self.bootstrap} is not running and {what}; call start() first."
            )
        return self._child

    def _prepare_folder(self) -> dict[str, str]:
        """Write the configuration of the node and of its controller alone; return the node's
        settings.
        """
        try:
            make_folder(self.folder)
            self._owner.acquire(timeout=0)
            shutil.rmtree(self.folder / "tmp", ignore_errors=True)
            (self.folder / "tmp").mkdir()
            controllers = {NODE_ID: self._controller_port.number}
            settings = node_settings(
                NODE_ID, self._port.number, self._controller_port.number, controllers
            )
            settings |= self._extra_settings
            (self.folder / "server.properties").write_text(
                render_properties(settings), encoding="ascii"
            )
            (self.folder / "log4j2.xml").write_text(
                LOGGING.format(controller="INFO"), encoding="utf-8"
            )
            alone = render_properties(controller_settings(settings))
            (self.folder / "controller.properties").write_text(alone, encoding="ascii")
            (self.folder / "controller.log4j2.xml").write_text(
                LOGGING.format(controller="DEBUG"), encoding="utf-8"
            )
        except filelock.Timeout as error:
            raise LocalBrokerError(
                f"The folder {self.folder} belongs to another running broker; stop that one, or "
                "use another folder."
            ) from error
        except OSError as error:
            raise LocalBrokerError(
                f"The broker's folder {self.folder} cannot be written: {error}; use another folder."
            ) from error
        return settings

    def _format(self, command: Sequence[str], timeout_seconds: float) -> None:
        """Format the folder of a new cluster with Kafka's tool."""
        tool = [
            "kafka.tools.StorageTool",
            "format",
            "--ignore-formatted",
            "--cluster-id",
            self._cluster_id,
        ]
        child = BoundChild(
            [*command, *tool, "--config", "server.properties"], self.folder, self._server_log
        )
        if not child.ended.wait(timeout_seconds):
            child.end()
            raise self._failure("did not finish formatting its folder in time")
        if child.status != 0:
            raise self._failure("could not format its folder")

    def _fence(self, command: Sequence[str]) -> None:
        """Run the controller alone until it has fenced the killed node; see the top of this module."""
        log_bytes = self._server_log.stat().st_size if self._server_log.exists() else 0
        # The last flag wins over the one in `command`.
        logging = "-Dlog4j2.configurationFile=controller.log4j2.xml"
        child = BoundChild(
            [*command, logging, "kafka.Kafka", "controller.properties"],
            self.folder,
            self._server_log,
        )
        deadline = time.monotonic() + _FENCE_SECONDS
        try:
            while time.monotonic() < deadline and not child.ended.wait(POLL_SECONDS):
                with self._server_log.open("rb") as log:
                    log.seek(log_bytes)
                    if _FENCED.search(log.read()):
                        break
            # If the controller has not fenced the node in time, it starts without that protection.
            child.send(signal.SIGTERM)
            child.ended.wait(max(0.0, deadline - time.monotonic()))
        finally:
            child.end()

    def _wait_until_it_answers(self, child: BoundChild, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not is_answering(self._port.number):
            if child.ended.wait(POLL_SECONDS):
                raise self._failure(f"ended while starting (exit status {child.status})")
            if time.monotonic() > deadline:
                child.end()
                raise self._failure(f"did not answer within {timeout_seconds:g} s and was killed")

    def _failure(self, what: str) -> LocalBrokerError:
        try:
            lines = self._server_log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        end = "\n".join(lines[-LOG_LINES_SHOWN:]) or "(nothing)"
        return LocalBrokerError(
            f"The broker at {self.bootstrap} {what}; see its log, and start it again.\nLast lines "
            f"of {self._server_log}:\n{end}"
        )


def _was_killed(data: Path) -> bool:
    """Return whether a node ran here without a clean shutdown, which leaves a marker file."""
    return (data / "__cluster_metadata-0").exists() and not (data / ".kafka_cleanshutdown").exists()


def is_answering(port: int, timeout_seconds: float = ANSWER_TIMEOUT_SECONDS) -> bool:
    """Return whether a broker on 127.0.0.1 answers a Metadata request with at least one live broker.

    A broker listens and answers ApiVersions before its controller registers it, and topics cannot be
    created until then. Metadata version 1, without topics, lists the registered brokers (Kafka
    protocol guide).
    """
    client = b"stream-dedup"
    request = struct.pack(">hhih", 3, 1, 0, len(client)) + client + struct.pack(">i", 0)
    try:
        with (
            socket.create_connection((HOST, port), timeout_seconds) as connection,
            connection.makefile("rb") as stream,
        ):
            connection.sendall(struct.pack(">i", len(request)) + request)
            head = stream.read(12)  # length, correlation id, number of brokers
    except OSError:
        return False
    return len(head) == 12 and struct.unpack(">iii", head)[2] > 0


def new_cluster_id() -> str:
    """Return a random id in Kafka's form: 16 bytes in URL-safe base64, not beginning with a hyphen,
    which Kafka's tools would parse as an option.
    """
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith(
        "-"
    ):
        pass
    return text
