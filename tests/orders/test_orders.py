"""What the commands read from the log before they write to it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import NO_TOPIC_ID
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.domain.topics import TopicNames
from stream_dedup.index.index import LogIndex
from stream_dedup.index.rules.window import RulesInForce
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.log.controls import Window
from stream_dedup.log.records import Source, decode
from stream_dedup.orders.forget import KnownId, id_in_log
from stream_dedup.orders.in_force import InForce, change_fields
from stream_dedup.orders.release import Trace, Traces
from stream_dedup.orders.run_forget import list_remaining_data
from stream_dedup.orders.seed import SeedProgress, file_source
from tests.index.logs import (
    RECIPE,
    TOPIC_ID,
    Doc,
    RandomLog,
    append_time,
    batch,
    control,
    declare,
    forget,
    read,
    release,
    seed,
)

BLOCKS, CLASSIC = PLANS["blocks"], PLANS["classic"]
LONGEST = BetterRule.LONGEST


def test_remaining_data_is_listed_with_its_end() -> None:
    """Each topic that is there as long as it keeps records, and the files; with digests no id is
    named."""
    names = TopicNames("news.")
    config = {
        "news.documents": {"retention.ms": "604800000", "retention.bytes": "-1"},
        "news.unique": {"cleanup.policy": "compact", "retention.ms": "604800000"},
        "news.duplicates": {"retention.ms": "-1", "retention.bytes": "5000000000"},
        "news.fingerprints": {"retention.ms": "-1"},
    }

    plain, digest = (
        {remaining.where: remaining for remaining in list_remaining_data(names, config, ids)}
        for ids in ("plain", "digest")
    )

    until = {name: remaining.until for name, remaining in plain.items()}
    assert until["news.documents"] == "1w after its time"
    assert until["news.unique"] == "another record of its key replaces it"
    assert until["news.duplicates"] == "5.0 GB came after it in its partition"
    assert until["news.fingerprints"] == "forever"
    assert "news.dlq.documents" not in until
    assert {"the index's volume", "snapshots of the index", "the search's volume"} <= set(until)
    assert plain["news.fingerprints"].what.startswith("the id,")
    assert not [remaining for remaining in digest.values() if remaining.what.startswith("the id")]


def test_the_index_s_old_data_is_removed_by_rocksdb(tmp_path: Path) -> None:
    """Within the days that are told: RocksDB's own file of options says after how long it rewrites
    a file."""
    RocksStore(tmp_path / "volume").close()
    (options,) = (tmp_path / "volume").glob("OPTIONS-*")
    seconds = {int(ttl) for ttl in re.findall(r"^\s*ttl=(\d+)$", options.read_text(), re.MULTILINE)}

    (volume,) = (
        remaining
        for remaining in list_remaining_data(TopicNames(), {}, "plain")
        if remaining.where == "the index's volume"
    )

    assert seconds == {int(re.search(r"\d+", volume.until)[0]) * 86400}  # type: ignore[index]


@pytest.mark.parametrize("seed_number", [*range(4), 1706702978, int(os.environ["TEST_SEED"])])
def test_plan_and_window_in_force_are_those_of_the_index(seed_number: int) -> None:
    """Over random logs with changes and nonsense the command and the index agree after every
    record."""
    print(f"seed {seed_number}")
    index, now = LogIndex(MemoryStore()), InForce()
    for offset, raw in enumerate(
        RandomLog(seed_number, BLOCKS, plan_changes=True, windows=True).records(150)
    ):
        index.apply([(offset, append_time(offset), raw)])
        now.fold(read(raw))

        state = index._state
        assert (now.plan, now.window, now.better, now.format) == (
            state.plan,
            state.window,
            state.better,
            index.format,
        )
    assert now.changes > 0


def test_only_changed_fields_are_written() -> None:
    now = InForce()
    for raw in (
        declare(BLOCKS, width=128, window={"length_ms": 5000, "refresh": False}),
        control("plan", plan=CLASSIC.to_fields()),
    ):
        now.fold(decode(raw))

    assert change_fields(now, RulesInForce(CLASSIC, Window(5000), LONGEST)) == {}
    assert change_fields(now, RulesInForce(BLOCKS, Window(5000), LONGEST)) == {
        "plan": BLOCKS.to_fields()
    }
    assert change_fields(now, RulesInForce(CLASSIC, None, LONGEST)) == {"window": None}
    assert change_fields(now, RulesInForce(CLASSIC, Window(5000), BetterRule.NEWEST)) == {
        "better": "newest"
    }
    refreshed = RulesInForce(CLASSIC, Window(5000, refresh=True), LONGEST)
    assert change_fields(now, refreshed) == {"window": {"length_ms": 5000, "refresh": True}}
    with pytest.raises(
        ConfigurationError, match="compares 256 bits, but the fingerprints of this log have 128"
    ):
        change_fields(now, RulesInForce(Plan(256, 8, 0, 3), None, LONGEST))


def test_an_id_is_known_until_it_is_forgotten() -> None:
    """Documents and seeds with the id count; those after the last take-down count again."""
    known = KnownId(b"url")
    log = [
        declare(BLOCKS),
        batch([Doc(0, 0, 0, bytes(16), 0, id=b"url"), Doc(0, 1, 0, bytes(16), 0, id=b"other")]),
        seed([Doc(0, 0, 0, bytes(16), 0, id=b"url")], topic="seed:pages.txt"),
        forget(b"x", b"url"),
        forget(b"other"),
        None,
    ]
    for offset, raw in enumerate(log):
        known.fold(offset, read(raw))

    assert (known.documents, known.since, known.forgotten_at) == (2, 0, [3])

    known.fold(6, decode(batch([Doc(0, 9, 0, bytes(16), 0, id=b"url")])))

    assert (known.documents, known.since) == (3, 1)


def test_a_repeated_document_counts_once() -> None:
    """A worker repeats a batch that no index answered; behind a take-down it counts again, as
    nobody can tell."""
    known = KnownId(b"url")
    ours, copy = (Doc(1, offset, offset, bytes(16), 0, id=b"url") for offset in (4, 6))
    for offset, raw in enumerate(
        (declare(BLOCKS), batch([ours, copy]), batch([ours, copy]), batch([copy], {1: (1, 5)}))
    ):
        known.fold(offset, decode(raw))

    assert (known.documents, known.since) == (2, 2)

    for offset, raw in enumerate((forget(b"url"), batch([copy]), batch([ours], topic="t")), 4):
        known.fold(offset, decode(raw))

    assert (known.documents, known.since) == (3, 2)


def test_the_log_form_of_an_id_is_shortened_or_a_keyed_digest() -> None:
    """Digests differ by key and hide the id; an empty id stays empty."""
    assert id_in_log(b"a", "plain", b"k" * 16) == b"a"
    assert len(id_in_log(b"a" * 9000, "plain", b"k" * 16)) == 512
    digest = id_in_log(b"https://a.example/", "digest", b"k" * 16)
    assert digest == b"~64299b61dc8c0a143032be2478783743"
    assert digest != id_in_log(b"https://a.example/", "digest", b"j" * 16)
    assert id_in_log(b"", "digest", b"k" * 16) == b""


def test_seeding_continues_after_the_last_seeded_offset(tmp_path: Path) -> None:
    progress = SeedProgress(RECIPE)
    log = [
        declare(BLOCKS),
        seed([Doc(3, 7, 0, bytes(16), 0)], topic="t"),
        seed([Doc(3, 9, 0, bytes(16), 0)], topic="t", recipe="x"),
        batch([Doc(3, 50, 0, bytes(16), 0)], topic="t"),
        None,
    ]
    for raw in log:
        progress.fold(read(raw))

    assert progress.of(Source("t", TOPIC_ID, 3, 0, 0)) == 8
    assert progress.of(Source("t", TOPIC_ID, 2, 0, 0)) == 0
    file = tmp_path / "pages.txt"
    file.write_text("one")
    first = file_source("pages.txt", file)
    assert first == file_source("pages.txt", file)
    file.write_text("two")
    assert first != file_source("pages.txt", file)
    assert file_source("-", None).topic_id == NO_TOPIC_ID
    assert len(file_source("ä" * 500, None).topic.encode()) <= 255


def test_a_trace_lists_the_verdicts_and_releases_of_a_document() -> None:
    """By topic id, partition, offset and value; other values there, other partitions and other
    recipes are passed over."""
    wanted = Doc(1, 5, 77, b"d" * 16, 1 << 100, id=b"i", features=9, scope=4)
    trace, other = Trace(1, 5, 77), Trace(0, 5, 77)
    traces = Traces(TOPIC_ID, RECIPE, [trace, other])
    log = [
        declare(BLOCKS),
        batch([Doc(0, 5, 77, bytes(16), 0), wanted]),
        batch([Doc(1, 5, 78, bytes(16), 0)]),
        batch([wanted], recipe="another"),
        release(wanted, 40),
        release(Doc(1, 6, 77, bytes(16), 0), 41),
        batch([wanted], {1: (2, 3)}),
        None,
    ]
    for offset, raw in enumerate(log):
        traces.fold(offset, read(raw))

    assert trace.verdicts_at == {"1/1", "6/0"}
    assert (other.verdicts_at, other.releases) == ({"1/0"}, [])
    assert (trace.released_at, trace.releases) == ({"4/0"}, [(4, 40)])
    document = trace.judged[-1][2]
    assert (len(document), document.sources[0].epoch, document.sources[0].committed) == (1, 0, 0)
    assert str(document.position(0)) == "documents-1@5"
    assert (document.ids, document.prints.tolist(), int(document.scope[0])) == (
        [b"i"],
        [[0, 1 << 36]],
        4,
    )
