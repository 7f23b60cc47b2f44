"""The console in Chromium: no injected script runs, pages fit a phone, keys work, rows update."""

from __future__ import annotations

import re
import sys
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stream_dedup.console import app
from stream_dedup.console.values import IndexPlans, OpenedRecord
from stream_dedup.domain.plan import PLANS
from tests.console import browser
from tests.console.sample import EVIL, KINDS, LETTERS, decision, sources
from tests.console.searched import GROUP, SENTENCES, open_searchable_sources
from tests.console.test_pages import ADDRESSES, DECISION, serving
from tests.console.test_pages import GROUP as GROUP_OF_SAMPLE

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_MISSING_BROWSER = browser.missing_browser()
if _MISSING_BROWSER:
    sys.stderr.write(_MISSING_BROWSER + "\n")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(_MISSING_BROWSER), reason=_MISSING_BROWSER),
]

WAIT_SECONDS = 20.0


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    """One browser for all tests of this module."""
    with browser.chromium() as driver:
        yield driver


@pytest.fixture
def chrome(driver: Chrome) -> Chrome:
    """The browser with an empty page and an empty log."""
    driver.get("about:blank")
    browser.read_browser_log(driver)
    return driver


def wait_for(chrome: Chrome, script: str) -> Any:
    """Wait until the page is complete and `script` returns a true value; return that value."""
    until = time.monotonic() + WAIT_SECONDS
    while not (
        found := chrome.execute_script(f"return document.readyState === 'complete' && ({script})")
    ):
        assert time.monotonic() < until, f"never true: {script}"
        time.sleep(0.05)
    return found


def read_brightness(chrome: Chrome, element: str) -> tuple[int, int]:
    """Return the brightness of the background and of the text, from 0 to 765."""
    style = f"getComputedStyle(document.querySelector('{element}'))"
    paper, ink = chrome.execute_script(f"return [{style}.backgroundColor, {style}.color]")
    return sum(map(int, paper[4:-1].split(","))), sum(map(int, ink[4:-1].split(",")))


def follow_the_runbook(chrome: Chrome, console: str) -> None:
    """Open a near-duplicate decision from the console's address in three clicks."""
    chrome.get(f"{console}/")
    chrome.find_element("link text", "near").click()
    wait_for(chrome, "document.title.startsWith('Decisions')")
    # One script each, because the live page replaces these rows at any time.
    cells = "[...document.querySelectorAll('#rows tr')].map(row => row.cells[1].innerText.trim())"
    assert set(wait_for(chrome, cells)) == {"near"}
    chrome.execute_script("document.querySelector('#rows a[href^=decision]').click()")
    wait_for(chrome, "document.querySelectorAll('.sides .text').length === 2")
    assert chrome.find_elements("css selector", ".sides ins, .sides del")
    assert "stream-dedup release " in chrome.find_element("css selector", "main").text


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
def test_every_page_fits_and_logs_nothing(chrome: Chrome, width: int, dark: bool) -> None:
    """No page is wider than the screen or logs anything, and text has contrast in both themes."""
    with serving(sources()) as port:
        for address in ADDRESSES:
            browser.set_viewport(chrome, width=width, dark=dark)
            chrome.get(f"http://127.0.0.1:{port}/{address}")
            assert chrome.execute_script("return document.documentElement.scrollWidth") <= width, (
                address
            )
            assert browser.read_browser_log(chrome) == [], address
            torn = "node => node.getClientRects().length > 1 || node.offsetHeight > 45"
            assert not chrome.execute_script(
                f"return [...document.querySelectorAll('.blocks code, nav')].some({torn})"
            ), address
            assert chrome.execute_script(
                "return [...document.querySelectorAll('.long:not(.extra)')].every(it => "
                "it.offsetWidth > 90)"
            ), address
            paper, ink = read_brightness(chrome, "body")
            assert (paper < ink) == dark
            assert abs(paper - ink) > 400


