"""The documentation as a site: it builds without a warning, every page is in it, and it needs nothing from elsewhere."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from stream_dedup.ground.plan import parse
from tests.console import browser

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = Path(__file__).parent.parent


def build(root: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=180)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    ended = build(ROOT, folder)
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
    return folder


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder; gives the address."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    handler = functools.partial(Files, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def results_of(chrome: Chrome) -> list[str]:
    """Return the addresses of the pages that the search lists now, once it has counted them."""
    return chrome.execute_script(
        "const said = document.querySelector('.md-search-result__meta')?.textContent ?? '';"
        "return /matching|No /.test(said)"
        " ? [...document.querySelectorAll('.md-search-result__item > a:first-of-type')].map(one => one.href) : []"
    )


def until(found: Callable[[], list[str]]) -> list[str]:
    """Return what is found, as soon as that is anything, or after ten seconds."""
    end = time.monotonic() + 10
    while not (result := found()) and time.monotonic() < end:
        time.sleep(0.05)
    return result


@pytest.mark.thorough
def test_every_page_is_in_it(site: Path) -> None:
    """Each Markdown file of docs/ is a page, and so are those outside that the hook brings in."""
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages |= {"explanation/architecture", "changelog", "how-to/deploy", "reference/topics"}
    pages |= {"contributing/contributing", "contributing/security"}

    for page in pages:
        folder = page.removesuffix("index").removesuffix("/")
        assert (site / folder / "index.html").is_file(), page
    assert not (site / "outside.py").exists()


@pytest.mark.thorough
def test_the_home_page_shows_a_command_and_what_it_prints() -> None:
    """What stands behind the command is what it prints."""
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    found = re.search(r"```console\n\$ stream-dedup (.*?)\n```\n\n```\n(.*?)```", page, flags=re.DOTALL)
    assert found is not None

    command = [sys.executable, "-m", "stream_dedup", *found[1].split()]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)

    assert [line.rstrip() for line in ended.stdout.splitlines()] == found[2].splitlines()


@pytest.mark.thorough
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """No script, style, font or picture comes from another host."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"?(https?://[^\s\">]+)", text)
        assert fetched == [], page


@pytest.mark.thorough
def test_a_link_that_leads_nowhere_fails(tmp_path: Path) -> None:
    """Strict means strict: a page that was moved, or a heading that was renamed, breaks the build."""
    root = tmp_path / "root"
    root.mkdir()
    for name in ("docs", "deploy", "topics"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "tools"))
    for name in ("mkdocs.yml", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        shutil.copy(ROOT / name, root)
    page = root / "docs" / "how-to" / "load.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[gone](gone.md) and [heading](pages.md#gone)\n", encoding="utf-8")

    ended = build(root, tmp_path / "site")

    assert ended.returncode != 0
    assert "gone.md" in ended.stderr
    assert "#gone" in ended.stderr


PICTURES = sorted((ROOT / "docs" / "explanation").glob("*.svg"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_whole(path: Path) -> None:
    """It is well-formed, has a title for those who cannot see it, keeps within its frame, and a page shows it."""
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


def test_the_picture_of_blocks_is_true() -> None:
    """Its numbers are those of plan `blocks`: blocks, what is found, how much may differ."""
    plan = parse("blocks")
    text = (ROOT / "docs" / "explanation" / "permuted-blocks.svg").read_text(encoding="utf-8")
    differs = [int(count) for count in re.findall(r">(\d+) bits?<", text)]
    said = (ROOT / "docs" / "explanation" / "permuted-blocks.md").read_text(encoding="utf-8")
    one = sum(((1 << count) - 1) << 16 * place for place, count in enumerate(differs))

    assert len(differs) == plan.blocks
    assert plan.distance(0, one) == sum(differs) == int(re.search(r"; (\d+) bits differ", text)[1])  # type: ignore[index]
    assert plan.within_reach(0, one, (90, 90))
    equal = [str(place) for place, count in enumerate(differs, 1) if not count]
    assert f"Blocks {', '.join(equal[:-1])} and {equal[-1]} are equal" in text
    assert f"up to {plan.threshold} may" in text
    assert f"within\n{plan.distance_guaranteed} bits" in said or f"within {plan.distance_guaranteed} bits" in said


def test_the_menu_has_each_page_once() -> None:
    """The kinds of pages are told apart."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    names = [next(iter(one)) for one in config["nav"]]

    assert names == ["Home", "Tutorial", "How-to", "Reference", "Explanation", "Contributing"]


@pytest.mark.parametrize(("page", "most"), [("README.md", 900), ("ARCHITECTURE.md", 1_300)])
def test_a_first_page_is_short(page: str, most: int) -> None:
    """Counted as `wc -w` does; a page that grows past that moves what it explains to docs/."""
    words = len((ROOT / page).read_text(encoding="utf-8").split())

    assert words <= most


def test_the_map_names_what_is_there() -> None:
    """Each file of the map exists, and has the functions and classes that stand behind it."""
    text = (ROOT / "docs" / "contributing" / "map.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if ".py`" in line]
    assert len(lines) > 30

    for line in lines:
        source = ""
        for name in re.findall(r"`([^`]+)`", line):
            if name.endswith(".py"):
                inside = ROOT if name.startswith("bench/") else ROOT / "stream_dedup"
                source = (inside / name).read_text(encoding="utf-8")
            elif source:
                for part in name.split("."):
                    assert re.search(rf"(def|class) {part}\b", source) or part in source, f"{name}: {line}"


QUESTIONS = {
    "similarity threshold": "how-to/threshold",
    "false drops": "reference/quality",
    "recall": "reference/quality",
    "dead letters": "reference/dlq",
    "avro schema registry": "how-to/registry",
    "s3 object storage": "how-to/object-storage",
    "kubernetes helm": "how-to/deploy",
    "prometheus metrics": "reference/metrics",
    "release dropped document": "reference/control-records",
    "forget page": "reference/control-records",
    "warc files": "how-to/pages",
    "scrapy": "how-to/scrapy",
    "python api": "reference/api",
    "snapshot restore": "/reference/?",
    "exactly once": "explanation/exactly-once",
    "capacity machines": "explanation/capacity",
    "host signals": "how-to/host-signals",
    "record headers": "reference/headers",
    "chinese segmentation": "reference/languages",
    "simhash minhash": "explanation/permuted-blocks",
}


@pytest.mark.thorough
@pytest.mark.skipif(bool(browser.lacking()), reason=browser.lacking() or "-")
def test_questions_find_their_page_among_the_first_three(site: Path) -> None:
    """Typed into the site's own search, in a browser."""
    missed = {}
    with served(site) as address, browser.chromium() as chrome:
        for question, page in QUESTIONS.items():
            chrome.get(address)
            box = chrome.find_element("css selector", ".md-search__input")
            chrome.execute_script("arguments[0].focus()", box)
            box.send_keys(question)
            found = until(lambda: results_of(chrome))
            if not any(page in one for one in found[:3]):
                missed[question] = found[:3]

    assert missed == {}
