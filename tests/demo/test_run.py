"""What `demo --serve` says where packages of its console are missing."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from stream_dedup.demo import run
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.settings.settings import Settings


def test_without_any_console_it_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waited for a crawl to come through would be told too late."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr(run, "mini_crawl", lambda *_: pytest.fail("it has begun"))

    with pytest.raises(
        ConfigurationError, match=r"role console needs the package jinja2.*pip install 'stream-dedup\[search\]'"
    ):
        run.run_demo(100, 1, "127.0.0.1:1", as_json=False, serve=True)


def test_without_a_search_the_console_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other pages are served, and one sentence says how Find is had."""
    monkeypatch.setitem(sys.modules, "tantivy", None)

    @contextmanager
    def stopped() -> Iterator[threading.Event]:
        stop = threading.Event()
        stop.set()
        yield stop

    monkeypatch.setattr(run, "stop_on_signals", stopped)
    out = Console(file=io.StringIO(), width=200)
    run._serve(Settings(kafka_bootstrap_servers="127.0.0.1:1"), out)
    assert isinstance(out.file, io.StringIO)
    served = out.file.getvalue().splitlines()

    assert served[1].startswith("Everything stays up. The console: http://127.0.0.1:")
    assert served[2] == (
        "Its page Find has nothing to ask. The role search needs the package tantivy, which is not installed; install it with: "
        "pip install 'stream-dedup[search]'"
    )