def test_the_palette_has_enough_contrast() -> None:
    """WCAG AA in both themes: 4.5 to 1 for text, 3 to 1 for the parts of charts."""
    sheet = (Path(app.__file__).parent / "static" / "console.css").read_text()
    themes = re.findall(r":root \{(.*?)\n *\}", sheet, re.DOTALL)
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+);", block)) for block in themes)
    assert set(light) == set(dark)

    def luminance(colour: str) -> float:
        digits = "".join(2 * value for value in colour[1:]) if len(colour) == 4 else colour[1:]
        shares = [int(digits[start : start + 2], 16) / 255 for start in (0, 2, 4)]
        linear = [
            value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
            for value in shares
        ]
        weights = (0.2126, 0.7152, 0.0722)
        return sum(part * value for part, value in zip(weights, linear, strict=True))

    pairs = [(ink, paper, 4.5) for ink in ("ink", "faint", "link") for paper in ("paper", "soft")]
    pairs += [("ink", paper, 4.5) for paper in ("mark", "removed", "added", "warn")] + [
        ("paper", "link", 4.5)
    ]
    drawn = (
        "new",
        "short",
        "exact",
        "near",
        "unchanged",
        "returned",
        "revised",
        "other",
        "bar",
        "warn-line",
    )
    pairs += [(name, "paper", 3.0) for name in drawn]
    for theme in (light, dark):
        for front, back, least in pairs:
            low, high = sorted((luminance(theme[front]), luminance(theme[back])))
            assert (high + 0.05) / (low + 0.05) >= least, (front, theme[front], back, theme[back])


def test_long_ids_wrap_and_a_phone_can_sort(chrome: Chrome) -> None:
    """A long id makes no page wider, and a phone shows the headings that sort."""
    given = sources(0)
    long = f"https://a.example/{'x' * 900}"
    given.recent.add([decision(8, "near", id=long, kept_position="documents-0@1", kept_id=long)])
    with serving(given) as port:
        for address in ("decisions", "groups", GROUP_OF_SAMPLE, "hosts", "copies", DECISION):
            browser.set_viewport(chrome, width=390)
            chrome.get(f"http://127.0.0.1:{port}/{address}")
            assert chrome.execute_script("return document.documentElement.scrollWidth") <= 390
            wide = "node => node.scrollWidth > document.documentElement.clientWidth"
            assert not chrome.execute_script(
                f"return [...document.querySelectorAll('main > *')].some({wide})"
            ), address
            heads = chrome.find_elements("css selector", ".cards thead a")
            assert all(head.is_displayed() for head in heads), address


@pytest.mark.parametrize("width", [390, 1200])
def test_no_label_is_overprinted_and_no_table_is_cut(chrome: Chrome, width: int) -> None:
    """Labels do not overlap at any threshold, and no table needs sideways scrolling."""
    long_kind = replace(KINDS[0], error_class="stream_dedup.domain.errors.FormatError" * 2)
    given = sources(dead_letters=lambda: replace(LETTERS, kinds=(long_kind, *KINDS)))
    browser.set_viewport(chrome, width=width)
    labels = (
        "[...document.querySelectorAll('.picture > text')].map(it => it.getBoundingClientRect())"
    )
    for share in (20, 62, 68, 90):
        plan = replace(PLANS["bands"], similarity=share)
        with serving(replace(given, plans=partial(IndexPlans, plan))) as port:
            chrome.get(f"http://127.0.0.1:{port}/")
            assert f"threshold {share / 100:.2f}" in chrome.page_source
            assert not chrome.execute_script(
                f"return {labels}.some((it, place, all) => it.left < 0 || it.right > {width} || "
                "all.slice(place + 1).some(other => it.left < other.right && other.left < it.right "
                "&& it.top < other.bottom && other.top < it.bottom))"
            ), share
    with serving(given) as port:
        for address in ADDRESSES:
            chrome.get(f"http://127.0.0.1:{port}/{address}")
            cut = "it => it.scrollWidth > it.clientWidth && it.querySelector('table.cards, thead')"
            assert not chrome.execute_script(
                f"return [...document.querySelectorAll('.scroll')].some({cut})"
            ), address


