"""The loop of the search role on Kafka in memory: exactly once, also after kills."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest

from bench.prose import Dice
from stream_dedup.console.values import HostPair
from stream_dedup.domain.document import (
    LogPlace,
    Message,
    Position,
    Reason,
    digest_id,
)
from stream_dedup.domain.errors import ConfigurationError, StreamDedupError
from stream_dedup.fingerprinting import Recipe
from stream_dedup.inputs import claim_checks
from stream_dedup.log import headers
from stream_dedup.log.records import Control, encode_control
from stream_dedup.log.schema import Judgement
from stream_dedup.search import output_texts
from stream_dedup.search import role as search_role
from stream_dedup.search.finding import Finder
from stream_dedup.search.output_texts import OutputTexts
from stream_dedup.search.role import TextFiller
from stream_dedup.serving.health import Health
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings
from tests.inputs.store_server import Pages, Reply, serving
from tests.search.kafka import (
    KEPT,
    MemoryOutputs,
    copy_of,
    crawl,
    forget_later,
    make_filler,
)
from tests.tiers import few

CLUE = "quick brown fox"
KNOWN = b"kept1".hex()


def run_until(
    filler: TextFiller,
    condition: Callable[[], bool],
    ask: Callable[[Finder], Any] = lambda _: None,
) -> Any:
    """Run the loop until a condition holds, ask its finder, and stop it."""
    stop = threading.Event()
    thread = threading.Thread(target=filler.run, args=(stop,))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not condition():
            assert thread.is_alive(), "the loop has ended"
            assert time.monotonic() < deadline, "waited in vain"
            threading.Event().wait(0.002)
        return ask(filler.finder)
    finally:
        stop.set()
        thread.join(60)


def run_until_ready(
    outputs: MemoryOutputs, folder: Path, ask: Callable[[Finder], Any], **settings: Any
) -> Any:
    health = Health()
    return run_until(
        make_filler(outputs, folder, health, **settings), lambda: health.ready_state().ok, ask
    )


def find_all(finder: Finder) -> tuple[list[str], dict[str, int]]:
    return sorted(hit.output_position for hit in finder.find(CLUE, 10_000).documents), {
        group.position: group.copies for group in finder.groups("largest", 100)
    }


def run_killed_search(
    folder: Path, step: str, *arguments: object, commit: int | None = None
) -> None:
    """Run a search that kills itself at a step; `commit` is the documents of a commit."""
    code = "import runpy; from stream_dedup.search import role; "
    code += f"role.COMMIT_DOCUMENTS = {commit or search_role.COMMIT_DOCUMENTS}; "
    code += "runpy.run_module('tests.search.kafka', run_name='__main__', alter_sys=False)"
    command = [sys.executable, "-c", code, str(folder), step, *map(str, arguments)]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, check=False, timeout=120
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.parametrize(
    "step",
    few(f"search.{when}-commit:{number}:1" for number in (2, 3) for when in ("before", "after")),
)
def test_a_take_down_is_carried_out_after_kills(step: str, tmp_path: Path) -> None:
    """Killed at the commit in front of it or at its own; also once the folder was deleted: what is
    forgotten is not shown."""
    folder = tmp_path / "engine"
    run_killed_search(folder, step, 20, 21, "kept4", "copy3", "kept3", "late")
    outputs = crawl(20, 21)
    forget_later(outputs, b"kept4", b"copy3", b"kept3", b"late")

    def shown(finder: Finder) -> Any:
        groups = {
            group.position: (group.id, group.copies) for group in finder.groups("largest", 100)
        }
        return {hit.id for hit in finder.find(CLUE, 100).documents}, groups

    expected_groups = {f"documents-0@{kept}": (f"kept{kept}", 3) for kept in (0, 1, 2, 5, 6)}
    expected_groups |= {"documents-0@3": ("", 3), "documents-0@4": ("", 3)}
    expected_ids = (
        {f"kept{number}" for number in range(20)}
        | {f"copy{number}" for number in range(21)}
        | {"late copy"}
    )
    for state_folder in (folder, tmp_path / "anew"):
        ids, groups = run_until_ready(outputs, state_folder, shown)
        assert ids == expected_ids - {"kept4", "copy3", "kept3"}
        assert groups == expected_groups


@pytest.mark.parametrize("seed", few(range(12)))
def test_forgotten_documents_are_hidden_in_any_reading_order(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents leave late, the search starts again at any time; it shows what came behind the last
    take-down of its id."""
    monkeypatch.setattr(search_role, "_CATCH_UP_COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(search_role, "_COMMIT_SECONDS", 0.0)
    dice, outputs = Dice("take-downs", seed), MemoryOutputs()
    decided: list[Judged] = []
    forgotten: dict[str, int] = {}
    unwritten: list[Judged] = []
    filler = make_filler(outputs, tmp_path / "engine")
    for _ in range(120):
        match dice.below(6):
            case 0:
                filler._read_batch()
            case 1:
                name = f"id{dice.below(5)}"
                forgotten[name] = outputs.forget(name.encode())
            case 2 if dice.below(4) == 0:
                # a killed process has no thread that still writes files
                filler._engine.finish_merging()
                filler._engine.close()  # what was not committed is lost
                filler._reader.close()
                filler = make_filler(outputs, tmp_path / "engine")
            case 3 if unwritten:
                unwritten.pop(dice.below(len(unwritten))).leave(outputs)
            case _:
                roots = [
                    judged
                    for judged in decided
                    if not judged.root and forgotten.get(judged.id, -1) < judged.log_offset
                ]
                root = dice.pick(roots) if roots and dice.below(2) else None
                outputs.write_raw("fingerprints", 0, b"a batch")
                judged = Judged(
                    f"id{dice.below(5)}", len(outputs.records["fingerprints", 0]) - 1, root
                )
                decided.append(judged)
                unwritten.append(judged)
    for judged in unwritten:
        judged.leave(outputs)
    filler._engine.close()

    shown = [judged for judged in decided if forgotten.get(judged.id, -1) < judged.log_offset]
    groups = Counter(judged.root.position for judged in shown if judged.root)
    for _ in range(2):
        found = run_until_ready(
            outputs,
            tmp_path,
            lambda finder: (finder.find(CLUE, 1000).documents, finder.groups("largest", 1000)),
        )
        assert {hit.id: hit.fetches for hit in found[0]} == Counter(judged.id for judged in shown)
        assert {group.position: group.copies for group in found[1]} == groups
        names = {
            judged.position: "" if forgotten.get(judged.id, -1) > judged.log_offset else judged.id
            for judged in decided
        }
        assert {group.position: group.id for group in found[1]} == {
            position: names[position] for position in groups
        }


class Judged(NamedTuple):
    """A document that the log decided, kept or a copy of a root."""

    id: str
    log_offset: int
    root: Judged | None

    @property
    def position(self) -> str:
        return f"documents-0@{self.log_offset}"

    def leave(self, outputs: MemoryOutputs) -> None:
        fields = {"dedup.verdict": "unique", "dedup.log": f"{self.log_offset}/0"}
        if self.root:
            fields |= {
                "dedup.verdict": "duplicate",
                "dedup.of.position": self.root.position,
                "dedup.of.id": self.root.id,
            }
        headers = [(name, value.encode()) for name, value in fields.items()]
        topic = "duplicates" if self.root else "unique"
        outputs.write(
            topic,
            self.log_offset % 2,
            self.id.encode(),
            "quick brown fox",
            headers,
            self.log_offset,
        )


def test_a_search_that_is_filled_again_shows_nothing_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A take-down far behind the documents in the log is read before they are shown."""
    monkeypatch.setattr(search_role, "_CATCH_UP_COMMIT_SECONDS", 0.0)
    outputs = crawl(6, 0)
    for _ in range(30):
        outputs.write_raw("fingerprints", 0, b"a batch")
    outputs.forget(b"kept1")
    filler = make_filler(outputs, tmp_path)
    seen = set()
    while not filler._is_caught_up:
        filler._read_batch()
        seen |= set(list_ids(filler.finder))
    filler._engine.close()

    assert seen == {f"kept{number}" for number in range(6)} - {"kept1"}


def test_take_downs_by_digest_are_carried_out(tmp_path: Path) -> None:
    key = Recipe().key
    outputs = crawl(3, 0)
    outputs.forget(digest_id(b"kept1", key))

    assert run_until_ready(outputs, tmp_path, list_ids, log_ids="digest") == ["kept0", "kept2"]


def test_invalid_take_downs_of_the_log_are_ignored(tmp_path: Path) -> None:
    """The index ignores them too."""
    outputs = crawl(3, 0)
    for ids in (
        "kept1",
        [],
        ["zz"],
        [7],
        [KNOWN, ""],
        [KNOWN, "00" * 9999],
        [KNOWN] * 1001,
        {"ids": 1},
    ):
        outputs.write_raw("fingerprints", 0, encode_control(Control("forget", {"ids": ids})))
    outputs.write_raw(
        "fingerprints", 0, encode_control(Control("forget", {"ids": [b"kept2".hex()]}))[:-1]
    )

    assert run_until_ready(outputs, tmp_path, list_ids) == ["kept0", "kept1", "kept2"]


def list_ids(finder: Finder) -> list[str]:
    return sorted(hit.id for hit in finder.find(CLUE, 1000).documents)


def test_the_search_is_ready_once_it_has_read_all_records(tmp_path: Path) -> None:
    """Before that it says how far it is; stopped and begun again it is ready at once, and has what
    came meanwhile."""
    outputs, health = crawl(40, 20), Health()
    filler = make_filler(outputs, tmp_path, health)
    filler._read_batch()
    assert (health.startup_state().ok, health.ready_state().ok) == (False, False)
    assert "remain" in health.ready_state().sentence
    run_until(filler, lambda: health.ready_state().ok)
    assert health.startup_state().ok

    outputs.write("unique", 1, b"late", "quick brown fox", KEPT)
    found, _ = run_until_ready(outputs, tmp_path, find_all)
    assert len(found) == 61


def test_without_kafka_the_search_answers_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its log has the address of the console, because `run all` shows it nowhere else."""
    monkeypatch.setattr(search_role.os, "nice", lambda _: 0)
    run_until_ready(crawl(3, 2), tmp_path, find_all)
    stop, output = threading.Event(), ""
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:1", http_port=0, state_dir=tmp_path)
    role = threading.Thread(target=search_role.run, args=(settings, stop))
    role.start()
    try:
        deadline = time.monotonic() + 60
        while not (
            found := re.search(r"console started +address=(http://127\.0\.0\.1:[1-9]\d*)/", output)
        ):
            assert (role.is_alive(), time.monotonic() < deadline) == (True, True), output
            role.join(0.5)  # what is written just while the capture is emptied can be lost
            output += capfd.readouterr().out
        assert len(answer_of(f"{found[1]}/v1/find?q=quick+brown+fox")["documents"]) == 5
        assert answer_of(f"{found[1]}/v1/groups")["groups"][0]["copies"] == 1
        assert answer_of(f"{found[1]}/startupz")["text"].startswith(
            "7 documents and groups can be searched"
        )
        while "waiting for Kafka" not in answer_of(f"{found[1]}/readyz")["text"]:
            assert time.monotonic() < deadline
    finally:
        stop.set()
        role.join(60)
    assert len(run_until_ready(crawl(3, 3), tmp_path, find_all)[0]) == 6, (
        "it has let go of the folder"
    )


def answer_of(address: str) -> Any:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - our own address
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return json.loads(error.read())


def test_records_written_later_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_role, "_COMMIT_SECONDS", 0.01)
    monkeypatch.setattr(search_role, "_CHECK_SECONDS", 0.01)
    outputs, health = crawl(2, 0), Health()
    filler = make_filler(outputs, tmp_path, health)

    def is_found() -> bool:
        if health.ready_state().ok and ("duplicates", 2) not in outputs.records:
            outputs.records |= {("duplicates", 2): []}
            outputs.write("duplicates", 2, b"x", "quick brown fox", copy_of(1))
        return "duplicates-2@0" in find_all(filler.finder)[0]

    run_until(filler, is_found)


