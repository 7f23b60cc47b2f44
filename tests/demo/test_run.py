"""What `demo --serve` says where packages of its console are missing, and where something that it
runs ends by itself."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
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
    """Give a process that stands for `run all`, and what looks after it."""
    said = folder / "roles.log"
    said.write_text("the last line")
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield run.DemoProcesses(process, said, broker), process  # type: ignore[arg-type]
        finally:
            process.kill()


@pytest.mark.parametrize("serve", [run._leave_up, run._serve], ids=["with a search", "without"])
def test_what_ends_by_itself_ends_the_demo_with_a_sentence(
    tmp_path: Path, serve: Callable[..., None]
) -> None:
    settings, out = (
        Settings(kafka_bootstrap_servers="127.0.0.1:1", http_port=1),
        Console(file=io.StringIO(), width=200),
    )
    given = (settings, "a clue") if serve is run._leave_up else (settings,)
    with roles(tmp_path) as (beside, process):
        beside.check()
        process.kill()
        with pytest.raises(
            StreamDedupError, match=r"(?s)ended unexpectedly \(killed by signal 9\).*the last line"
        ):
            serve(*given, beside, out)

    with (
        roles(tmp_path, GoneBroker()) as (beside, _),
        pytest.raises(LocalBrokerError, match="ended by itself"),
    ):
        serve(*given, beside, out)


def test_without_any_console_it_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waited for a crawl to come through would be told too late."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr(run, "read_crawl", lambda: pytest.fail("it has begun"))

    with pytest.raises(
        ConfigurationError,
        match=r"role console needs the package jinja2.*" + re.escape(install_command("search")),
    ):
        run.run_demo("127.0.0.1:1", as_json=False, serve=True)


def test_without_a_search_the_console_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tantivy", None)

    @contextmanager
    def stopped() -> Iterator[threading.Event]:
        stop = threading.Event()
        stop.set()
        yield stop

    monkeypatch.setattr(run, "stop_on_signals", stopped)
    out = Console(file=io.StringIO(), width=200)
    with roles(tmp_path) as (beside, _):
        run._serve(Settings(kafka_bootstrap_servers="127.0.0.1:1"), beside, out)
    assert isinstance(out.file, io.StringIO)
    served = out.file.getvalue().splitlines()

    assert served[1].startswith("Everything stays up. The console: http://127.0.0.1:")
    assert served[2] == (
        "Its page Find has nothing to ask. The role search needs the package tantivy, which is not "
        f"installed; install it with: {install_command('search')}"
    )
