"""The console in a real Chromium: nothing runs that should not, it fits a phone, keys reach
everything, rows are live."""

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
from tests.console.searched import GROUP, SENTENCES, searching
from tests.console.test_pages import ADDRESSES, DECISION, serving
from tests.console.test_pages import GROUP as GROUP_OF_SAMPLE

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_LACKING = browser.missing_browser()
if _LACKING:
    sys.stderr.write(_LACKING + "\n")
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(bool(_LACKING), reason=_LACKING)]

WAIT_SECONDS = 20.0


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    """One browser for all of these tests."""
    with browser.chromium() as driver:
        yield driver


@pytest.fixture
def chrome(driver: Chrome) -> Chrome:
    """The browser without a page, and without what the last one logged while its server ended."""
    driver.get("about:blank")
    browser.logged(driver)
    return driver


def wait_for(chrome: Chrome, script: str) -> Any:
    """Wait until a page is there whole and the script returns something of it: a title is there
    before its links are."""
    until = time.monotonic() + WAIT_SECONDS
    while not (
        found := chrome.execute_script(f"return document.readyState === 'complete' && ({script})")
    ):
        assert time.monotonic() < until, f"never true: {script}"
        time.sleep(0.05)
    return found


def colours_of(chrome: Chrome, element: str) -> tuple[int, int]:
    """Return how light its paper and its ink are, from 0 to 765."""
    style = f"getComputedStyle(document.querySelector('{element}'))"
    paper, ink = chrome.execute_script(f"return [{style}.backgroundColor, {style}.color]")
    return sum(map(int, paper[4:-1].split(","))), sum(map(int, ink[4:-1].split(",")))


def follow_the_runbook(chrome: Chrome, console: str) -> None:
    """From the address of the console to one decision that is near, in three clicks, the first of
    them that on the address."""
    chrome.get(f"{console}/")
    chrome.find_element("link text", "near").click()
    wait_for(chrome, "document.title.startsWith('Decisions')")
    # In one script each: the live page puts new rows in place of these at any time.
    cells = "[...document.querySelectorAll('#rows tr')].map(row => row.cells[1].innerText.trim())"
    assert set(wait_for(chrome, cells)) == {"near"}
    chrome.execute_script("document.querySelector('#rows a[href^=decision]').click()")
    wait_for(chrome, "document.querySelectorAll('.sides .text').length === 2")
    assert chrome.find_elements("css selector", ".sides ins, .sides del")
    assert "stream-dedup release " in chrome.find_element("css selector", "main").text


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
def test_every_page_fits_and_is_quiet(chrome: Chrome, width: int, dark: bool) -> None:
    """No page is wider than the screen, nothing is refused or logged, and text stands off its paper
    in both themes."""
    with serving(sources()) as port:
        for address in ADDRESSES:
            browser.view(chrome, width=width, dark=dark)
            chrome.get(f"http://127.0.0.1:{port}/{address}")
            assert chrome.execute_script("return document.documentElement.scrollWidth") <= width, (
                address
            )
            assert browser.logged(chrome) == [], address
            torn = "one => one.getClientRects().length > 1 || one.offsetHeight > 45"
            assert not chrome.execute_script(
                f"return [...document.querySelectorAll('.blocks code, nav')].some({torn})"
            ), address
            assert chrome.execute_script(
                "return [...document.querySelectorAll('.long:not(.extra)')].every(it => "
                "it.offsetWidth > 90)"
            ), address
            paper, ink = colours_of(chrome, "body")
            assert (paper < ink) == dark
            assert abs(paper - ink) > 400


