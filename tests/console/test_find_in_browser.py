"""Find and Groups over a real full-text engine, in a real Chromium: what an editor does, on a desk and on a phone."""

from __future__ import annotations

import re
import sys
import urllib.parse
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console import browser
from tests.console.searched import GROUP, SENTENCES, searching
from tests.console.test_browser import wait_for
from tests.console.test_pages import serving

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_LACKING = browser.lacking()
if _LACKING:
    sys.stderr.write(_LACKING + "\n")
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(bool(_LACKING), reason=_LACKING)]

FOUND = f"find?{urllib.parse.urlencode({'q': SENTENCES})}"
ADDRESSES = ("find", FOUND, "groups", "groups?order=newest", GROUP)
# Narrower, an address stands one letter a line.
READABLE_PIXELS = 110


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    """One browser for all of these tests."""
    with browser.chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A console with the engine behind it."""
    with searching(tmp_path_factory.mktemp("engine")) as sources, serving(sources) as bound:
        yield bound


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_pages_fit_and_can_be_read(chrome: Chrome, port: int, width: int, dark: bool) -> None:
    """Nothing is wider than the screen or scrolls sideways in itself, no address is squeezed, nothing is refused; what matches
    stands off its paper."""
    browser.view(chrome, width=width, dark=dark)
    for address in ADDRESSES:
        chrome.get(f"http://127.0.0.1:{port}/{address}")
        assert chrome.execute_script("return document.documentElement.scrollWidth") <= width, address
        overflowing = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
        assert chrome.execute_script(f"return {overflowing}") == 0, address
        widths = chrome.execute_script(
            "return [...document.querySelectorAll('td.long:not(.extra)')].map(one => one.clientWidth)"
        )
        assert all(one >= READABLE_PIXELS for one in widths), (address, widths)
        assert bool(widths) == address.startswith("group"), address
        assert browser.logged(chrome) == [], address
    chrome.get(f"http://127.0.0.1:{port}/{FOUND}")
    ink, paper = (
        sum(map(int, chrome.execute_script(f"return getComputedStyle(document.querySelector('mark')).{name}")[4:-1].split(",")))
        for name in ("color", "backgroundColor")
    )
    assert abs(ink - paper) > 300


def test_an_editor_pastes_two_sentences(chrome: Chrome, port: int) -> None:
    """Every copy is listed, best first, with what matches marked; two clicks further both texts stand side by side."""
    browser.view(chrome, width=1200)
    chrome.get(f"http://127.0.0.1:{port}/find")
    chrome.find_element("id", "q").send_keys(SENTENCES)
    chrome.find_element("css selector", "main form button").click()
    wait_for(chrome, "document.querySelectorAll('.found li').length > 0")
    assert "5 documents hold the clue" in chrome.find_element("css selector", "main").text
    first = chrome.find_element("css selector", ".found li")
    assert "holds 100 % of the clue" in first.text, "the copy that says three years"
    marked = [one.text for one in first.find_elements("css selector", "mark")]
    assert "Fishermen who moor there will be offered places" in " ".join(marked)
    assert "rained" not in chrome.find_element("css selector", ".found").text

    first.find_element("link text", "its group").click()
    wait_for(chrome, "document.title.startsWith('Copies')")
    rows = [one.text for one in chrome.find_elements("css selector", "tbody tr")]
    assert sorted(one.split()[2] for one in rows) == ["exact", "near", "near", "revised"]
    said = chrome.find_element("css selector", "main").text
    assert "4 copies of it were judged duplicates" in said
    assert re.search(r"They came from \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ to \d{4}", said)
    assert "The best copy so far, by the rule longest, is https://city-blog.example/pier." in said
    chrome.find_element("partial link text", "mirror.example").click()
    wait_for(chrome, "document.querySelectorAll('.sides ins').length > 0")
    assert "twelve" in [one.text.strip() for one in chrome.find_elements("css selector", ".sides ins")]


def test_sentences_of_any_script_and_hostile_ones(chrome: Chrome, port: int) -> None:
    """Japanese is found; a page that holds scripts is shown as text; what nobody holds, or is no clue, says so."""
    for clue, says in (
        ("漁船は南の港に移る", "mainichi.example"),
        ("a page of nine harmless looking words", "<script>alert(1)</script>"),
        ("colourless green ideas sleep furiously", "No document holds this clue"),
        ("?!", "no word"),
        ("*:* OR words:[a TO z]", "No document holds this clue"),
    ):
        chrome.get(f"http://127.0.0.1:{port}/find?{urllib.parse.urlencode({'q': clue})}")
        assert says in chrome.find_element("css selector", "main").text, clue
        assert chrome.execute_script("return document.querySelectorAll('img, main script, iframe').length") == 0
        # A clue that is none is a problem with its own status, and Chromium logs that.
        assert [one for one in browser.logged(chrome) if "400" not in one["message"]] == []


def test_it_works_by_keys_and_without_script(chrome: Chrome, port: int) -> None:
    """The clue is typed and sent by the keyboard alone, where scripts are switched off."""
    chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        chrome.get(f"http://127.0.0.1:{port}/find")
        field = chrome.find_element("id", "q")
        field.send_keys("places in the southern basin", "\ue004")  # Tab
        chrome.switch_to.active_element.send_keys("\ue007")  # Enter
        wait_for(chrome, "document.querySelectorAll('.found li').length > 0")
        assert "q=places+in+the+southern+basin" in chrome.current_url
    finally:
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
