"""What `demo --serve` reports if packages are missing or a process that it runs ends."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from stream_dedup.demo import run
from stream_dedup.domain.errors import ConfigurationError, LocalBrokerError, StreamDedupError
from stream_dedup.domain.extras import install_command
from stream_dedup.settings.settings import Settings


class GoneBroker:
    """A broker that was killed."""

    def check_alive(self) -> None:
        raise LocalBrokerError("The broker ended by itself.")


@contextmanager
def roles(
    folder: Path, broker: object = None
) -> Iterator[tuple[run.DemoProcesses, subprocess.Popen[bytes]]]:
    """Yield a process in place of `run all`, and the object that watches it."""
    log_file = folder / "roles.log"
    log_file.write_text("the last line")
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield run.DemoProcesses(process, log_file, broker), process  # type: ignore[arg-type]
        finally:
            process.kill()


def test_the_demo_ends_when_one_of_its_processes_ends(tmp_path: Path) -> None:
    settings, out = (
        Settings(kafka_bootstrap_servers="127.0.0.1:1", http_port=1),
        Console(file=io.StringIO(), width=200),
    )
    with roles(tmp_path) as (processes, process):
        processes.check()
        process.kill()
        with pytest.raises(
            StreamDedupError, match=r"(?s)ended unexpectedly \(killed by signal 9\).*the last line"
        ):
            run._keep_running(settings, "a clue", processes, out)

    with (
        roles(tmp_path, GoneBroker()) as (processes, _),
        pytest.raises(LocalBrokerError, match="ended by itself"),
    ):
        run._keep_running(settings, "a clue", processes, out)


def test_the_demo_needs_the_packages_of_the_console(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check comes first, because the crawl takes time."""
    monkeypatch.setitem(sys.modules, "tantivy", None)
    monkeypatch.setattr(run, "read_crawl", lambda: pytest.fail("it has begun"))

    with pytest.raises(
        ConfigurationError,
        match=r"role search needs the package tantivy.*" + re.escape(install_command("search")),
    ):
        run.run_demo("127.0.0.1:1", serve=True)
