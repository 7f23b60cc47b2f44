"""What operators tell the log, on a real Apache Kafka: seeds, take-downs, releases, and a window
that passes."""

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


def killed(crawl: Filter, step: str, *arguments: str, stdin: str = "") -> None:
    """Run a command in a process of its own, which kills itself at a step."""
    ended = crawl.command(
        *arguments, code=-signal.SIGKILL, stdin=stdin, STREAM_DEDUP_FAILPOINT=f"{step}:1:1"
    )
    assert f"failpoint {step}" in ended.stderr


def told(crawl: Filter, *arguments: str, stdin: str = "") -> dict[str, Any]:
    """Run a command, which must succeed, and return what it says."""
    said: dict[str, Any] = json.loads(run(crawl, *arguments, "--json", stdin=stdin)[0])
    return said


def test_seeds_count_as_kept(make_filter: MakeFilter, tmp_path: Path) -> None:
    """Before the first worker: a file and a topic are seeded, once however often it is asked;
    copies of them are dropped."""
    crawl, other = make_filter(partitions=1), make_filter(partitions=2)
    other.produce([(1, b"other", TEXTS[2].encode(), []), (1, b"empty", b" ", [])])
    pages = tmp_path / "pages.txt"
    pages.write_text("\n".join(TEXTS[:2] + TEXTS[:1]))

    first = told(crawl, "seed", str(pages), "--format", "lines")
    again = told(crawl, "seed", str(pages), "--format", "lines")
    topic = told(crawl, "seed", other.names.documents)

    assert (first["seeded"], first["seeded_before"], first["log_records"]) == (3, 0, 1)
    assert (again["seeded"], again["seeded_before"], again["log_records"]) == (0, 3, 0)
    assert (topic["seeded"], topic["empty"]) == (1, 1)

    crawl.start_both()
    crawl.produce((0, b"%d" % number, text.encode(), []) for number, text in enumerate(TEXTS[:4]))
    outcome = crawl.outcome()
    found = {one.key: header(one, "dedup.of.position") for one in outcome.duplicates}
    assert found == {
        b"0": "seed:pages.txt-0@0",
        b"1": "seed:pages.txt-0@1",
        b"2": f"{other.names.documents}-1@0",
    }
    shown = {header(one, "dedup.of.id") for one in outcome.duplicates}
    assert shown == {"pages.txt:1", "pages.txt:2", "other"}

    own = run(crawl, "seed", crawl.names.documents, code=78)
    nothing = run(crawl, "seed", "nowhere", code=1)
    foreign = run(crawl, "seed", str(pages), "--set", "log_ids=digest", code=78)
    assert "its documents are judged anyway" in own[1]
    assert "no file and no topic 'nowhere'" in nothing[1]
    assert (
        "The log was started with STREAM_DEDUP_LOG_IDS=plain, and the setting is digest"
        in foreign[1]
    )