def test_the_palette_can_be_read() -> None:
    """WCAG AA in both themes: 4.5 to 1 for text, 3 to 1 for what a picture tells."""
    sheet = (Path(app.__file__).parent / "static" / "console.css").read_text()
    themes = re.findall(r":root \{(.*?)\n *\}", sheet, re.DOTALL)
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+);", one)) for one in themes)
    assert set(light) == set(dark)

    def luminance(colour: str) -> float:
        digits = "".join(2 * one for one in colour[1:]) if len(colour) == 4 else colour[1:]
        shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [
            one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares
        ]
        return sum(part * one for part, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

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
    pairs += [(one, "paper", 3.0) for one in drawn]
    for theme in (light, dark):
        for one, other, least in pairs:
            low, high = sorted((luminance(theme[one]), luminance(theme[other])))
            assert (high + 0.05) / (low + 0.05) >= least, (one, theme[one], other, theme[other])


def test_long_ids_wrap_and_a_phone_can_sort(chrome: Chrome) -> None:
    """A long id makes no page wider; the headings, which sort, are shown on a phone too."""
    given = sources(0)
    long = f"https://a.example/{'x' * 900}"
    given.recent.add([decision(8, "near", id=long, kept_position="documents-0@1", kept_id=long)])
    with serving(given) as port:
        for address in ("decisions", "groups", GROUP_OF_SAMPLE, "hosts", "copies", DECISION):
            browser.view(chrome, width=390)
            chrome.get(f"http://127.0.0.1:{port}/{address}")
            assert chrome.execute_script("return document.documentElement.scrollWidth") <= 390
            wide = "one => one.scrollWidth > document.documentElement.clientWidth"
            assert not chrome.execute_script(
                f"return [...document.querySelectorAll('main > *')].some({wide})"
            ), address
            heads = chrome.find_elements("css selector", ".cards thead a")
            assert all(head.is_displayed() for head in heads), address


@pytest.mark.parametrize("width", [390, 1200])
def test_no_label_is_overprinted_and_no_table_is_cut(chrome: Chrome, width: int) -> None:
    """Whatever the threshold is; a table that has to be scrolled to its side hides columns."""
    long_kind = replace(KINDS[0], error_class="stream_dedup.domain.errors.FormatError" * 2)
    given = sources(dead_letters=lambda: replace(LETTERS, kinds=(long_kind, *KINDS)))
    browser.view(chrome, width=width)
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
            assert browser.logged(chrome) == []


def test_rows_are_live_until_paused(chrome: Chrome) -> None:
    """A decision appears by itself; after Pause none does; the filter of the address holds for
    those that appear."""
    away = [""]
    given = sources(kafka_problem=lambda: away[0])
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
        away[0] = "Kafka does not answer."
        wait_for(
            chrome,
            "document.querySelector('.notice')?.textContent.includes('Kafka does not answer.')",
        )


def test_both_texts_of_a_decision_move_together(chrome: Chrome) -> None:
    """Next leads from one difference to the next; where one text is scrolled, the other goes
    along."""
    long = "\n".join(
        f"Line {place} of a text that is longer than its frame." for place in range(400)
    )

    def opened(at: str) -> OpenedRecord:
        return OpenedRecord(
            at,
            at,
            long if at.startswith("documents") else re.sub(r"Line (\d*5) of", r"Row \1 of", long),
        )

    with serving(sources(read_record=opened)) as port:
        chrome.get(f"http://127.0.0.1:{port}/decision?position=duplicates-2@8")
        wait_for(chrome, "document.querySelectorAll('#steps button').length === 2")
        places = "[...document.querySelectorAll('.sides del, .sides ins')].findIndex(one => one.classList.contains('here'))"
        for place in (0, 1):
            chrome.find_elements("css selector", "#steps button")[1].click()
            assert chrome.execute_script(f"return {places}") == place
        chrome.execute_script(
            "for (const one of document.querySelectorAll('.sides .text')) one.scrollTop = 0"
        )
        chrome.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )
        chrome.execute_script("document.querySelector('.sides .text').scrollTop = 1e6")
        wait_for(chrome, "document.querySelectorAll('.sides .text')[1].scrollTop > 0")


def test_the_page_now_draws_itself_anew(chrome: Chrome) -> None:
    """What was decided meanwhile stands there without a click, and after one that meant nothing;
    what is read is held still."""
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


def test_a_page_whose_console_is_gone_says_so_and_still_fits(chrome: Chrome) -> None:
    """On a phone: the sentence breaks."""
    browser.view(chrome, width=390)
    with serving(sources()) as port:
        chrome.get(f"http://127.0.0.1:{port}/")
    wait_for(chrome, "document.getElementById('live').textContent.includes('does not answer')")
    assert chrome.execute_script("return document.getElementById('live').scrollWidth") <= 390
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= 390


def test_filters_fold_on_a_phone_only(chrome: Chrome) -> None:
    """There what is asked for stands in the heading, and a press opens them."""
    select = "document.querySelector('.filters select')"
    shown = f"{select}.checkVisibility({{contentVisibilityAuto: true}})"
    with serving(sources()) as port:
        for width, is_shown in ((1200, True), (390, False)):
            browser.view(chrome, width=width)
            chrome.get(f"http://127.0.0.1:{port}/decisions?reason=near")
            assert chrome.execute_script(f"return {shown}") == is_shown
        summary = chrome.find_element("css selector", ".fold summary")
        assert summary.text == "Filters: reason near"
        summary.click()
        assert chrome.execute_script(f"return {shown}")


def test_a_column_of_the_picture_tells_its_values_under_the_pointer(chrome: Chrome) -> None:
    """Without waiting for the browser's own hint."""
    from selenium.webdriver import ActionChains

    with serving(sources()) as port:
        browser.view(chrome, width=1200)
        chrome.get(f"http://127.0.0.1:{port}/")
        column = chrome.find_elements("css selector", ".picture g")[20]
        value = column.find_element("css selector", ".value")
        assert not value.is_displayed()
        ActionChains(chrome).move_to_element(column).perform()
        assert value.is_displayed()
        assert ": new 5, exact 1, near 2" in value.text


