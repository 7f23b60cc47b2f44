"""`audit` on a real Apache Kafka: clean on a live system, and each kind of damage named where it
is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stream_dedup.__main__ import main
from stream_dedup.audit import live
from stream_dedup.console.outputs import count_uncommitted
from stream_dedup.domain.document import Headers, Message
from stream_dedup.kafka import LoadProducer, Output
from tests.broker.harness import Filter, MakeFilter, Outcome, synthetic

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def start_filter(make_filter: MakeFilter, count: int = 1500, **settings: Any) -> Filter:
    """Start a filter, and send it documents with an empty one and a dead letter among them."""
    crawl = make_filter(partitions=3, value_format="json", **settings)
    documents: list[tuple[int, bytes | None, bytes | None, Headers]] = [
        (part, key, json.dumps({"text": text.decode()}).encode(), found)
        for part, key, text, found in synthetic(count, 5, partitions=3)
    ]
    documents[10:10] = [
        (1, b"empty", b'{"text": ""}', [("dedup.verdict", b"forged")]),
        (2, b"broken", b"{", []),
    ] * 2
    crawl.produce(documents)
    crawl.start("index")
    crawl.start("worker")
    return crawl


def send_records(crawl: Filter, *records: Output) -> None:
    producer = LoadProducer(crawl.settings)
    for record in records:
        producer.send(
            record.topic,
            record.key,
            record.value,
            record.timestamp_ms,
            record.partition,
            record.headers,
        )
    assert producer.flush() == 0


def to_output(message: Message, topic: str | None = None, **changes: bytes) -> Output:
    """Return an output record to write again, with changed headers or value (`value=`)."""
    found: Headers = [
        (name, changes.get(name.replace(".", "_"), value)) for name, value in message.headers
    ]
    return Output(
        topic or message.topic,
        message.partition,
        message.key,
        changes.get("value", message.value),
        message.timestamp_ms,
        found,
    )


def test_audit_finds_nothing_on_a_live_filter(make_filter: MakeFilter) -> None:
    """While documents flow; at rest it agrees with the tests' reading of the outputs."""
    crawl = start_filter(make_filter, 3000, count_copies=True)
    crawl.wait_until_committed(1000)
    running = live.examine(crawl.settings)
    crawl.wait_until_committed(3004)
    at_rest = live.examine(crawl.settings, is_finished=True)

    assert running.findings.shown == []
    assert running.compared > 500
    assert at_rest.findings.shown == []
    assert (at_rest.waiting, at_rest.in_flight.count, at_rest.unemitted.count) == (0, 0, 0)
    outcome = Outcome(crawl)
    outcome.check()
    assert at_rest.reasons == {**outcome.reasons()}
    assert (at_rest.compared, at_rest.scan) == (3000, "plain")


def test_redrive_sends_each_dead_letter_back_once(
    make_filter: MakeFilter,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are shown, and sent back unchanged; those that a run skipped are sent later."""
    crawl = make_filter(partitions=1, value_format="json", allow_bypass="true")
    crawl.start("index")
    crawl.start("worker")
    bypass: Headers = [("dedup.bypass", b"maybe"), ("n", b"1")]
    letters: list[tuple[int, bytes | None, bytes | None, Headers]] = [
        (0, b"a", b"{", bypass),
        (0, b"b", b'{"other": 1}', []),
        (0, None, b"[", []),
        (0, b"d", b'{"text": "fine"}', []),
    ]
    crawl.produce(letters, timestamp_ms=1_790_000_000_000)
    crawl.wait_until_committed(4)
    for name, value in crawl.environment.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> list[Any]:
        capsys.readouterr()
        assert main([*arguments, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    shown = run("dlq", "show")
    expected = [("decode", "a", False), ("field", "b", False), ("decode", None, False)]
    assert [(letter["stage"], letter["key"], letter["sent_back"]) for letter in shown] == expected
    found = [letter["source"] for letter in shown]
    assert found == [f"{crawl.names.documents}-0@{offset}" for offset in range(3)]
    found = [
        letter["key"] for letter in run("dlq", "show", "--stage", "field", "--contains", "text")
    ]
    assert found == ["b"]
    assert run("dlq", "redrive")[0] | {"sources": 0} == {
        "letters": 3,
        "sent": False,
        "may_be_sent_again": 0,
        "sent_twice_at_most": 0,
        "unfit": {},
        "sources": 0,
    }
    assert len(crawl.read(crawl.names.documents)) == 4
    decode = run("dlq", "redrive", "--stage", "decode", "--yes")[0]
    assert (decode["letters"], decode["may_be_sent_again"]) == (2, 1)
    crawl.wait_until_committed(6)
    assert count_uncommitted(crawl.settings, crawl.admin) == {0: 0}, (
        "the marker of a transaction is no record"
    )
    assert [letter["sent_back"] for letter in run("dlq", "show", "--limit", "3")] == [
        True,
        False,
        False,
    ]
    documents = crawl.read(crawl.names.documents)
    assert [(sent.key, sent.value, sent.timestamp_ms, sent.headers) for sent in documents[4:]] == [
        (
            documents[index].key,
            documents[index].value,
            documents[index].timestamp_ms,
            documents[index].headers,
        )
        for index in (0, 2)
    ]
    # The two became dead letters again, since nothing was corrected. The next run begins with the
    # skipped letter.
    assert run("dlq", "redrive", "--stage", "field", "--yes")[0]["letters"] == 1
    by_class = run("dlq", "redrive", "--class", shown[0]["class"], "--yes")[0]
    assert (by_class["letters"], by_class["sent_twice_at_most"]) == (3, 0)
    assert live.examine(crawl.settings).findings.shown == []
