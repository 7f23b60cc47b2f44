"""Bad input on the real path: each record ends in exactly one topic, with a clear reason, and the stream goes on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from stream_dedup.document import Headers
from tests.broker.harness import Filter, Outcome, header
from tests.broker.test_main_path import LONG

pytestmark = pytest.mark.broker

FORGED: Headers = [
    ("dedup.verdict", b"duplicate"),
    ("dedup.of.id", b"https://forged.example/"),
    ("__dlq.errors.topic", b"forged"),
    ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
]

# (name, value, headers, the topic it must end in, the reason or error stage it must carry)
TABLE: list[tuple[str, bytes | None, Headers, str, str]] = [
    ("null value", None, [], "unique", "tombstone"),
    ("empty value", b"", [], "dead", "decode"),
    ("empty text", b'{"text": ""}', [], "unique", "empty"),
    ("white space only", b'{"text": " \\n\\t "}', [], "unique", "empty"),
    ("invalid UTF-8", b'{"text": "caf\xe9 ' + LONG.encode() + b'"}', [], "unique", "new"),
    ("the same invalid UTF-8", b'{"text": "caf\xe9 ' + LONG.encode() + b'"}', [], "duplicates", "exact"),
    ("broken JSON", b'{"text": "never closed', [], "dead", "decode"),
    ("JSON nested too deep", b"[" * 200_000, [], "dead", "decode"),
    ("no text field", b'{"title": "x"}', [], "dead", "field"),
    ("text is a number", b'{"text": 7}', [], "dead", "field"),
    ("text is null", b'{"text": null}', [], "dead", "field"),
    ("a lone surrogate", b'{"text": "\\ud800 lone"}', [], "unique", "too-short"),
    ("a NUL and control characters", b'{"text": "\\u0000\\u0007\\u202e"}', [], "unique", "too-short"),
    ("10 MB of one letter", b'{"text": "' + b"a" * 10_000_000 + b'"}', [], "unique", "too-short"),
    ("larger than the outputs take", b'{"text": "' + b"b" * 11_900_000 + b'"}', [], "dead", "size"),
    ("100,000 combining marks", json.dumps({"text": "a" + "\u0300\u0323" * 50_000}).encode(), [], "unique", "too-short"),
    ("forged headers", json.dumps({"text": "quite another text " * 3}).encode(), FORGED, "unique", "too-short"),
    ("ten thousand headers", b'{"text": "many headers"}', [("h", b"1")] * 10_000, "unique", "too-short"),
    ("a header with line breaks", b'{"text": "broken lines"}', [("x", b"a\r\nb: c\xff")], "unique", "too-short"),
    ("a last good one", json.dumps({"text": LONG.replace("stone", "brick")}).encode(), [], "duplicates", "near"),
]


def test_each_bad_record_ends_where_the_table_says(make_filter: Callable[..., Filter]) -> None:
    """One record of every kind, in one partition: each leaves once, where the table says, and the last one still leaves."""
    crawl = make_filter(partitions=1, value_format="json", documents_bytes_max=12_000_000)
    for name in crawl.names.outputs[:2]:
        crawl.admin.set_config(name, {"max.message.bytes": "11500000"})
    crawl.start("index")
    crawl.start("worker")
    crawl.produce((0, name.encode(), value, headers) for name, value, headers, _, _ in TABLE)
    crawl.wait_until_committed(len(TABLE))

    outcome = Outcome(crawl)

    outcome.check()
    found = {}
    for topic in ("unique", "duplicates", "dead"):
        for one in getattr(outcome, topic):
            why = header(one, "dedup.error.stage") if topic == "dead" else header(one, "dedup.reason")
            found[(one.key or b"").decode()] = (topic, why)
    assert {name: (topic, why) for name, _, _, topic, why in TABLE} == found


def test_forged_headers_cannot_forge_a_verdict(make_filter: Callable[..., Filter]) -> None:
    """Headers in our namespace are moved aside with their values; ours are the filter's own; foreign ones pass."""
    crawl = make_filter(partitions=1)
    crawl.start("index")
    crawl.start("worker")
    crawl.produce([(0, b"a", LONG.encode(), FORGED)])
    crawl.wait_until_committed(1)

    (one,) = Outcome(crawl).unique

    names = [name for name, _ in one.headers]
    assert names.count("dedup.verdict") == 1
    assert header(one, "dedup.verdict") == "unique"
    assert header(one, "dedup.prior.verdict") == "duplicate"
    assert header(one, "dedup.prior.of.id") == "https://forged.example/"
    assert header(one, "traceparent").startswith("00-0af7")


def test_a_dead_letter_says_what_was_wrong_and_where(make_filter: Callable[..., Filter]) -> None:
    """A dead letter carries Kafka's own error headers, the stage, and the raw key and value."""
    crawl = make_filter(partitions=2, value_format="json")
    crawl.start("index")
    crawl.start("worker")
    crawl.produce([(1, b"\xff\x00", b"{not json", [("x", b"y")])])
    crawl.wait_until_committed(1)

    (one,) = Outcome(crawl).dead

    assert (one.key, one.value, one.partition) == (b"\xff\x00", b"{not json", 1)
    assert header(one, "__dlq.errors.topic") == crawl.names.documents
    assert header(one, "__dlq.errors.partition") == "1"
    assert header(one, "__dlq.errors.offset") == "0"
    assert header(one, "__dlq.errors.group") == crawl.settings.group
    assert header(one, "__dlq.errors.message").startswith("The value is not JSON that can be read")
    assert header(one, "dedup.error.class") == "JSONDecodeError"
    assert header(one, "dedup.error.timestamp").isdecimal()
    assert header(one, "x") == "y"


@pytest.mark.parametrize("refusing", ["unique", "duplicates"])
def test_a_record_that_an_output_refuses_is_retracted(make_filter: Callable[..., Filter], refusing: str) -> None:
    """An output that takes less than it said at start: the record becomes a dead letter and represents nobody."""
    crawl = make_filter(partitions=1)
    crawl.start("index")
    worker = crawl.start("worker")
    generator = random.Random(1)  # random letters, so that compression cannot help the large one through
    large = " ".join(f"{generator.getrandbits(64):x}" for _ in range(4000)).encode()
    small = " ".join(f"{generator.getrandbits(64):x}" for _ in range(300)).encode()
    before = [(b"before", LONG.encode())] + ([(b"kept", large)] if refusing == "duplicates" else [])
    crawl.produce((0, key, value, []) for key, value in before)
    crawl.wait_until_committed(len(before))
    crawl.admin.set_config(getattr(crawl.names, refusing), {"max.message.bytes": "20000"})
    after = [(b"small", small), (b"large", large), (b"large again", large), (b"after", LONG.encode())]
    crawl.produce((0, key, value, []) for key, value in after)
    crawl.wait_until_committed(len(before) + len(after))

    outcome = Outcome(crawl)

    outcome.check()
    assert "is retracted" in worker.log
    assert {"before", "small"} | ({"kept"} if refusing == "duplicates" else set()) == {
        (one.key or b"").decode() for one in outcome.unique
    }
    assert {"large", "large again"} == {(one.key or b"").decode() for one in outcome.dead}
    assert [(one.key or b"").decode() for one in outcome.duplicates] == ["after"]