def test_keys_and_names(chrome: Chrome) -> None:
    """The first stop leads to the content; each field has a name; pictures say what they show; one
    heading leads the page."""
    with serving(sources()) as port:
        for address in ADDRESSES:
            chrome.get(f"http://127.0.0.1:{port}/{address}")
            assert chrome.execute_script("return document.querySelectorAll('h1').length") == 1
            assert chrome.execute_script("return document.documentElement.lang") == "en"
            unnamed = "[...document.querySelectorAll('input, select, textarea')].filter(one => !one.labels.length).length"
            assert chrome.execute_script(f"return {unnamed}") == 0
            mute = "[...document.querySelectorAll('svg:not([aria-hidden])')].filter(one => !one.getAttribute('aria-label')).length"
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
# Narrower, an address stands one letter a line.
READABLE_PIXELS = 110


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A console with the engine behind it."""
    with searching(tmp_path_factory.mktemp("engine")) as given, serving(given) as port:
        yield port


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_pages_fit_and_can_be_read(
    chrome: Chrome, searched: int, width: int, dark: bool
) -> None:
    """Nothing is wider than the screen or scrolls sideways in itself, no address is squeezed,
    nothing is refused; what matches stands off its paper."""
    browser.view(chrome, width=width, dark=dark)
    for address in SEARCHED:
        chrome.get(f"http://127.0.0.1:{searched}/{address}")
        assert chrome.execute_script("return document.documentElement.scrollWidth") <= width, (
            address
        )
        overflowing = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
        assert chrome.execute_script(f"return {overflowing}") == 0, address
        widths = chrome.execute_script(
            "return [...document.querySelectorAll('td.long:not(.extra)')].map(one => "
            "one.clientWidth)"
        )
        assert all(one >= READABLE_PIXELS for one in widths), (address, widths)
        assert bool(widths) == address.startswith("group"), address
        assert browser.logged(chrome) == [], address
    chrome.get(f"http://127.0.0.1:{searched}/{FOUND}")
    paper, ink = colours_of(chrome, "mark")
    assert abs(ink - paper) > 300


def test_an_editor_pastes_two_sentences(chrome: Chrome, searched: int) -> None:
    """Every copy is listed, best first, with what matches marked; two clicks further both texts
    stand side by side."""
    browser.view(chrome, width=1200)
    chrome.get(f"http://127.0.0.1:{searched}/find")
    chrome.find_element("id", "q").send_keys(SENTENCES)
    chrome.find_element("css selector", "main form button").click()
    wait_for(chrome, "document.querySelectorAll('.found li').length > 0")
    assert "4 documents contain the text" in chrome.find_element("css selector", "main").text
    first = chrome.find_element("css selector", ".found li")
    assert "contains 100 % of the text" in first.text, "the copy that says three years"
    marked = [one.text for one in first.find_elements("css selector", "mark")]
    assert "Fishermen who moor there will be offered places" in " ".join(marked)
    assert "rained" not in chrome.find_element("css selector", ".found").text

    first.find_element("link text", "all copies").click()
    wait_for(chrome, "document.title.startsWith('Copies')")
    reasons = chrome.find_elements("css selector", "tbody tr td:nth-child(3)")
    assert sorted(reason.text for reason in reasons) == ["exact", "near", "near", "revised"]
    said = chrome.find_element("css selector", "main").text
    assert "It has 3 copies, " in said
    assert "It was fetched again once." in said
    assert re.search(r"Record times: \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ to \d{4}", said)
    assert "The best copy so far, by the rule longest, is https://city-blog.example/pier." in said
    chrome.find_element("partial link text", "mirror.example").click()
    wait_for(chrome, "document.querySelectorAll('.sides ins').length > 0")
    assert "twelve" in [
        one.text.strip() for one in chrome.find_elements("css selector", ".sides ins")
    ]

    chrome.get(f"http://127.0.0.1:{searched}/find?q=https://city-blog.example/pier")
    chrome.find_element("link text", "the copies of this page").click()
    wait_for(chrome, "document.title.startsWith('Copies of https://www.harbour-gazette.example')")


def test_sentences_of_any_script_and_hostile_ones(chrome: Chrome, searched: int) -> None:
    """Japanese is found; a page that holds scripts is shown as text; what nobody holds, or is no
    clue, says so."""
    for clue, says in (
        ("漁船は南の港に移る", "mainichi.example"),
        ("a page of nine harmless looking words", "<script>alert(1)</script>"),
        ("colourless green ideas sleep furiously", "No document contains this text"),
        ("?!", "no word"),
        ("*:* OR words:[a TO z]", "No document contains this text"),
    ):
        chrome.get(f"http://127.0.0.1:{searched}/find?{urllib.parse.urlencode({'q': clue})}")
        assert says in chrome.find_element("css selector", "main").text, clue
        assert (
            chrome.execute_script(
                "return document.querySelectorAll('img, main script, iframe').length"
            )
            == 0
        )
        # A clue that is none is a problem with its own status, and Chromium logs that.
        assert [one for one in browser.logged(chrome) if "400" not in one["message"]] == []


def test_it_works_by_keys_and_without_script(chrome: Chrome, searched: int) -> None:
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