def test_hostile_texts_do_not_run(chrome: Chrome) -> None:
    """Scripts in ids and headers make no element, and nothing of them is fetched."""
    given = sources()
    given.recent.add(
        [decision(8, "near", id=EVIL, headers=((EVIL, EVIL),), kept_id=EVIL, host=EVIL)]
    )
    with serving(given) as port:
        for address in (
            "",
            "decisions",
            "decision?position=duplicates-2@8",
            "hosts",
            "groups",
            "find?q=%3Cimg%20src%3Dx%3E",
        ):
            chrome.get(f"http://127.0.0.1:{port}/{address}")
            assert (
                chrome.execute_script(
                    "return document.querySelectorAll('img, main script, iframe').length"
                )
                == 0
            )
            assert browser.read_browser_log(chrome) == []


def test_rows_are_live_until_paused(chrome: Chrome) -> None:
    """New decisions that match the filter appear without a click; after Pause none do."""
    problem = [""]
    given = sources(kafka_problem=lambda: problem[0])
    with serving(given) as port:
        chrome.get(f"http://127.0.0.1:{port}/decisions?reason=near")
        given.recent.add([decision(700, "near", id="appeared"), decision(701, "new", id="unasked")])
        wait_for(chrome, "document.getElementById('rows').textContent.includes('appeared')")
        assert "unasked" not in chrome.find_element("id", "rows").text
        chrome.find_element("id", "pause").click()
        assert chrome.find_element("id", "pause").get_attribute("aria-pressed") == "true"
        given.recent.add([decision(702, "near", id="hidden")])
        chrome.execute_script(
            "window.looked = 0; const old = fetch; window.fetch = (...a) => { window.looked++; "
            "return old(...a) }"
        )
        chrome.execute_async_script(
            "setTimeout(arguments[0], 2500)"
        )  # longer than the script's own pace
        assert chrome.execute_script("return window.looked") == 0
        assert "hidden" not in chrome.find_element("id", "rows").text
        chrome.find_element("id", "pause").click()
        wait_for(chrome, "document.getElementById('rows').textContent.includes('hidden')")
        problem[0] = "Kafka does not answer."
        wait_for(
            chrome,
            "document.querySelector('.notice')?.textContent.includes('Kafka does not answer.')",
        )


def test_both_texts_of_a_decision_move_together(chrome: Chrome) -> None:
    """Next goes to the next difference; scrolling one text scrolls the other."""
    long = "\n".join(
        f"Line {place} of a text that is longer than its frame." for place in range(400)
    )

    def open_record(position: str) -> OpenedRecord:
        return OpenedRecord(
            position,
            position,
            long
            if position.startswith("documents")
            else re.sub(r"Line (\d*5) of", r"Row \1 of", long),
        )

    with serving(sources(read_record=open_record)) as port:
        chrome.get(f"http://127.0.0.1:{port}/decision?position=duplicates-2@8")
        wait_for(chrome, "document.querySelectorAll('#steps button').length === 2")
        places = (
            "[...document.querySelectorAll('.sides del, .sides ins')]"
            ".findIndex(node => node.classList.contains('here'))"
        )
        for place in (0, 1):
            chrome.find_elements("css selector", "#steps button")[1].click()
            assert chrome.execute_script(f"return {places}") == place
        chrome.execute_script(
            "for (const node of document.querySelectorAll('.sides .text')) node.scrollTop = 0"
        )
        chrome.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )
        chrome.execute_script("document.querySelector('.sides .text').scrollTop = 1e6")
        wait_for(chrome, "document.querySelectorAll('.sides .text')[1].scrollTop > 0")


def test_the_page_now_refreshes_itself(chrome: Chrome) -> None:
    """New decisions appear without a click; a page with a focused link does not change."""
    given = sources()
    with serving(given) as port:
        chrome.get(f"http://127.0.0.1:{port}/")
        wait_for(chrome, "document.querySelector('main').textContent.includes('500')")
        chrome.find_element("css selector", "h1").click()
        given.recent.add(decision(place) for place in range(500, 1_277))
        wait_for(chrome, "document.querySelector('main').textContent.includes('1,277')")
        chrome.execute_script("document.querySelector('main a').focus()")
        wait_for(
            chrome,
            "document.getElementById('live').textContent.startsWith('Updates are paused while')",
        )


