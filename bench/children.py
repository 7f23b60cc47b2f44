"""Run the measured programs as child processes: start them as an operator does, observe them from
outside, and stop them in order.

Invariants: a child ends when its standard input ends, and only this process holds the other end, so
that no child outlives this process however it ends. A child that ends by itself is an error with
its last log lines, never a slow measurement.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from stream_dedup.domain.errors import StreamDedupError

_END_SECONDS = 60.0
_LOOK_SECONDS = 0.02
_HTTP_SECONDS = 10.0
_LOG_CHARACTERS = 3000
# getrusage(2): kilobytes on Linux, bytes on macOS.
_MEMORY_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """What a child used from its start to its end: CPU time (user and system) and peak resident
    memory.
    """

    cpu_seconds: float
    memory_bytes_max: int


class MeasuredChild:
    """One running child, with its output in a file."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        """Start a command with this environment, and none of ours."""
        self.name = name
        self.usage: Usage | None = None
        self._log_path = folder / f"{name}.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for us, and we end it
            )
        self._collector = process_collector(self._process.pid)
        self._port: int | None = None

    def cpu_seconds(self) -> float | None:
        """Return the CPU time used so far, to a hundredth of a second; None where the system has no
        /proc.
        """
        return cpu_seconds(self._collector)

    def metrics(self) -> list[Sample]:
        """Return what the role's /metrics says now: samples with name, labels and value.

        Raises:
            StreamDedupError: it does not answer.
        """
        try:
            connection = http.client.HTTPConnection(
                "127.0.0.1", self.http_port(), timeout=_HTTP_SECONDS
            )
            with contextlib.closing(connection):
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException) as error:
            self.check()
            raise StreamDedupError(f"The {self.name}'s metrics cannot be read: {error}.") from error
        return [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def check(self) -> None:
        """Raise StreamDedupError if the child has ended."""
        code = self._process.poll()
        if code is not None:
            raise StreamDedupError(
                f"The {self.name} ended by itself with {code}. It said last:\n{self.log}"
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def log(self) -> str:
        """The end of its output."""
        return self._log_path.read_text(errors="replace")[-_LOG_CHARACTERS:]

    def stop(self) -> None:
        """End the child: close its standard input, and kill it after a minute; then set
        `usage`.
        """
        memory_bytes_max = _peak_bytes(self._process.pid)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._process.returncode is not None:
            return
        until = time.monotonic() + _END_SECONDS
        pid, status, used = os.wait4(self._process.pid, os.WNOHANG)
        while not pid:
            if time.monotonic() > until:
                self._process.kill()
            time.sleep(_LOOK_SECONDS)
            pid, status, used = os.wait4(self._process.pid, os.WNOHANG)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self.usage = Usage(
            used.ru_utime + used.ru_stime, memory_bytes_max or used.ru_maxrss * _MEMORY_UNIT_BYTES
        )

    def http_port(self) -> int:
        """Return where it serves metrics and pages.

        Raises:
            StreamDedupError: it does not say so, or not yet.
        """
        if self._port is None:
            self._port = _port_in(self._log_path.read_text(errors="replace").splitlines())
        if self._port is None:
            raise StreamDedupError(
                f"The {self.name} does not say where its metrics are. It said:\n{self.log}"
            )
        return self._port


def process_collector(pid: int) -> ProcessCollector:
    """Return a collector of the CPU time and memory of another process."""
    return ProcessCollector(pid=lambda: pid, registry=None)


def cpu_seconds(collector: ProcessCollector) -> float | None:
    """Return the CPU time that a process has used so far; None where that cannot be seen, or if it
    has gone.
    """
    for family in collector.collect():
        if family.name == "process_cpu_seconds":
            return float(family.samples[0].value)
    return None


def _peak_bytes(pid: int) -> int | None:
    """Return the most resident memory of a running process; None where that cannot be seen.

    What wait4(2) says instead is at least what this process had when it started the child, and also
    when it is more.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def _port_in(lines: Sequence[str]) -> int | None:
    for line in lines:
        with contextlib.suppress(ValueError):
            fields = json.loads(line)
            if isinstance(fields, dict) and isinstance(fields.get("port"), int):
                return int(fields["port"])
    return None