def test_free_memory_is_returned_while_reading_and_while_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merges of the engine, and clients, leave free memory with the C library."""
    monkeypatch.setattr(search_role, "_CHECK_SECONDS", 0.0)
    trims: list[bool] = []
    monkeypatch.setattr(search_role, "trim_memory", lambda: trims.append(True))
    outputs, health = crawl(40, 20), Health()
    filler = make_filler(outputs, tmp_path, health)

    filler._read_batch()
    assert trims == [True]
    run_until(filler, lambda: health.ready_state().ok)
    assert len(trims) > 2


def test_a_folder_of_other_topics_or_settings_is_refused(tmp_path: Path) -> None:
    run_until_ready(crawl(2, 0), tmp_path, find_all)

    with pytest.raises(
        ConfigurationError,
        match=r"for other topics or settings \(duplicates, fingerprints, unique differ\).*Delete the folder",
    ):
        make_filler(MemoryOutputs(generation=2), tmp_path)
    with pytest.raises(ConfigurationError, match=r"\(words differ\)"):
        make_filler(crawl(2, 0), tmp_path, languages="same-han")
    with pytest.raises(ConfigurationError, match="it has lost records"):
        make_filler(MemoryOutputs(), tmp_path)
    empty = MemoryOutputs()
    del empty.records["duplicates", 0], empty.records["duplicates", 1]
    with pytest.raises(ConfigurationError, match="duplicates does not exist; create it with"):
        make_filler(empty, tmp_path)
    assert len(run_until_ready(crawl(3, 0), tmp_path, find_all)[0]) == 3, (
        "refusals let go of the folder"
    )


def test_a_search_ends_if_its_topics_are_created_again(tmp_path: Path) -> None:
    """Its client would read the new topics from the offsets of the old ones."""
    outputs = crawl(2, 0)
    filler = make_filler(outputs, tmp_path)
    outputs.generation = 2

    with pytest.raises(StreamDedupError, match="deleted and created again"):
        filler.run(threading.Event())


def test_records_deleted_before_they_were_read_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_until_ready(crawl(4, 0), tmp_path, find_all)
    outputs = crawl(20, 0)
    outputs.lows = {("unique", 0): 7}

    assert len(run_until_ready(outputs, tmp_path, find_all)[0]) == 4 + 3 + 8
    output = capsys.readouterr()
    assert "retention deleted records before the search read them" in output.out + output.err


def test_documents_older_than_search_keep_are_removed(tmp_path: Path) -> None:
    """They are removed once all existing records have been read."""
    outputs = crawl(9, 1)  # more than one turn reads
    now_ms = int(time.time() * 1000)
    outputs.write("unique", 0, b"new", "quick brown fox", KEPT, now_ms)
    filler = make_filler(outputs, tmp_path, search_keep="1d")

    found = run_until(filler, lambda: len(filler.finder.find(CLUE, 9).documents) == 1, find_all)
    assert found == (["unique-0@5"], {})


def test_a_group_is_built_from_the_headers_of_its_copies(tmp_path: Path) -> None:
    outputs = MemoryOutputs()
    for part, name, more in (
        (0, b"longer", {"better": "longest", "copies": "2", "log": "7/10"}),
        (0, b"same", {"copies": "3", "log": "8/0"}),
        (1, b"long", {"better": "longest", "copies": "1", "log": "7/9"}),
        (1, b"damaged", {"better": "longest", "copies": "many", "log": "x"}),
    ):
        outputs.write(
            "duplicates", part, name, "quick brown fox", copy_of(3, **more), 1000 + len(name)
        )

    group = run_until_ready(outputs, tmp_path, lambda finder: finder.group("documents-0@3"))

    assert (group.copies, group.counted, group.oldest_ms, group.newest_ms) == (4, 3, 1004, 1007)
    assert (group.best.id, group.best.better) == ("longer", "longest")
    better = dict.fromkeys(("longer", "long", "damaged"), "longest") | {"same": ""}
    assert {member.id: member.better for member in group.members} == better


def test_a_release_is_known_by_its_headers(tmp_path: Path) -> None:
    """It has the source position of its copy, whose record remains."""
    outputs = MemoryOutputs()
    for number in (1, 2):
        own_copy = copy_of(3, position=f"documents-1@{number}")
        outputs.write("duplicates", 0, b"copy%d" % number, "quick brown fox", own_copy)
    finder = Position("documents", b"", 1, 1)
    judgement = Judgement(Reason.RELEASED, LogPlace(9, 0))
    release = headers.of_verdict(finder, "recipe", None, judgement)
    outputs.write("unique", 1, b"copy1", "quick brown fox", release)

    group = run_until_ready(outputs, tmp_path, lambda finder: finder.group("documents-0@3"))

    assert (group.copies, group.released, [member.id for member in group.members]) == (
        1,
        1,
        ["copy2"],
    )
    (released,) = group.released_members
    assert (released.output_position, released.reason) == ("unique-1@0", "released")


def test_hosts_are_paired_by_the_ids_of_copy_and_kept_document(tmp_path: Path) -> None:
    """Not where the page was fetched again, both have one host, or one has none."""
    outputs = MemoryOutputs()
    for number, (key, of, reason) in enumerate(
        (
            (b"https://www.b.example/1", "https://a.example/1", "near"),
            (b"https://b.example/2", "https://a.example/1", "exact"),
            (b"https://a.example/1", "https://a.example/1", "revised"),
            (b"https://a.example/2", "https://a.example/1", "near"),
            (b"id-7", "https://a.example/1", "near"),
            (b"https://b.example/3", "kept3", "near"),
        )
    ):
        copy_headers = copy_of(3, **{"reason": reason, "of.id": of})
        outputs.write("duplicates", 0, key, "quick brown fox", copy_headers, 1000 + number)

    pairs = run_until_ready(outputs, tmp_path, lambda finder: finder.host_pairs("")).pairs

    assert pairs == (
        HostPair(
            "b.example", "a.example", 2, 1000, 1001, "duplicates-0@0", "https://www.b.example/1"
        ),
    )


def test_records_without_a_text_are_read(tmp_path: Path) -> None:
    outputs = MemoryOutputs()
    outputs.write("unique", 0, b"a", None, [("dedup.reason", b"tombstone")])
    outputs.write("unique", 0, b"\xff", "", [])
    outputs.write("duplicates", 0, b"c", "", copy_of(3))
    outputs.write("unique", 1, b"d", "quick brown fox", [("dedup.similarity", b"\xff")])

    assert run_until_ready(outputs, tmp_path, find_all) == (["unique-1@0"], {"documents-0@3": 1})


# -- texts that are stored elsewhere


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    monkeypatch.setattr(claim_checks, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(search_role, "_RETRY_SECONDS", 0.0)
    with serving() as pages:
        yield pages


def crawl_of(pages: Pages, count: int) -> MemoryOutputs:
    """Return outputs whose records each name a page, more records than one batch reads."""
    outputs = MemoryOutputs()
    for number in range(count):
        pages.by_path[f"/{number}"] = Reply(b"quick brown fox number%d" % number)
        value = json.dumps({"url": f"kept{number}", "at": f"{pages.url}/{number}"})
        outputs.write("unique", number % 2, b"key", value, KEPT)
    return outputs


def claim_check_settings(pages: Pages) -> dict[str, str]:
    return {
        "value_format": "json",
        "text_at": "at",
        "text_prefixes": pages.url,
        "id_field": "url",
    }


def test_stored_texts_are_fetched_concurrently(tmp_path: Path, pages: Pages) -> None:
    outputs = crawl_of(pages, 24)
    pages.delay_seconds = 0.02
    found = run_until_ready(outputs, tmp_path, list_ids, **claim_check_settings(pages))
    assert found == sorted(f"kept{number}" for number in range(24))
    assert pages.at_once_max > 1
    assert len(pages.asked) == 24


def test_the_log_is_read_while_the_store_of_texts_is_unavailable(
    tmp_path: Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each document is added once, also after a restart."""
    monkeypatch.setattr(search_role, "_CATCH_UP_COMMIT_SECONDS", 0.0)
    outputs, health = crawl_of(pages, 24), Health()
    replies = dict(pages.by_path)
    for path in ("/9", "/10", "/20"):
        pages.by_path[path] = Reply(status=503)
    filler = make_filler(outputs, tmp_path, health, **claim_check_settings(pages))
    logger = filler._logger = MagicMock()

    def gauge() -> float | None:
        return filler._metrics.registry.get_sample_value("stream_dedup_texts_away")

    before = run_until(filler, lambda: gauge() == 1.0 and pages.asked.count("/9") > 9, list_ids)
    assert not {"kept9", "kept10"} & set(before)
    assert "kept0" in before
    assert [call.args[0] for call in logger.warning.call_args_list] == [
        "the store of the texts is unavailable; no documents are added until it answers"
    ]
    filler = make_filler(outputs, tmp_path, health, **claim_check_settings(pages))
    logger = filler._logger = MagicMock()
    done = threading.Event()

    def go_on() -> bool:
        if pages.asked.count("/9") > 20 and not done.is_set():
            outputs.forget(b"kept0", b"kept23")
            done.set()
        if done.is_set() and "kept0" not in list_ids(filler.finder):
            pages.by_path.update(replies)
        return health.ready_state().ok and gauge() == 0.0

    found = run_until(filler, go_on, list_ids)
    assert found == sorted({f"kept{number}" for number in range(24)} - {"kept0", "kept23"})
    assert [call.args[0] for call in logger.info.call_args_list if "again" in call.args[0]] == [
        "the store of the texts answers again"
    ]


