"""`run all`: roles and their ports, restarts, and the message if a search cannot run."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.extras import install_command
from stream_dedup.serving import supervise
from stream_dedup.settings.settings import Settings
from tests.cli.running import Run


def options_of(
    settings: Settings, *, insights: bool = False, search: bool = True
) -> dict[str, list[str]]:
    found = supervise.options_of(
        settings, ["--config", "f"], with_insights=insights, with_search=search
    )
    return {role: options for role, options in found.items()}  # noqa: C416 - to the type that the tests name


def test_each_role_has_its_own_port() -> None:
    """A role's port does not depend on other roles; with HTTP_PORT=0 each takes a free port."""
    for insights in (False, True):
        found = options_of(Settings(http_port=9000), insights=insights)
        ports = {
            role: next(option for option in options if option.startswith("http_port="))
            for role, options in found.items()
        }
        wanted = {"index": "http_port=9001", "worker": "http_port=9000", "search": "http_port=9003"}
        assert ports == wanted | ({"insights": "http_port=9002"} if insights else {})
    assert all("http_port=0" in options for options in options_of(Settings(http_port=0)).values())
    assert "search" not in options_of(Settings(), search=False)
    with pytest.raises(ConfigurationError, match="HTTP_PORT=65534 needs port 65,537"):
        options_of(Settings(http_port=65_534))


def test_only_the_search_gets_the_address_of_the_index() -> None:
    """It gets none if the settings name one, or if the port is not known before the start."""
    found = options_of(Settings(http_port=9000, http_host="::"))
    assert all(options[:2] == ["--config", "f"] for options in found.values())
    shown = [
        role for role, options in found.items() if "console_index=http://127.0.0.1:9001" in options
    ]
    assert shown == ["search"]

    for settings in (Settings(console_index="http://index:1"), Settings(http_port=0)):
        assert not [
            option
            for options in options_of(settings).values()
            for option in options
            if option.startswith("console_index")
        ]


def test_without_its_extra_a_sentence_says_how_to_get_a_search(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest runs all the same; whoever asks for a search, or for none, is refused, or told
    nothing."""
    monkeypatch.setenv("STREAM_DEDUP_HTTP_PORT", "0")
    monkeypatch.setenv("STREAM_DEDUP_FAILPOINT", "no-such-step")
    monkeypatch.setitem(sys.modules, "tantivy", None)
    started: list[str] = []
    start_role = supervise._start

    def start(role: str, *given: Any, **named: Any) -> Any:
        started.append(role)
        return start_role(role, *given, **named)

    monkeypatch.setattr(supervise, "_start", start)

    ended = run("run", "all")
    assert ended.code == 78
    assert (
        "The console and `find` are not available. The role search needs the package "
        "tantivy" in ended.err
    )
    assert started == ["index", "worker"]

    assert "tantivy" not in run("run", "all", "--no-search").err

    started.clear()
    required = run("run", "all", "--search")
    assert (required.code, started) == (78, [])
    assert install_command("search") in required.err


def test_a_search_that_ended_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A role that ended with 78 is not restarted, because only an operator can help."""
    monkeypatch.setattr(supervise, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(supervise, "_RESTART_SECONDS", 0.0)
    warnings: list[str] = []
    monkeypatch.setattr(supervise, "_logger", SimpleNamespace(warning=warnings.append))

    class Ended:
        def __init__(self, code: int | None) -> None:
            self.returncode = code

        def poll(self) -> int | None:
            return self.returncode

    def child(role: str, code: int | None) -> Any:
        return supervise._Child(role, Ended(code), threading.Thread(), [])  # type: ignore[arg-type]

    restarted: list[str] = []

    def start(role: str, *_: object, **__: object) -> Any:
        restarted.append(role)
        children[0].process.returncode = 1  # ends the test: the index is gone
        return child(role, None)

    monkeypatch.setattr(supervise, "_start", start)
    children = [child("index", None), child("search", 1), child("insights", 78)]
    dead = supervise._wait(children, threading.Event(), is_console=False)

    assert dead is children[0]
    assert restarted == ["search"]
    found = ["The search ended" in line and "it is restarted" in line for line in warnings]
    assert found == [True, False]
    assert "The insights ended" in warnings[1]
    assert "it is not restarted" in warnings[1]


SLOW = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
print("its last line", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def test_a_killed_role_is_named_at_once_and_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its name is logged before a slow role has ended."""
    started: list[supervise._Child] = []

    def start(role: str, arguments: Sequence[str], *, is_console: bool) -> supervise._Child:
        command = [sys.executable, "-c", SLOW, str(tmp_path / "go on")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        reader = threading.Thread(target=supervise._copy_lines, args=(process.stdout, b""))
        reader.start()
        started.append(supervise._Child(role, process, reader, arguments))
        return started[-1]

    monkeypatch.setattr(supervise, "_start", start)
    warnings: list[str] = []

    def record_warning(text: str) -> None:
        warnings.append(text)
        assert started[1].process.poll() is None, "it is said only when all is over"
        (tmp_path / "go on").touch()

    monkeypatch.setattr(supervise, "_logger", SimpleNamespace(warning=record_warning))

    def kill() -> None:
        while len(started) < 2:
            time.sleep(0.01)
        started[0].process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    code = supervise.supervise(Settings(http_port=0), [], with_search=False)
    killer.join()

    assert code == 128 + signal.SIGKILL
    assert warnings == [
        (
            "The index ended unexpectedly (killed by signal 9), so all roles are stopped. After an "
            "error, its last log lines above report it."
        )
    ]
    for child in started:
        child.reader.join(20)
    assert capfd.readouterr().err.count("its last line") >= 1