def test_a_page_whose_console_ended_says_so_and_still_fits(chrome: Chrome) -> None:
    """The notice wraps on a phone."""
    browser.set_viewport(chrome, width=390)
    with serving(sources()) as port:
        chrome.get(f"http://127.0.0.1:{port}/")
    wait_for(chrome, "document.getElementById('live').textContent.includes('does not answer')")
    assert chrome.execute_script("return document.getElementById('live').scrollWidth") <= 390
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= 390


def test_filters_fold_on_a_phone_only(chrome: Chrome) -> None:
    """On a phone the heading names the filters in force, and a click opens them."""
    select = "document.querySelector('.filters select')"
    shown = f"{select}.checkVisibility({{contentVisibilityAuto: true}})"
    with serving(sources()) as port:
        for width, is_shown in ((1200, True), (390, False)):
            browser.set_viewport(chrome, width=width)
            chrome.get(f"http://127.0.0.1:{port}/decisions?reason=near")
            assert chrome.execute_script(f"return {shown}") == is_shown
        summary = chrome.find_element("css selector", ".fold summary")
        assert summary.text == "Filters: reason near"
        summary.click()
        assert chrome.execute_script(f"return {shown}")


def test_a_chart_column_shows_its_values_under_the_pointer(chrome: Chrome) -> None:
    """The values appear without the delay of the browser's tooltip."""
    from selenium.webdriver import ActionChains

    with serving(sources()) as port:
        browser.set_viewport(chrome, width=1200)
        chrome.get(f"http://127.0.0.1:{port}/")
        column = chrome.find_elements("css selector", ".picture g")[20]
        value = column.find_element("css selector", ".value")
        assert not value.is_displayed()
        ActionChains(chrome).move_to_element(column).perform()
        assert value.is_displayed()
        assert ": new 5, exact 1, near 2" in value.text


def test_keyboard_and_accessible_names(chrome: Chrome) -> None:
    """The first Tab stop leads to the content; fields and images have names; a page has one h1."""
    with serving(sources()) as port:
        for address in ADDRESSES:
            chrome.get(f"http://127.0.0.1:{port}/{address}")
            assert chrome.execute_script("return document.querySelectorAll('h1').length") == 1
            assert chrome.execute_script("return document.documentElement.lang") == "en"
            unnamed = (
                "[...document.querySelectorAll('input, select, textarea')]"
                ".filter(node => !node.labels.length).length"
            )
            assert chrome.execute_script(f"return {unnamed}") == 0
            mute = (
                "[...document.querySelectorAll('svg:not([aria-hidden])')]"
                ".filter(node => !node.getAttribute('aria-label')).length"
            )
            assert chrome.execute_script(f"return {mute}") == 0
            assert (
                chrome.execute_script(
                    "return document.querySelectorAll('nav a[aria-current=page]').length"
                )
                == 1
            )
        chrome.get(f"http://127.0.0.1:{port}/decisions")
        body = chrome.find_element("tag name", "body")
        body.send_keys("\ue004")  # Tab
        assert chrome.execute_script("return document.activeElement.className") == "skip"
        chrome.switch_to.active_element.send_keys("\ue007")  # Enter
        wait_for(chrome, "location.hash === '#content'")


# -- Find and Groups over a real full-text engine: what an editor does, on a desk and on a phone

