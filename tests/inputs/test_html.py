"""The main text of pages; pages that break or hang the extractor."""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path

import pytest

from stream_dedup.ground.document import DeadLetter, Message
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.inputs.html import Extractor, Failure
from stream_dedup.settings.layers import load_settings

# The work grows with the square of the depth: 5,000 take a second, these more than five minutes.
HANGS = "<div>" * 100_000 + "text"


@pytest.fixture
def extractor() -> Extractor:
    return Extractor()


def test_a_page_without_main_text_is_not_empty(extractor: Extractor) -> None:
    """Where no main content is found, all that is visible counts."""
    found = extractor.extract("<html><body><nav><a href='/'>Only a menu</a></nav><script>x()</script></body></html>")
    extractor.close()

    assert found == "Only a menu"


def test_any_bytes_are_a_page(extractor: Extractor) -> None:
    for page in ("", "\0", "<", "<!--", "&#xD800;", "\ud800", "<p>" * 1000, "no tags at all"):
        assert isinstance(extractor.extract(page), str)
    extractor.close()


def test_a_hung_page_is_given_up_and_the_next_goes_on() -> None:
    """The kernel ends the process that uses up its time; the page is a dead letter, and remembered as one."""
    decoder = Decoder(load_settings({"text_is": "html"}, environ={}))
    decoder._extractor = extractor = Extractor(cpu_seconds=0.3)
    before = extractor.extract("<p>before</p>")
    child = extractor._child

    letter = decoder.decode(Message("documents", 0, 0, None, HANGS.encode(), None, []))
    after = decoder.decode(Message("documents", 0, 1, None, b"<p>after</p>", None, []))

    assert before == "before"
    assert isinstance(letter, DeadLetter)
    assert (letter.stage, letter.error_class, letter.is_timed) == ("fingerprint", "PageGivenUp", True)
    assert "0.3 s of CPU (STREAM_DEDUP_PAGE_CPU)" in letter.message
    assert isinstance(after, DecodedDocument)
    assert after.text == "after"
    assert child is not None
    assert child.returncode == -signal.SIGPROF
    working = extractor._child
    assert isinstance(extractor.extract(HANGS), Failure)
    assert extractor._child is working  # nobody was asked
    extractor.close()


def test_a_page_that_used_its_time_up_is_not_tried_again(tmp_path: Path) -> None:
    """One process ends on it, and the limit is the setting's."""
    program, starts = tmp_path / "hangs.py", tmp_path / "starts"
    program.write_text(
        "import os, pathlib, signal\n"
        f"log = pathlib.Path({str(starts)!r})\n"
        "log.write_text(log.read_text() + 'x' if log.exists() else 'x')\n"
        "os.kill(os.getpid(), signal.SIGPROF)\n"
    )
    extractor = Extractor(command=(sys.executable, str(program)))

    found = extractor.extract("<p>page</p>")
    extractor.close()

    assert isinstance(found, Failure)
    assert starts.read_text() == "x"
    decoder = Decoder(load_settings({"text_is": "html", "page_cpu": "500ms"}, environ={}))
    assert decoder._extractor is not None
    assert decoder._extractor._command[-1] == "0.5"


def test_a_page_that_breaks_the_process_is_tried_twice(tmp_path: Path) -> None:
    program = tmp_path / "dies.py"
    program.write_text(
        "import pathlib, sys\n"
        f"log = pathlib.Path({str(tmp_path / 'starts')!r})\n"
        "log.write_text(log.read_text() + 'x' if log.exists() else 'x')\n"
        "sys.stdin.buffer.read(4)\n"
    )
    extractor = Extractor(command=(sys.executable, str(program)))

    found = extractor.extract("<p>page</p>")
    extractor.close()

    assert isinstance(found, Failure)
    assert (tmp_path / "starts").read_text() == "xx"


def test_a_missing_extractor_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the worker does not start, and says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(ConfigurationError, match=r"crawl-dedup\[html\]"):
        Decoder(load_settings({"text_is": "html"}, environ={}))