def test_a_forgotten_id_is_taken_down(make_filter: MakeFilter) -> None:
    """Its copy is unique again; with digests no id is in the log at all; what nobody knows is
    refused.

    The index comes late, so the worker has to ask again: the log has each document more than once,
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
    worker.says("requesting again")

    said = told(crawl, "forget", url.decode())
    crawl.produce([(0, b"later", TEXTS[0].encode(), [])])
    crawl.wait_until_committed(4)
    again = told(crawl, "forget", url.decode())
    unknown = run(crawl, "forget", "https://nobody.example", code=1)
    outcome = Outcome(crawl)

    assert (said["documents"], said["since_forgotten"]) == (2, 2)
    stays = {one["where"]: one for one in said["stays"]}
    assert {
        crawl.names.documents,
        *crawl.names.outputs,
        crawl.names.fingerprints,
        crawl.names.verdicts,
    } <= set(stays)
    assert stays[crawl.names.fingerprints]["until"] == "forever"
    assert "digest" in stays[crawl.names.fingerprints]["what"]
    assert (again["log_offset"], again["forgotten_at"]) == (None, said["log_offset"])
    assert "contains no document with the id 'https://nobody.example'" in unknown[1]
    outcome.check()
    assert [one.key for one in outcome.unique] == [url, b"later"]
    assert [header(one, "dedup.reason") for one in outcome.duplicates] == ["exact", "unchanged"]
    for one in outcome.duplicates:
        assert header(one, "dedup.of.id").startswith("~")
        assert len(header(one, "dedup.of.id")) == 33
    for message in (*outcome.log, *crawl.read(crawl.names.verdicts)):
        assert url not in (message.value or b"")


def test_many_are_released_once_wherever_it_is_killed(make_filter: MakeFilter) -> None:
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
        """Return what `tap --json` prints of these, as a filter between it and `release` does."""
        tapped, _ = run(crawl, "tap", "--only", "duplicates", "--until-now", "--json")
        rows = [json.loads(line) for line in tapped.splitlines()]
        found = {one["id"].encode(): one["position"] for one in rows}
        return "".join(f"{found[key]}\n" for key in keys)

    shop, one = positions(*near), positions(b"https://b.example/")
    release = ("release", "-")

    dry = told(crawl, *release, "--dry-run", stdin=shop)
    assert (dry["found"], dry["would_be_written"], dry["written"]) == (6, 6, 0)
    for step in ("appended", "before-commit", "after-commit"):
        killed(crawl, f"release.{step}", *release, stdin=shop)
    again = told(crawl, *release, stdin=shop + shop)
    listed = (again["found"], again["released_before"], again["written"], again["refused"])
    assert listed == (6, 6, 0, {})
    assert told(crawl, "release", "https://Shop.example:443/3")["written"] is False
    kept = f"{names.documents}-0@0\n{names.documents}-0@999\n{names.documents}-9@0\n"
    mixed = told(crawl, *release, stdin=one + kept)
    assert (mixed["found"], mixed["written"]) == (4, 1)
    expected = {
        f"it was delivered to {names.unique}": 1,
        f"{names.documents} does not contain it": 2,
    }
    assert mixed["refused"] == expected
    shown = run(crawl, *release, stdin=one)
    assert "released before 1" in " ".join(shown[0].split())
    assert "Nothing was written." in shown[1]
    assert "is not a position in" in run(crawl, *release, code=1, stdin=one + "duplicates-0@1\n")[1]

    crawl.produce([(0, b"again", near[b"https://Shop.example:443/0"][1].encode(), [])])
    crawl.wait_until_committed(13)
    outcome = Outcome(crawl)
    outcome._check_verdicts()
    dropped = {one.key: one for one in outcome.duplicates}
    assert header(dropped[b"again"], "dedup.of.id") == "https://Shop.example:443/0", (
        "what is released represents itself"
    )
    released = [one for one in outcome.unique if header(one, "dedup.reason") == "released"]
    assert all(
        header(one, "dedup.fingerprint") == header(dropped[one.key], "dedup.fingerprint")
        for one in released
    )
    listed = {one.key: (one.partition, (one.value or b"").decode()) for one in released}
    assert listed == near | {b"https://b.example/": (1, other)}
    assert len(released) == len({header(one, "dedup.log") for one in released}) == 7
    assert [header(one, "kept") for one in released].count("yes") == 6
    assert sum(isinstance(records.decode(one.value), records.Release) for one in outcome.log) == 7


def test_a_release_takes_what_a_person_sees(make_filter: MakeFilter) -> None:
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

    found = [told(crawl, "release", one) for one in (command[1], "c", "https://b.example/")]
    outcome = Outcome(crawl)

    expected = [f"{documents}-1@1", f"{documents}-1@2", f"{documents}-1@1"]
    assert [one["position"] for one in found] == expected
    assert [one["written"] for one in found] == [True, True, False]
    outcome._check_verdicts()
    shown = Counter(one.key for one in outcome.unique if header(one, "dedup.reason") == "released")
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


def test_a_similarity_is_declared_on_a_living_log(make_filter: MakeFilter) -> None:
    """`declare --similarity` changes that of the plan in force and nothing else; a plan without
    sketches refuses it.

    `declare --better` changes the rule of what is better, likewise.
    """
    crawl = make_filter(partitions=1, plan="bands")
    index, _ = crawl.start_both()
    crawl.produce([(0, b"0", TEXTS[0].encode(), [])])
    crawl.wait_until_committed(1)

    shown = told(crawl, "declare", "--similarity", "0.7")
    assert shown["plan"]["becomes"] == "128:4:0:36~20:70,70,85,97%:64"
    assert shown["log_offset"] is not None
    assert told(crawl, "declare")["plan"]["in_force"] == "128:4:0:36~20:70,70,85,97%:64"
    expected = {"begun_with": "longest", "in_force": "longest", "becomes": "newest"}
    assert told(crawl, "declare", "--better", "newest")["better"] == expected
    assert told(crawl, "declare")["better"]["in_force"] == "newest"
    blocks = ("declare", "--plan", "blocks", "--index", index.address())
    assert told(crawl, *blocks)["plan"]["becomes"] == "blocks (128:8:0:17:75%~0:0%:1000)"
    _, refusal = run(crawl, "declare", "--similarity", "0.7", code=78)
    assert "The plan blocks compares no sketches" in refusal
