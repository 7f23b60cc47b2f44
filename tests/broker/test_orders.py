"""Operators' orders on a real Apache Kafka: seed, forget, release and declare."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from stream_dedup.cli.app import main
from stream_dedup.log import records
from stream_dedup.settings.properties import child_environment
from tests.broker.harness import Filter, MakeFilter, Outcome, header, synthetic
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

TEXTS = [value.decode() for _, _, value, _ in synthetic(8, 77, partitions=1, duplicate_share=0.0)]


def run(crawl: Filter, *arguments: str, code: int = 0, stdin: str = "") -> tuple[str, str]:
    """Run a command with the filter's settings in this process; it must end with `code`. Return
    (output, errors)."""
    out, err = io.StringIO(), io.StringIO()
    environment = child_environment({}) | crawl.environment
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        ended = main(arguments)
    assert ended == code, out.getvalue() + err.getvalue()
    return out.getvalue(), err.getvalue()


def run_and_kill(crawl: Filter, step: str, *arguments: str, stdin: str = "") -> None:
    """Run a command in a separate process, which kills itself at a step."""
    ended = crawl.command(
        *arguments, code=-signal.SIGKILL, stdin=stdin, STREAM_DEDUP_FAILPOINT=f"{step}:1:1"
    )
    assert f"failpoint {step}" in ended.stderr


def run_json(crawl: Filter, *arguments: str, stdin: str = "") -> dict[str, Any]:
    """Run a command, which must succeed, and return its JSON output."""
    answer: dict[str, Any] = json.loads(run(crawl, *arguments, "--json", stdin=stdin)[0])
    return answer


def test_seeds_count_as_kept(make_filter: MakeFilter, tmp_path: Path) -> None:
    """A file and a topic are seeded once, and copies of their texts are dropped."""
    crawl, other = make_filter(partitions=1), make_filter(partitions=2)
    other.produce([(1, b"other", TEXTS[2].encode(), []), (1, b"empty", b" ", [])])
    pages = tmp_path / "pages.txt"
    pages.write_text("\n".join(TEXTS[:2] + TEXTS[:1]))

    first = run_json(crawl, "seed", str(pages), "--format", "lines")
    again = run_json(crawl, "seed", str(pages), "--format", "lines")
    topic = run_json(crawl, "seed", other.names.documents)

    assert (first["seeded"], first["seeded_before"], first["log_records"]) == (3, 0, 1)
    assert (again["seeded"], again["seeded_before"], again["log_records"]) == (0, 3, 0)
    assert (topic["seeded"], topic["empty"]) == (1, 1)

    crawl.start_both()
    crawl.produce((0, b"%d" % number, text.encode(), []) for number, text in enumerate(TEXTS[:4]))
    outcome = crawl.outcome()
    found = {message.key: header(message, "dedup.of.position") for message in outcome.duplicates}
    assert found == {
        b"0": "seed:pages.txt-0@0",
        b"1": "seed:pages.txt-0@1",
        b"2": f"{other.names.documents}-1@0",
    }
    shown = {header(message, "dedup.of.id") for message in outcome.duplicates}
    assert shown == {"pages.txt:1", "pages.txt:2", "other"}

    source_refusal = run(crawl, "seed", crawl.names.documents, code=78)
    missing_refusal = run(crawl, "seed", "nowhere", code=1)
    ids_refusal = run(crawl, "seed", str(pages), "--set", "log_ids=digest", code=78)
    assert "its documents are judged anyway" in source_refusal[1]
    assert "no file and no topic 'nowhere'" in missing_refusal[1]
    assert (
        "The log was started with STREAM_DEDUP_LOG_IDS=plain, but the setting is digest"
        in ids_refusal[1]
    )


def test_a_forgotten_document_is_removed_from_the_index(make_filter: MakeFilter) -> None:
    """A copy is unique again; with digests the log contains no id; unknown ids are refused.

    The index starts late, so the worker asks again: the log contains each document more than once,
    and it counts once.
    """
    crawl = make_filter(partitions=1, log_ids="digest")
    worker = crawl.start("worker")
    url = b"https://secret.example/page"
    crawl.produce(
        [
            (0, url, TEXTS[0].encode(), []),
            (0, b"copy", TEXTS[0].encode(), []),
            (0, url, TEXTS[0].encode(), []),
        ]
    )
    wait_until(
        lambda: len(crawl.read(crawl.names.fingerprints)) > 1, "the worker has asked for verdicts"
    )
    crawl.start("index")
    crawl.wait_until_committed(3)
    worker.wait_for_log("requesting again")

    forgotten = run_json(crawl, "forget", url.decode())
    crawl.produce([(0, b"later", TEXTS[0].encode(), [])])
    crawl.wait_until_committed(4)
    repeated = run_json(crawl, "forget", url.decode())
    unknown = run(crawl, "forget", "https://nobody.example", code=1)
    outcome = Outcome(crawl)

    assert (forgotten["documents"], forgotten["since_forgotten"]) == (2, 2)
    stays = {topic["where"]: topic for topic in forgotten["stays"]}
    assert {
        crawl.names.documents,
        *crawl.names.outputs,
        crawl.names.fingerprints,
        crawl.names.verdicts,
    } <= set(stays)
    assert stays[crawl.names.fingerprints]["until"] == "forever"
    assert "digest" in stays[crawl.names.fingerprints]["what"]
    assert (repeated["log_offset"], repeated["forgotten_at"]) == (None, forgotten["log_offset"])
    assert "contains no document with the id 'https://nobody.example'" in unknown[1]
    outcome.check()
    assert [output.key for output in outcome.unique] == [url, b"later"]
    assert [header(output, "dedup.reason") for output in outcome.duplicates] == [
        "exact",
        "unchanged",
    ]
    for output in outcome.duplicates:
        assert header(output, "dedup.of.id").startswith("~")
        assert len(header(output, "dedup.of.id")) == 33
    for message in (*outcome.log, *crawl.read(crawl.names.verdicts)):
        assert url not in (message.value or b"")


def test_release_writes_each_document_once_despite_kills(make_filter: MakeFilter) -> None:
    crawl = make_filter(partitions=2)
    crawl.start_both()
    crawl.produce(
        [
            (number % 2, b"https://a.example/%d" % number, text.encode(), [])
            for number, text in enumerate(TEXTS[:4])
        ]
    )
    crawl.wait_until_committed(4)
    near = {
        b"https://Shop.example:443/%d" % number: (
            number % 2,
            " ".join([*TEXTS[number // 2].split()[:-1], f"other{number}"]),
        )
        for number in range(6)
    }
    other = " ".join([*TEXTS[3].split()[:-1], "otherwise"])
    crawl.produce(
        [(part, key, text.encode(), [("kept", b"yes")]) for key, (part, text) in near.items()]
    )
    crawl.produce(
        [
            (0, b"https://shop.example/exact", TEXTS[0].encode(), []),
            (1, b"https://b.example/", other.encode(), []),
        ]
    )
    crawl.wait_until_committed(12)
    names = crawl.names

    def positions(*keys: bytes) -> str:
        """Return the positions of ids from `tap --json`, as lines for `release -`."""
        tapped, _ = run(crawl, "tap", "--only", "duplicates", "--until-now", "--json")
        rows = [json.loads(line) for line in tapped.splitlines()]
        found = {row["id"].encode(): row["position"] for row in rows}
        return "".join(f"{found[key]}\n" for key in keys)

    shop, single = positions(*near), positions(b"https://b.example/")
    release = ("release", "-")

    dry = run_json(crawl, *release, "--dry-run", stdin=shop)
    assert (dry["found"], dry["would_be_written"], dry["written"]) == (6, 6, 0)
    for step in ("appended", "before-commit", "after-commit"):
        run_and_kill(crawl, f"release.{step}", *release, stdin=shop)
    again = run_json(crawl, *release, stdin=shop + shop)
    listed = (again["found"], again["released_before"], again["written"], again["refused"])
    assert listed == (6, 6, 0, {})
    assert run_json(crawl, "release", "https://Shop.example:443/3")["written"] is False
    kept = f"{names.documents}-0@0\n{names.documents}-0@999\n{names.documents}-9@0\n"
    mixed = run_json(crawl, *release, stdin=single + kept)
    assert (mixed["found"], mixed["written"]) == (4, 1)
    expected = {
        f"it was delivered to {names.unique}": 1,
        f"{names.documents} does not contain it": 2,
    }
    assert mixed["refused"] == expected
    shown = run(crawl, *release, stdin=single)
    assert "released before 1" in " ".join(shown[0].split())
    assert "Nothing was written." in shown[1]
    refusal = run(crawl, *release, code=1, stdin=single + "duplicates-0@1\n")[1]
    assert "is not a position in" in refusal

    crawl.produce([(0, b"again", near[b"https://Shop.example:443/0"][1].encode(), [])])
    crawl.wait_until_committed(13)
    outcome = Outcome(crawl)
    outcome._check_verdicts()
    dropped = {message.key: message for message in outcome.duplicates}
    assert header(dropped[b"again"], "dedup.of.id") == "https://Shop.example:443/0", (
        "a released document is its own representative"
    )
    released = [
        message for message in outcome.unique if header(message, "dedup.reason") == "released"
    ]
    assert all(
        header(message, "dedup.fingerprint") == header(dropped[message.key], "dedup.fingerprint")
        for message in released
    )
    listed = {
        message.key: (message.partition, (message.value or b"").decode()) for message in released
    }
    assert listed == near | {b"https://b.example/": (1, other)}
    assert len(released) == len({header(message, "dedup.log") for message in released}) == 7
    assert [header(message, "kept") for message in released].count("yes") == 6
    assert (
        sum(isinstance(records.decode(message.value), records.Release) for message in outcome.log)
        == 7
    )


def test_release_accepts_positions_and_ids(make_filter: MakeFilter) -> None:
    crawl = make_filter(partitions=2)
    crawl.start_both()
    copies = [
        (1, key, TEXTS[0].encode(), [])
        for key in (b"a", b"https://b.example/", b"c", b"twice", b"twice")
    ]
    crawl.wait_until_committed(crawl.produce([*copies, (0, b"c", TEXTS[1].encode(), [])]))
    documents, duplicates = crawl.names.documents, crawl.names.duplicates
    tapped, _ = run(crawl, "tap", "--only", "duplicates", "--from-beginning", "--limit", "1")
    command = re.search(r"stream-dedup release (\S+)$", tapped, flags=re.MULTILINE)
    assert command is not None

    found = [run_json(crawl, "release", name) for name in (command[1], "c", "https://b.example/")]
    outcome = Outcome(crawl)

    expected = [f"{documents}-1@1", f"{documents}-1@2", f"{documents}-1@1"]
    assert [row["position"] for row in found] == expected
    assert [row["written"] for row in found] == [True, True, False]
    outcome._check_verdicts()
    shown = Counter(
        message.key for message in outcome.unique if header(message, "dedup.reason") == "released"
    )
    assert shown == {b"https://b.example/": 1, b"c": 1}
    for text, why in (
        (
            "twice",
            (
                f"2 documents with the id 'twice' were dropped: {documents}-1@3, {documents}-1@4. Name "
                "one of them."
            ),
        ),
        ("a", f"No document with the id 'a' is in {duplicates}"),
        (f"{duplicates}-0@0", "does not exist yet: the partition ends at 0"),
    ):
        assert why in " ".join(run(crawl, "release", text, code=1)[1].split())


def test_declare_changes_a_rule_of_a_log_in_use(make_filter: MakeFilter) -> None:
    """`declare --similarity` changes that of the plan in force and nothing else; a plan without
    sketches refuses it.

    `declare --better` likewise changes the rule for the better copy.
    """
    crawl = make_filter(partitions=1, plan="bands")
    index, _ = crawl.start_both()
    crawl.produce([(0, b"0", TEXTS[0].encode(), [])])
    crawl.wait_until_committed(1)

    shown = run_json(crawl, "declare", "--similarity", "0.7")
    assert shown["plan"]["becomes"] == "128:4:0:36~20:70,70,85,97%:64"
    assert shown["log_offset"] is not None
    assert run_json(crawl, "declare")["plan"]["in_force"] == "128:4:0:36~20:70,70,85,97%:64"
    expected = {"begun_with": "longest", "in_force": "longest", "becomes": "newest"}
    assert run_json(crawl, "declare", "--better", "newest")["better"] == expected
    assert run_json(crawl, "declare")["better"]["in_force"] == "newest"
    blocks = ("declare", "--plan", "blocks", "--index", index.address())
    assert run_json(crawl, *blocks)["plan"]["becomes"] == "blocks (128:8:0:17:75%~0:0%:1000)"
    _, refusal = run(crawl, "declare", "--similarity", "0.7", code=78)
    assert "The plan blocks compares no sketches" in refusal
