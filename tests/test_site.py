"""The documentation's site: without warnings, complete, and loading nothing from other hosts."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import programs
from tests.console import browser

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = Path(__file__).parent.parent


def build(root: Path, target: Path, code: int = 0) -> str:
    """Build the site, which must exit with `code`; return its warnings."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", target]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return programs.run(command, code=code, seconds=180, cwd=root, env=environment).stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert "WARNING" not in build(ROOT, folder)
    return folder


@pytest.mark.thorough
def test_every_page_is_in_the_site(site: Path) -> None:
    """Each Markdown file of docs/ is a page, and so are those outside that the hook brings in."""
    pages = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    pages |= {"explanation/architecture", "changelog", "how-to/deploy", "reference/topics"}
    pages |= {"contributing/contributing", "contributing/security"}

    for page in pages:
        folder = page.removesuffix("index").removesuffix("/")
        assert (site / folder / "index.html").is_file(), page
    assert not (site / "linked_pages.py").exists()


@pytest.mark.thorough
def test_the_home_page_shows_a_command_and_what_it_prints() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    found = re.search(
        r"```console\n\$ stream-dedup (.*?)\n```\n\n```\n(.*?)```", page, flags=re.DOTALL
    )
    assert found is not None

    command = [sys.executable, "-m", "stream_dedup", *found[1].split()]
    ended = programs.run(command, seconds=120, cwd=ROOT)

    assert [line.rstrip() for line in ended.stdout.splitlines()] == found[2].splitlines()


@pytest.mark.thorough
def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(
            r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"?(https?://[^\s\">]+)", text
        )
        assert fetched == [], page


# What users ask, and the page that they want.
ASKED = """
minhash simhash               reference/prints
similarity threshold          how-to/threshold
deploy on kubernetes          how-to/deploy
consumer lag grows            handbook
dead letter redrive           reference/dlq
gdpr delete                   reference/control-records
dedup.reason                  reference/headers
scrapy pipeline               how-to/scrapy
throughput latency            reference/bench
recall false positives        reference/quality
deduplicate training data llm how-to/llm-corpus
parquet huggingface           how-to/datasets
spark                         how-to/engines
s3 bucket                     how-to/object-storage
console password              how-to/console
TEXT_FIELD                    reference/configuration
schema registry avro          how-to/registry
chinese word segmentation     reference/languages
how much memory               explanation/capacity
document wrongly dropped      how-to/troubleshooting
exit code 78                  how-to/troubleshooting
nothing is a duplicate        how-to/troubleshooting
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log no requests."""


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[tuple[Chrome, str]]:
    if missing_browser := browser.missing_browser():
        pytest.skip(missing_browser)
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server,
        browser.chromium() as chrome,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield chrome, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def until_true(chrome: Chrome, script: str) -> Any:
    until = time.monotonic() + 20
    while not (found := chrome.execute_script(script)):
        assert time.monotonic() < until, f"never at {chrome.current_url}: {script}"
        time.sleep(0.05)
    return found


@pytest.mark.thorough
def test_a_question_finds_its_page(served: tuple[Chrome, str]) -> None:
    """The page is among the first three results of the site's search."""
    chrome, address = served
    missed = []
    for line in ASKED.strip().splitlines():
        question, page = line.rsplit(maxsplit=1)
        chrome.get(f"{address}/?{urllib.parse.urlencode({'q': question})}")
        listed = "[...document.querySelectorAll('.md-search-result__item > a')].map(a => new URL(a.href).pathname)"
        found = until_true(chrome, f"const found = {listed}; return found.length && found")
        first = list(dict.fromkeys(found))[:3]
        missed += [] if f"/{page}/" in first else [(question, page, first)]
    assert missed == []


@pytest.mark.thorough
def test_a_command_is_copied_without_its_prompt(served: tuple[Chrome, str]) -> None:
    """A terminal can run what is pasted."""
    chrome, address = served
    allowed = {"origin": address, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    chrome.execute_cdp_cmd("Browser.grantPermissions", allowed)
    chrome.get(f"{address}/how-to/second-day/")
    shown = until_true(chrome, "return document.querySelector('.language-console code').innerText")
    until_true(chrome, "return document.querySelector('.md-code__button')")
    chrome.find_element("css selector", ".language-console .md-code__button").click()
    until_true(chrome, "return document.querySelector('.md-dialog--active')")
    copied = chrome.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert shown.startswith("$ ")
    assert copied.splitlines() == [line.removeprefix("$ ") for line in shown.strip().splitlines()]


@pytest.mark.thorough
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """A page that was moved, or a heading that was renamed, breaks the build."""
    root = tmp_path / "root"
    root.mkdir()
    for name in ("docs", "deploy", "topics", "examples"):
        shutil.copytree(
            ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "tools")
        )
    for name in (
        "mkdocs.yml",
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ):
        shutil.copy(ROOT / name, root)
    page = root / "docs" / "how-to" / "load.md"
    page.write_text(
        page.read_text(encoding="utf-8") + "\n[gone](gone.md) and [heading](pages.md#gone)\n",
        encoding="utf-8",
    )

    output = build(root, tmp_path / "site", code=1)

    assert "gone.md" in output
    assert "#gone" in output


PICTURES = sorted((ROOT / "docs" / "explanation").glob("*.svg"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_has_a_title_and_fits_its_frame(path: Path) -> None:
    """It has a title for those who cannot see it, keeps within its frame, and a page shows it."""
    root = ET.parse(path).getroot()  # noqa: S314 - our own files
    space = {"svg": "http://www.w3.org/2000/svg"}
    _, _, width, height = map(float, root.attrib["viewBox"].split())

    assert root.find("svg:title", space) is not None
    for text in root.iterfind(".//svg:text", space):
        assert 0 < float(text.attrib["x"]) < width
        assert 0 < float(text.attrib["y"]) < height
    for box in root.iterfind(".//svg:rect", space):
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
        assert float(box.attrib["y"]) + float(box.attrib["height"]) <= height
    assert any(path.name in page.read_text(encoding="utf-8") for page in path.parent.glob("*.md"))


@pytest.mark.parametrize(("page", "words_max"), [("README.md", 900), ("ARCHITECTURE.md", 1_300)])
def test_a_first_page_is_short(page: str, words_max: int) -> None:
    """Words are counted as `wc -w` does; longer explanations belong to docs/."""
    words = len((ROOT / page).read_text(encoding="utf-8").split())

    assert words <= words_max


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/contributing/map.md"])
def test_a_page_about_the_code_names_existing_files(page: str) -> None:
    """In the map, functions and classes after a file's name exist too."""
    named = 0
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        folder, source = ROOT, ""
        for name in re.findall(r"`([^`\s]+)`", line):
            if re.fullmatch(r"[\w.-]*/[\w./-]*|\w+\.(py|toml)", name):
                found = [
                    root / name
                    for root in (ROOT / "stream_dedup", ROOT, folder)
                    if (root / name).exists()
                ]
                found += folder.rglob(name) if "/" not in name and folder != ROOT else []
                assert found, f"{name}: {line}"
                folder = found[0] if name.endswith("/") and folder == ROOT else folder
                source = (
                    found[0].read_text(encoding="utf-8")
                    if name.endswith(".py") and page.endswith("map.md")
                    else ""
                )
                named += 1
            elif source:
                for part in name.split("."):
                    assert re.search(
                        rf"(def|class) {part}\b|^ *{part}\b.* = ", source, re.MULTILINE
                    ), f"{name}: {line}"
    assert named > 15
