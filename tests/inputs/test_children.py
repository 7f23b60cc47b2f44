"""Child processes for untrusted pages: they see no secrets, and the kernel limits them."""

from __future__ import annotations

import importlib.util
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.domain.document import DeadLetter, Message
from stream_dedup.domain.errors import ConfigurationError, ExtractorAwayError
from stream_dedup.domain.extras import install_command
from stream_dedup.inputs import html
from stream_dedup.inputs.children import start_child
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.inputs.html import Extractor
from stream_dedup.inputs.html_child import Page
from stream_dedup.settings.layers import load_settings

SECRETS = {"STREAM_DEDUP_KAFKA_SASL_PASSWORD": "of Kafka", "AWS_SECRET_ACCESS_KEY": "of a store"}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="prlimit and /proc are Linux's")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collect the environment and the limits of each child right after its start."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    found: list[dict[str, Any]] = []

    class RecordingPopen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            found.append(
                {"child": self, "environment": dict(options["env"])}
            )  # /proc shows none of an ended process

        def wait(self, timeout: float | None = None) -> int:
            read_limits(found)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", RecordingPopen)
    return found


def read_limits(found: list[dict[str, Any]]) -> None:
    for child in found:
        if "limits" not in child and child["child"].returncode is None:
            limit_kinds = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_CPU)
            child["limits"] = [resource.prlimit(child["child"].pid, limit) for limit in limit_kinds]


@LINUX
def test_a_child_gets_no_secrets_and_has_resource_limits(started: list[dict[str, Any]]) -> None:
    extractor = Extractor()
    assert extractor.extract("<p>some words</p>") == Page("some words")
    read_limits(started)
    extractor.close()
    expected = [{"PYTHONPATH": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}]
    assert [child["environment"] for child in started] == expected
    (extractor_limits,) = (child["limits"] for child in started)
    any_time = resource.getrlimit(resource.RLIMIT_CPU)  # each page has a timer of its own
    assert extractor_limits == [(2 << 30, 2 << 30), (0, 0), any_time]


@LINUX
def test_a_child_above_its_memory_limit_is_ended() -> None:
    program = "import sys; sys.stdin.read(); bytearray(1 << 30)"  # waits for its limit
    hungry = start_child(
        [sys.executable, "-c", program], 512 << 20, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    hungry.communicate(timeout=60)
    assert hungry.returncode == 1


def test_an_extractor_that_cannot_start_raises_and_the_page_is_read_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = Decoder(load_settings({"text_is": "html"}, environ={}))
    page = Message("documents", 0, 0, None, b"<p>some words</p>", None, [])

    def fail_to_start(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", fail_to_start)
        with pytest.raises(ExtractorAwayError, match="the records wait"):
            decoder.decode(page)
    found = decoder.decode(page)
    assert isinstance(found, DecodedDocument)
    assert found.text == "some words"


# -- pages that break or hang the extractor


@pytest.fixture
def extractor() -> Iterator[Extractor]:
    page_extractor = Extractor()
    yield page_extractor
    page_extractor.close()


def extract_with(program: str) -> Page | DeadLetter:
    """Return what a page becomes when `program` replaces the extractor's own."""
    extractor = Extractor(command=(sys.executable, "-c", program))
    found = extractor.extract("<p>page</p>")
    extractor.close()
    return found


def test_a_page_without_enough_memory_is_a_timed_dead_letter() -> None:
    found = extract_with(
        r"import sys; sys.stdin.buffer.read(8); sys.stdout.buffer.write(b'\1\0\0\0\x0bMemoryError')"
    )
    assert found == DeadLetter(
        "fingerprint",
        "MemoryError",
        "The extractor failed on the page: MemoryError.",
        can_vary=True,
    )


@pytest.mark.parametrize(
    ("end", "starts"),
    [("os.kill(os.getpid(), signal.SIGPROF)", 1), ("sys.stdin.buffer.read(4)", 2)],
    ids=["time", "fault"],
)
def test_a_page_that_ends_the_process_is_tried_twice_unless_it_used_its_time_up(
    tmp_path: Path, end: str, starts: int
) -> None:
    log = tmp_path / "starts"
    found = extract_with(f"import os, signal, sys; open({str(log)!r}, 'a').write('x'); {end}")
    assert isinstance(found, DeadLetter)
    assert log.read_text() == "x" * starts


def test_a_page_is_a_dead_letter_when_the_child_ends_before_reading_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page cannot be flushed to a child that has ended."""

    def start(*args: Any, **pipes: Any) -> Any:
        child = start_child(*args, **pipes)
        child.wait()
        return child

    monkeypatch.setattr(html, "start_child", start)
    assert isinstance(extract_with(""), DeadLetter)


# The work grows with the square of the depth: 5,000 take a second, these more than five minutes.
HANGS = "<div>" * 100_000 + "text"


def test_any_bytes_are_a_page(extractor: Extractor) -> None:
    """A page without main content yields its visible text; no page raises."""
    found = extractor.extract(
        "<html><body><nav><a href='/'>Only a menu</a></nav><script>x()</script></body></html>"
    )
    assert found == Page("Only a menu")
    for page in ("", "\0", "<", "<!--", "&#xD800;", "\ud800", "<p>" * 1000, "no tags at all"):
        assert isinstance(extractor.extract(page), Page)


def test_a_hung_page_is_given_up_and_the_next_page_is_read() -> None:
    """The kernel ends the child after its CPU time; the page is a dead letter and not tried
    again."""
    decoder = Decoder(load_settings({"text_is": "html"}, environ={}))
    decoder._extractor = extractor = Extractor(cpu_seconds=0.3)
    before = extractor.extract("<p>before</p>")
    child = extractor._child

    letter = decoder.decode(Message("documents", 0, 0, None, HANGS.encode(), None, []))
    after = decoder.decode(Message("documents", 0, 1, None, b"<p>after</p>", None, []))

    assert before == Page("before")
    assert isinstance(letter, DeadLetter)
    found = (letter.stage, letter.error_class, letter.can_vary)
    assert found == ("fingerprint", "PageGivenUp", True)
    assert "0.3 s of CPU" in letter.message
    assert isinstance(after, DecodedDocument)
    assert after.text == "after"
    assert child is not None
    assert child.returncode == -signal.SIGPROF
    working = extractor._child
    assert isinstance(extractor.extract(HANGS), DeadLetter)
    assert extractor._child is working  # it was not sent the page
    extractor.close()
    assert Extractor()._command[-1] == "2"


def test_a_missing_extractor_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the extra the worker does not start, and the error says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(ConfigurationError, match=re.escape(install_command("html"))):
        Decoder(load_settings({"text_is": "html"}, environ={}))
