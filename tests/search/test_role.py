"""The role's loop over a Kafka in memory: exactly once over kills, ready when it is, and what it refuses."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.search import role as search_role
from stream_dedup.search.finding import Finder
from stream_dedup.search.role import TextFiller
from stream_dedup.service.health import Health
from tests.search.kafka import KEPT, MemoryOutputs, copy_of, crawl, make_filler

CLUE = "quick brown fox"


def run_until(filler: TextFiller, condition: Callable[[], bool], asked: Callable[[Finder], Any] = lambda _: None) -> Any:
    """Run the loop until a condition holds, ask its finder, and stop it."""
    stop = threading.Event()
    thread = threading.Thread(target=filler.run, args=(stop,))
    thread.start()
    try:
        until = time.monotonic() + 60
        while not condition():
            assert thread.is_alive(), "the loop has ended"
            assert time.monotonic() < until, "waited in vain"
            threading.Event().wait(0.002)
        return asked(filler.finder)
    finally:
        stop.set()
        thread.join(60)


def run_until_ready(outputs: MemoryOutputs, folder: Path, asked: Callable[[Finder], Any], **settings: Any) -> Any:
    health = Health()
    return run_until(make_filler(outputs, folder, health, **settings), lambda: health.ready_state().ok, asked)


def all_of(finder: Finder) -> tuple[list[str], dict[str, int]]:
    return sorted(one.at for one in finder.find(CLUE, 10_000)), {
        one.position: one.copies for one in finder.groups("largest", 100)
    }


@pytest.mark.parametrize("step", ["search.before-commit:1:1", "search.after-commit:1:1", "search.before-commit:2:1"])
def test_a_killed_search_goes_on_from_its_last_commit(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed with SIGKILL in front of a commit or behind it: every record once, every copy counted once."""
    folder = tmp_path / "engine"
    code = (
        "import runpy, sys; from stream_dedup.search import role; role._COMMIT_DOCUMENTS = 20; "
        "runpy.run_module('tests.search.kafka', run_name='__main__', alter_sys=False)"
    )
    for kept, copies in ((30, 30), (50, 40)):
        ended = subprocess.run(
            [sys.executable, "-c", code, str(folder), step, str(kept), str(copies)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr

    found, groups = run_until_ready(crawl(60, 60), folder, all_of)

    assert found == sorted(
        f"{topic}-{part}@{offset}" for topic in ("unique", "duplicates") for part in (0, 1) for offset in range(30)
    )
    assert groups == {f"documents-0@{kept}": count for kept, count in Counter(number % 7 for number in range(60)).items()}


def test_it_is_ready_once_it_has_read_what_there_was(tmp_path: Path) -> None:
    """Before that it says how far it is; stopped and begun again it is ready at once, and has what came meanwhile."""
    outputs, health = crawl(40, 20), Health()
    filler = make_filler(outputs, tmp_path, health)
    filler._turn()
    assert (health.startup_state().ok, health.ready_state().ok) == (False, False)
    assert "to go" in health.ready_state().sentence
    run_until(filler, lambda: health.ready_state().ok)
    assert health.startup_state().ok

    outputs.write("unique", 1, b"late", "quick brown fox", KEPT)
    found, _ = run_until_ready(outputs, tmp_path, all_of)
    assert len(found) == 61


def test_what_leaves_later_is_found_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record, and a partition that is new, without a restart."""
    monkeypatch.setattr(search_role, "_COMMIT_SECONDS", 0.01)
    monkeypatch.setattr(search_role, "_LOOK_SECONDS", 0.01)
    outputs, health = crawl(2, 0), Health()
    filler = make_filler(outputs, tmp_path, health)
    stop = threading.Event()
    thread = threading.Thread(target=filler.run, args=(stop,))
    thread.start()
    try:
        outputs.records |= {("duplicates", 2): []}
        outputs.write("duplicates", 2, b"x", "quick brown fox", copy_of(1))
        until = time.monotonic() + 60
        while "duplicates-2@0" not in all_of(filler.finder)[0]:
            assert time.monotonic() < until, "waited in vain"
            threading.Event().wait(0.01)
    finally:
        stop.set()
        thread.join(60)


def test_a_folder_of_something_else_is_refused_with_what_to_do(tmp_path: Path) -> None:
    run_until_ready(crawl(2, 0), tmp_path, all_of)

    with pytest.raises(ConfigurationError, match=r"made for something else \(duplicates, unique differ\).*Delete the folder"):
        make_filler(MemoryOutputs(generation=2), tmp_path)
    with pytest.raises(ConfigurationError, match=r"\(words differ\)"):
        make_filler(crawl(2, 0), tmp_path, han_variants="same")
    with pytest.raises(ConfigurationError, match=r"\(texts differ\)"):
        make_filler(crawl(2, 0), tmp_path, search_texts="engine")
    with pytest.raises(ConfigurationError, match="records of it are gone"):
        make_filler(MemoryOutputs(), tmp_path)
    empty = MemoryOutputs()
    del empty.records["duplicates", 0], empty.records["duplicates", 1]
    with pytest.raises(ConfigurationError, match="duplicates do not exist; create them with"):
        make_filler(empty, tmp_path)
    assert len(run_until_ready(crawl(3, 0), tmp_path, all_of)[0]) == 3, "refusals let go of the folder"


def test_what_its_topic_removed_unread_is_passed_over_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_until_ready(crawl(4, 0), tmp_path, all_of)
    outputs = crawl(20, 0)
    outputs.lows = {("unique", 0): 7}

    assert len(run_until_ready(outputs, tmp_path, all_of)[0]) == 4 + 3 + 8
    said = capsys.readouterr()
    assert "records were removed by their topic before they were read" in said.out + said.err


def test_the_old_are_found_no_more(tmp_path: Path) -> None:
    """From the moment on that all there was has been read."""
    outputs = crawl(9, 1)  # more than one turn reads
    now_ms = int(time.time() * 1000)
    outputs.write("unique", 0, b"new", "quick brown fox", KEPT, now_ms)
    filler = make_filler(outputs, tmp_path, search_keep="1d")

    found = run_until(filler, lambda: len(filler.finder.find(CLUE, 9)) == 1, all_of)
    assert found == (["unique-0@5"], {})


def test_records_without_a_text_are_no_trouble(tmp_path: Path) -> None:
    """A tombstone, a bypassed record, headers that say nothing: read, counted in groups, found by nothing."""
    outputs = MemoryOutputs()
    outputs.write("unique", 0, b"a", None, [("dedup.reason", b"tombstone")])
    outputs.write("unique", 0, b"\xff", "", [])
    outputs.write("duplicates", 0, b"c", "", copy_of(3))
    outputs.write("unique", 1, b"d", "quick brown fox", [("dedup.similarity", b"\xff")])

    assert run_until_ready(outputs, tmp_path, all_of) == (["unique-1@0"], {"documents-0@3": 1})


def test_texts_are_kept_in_the_engine_where_the_settings_say(tmp_path: Path) -> None:
    (found,) = run_until_ready(crawl(1, 0), tmp_path, lambda finder: finder.find(CLUE, 9), search_texts="engine")

    assert found.snippet == (("quick brown fox", True), (" number0", False))
