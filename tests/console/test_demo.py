"""`demo --serve` as whoever tries it meets it: the command that it prints, and its console in a
browser."""

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


class DemoSays(NamedTuple):
    """What the demo ends by printing: the console's address, a command, and settings."""

    console: str
    command: str
    settings: dict[str, str]


@pytest.fixture(scope="module")
def demo(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoSays]:
    """A demo that serves; at the end SIGTERM ends it with 0, and nothing of it is left."""
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
        said = out.read_text()
        assert running.poll() is None, said + err.read_text()
        roles = psutil.Process(running.pid).children(recursive=True)
        assert re.findall(r"^(?:Next:)? +stream-dedup (\w+) ", said, re.MULTILINE) == [
            "check",
            "broker",
            "find",
        ]
        (console,) = re.findall(r"The console: (http://127\.0\.0\.1:\d+)/", said)
        (typed,) = re.findall(r"^ *stream-dedup (find .*)$", said, re.MULTILINE)
        wait_until(lambda: " export STREAM_DEDUP_" in out.read_text(), "the demo prints settings")
        (exported,) = re.findall(r"^ *export (STREAM_DEDUP_.*)$", out.read_text(), re.MULTILINE)
        yield DemoSays(console, typed, dict(one.split("=", 1) for one in exported.split()))
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, err.read_text()
        assert psutil.wait_procs(roles, timeout=60)[1] == []
    finally:
        for one in roles:
            if one.is_running():
                one.kill()
        if running.poll() is None:
            running.kill()
            running.wait(30)


def test_the_command_that_it_prints_finds_a_page_and_its_copy(demo: DemoSays) -> None:
    """As it stands there, the page that was kept and the copy that was dropped."""
    command = [sys.executable, "-m", "stream_dedup", *shlex.split(demo.command), "--json"]
    done = subprocess.run(
        command, env=child_environment({}), capture_output=True, text=True, timeout=60, check=True
    )

    documents = json.loads(done.stdout)["documents"]
    assert {one["verdict"] for one in documents} == {"unique", "duplicate"}
    assert documents[0]["share"] == 1


def test_commands_find_the_demo_by_the_settings_that_it_prints(demo: DemoSays) -> None:
    """As for the command of a decision, or of dead letters, that somebody copied from the console."""
    command = [sys.executable, "-m", "stream_dedup", "dlq", "show", "--json"]
    environment = child_environment({}) | demo.settings
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )

    assert len(done.stdout.splitlines()) == 1, "the crawl has one record that cannot be decoded"


@pytest.mark.skipif(bool(browser.missing_browser()), reason=browser.missing_browser())
def test_an_editor_and_an_engineer_on_call(demo: DemoSays) -> None:
    """Two sentences of a loaded article lead to it, its copies and what differs; from the runbook
    three clicks lead to a decision."""
    edited = (one for one in read_crawl()[0] if one.kind == "edit" and one.language == "en")
    article = next(one for one in edited if not one.is_on_large_site)
    sentences = " ".join(re.split(r"(?<=[.!?])\s+", article.text)[3:5])
    with browser.chromium() as chrome:
        browser.view(chrome, width=390)
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
        assert browser.logged(chrome) == []
        chrome.get(f"{demo.console}/decisions")
        assert "are copies at a similarity of" in chrome.find_element("css selector", "main").text