def test_a_document_without_its_text_is_reported_and_found_by_id(
    tmp_path: Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the id of its record, so a take-down covers it."""
    outputs = crawl_of(pages, 6)
    del pages.by_path["/1"], pages.by_path["/2"]
    pages.by_path["/4"] = Reply(status=401)
    outputs.forget(b"kept2")
    monkeypatch.setattr(claim_checks, "PATIENCE_SECONDS", 1.0)
    filler = make_filler(outputs, tmp_path, health := Health(), **claim_check_settings(pages))
    logger = filler._logger = MagicMock()

    known = run_until(
        filler,
        lambda: health.ready_state().ok,
        lambda finder: [
            [facts.id for facts in finder._engine.facts_of_id(f"kept{number}")]
            for number in range(6)
        ],
    )

    assert known == [["kept0"], ["kept1"], [], ["kept3"], ["kept4"], ["kept5"]]
    assert filler._metrics.registry.get_sample_value("stream_dedup_search_without_text_total") == 3
    calls = [
        call for call in logger.warning.call_args_list if "text cannot be read" in call.args[0]
    ]
    assert len(calls) == 1


# -- texts by the positions of their records, for requests of the console


def texts_of(
    pages: Pages, monkeypatch: pytest.MonkeyPatch, count: int, attempt_seconds: float = 0.5
) -> OutputTexts:
    """Return texts of records that a topic keeps, each of which names a page."""

    def sample(_: Any, spans: Any, __: float) -> Iterator[Message]:
        for (topic, partition), offset_ranges in spans.items():
            for offset, _ in offset_ranges:
                value = json.dumps({"at": f"{pages.url}/{offset}"}).encode()
                yield Message(topic, partition, offset, b"k", value, 1, [])

    for number in range(count):
        pages.by_path[f"/{number}"] = Reply(b"text %d" % number)
    monkeypatch.setattr(output_texts, "read_spans", sample)
    given = {
        "value_format": "json",
        "text_at": "at",
        "text_prefixes": pages.url,
        "text_bytes": "500kB",
    }
    monkeypatch.setattr(claim_checks, "ATTEMPT_SECONDS", attempt_seconds)
    return OutputTexts(load_settings(given, environ={}))


def test_texts_that_cannot_be_read_do_not_delay_others(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_texts, "_PATIENCE_SECONDS", 1.0)
    texts = texts_of(pages, monkeypatch, 6)
    pages.by_path |= {
        "/1": Reply(status=503),
        "/2": Reply(status=404),
        "/4": Reply(worse=pages.silent),
    }
    found = texts.texts_at(f"unique-0@{number}" for number in range(6))
    assert found == {
        f"unique-0@{number}": "" if number == 2 else f"text {number}" for number in (0, 2, 3, 5)
    }


def test_a_request_does_not_wait_for_what_the_role_reads(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role waits for a page that never answers, and keeps the texts that it read ahead."""
    monkeypatch.setattr(output_texts, "_PATIENCE_SECONDS", 60.0)  # a busy machine is no silent page
    texts = texts_of(pages, monkeypatch, 4, attempt_seconds=60.0)
    pages.by_path["/1"] = Reply(worse=pages.silent)
    values = [json.dumps({"at": f"{pages.url}/{number}"}).encode() for number in range(4)]
    messages = [
        Message("unique", 0, number, b"k", value, 1, []) for number, value in enumerate(values)
    ]
    requests: list[Future[Any]] = []
    with ThreadPoolExecutor() as others:

        def is_hurried() -> bool:
            if not requests and len(pages.asked) == len(messages):
                requests.append(others.submit(texts.texts_at, ["unique-0@3"]))
            return bool(requests) and requests[0].done()

        with pytest.raises(output_texts.AwayError):
            list(texts.decode_each(messages, is_hurried))
    assert requests[0].result() == {"unique-0@3": "text 3"}
    pages.by_path["/1"] = Reply(b"late")
    assert [decoded.text for decoded in texts.decode_each(messages[2:], lambda: False)] == [
        "text 2",
        "text 3",
    ]
    assert [pages.asked.count(path) for path in ("/2", "/3")] == [1, 2], (
        "each has what it fetched for itself"
    )