FOUND = f"find?{urllib.parse.urlencode({'q': SENTENCES})}"
SEARCHED = ("find", FOUND, "groups", "groups?order=newest", GROUP)
# In a narrower column an address would break after each letter.
READABLE_PIXELS = 110


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a console with a full-text engine."""
    with (
        open_searchable_sources(tmp_path_factory.mktemp("engine")) as console_sources,
        serving(console_sources) as port,
    ):
        yield port


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_pages_fit_and_can_be_read(
    chrome: Chrome, searched: int, width: int, dark: bool
) -> None:
    """No page or table scrolls sideways, no address is squeezed, and marked text has contrast."""
    browser.set_viewport(chrome, width=width, dark=dark)
    for address in SEARCHED:
        chrome.get(f"http://127.0.0.1:{searched}/{address}")
        assert chrome.execute_script("return document.documentElement.scrollWidth") <= width, (
            address
        )
        overflowing = (
            "[...document.querySelectorAll('.scroll')]"
            ".filter(node => node.scrollWidth > node.clientWidth).length"
        )
        assert chrome.execute_script(f"return {overflowing}") == 0, address
        widths = chrome.execute_script(
            "return [...document.querySelectorAll('td.long:not(.extra)')].map(node => "
            "node.clientWidth)"
        )
        assert all(column_width >= READABLE_PIXELS for column_width in widths), (address, widths)
        assert bool(widths) == address.startswith("group"), address
        assert browser.read_browser_log(chrome) == [], address
    chrome.get(f"http://127.0.0.1:{searched}/{FOUND}")
    paper, ink = read_brightness(chrome, "mark")
    assert abs(ink - paper) > 300


def test_an_editor_pastes_two_sentences(chrome: Chrome, searched: int) -> None:
    """All copies are listed, best first, with matches marked; two clicks lead to both texts."""
    browser.set_viewport(chrome, width=1200)
    chrome.get(f"http://127.0.0.1:{searched}/find")
    chrome.find_element("id", "q").send_keys(SENTENCES)
    chrome.find_element("css selector", "main form button").click()
    wait_for(chrome, "document.querySelectorAll('.found li').length > 0")
    assert "4 documents on " in chrome.find_element("css selector", "main").text
    first = chrome.find_element("css selector", ".found li")
    assert "contains 100 % of the text" in first.text, "the copy that says three years"
    marked = [element.text for element in first.find_elements("css selector", "mark")]
    assert "Fishermen who moor there will be offered places" in " ".join(marked)
    assert "rained" not in chrome.find_element("css selector", ".found").text

    first.find_element("link text", "all copies").click()
    wait_for(chrome, "document.title.startsWith('Copies')")
    reasons = chrome.find_elements("css selector", "tbody tr td:nth-child(3)")
    assert sorted(reason.text for reason in reasons) == ["exact", "near", "near"]
    page_text = chrome.find_element("css selector", "main").text
    assert "It has 3 copies, " in page_text
    assert "It was fetched again once." in page_text
    assert re.search(r"Record times: \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ to \d{4}", page_text)
    assert (
        "The best copy so far, by the rule longest, is https://city-blog.example/pier." in page_text
    )
    chrome.find_element("partial link text", "mirror.example").click()
    wait_for(chrome, "document.querySelectorAll('.sides ins').length > 0")
    assert "twelve" in [
        element.text.strip() for element in chrome.find_elements("css selector", ".sides ins")
    ]

    chrome.get(f"http://127.0.0.1:{searched}/find?q=https://city-blog.example/pier")
    chrome.find_element("link text", "the copies of this page").click()
    wait_for(chrome, "document.title.startsWith('Copies of https://www.harbour-gazette.example')")


def test_sentences_of_any_script_and_hostile_ones(chrome: Chrome, searched: int) -> None:
    """Japanese is found, scripts are shown as text, and a query without a result says so."""
    for clue, expected in (
        ("漁船は南の港に移る", "mainichi.example"),
        ("a page of nine harmless looking words", "<script>alert(1)</script>"),
        ("colourless green ideas sleep furiously", "No document contains this text"),
        ("?!", "no word"),
        ("*:* OR words:[a TO z]", "No document contains this text"),
    ):
        chrome.get(f"http://127.0.0.1:{searched}/find?{urllib.parse.urlencode({'q': clue})}")
        assert expected in chrome.find_element("css selector", "main").text, clue
        assert (
            chrome.execute_script(
                "return document.querySelectorAll('img, main script, iframe').length"
            )
            == 0
        )
        # Chromium logs the status 400 of an invalid query.
        assert [
            entry for entry in browser.read_browser_log(chrome) if "400" not in entry["message"]
        ] == []


def test_find_works_by_keyboard_and_without_scripts(chrome: Chrome, searched: int) -> None:
    """The clue is typed and sent by the keyboard alone, where scripts are switched off."""
    chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        chrome.get(f"http://127.0.0.1:{searched}/find")
        field = chrome.find_element("id", "q")
        field.send_keys("places in the southern basin", "\ue004")  # Tab
        chrome.switch_to.active_element.send_keys("\ue007")  # Enter
        wait_for(chrome, "document.querySelectorAll('.found li').length > 0")
        assert "q=places+in+the+southern+basin" in chrome.current_url
    finally:
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
