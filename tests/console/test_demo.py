"""`demo --serve` for a first user: the command that it prints, and its console in a browser."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import psutil
import pytest

from stream_dedup.demo.crawl import read_crawl
from stream_dedup.settings.properties import child_environment
from tests.console import browser
from tests.console.test_browser import follow_the_runbook, wait_for
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


class DemoOutput(NamedTuple):
    """The console's address, the command and the settings that the demo prints."""

    console: str
    command: str
    settings: dict[str, str]


@pytest.fixture(scope="module")
def demo(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoOutput]:
    """A serving demo; SIGTERM ends it with exit code 0 and leaves no process."""
    folder = tmp_path_factory.mktemp("demo")
    out, err = folder / "out", folder / "err"
    program = [sys.executable, "-m", "stream_dedup"]
    command = [
        *program,
        "demo",
        "--serve",
        "--broker",
        bootstrap,
    ]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        running = subprocess.Popen(
            command,
            env=child_environment({}),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    roles = []
    try:
        wait_until(
            lambda: "--search http" in out.read_text() or running.poll() is not None,
            "the demo serves",
            180,
        )
        printed = out.read_text()
        assert running.poll() is None, printed + err.read_text()
        roles = psutil.Process(running.pid).children(recursive=True)
        assert re.findall(r"^(?:Next:)? +stream-dedup (\w+) ", printed, re.MULTILINE) == [
            "check",
            "broker",
            "find",
        ]
        (console,) = re.findall(r"The console: (http://127\.0\.0\.1:\d+)/", printed)
        (typed,) = re.findall(r"^ *stream-dedup (find .*)$", printed, re.MULTILINE)
        wait_until(lambda: " export STREAM_DEDUP_" in out.read_text(), "the demo prints settings")
        (exported,) = re.findall(r"^ *export (STREAM_DEDUP_.*)$", out.read_text(), re.MULTILINE)
        yield DemoOutput(console, typed, dict(line.split("=", 1) for line in exported.split()))
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, err.read_text()
        assert psutil.wait_procs(roles, timeout=60)[1] == []
    finally:
        for role in roles:
            if role.is_running():
                role.kill()
        if running.poll() is None:
            running.kill()
            running.wait(30)


def test_the_printed_command_finds_a_page_and_its_copy(demo: DemoOutput) -> None:
    """It runs unchanged and finds the kept page and the dropped copy."""
    command = [sys.executable, "-m", "stream_dedup", *shlex.split(demo.command), "--json"]
    done = subprocess.run(
        command, env=child_environment({}), capture_output=True, text=True, timeout=60, check=True
    )

    documents = json.loads(done.stdout)["documents"]
    assert {document["verdict"] for document in documents} == {"unique", "duplicate"}
    assert documents[0]["share"] == 1


def test_commands_find_the_demo_by_the_printed_settings(demo: DemoOutput) -> None:
    """A command that was copied from the console works with them."""
    command = [sys.executable, "-m", "stream_dedup", "dlq", "show", "--json"]
    environment = child_environment({}) | demo.settings
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )

    assert len(done.stdout.splitlines()) == 1, "the crawl has one record that cannot be decoded"


@pytest.mark.skipif(bool(browser.missing_browser()), reason=browser.missing_browser())
def test_an_editor_finds_copies_and_the_runbook_works(demo: DemoOutput) -> None:
    """Two sentences lead to an article, its copies and their differences."""
    edited = (page for page in read_crawl()[0] if page.kind == "edit" and page.language == "en")
    article = next(page for page in edited if not page.is_on_large_site)
    sentences = " ".join(re.split(r"(?<=[.!?])\s+", article.text)[3:5])
    with browser.chromium() as chrome:
        browser.set_viewport(chrome, width=390)
        chrome.get(f"{demo.console}/find")
        chrome.find_element("id", "q").send_keys(sentences)
        chrome.find_element("css selector", "main form button").click()
        wait_for(chrome, "document.querySelectorAll('.found li').length > 1")
        assert chrome.find_elements("css selector", ".found mark")
        assert article.id in chrome.find_element("css selector", ".found").text
        chrome.find_element("link text", "all copies").click()
        wait_for(chrome, "document.title.startsWith('Copies')")
        # Which of the two came first, and so was kept, is not the same in each run.
        chrome.find_element("xpath", "//main//tr[td='near']//a").click()
        wait_for(chrome, "document.querySelectorAll('.sides ins, .sides del').length > 0")

        follow_the_runbook(chrome, demo.console)
        assert browser.read_browser_log(chrome) == []
        chrome.get(f"{demo.console}/decisions")
        assert "are copies at a similarity of" in chrome.find_element("css selector", "main").text
