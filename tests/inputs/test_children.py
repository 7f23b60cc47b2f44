"""Processes for what strangers wrote: they see no password, and the kernel bounds them."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import ExtractorAwayError
from stream_dedup.inputs import children, protobuf
from stream_dedup.inputs.children import start_child
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.inputs.html import Extractor, Failure
from stream_dedup.settings.layers import load_settings
from tests.inputs.registry_server import framed_protobuf, read, refused, serving

SECRETS = {"STREAM_DEDUP_KAFKA_SASL_PASSWORD": "of Kafka", "AWS_SECRET_ACCESS_KEY": "of a store"}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="prlimit and /proc are Linux's")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collect what is seen of each child when it has just started."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    found: list[dict[str, Any]] = []

    class Seen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            found.append({"child": self, "environment": dict(options["env"])})  # what has ended shows none in /proc

        def wait(self, timeout: float | None = None) -> int:
            look(found)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Seen)
    return found


def look(found: list[dict[str, Any]]) -> None:
    for one in found:
        if "limits" not in one and one["child"].returncode is None:
            limits = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_CPU)
            one["limits"] = [resource.prlimit(one["child"].pid, limit) for limit in limits]


@LINUX
def test_the_extractor_has_nothing_of_ours_and_bounds(started: list[dict[str, Any]]) -> None:
    extractor = Extractor()
    assert extractor.extract("<p>some words</p>") == "some words"
    look(started)
    extractor.close()
    (one,) = started
    assert one["environment"] == {"PYTHONPATH": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
    memory, core, cpu = one["limits"]
    assert (memory, core) == ((2 << 30, 2 << 30), (0, 0))
    assert cpu == resource.getrlimit(resource.RLIMIT_CPU)  # each page has a timer of its own


@LINUX
def test_protoc_has_nothing_of_ours_and_bounds(started: list[dict[str, Any]]) -> None:
    with serving() as stand:
        given = {"value_format": "protobuf", "registry_url": stand.url, "text_field": "text"}
        by = Decoder(load_settings(given, environ={}))
        assert read(by, framed_protobuf(stand)).text == "abc"
    (one,) = started
    assert one["environment"] == {"PYTHONPATH": "/nowhere", "PYTHONDONTWRITEBYTECODE": "1"}
    assert one["limits"] == [(1 << 30, 1 << 30), (0, 0), (20, 20)]


@LINUX
def test_a_child_that_takes_more_memory_or_time_than_it_may_is_ended() -> None:
    program = "import sys; sys.stdin.read(); bytearray(1 << 30)"  # it begins when its limit is set
    hungry = start_child([sys.executable, "-c", program], 512 << 20, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    busy = start_child([sys.executable, "-c", "while True: pass"], 1 << 30, 1)
    hungry.communicate(timeout=60)
    assert hungry.returncode == 1
    assert busy.wait(60) in (-signal.SIGXCPU, -signal.SIGKILL)


def test_a_schema_that_takes_protoc_more_than_it_may_is_a_dead_letter_that_is_retracted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What decided is a limit, so another worker may have judged the record."""
    known = children.start_child

    def start(_: Any, *limits: Any, **options: Any) -> Any:
        return known([sys.executable, "-c", "import os; os.abort()"], *limits, **options)

    monkeypatch.setattr(protobuf, "start_child", start)
    with serving() as stand:
        given = {"value_format": "protobuf", "registry_url": stand.url, "text_field": "text"}
        found = refused(Decoder(load_settings(given, environ={})), framed_protobuf(stand))
    assert (found.error_class, found.is_timed) == ("BadSchema", True)
    assert "it breaks protoc, or takes it more than 1024 MB of memory" in found.message


def test_a_page_for_which_there_was_no_memory_is_retracted(tmp_path: Path) -> None:
    program = tmp_path / "answers.py"
    program.write_text("import sys; sys.stdin.buffer.read(8); sys.stdout.buffer.write(b'\\1\\0\\0\\0\\x0bMemoryError')")
    extractor = Extractor(command=(sys.executable, str(program)))
    found = extractor.extract("<p>p")
    extractor.close()
    assert found == Failure("MemoryError", "The extractor failed on the page: MemoryError.", is_timed=True)


def test_an_extractor_that_cannot_be_started_is_no_fault_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    by = Decoder(load_settings({"text_is": "html"}, environ={}))
    page = Message("documents", 0, 0, None, b"<p>some words</p>", None, [])

    def no_more(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", no_more)
        with pytest.raises(ExtractorAwayError, match="the records wait"):
            by.decode(page)
    found = by.decode(page)
    assert isinstance(found, DecodedDocument)
    assert found.text == "some words"
