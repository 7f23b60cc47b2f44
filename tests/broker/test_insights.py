"""Insights on a real Kafka count outputs, also after kills of the role and the broker."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from jsonschema import Draft202012Validator, FormatChecker

from stream_dedup.broker import LocalBroker
from stream_dedup.domain.document import Headers
from stream_dedup.domain.topics import topic_folder
from tests.broker.harness import Filter, MakeFilter, Role, run_broker_and_filter
from tests.broker.test_main_path import LONG
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

HOST = "news.example"
PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "host-signals.md"


@pytest.fixture
def broker_and_filter(tmp_path: Path) -> Iterator[tuple[LocalBroker, Filter]]:
    """A broker that may be killed, and a filter on it."""
    with run_broker_and_filter(
        tmp_path, partitions=1, constants={"stream_dedup.insights.app.WRITE_SECONDS": 1.0}
    ) as (broker, crawl):
        yield broker, crawl


def signals_of(crawl: Filter) -> dict[str, Any]:
    """Return the latest record of each host, as a frontier reads them."""
    found = crawl.read(crawl.names.host_signals)
    return {
        (message.key or b"").decode(): message.value and json.loads(message.value)
        for message in sorted(found, key=lambda message: message.offset)
    }


def has_hung(role: Role) -> bool:
    """Return whether the role ended because Faust's client hangs."""
    return role.process.poll() == 1 and "the client hangs" in role.log


def wait_for_signals(crawl: Filter, documents: int) -> dict[str, Any]:
    """Wait until the signals of the host count that many documents; return them."""

    def read_signals() -> Any:
        roles = [role for role in crawl.roles if role.name == "insights"]
        if all(role.process.poll() is not None for role in roles) and has_hung(roles[-1]):
            crawl.start("insights")  # as a supervisor would
        found = signals_of(crawl).get(HOST)
        return found if found and found["documents"] >= documents else None

    try:
        return dict(wait_until(read_signals, f"the signals of {HOST} count {documents} documents"))
    except AssertionError as error:
        raise AssertionError(f"{error}; the signals are {signals_of(crawl)}") from None


def pages(first: int, count: int, text: str) -> list[tuple[int, bytes, bytes, Headers]]:
    return [
        (0, f"https://{HOST}/{number}".encode(), text.encode(), [])
        for number in range(first, first + count)
    ]


def run_documented_command(crawl: Filter) -> str:
    """Return the output of the page's kcat command, or the same lines from a consumer."""
    line = next(
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("kcat") and "host-signals" in line
    )
    words = shlex.split(line)
    assert words[words.index("-t") + 1] == "host-signals"
    assert words[words.index("-f") + 1] == "%k %s\\n"
    if shutil.which("kcat") is None:
        found = sorted(crawl.read(crawl.names.host_signals), key=lambda message: message.offset)
        return "".join(
            f"{(message.key or b'').decode()} {(message.value or b'').decode()}\n"
            for message in found
        )
    words[words.index("-t") + 1] = crawl.names.host_signals
    words[words.index("-b") + 1] = crawl.bootstrap
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout


def test_signals_survive_kills_of_the_role_and_of_the_broker(
    broker_and_filter: tuple[LocalBroker, Filter],
) -> None:
    """Each document counts once: before, after a SIGKILL of the role, after a take-over by a second
    one, and after a SIGKILL of the broker; the records follow their schemas, the console shows
    them, and metrics name no host."""
    broker, crawl = broker_and_filter
    index, worker, first = crawl.start("index"), crawl.start("worker"), crawl.start("insights")
    crawl.produce([*pages(0, 40, LONG), *pages(0, 10, LONG), (0, b"no-url", b"some words", [])])
    signals = wait_for_signals(crawl, 50)

    assert signals["bytes_wasted"] == signals["bytes"] - 2 * len(LONG)
    assert (signals["exact"], signals["unchanged"], signals["duplicate_ratio"]) == (48, 1, 0.96)
    # Page 0 is kept; the other 39 are copies of it, nine of them twice.
    assert [event["event"] for event in signals["events"]] == ["one-page", "vanishing"]
    assert signals["events"][0]["of"] == f"https://{HOST}/0"
    first.wait_for_log("an event of a host began")
    metrics = first.get("/metrics")
    assert 'stream_dedup_insights_records_total{result="no-host"} 1.0' in metrics
    assert 'stream_dedup_host_events_total{event="one-page"} 1.0' in metrics
    assert HOST not in metrics
    assert "\nfaust" not in metrics
    assert json.loads(first.get("/readyz"))["ready"] is True

    host, _, value = run_documented_command(crawl).splitlines()[-1].partition(" ")
    assert (host, json.loads(value)) == (HOST, signals)

    first.kill()
    crawl.produce(pages(40, 5, LONG))
    second = crawl.start("insights")
    assert wait_for_signals(crawl, 55)["documents"] == 55

    third = crawl.start("insights")
    third.wait_for_log("insights started")
    assert second.stop() == 0 or has_hung(second)
    crawl.produce(pages(45, 5, LONG))
    assert wait_for_signals(crawl, 60)["documents"] == 60

    broker.kill()
    broker.start()
    crawl.produce(pages(50, 5, LONG))
    assert wait_for_signals(crawl, 65)["documents"] == 65
    assert [role.process.poll() for role in (index, worker)] == [None, None]
    assert third.process.poll() is None or has_hung(third)
    assert any(role.name == "insights" and role.process.poll() is None for role in crawl.roles)

    check = Draft202012Validator(
        json.loads((topic_folder() / "schemas" / "host-signals.schema.json").read_text()),
        format_checker=FormatChecker(),
    )
    for message in crawl.read(crawl.names.host_signals):
        check.validate(json.loads(message.value or b""))


def output(number: int, *headers: tuple[str, str]) -> tuple[int, bytes, bytes, Headers]:
    found: Headers = [
        ("dedup.verdict", b"unique"),
        ("dedup.reason", b"new"),
        *((name, value.encode()) for name, value in headers),
    ]
    return (0, f"https://{HOST}/{number}".encode(), b"a page " * 50, found)


def test_records_of_aborted_transactions_are_not_counted(
    make_filter: MakeFilter,
) -> None:
    """Pages that resemble one page of their site are a template."""
    crawl = make_filter(partitions=2, constants={"stream_dedup.insights.app.WRITE_SECONDS": 1.0})
    producer = Producer({"bootstrap.servers": crawl.bootstrap, "transactional.id": "a-worker"})
    producer.init_transactions(20)
    for first, is_committed in ((0, False), (100, True), (160, False)):
        producer.begin_transaction()
        for number in range(first, first + 60):
            sibling = ("dedup.sibling.id", f"https://{HOST}/1"), ("dedup.sibling.position", "d-0@1")
            part, key, value, headers = output(number, *sibling)
            producer.produce(crawl.names.unique, value, key, part, headers=headers)
        producer.flush(20)
        (producer.commit_transaction if is_committed else producer.abort_transaction)()

    role = crawl.start("insights")

    found = wait_for_signals(crawl, 60)
    assert (found["documents"], found["siblings"]) == (60, 60)
    assert [(event["event"], event["of"]) for event in found["events"]] == [
        ("template", f"https://{HOST}/1")
    ]
    wait_until(lambda: "insights_lag_records 0.0" in role.get("/metrics"), "nothing waits")


def test_a_second_role_waits_and_takes_over_all_partitions(
    make_filter: MakeFilter,
) -> None:
    """One role reads all partitions; what two roles read counts once."""
    crawl = make_filter(partitions=4, constants={"stream_dedup.insights.app.WRITE_SECONDS": 1.0})
    topics = (crawl.names.unique, crawl.names.duplicates)

    def write(first: int) -> None:
        for number, topic in enumerate(topics):
            crawl.produce(
                [(part, *output(first + 4 * number + part)[1:]) for part in range(4)], topic=topic
            )

    write(0)
    roles = [crawl.start("insights")]
    assert wait_for_signals(crawl, 8)["documents"] == 8
    roles.append(crawl.start("insights"))
    roles[1].wait_for_log("insights started")
    write(8)
    assert wait_for_signals(crawl, 16)["documents"] == 16
    roles[0].kill()
    write(16)
    assert wait_for_signals(crawl, 24)["documents"] == 24
    wait_until(lambda: json.loads(roles[1].get("/readyz"))["ready"], "the second role counts")
