"""Bad input on the real path: each record ends in one topic, and the stream goes on."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import struct
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer

from stream_dedup.audit.live import examine
from stream_dedup.domain.document import Headers
from tests.broker.harness import (
    Filter,
    MakeFilter,
    Outcome,
    fingerprint_of,
    header,
    peak_bytes,
    run_broker_and_filter,
)
from tests.broker.latin1 import Latin1
from tests.broker.test_main_path import LONG

pytestmark = pytest.mark.broker

FORGED: Headers = [
    ("dedup.verdict", b"duplicate"),
    ("dedup.of.id", b"https://forged.example/"),
    ("__dlq.errors.topic", b"forged"),
    ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
]


class Row(NamedTuple):
    """A bad record: the topic it must end in, and the reason or error stage it must carry there."""

    name: str
    value: bytes | None
    ends: str
    why: str
    headers: Headers = []  # noqa: RUF012 - nobody changes it
    key: bytes | None = None
    timestamp_ms: int = 0
    codec: str = "none"
    copies: int = 1
    damaged: bool = False


def short(name: str, value: bytes, headers: Headers | None = None, **more: Any) -> Row:
    """Return a row that leaves as too short to be compared."""
    return Row(name, value, "unique", "too-short", headers or [], **more)


def exact(name: str, value: bytes) -> Row:
    """Return a row that is an exact copy."""
    return Row(name, value, "duplicates", "exact")


def undecodable(name: str, value: bytes | None, headers: Headers | None = None, **more: Any) -> Row:
    """Return a row that cannot be decoded."""
    return Row(name, value, "dead", "decode", headers or [], **more)


def text(content: str) -> bytes:
    return json.dumps({"text": content}).encode()


LATIN1 = Latin1("référent")
EXPANDED_BYTES = 250_000_000


@cache  # not at import: it is half a gigabyte, and every process of a run imports this file
def table() -> list[Row]:
    """Return all rows, in the order in which they are written."""
    utf_16 = LONG.encode("utf-16-le")
    han = "研究生命起源的科学家在海边发现了很多古老的石头" * 13_000  # 1 MB of UTF-8 without a space
    distinct = " ".join(map(str, range(1_000_000)))
    return [
        Row("null value", None, "unique", "tombstone"),
        undecodable("empty value", b""),
        Row("empty text", text(""), "unique", "empty"),
        Row("white space only", text(" \n\t\u3000"), "unique", "empty"),
        Row(
            "zero-width and tag characters only",
            text("\u200b\u200d\ufeff\U000e0041"),
            "unique",
            "empty",
        ),
        short("fewer features than the floor", text("two words")),
        short("other short text", text("other words")),
        exact("the same short text", text("two words")),
        undecodable("all bytes zero", b"\0" * 1000),
        short("a megabyte of one letter", text("a" * 1_000_000)),
        exact("the same megabyte", text("a" * 1_000_000)),
        Row("invalid UTF-8", b'{"text": "caf\xe9 ' + LONG.encode() + b'"}', "unique", "new"),
        exact("the same invalid UTF-8", b'{"text": "caf\xe9 ' + LONG.encode() + b'"}'),
        exact("a byte order mark", b"\xef\xbb\xbf" + text("caf\ufffd " + LONG)),
        exact(
            "zero-width characters inserted",
            text("caf\ufffd " + LONG.replace("stone", "st\u200bone")),
        ),
        Row(
            "homoglyphs",
            text("caf\ufffd " + LONG.replace("harbour", "h\u0430rbour")),
            "duplicates",
            "near",
        ),
        exact("right-to-left override", text("caf\ufffd \u202e" + LONG)),
        undecodable(
            "another encoding",
            b'{"text": "' + ("Совет закрыл причал. " * 9).encode("cp1251") + b'"}',
        ),
        short("a character cut in the middle", b'{"text": "' + "é".encode()[:1] + b'"}'),
        short("overlong bytes", b'{"text": "\xc0\xaf\xe0\x80\xaf and words"}'),
        undecodable("UTF-16 instead of UTF-8", utf_16),
        short("a lone surrogate", b'{"text": "\\ud800 lone"}'),
        short("a NUL and control characters", b'{"text": "\\u0000\\u0007\\u202e"}'),
        short("100,000 combining marks", text("a" + "\u0300\u0323" * 50_000)),
        short("what expands eighteenfold", text("\ufdfa" * 100_000)),
        short("10 MB of one letter", text("a" * 10_000_000)),
        short("a word of 5 MB", text("ab" * 2_500_000)),
        Row("a million distinct words", text(distinct), "unique", "new"),
        Row("a megabyte of Han without spaces", text(han), "unique", "new"),
        short("a megabyte of one rare Han character", text("龘" * 330_000)),
        short("a megabyte of digits", text("0123456789" * 100_000)),
        undecodable("broken JSON", b'{"text": "never closed'),
        undecodable("JSON nested too deep", b"[" * 200_000),
        undecodable(
            "a whole number of 5,000 digits", b'{"text": "words", "n": ' + b"7" * 5000 + b"}"
        ),
        short("not a number", b'{"text": "some words here", "n": NaN}'),
        short("the same key twice", b'{"text": "first", "text": "the second wins"}'),
        Row("no text field", b'{"title": "x"}', "dead", "field"),
        Row("text is a number", b'{"text": 7}', "dead", "field"),
        Row("text is null", b'{"text": null}', "dead", "field"),
        short("text is a list of texts", b'{"text": ["one part", "and another"]}'),
        Row("text is a list of anything", b'{"text": ["one part", 7]}', "dead", "field"),
        Row("not an object", b"[1, 2]", "dead", "field"),
        short("forged headers", text("quite another text " * 3), FORGED),
        short("ten thousand headers", text("many headers"), [("h", b"1")] * 10_000),
        short("a header of a megabyte", text("large header"), [("h", b"x" * 1_000_000)]),
        short(
            "a header with line breaks", text("broken lines"), [("x\r\n", b"a\r\nb: c\xff\x1b[2J")]
        ),
        short(
            "headers without a value, and one name twice",
            text("odd headers"),
            [("a", None), ("a", b"")],
        ),
        short("an empty key", text("the key is empty"), key=b""),
        short("a binary key", text("the key is binary"), key=b"\xff\x00\x1b[31m\n"),
        short("a huge key", text("the key is huge"), key=b"k" * 100_000),
        short(
            "a time far in the future", text("from the future"), timestamp_ms=253_402_300_800_000
        ),
        short("no time", text("without a time"), timestamp_ms=-1),
        short("a time before all times", text("from before all times"), timestamp_ms=-5),
        undecodable("a dead letter without a time", b"no JSON", timestamp_ms=-1),
        undecodable(
            "a header's name that is not UTF-8", text("Latin-1"), [("a", b"1"), (LATIN1, b"x")]
        ),
        undecodable("many such names", text("many"), [(LATIN1, b"")] * 200),
        undecodable("the same without a value", None, [(LATIN1, b"x")]),
        undecodable("the same, no JSON", b"{", [(LATIN1, b"x" * 100_000)], key=b"k" * 100_000),
        short("no name, and a long one", text("odd names"), [("", b"1"), ("n" * 100_000, b"")]),
        short("a time long ago", text("from long ago"), timestamp_ms=1),
        # 250 MB in 243 kB: no setting of a broker or a client limits what gzip expands to, only the
        # topic's size of a batch.
        Row(
            "one record that gzip made a thousandth",
            b"\0" * EXPANDED_BYTES,
            "dead",
            "size",
            codec="gzip",
        ),
        # It fills a fetch, so that the next record is expanded in another one; else the memory of
        # both would be measured.
        Row("larger than the outputs take", text("b" * 11_900_000), "dead", "size"),
        short("ten of 5 MB in one batch", text("c" * 5_000_000), codec="gzip", copies=10),
        # More than receive.message.max.bytes, which librdkafka does hold zstd to.
        undecodable("one record that zstd made a thousandth", b"\0" * 150_000_000, codec="zstd"),
        undecodable("three records of a damaged batch", text("damaged"), damaged=True, copies=3),
        Row(
            "a last good one",
            text("caf\ufffd " + LONG.replace("stone", "brick")),
            "duplicates",
            "near",
        ),
    ]


# Copies beyond the first of what is unique are exact duplicates of it.
UNREADABLE = ("one record that zstd made a thousandth", "three records of a damaged batch")


def produce_table(crawl: Filter, table: list[Row]) -> tuple[list[str], list[int]]:
    """Write the table into one partition; return the row's name of each offset, and the offsets of
    damaged batches."""
    names: list[str] = []
    damaged: list[int] = []
    for codec, rows in itertools.groupby(
        table, lambda row: row if row.codec != "none" or row.damaged else "none"
    ):
        for (timestamp_ms, _), batch in itertools.groupby(
            rows, lambda row: (row.timestamp_ms, row.name if row.copies > 1 else "")
        ):
            written = [row for row in batch for _ in range(row.copies)]
            if any(row.damaged for row in written):
                damaged.append(len(names))
            # One batch for copies, so that they are compressed together and damaged together.
            properties = (
                {}
                if codec == "none"
                else {
                    "compression.type": codec.codec,
                    "compression.level": 6,
                    "linger.ms": 2000,  # type: ignore[union-attr]
                    "batch.size": 500_000_000,
                }
            )
            crawl.produce(
                ((0, row.key, row.value, row.headers) for row in written),
                timestamp_ms,
                **properties,
            )
            names += [row.name for row in written]
    return names, damaged


def damage(folder: Path, topic: str, offset: int) -> None:
    """Flip one bit in the value of the batch that begins at `offset`, where the broker keeps it."""
    segments = sorted((folder / "data" / f"{topic}-0").glob("*.log"))
    segment = [path for path in segments if int(path.stem) <= offset][-1]
    with segment.open("r+b") as file:
        while True:
            base, length = struct.unpack(">qi", file.read(12))
            if base == offset:
                break
            file.seek(length, os.SEEK_CUR)
        file.seek(
            length - 3, os.SEEK_CUR
        )  # the last record ends with its value and a zero count of headers
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def test_each_bad_record_ends_where_the_table_says(tmp_path: Path) -> None:
    """Each leaves once, and worker memory grows by at most three times the largest batch."""
    settings = {"partitions": 1, "value_format": "json"}
    with run_broker_and_filter(
        tmp_path, heap_mb=768, documents_bytes_max=12_000_000, **settings
    ) as (
        _,
        crawl,
    ):
        for name in crawl.names.outputs[:2]:
            crawl.admin.set_config(name, {"max.message.bytes": "11500000"})
        crawl.start("index")
        # The worker is paused for many seconds below. If its session ended, it would fetch the
        # batch a second time, and the memory of both would be measured.
        worker = crawl.start("worker", STREAM_DEDUP_KAFKA_SESSION_TIMEOUT_MS="60000")
        worker.wait_for_log("worker started")
        # Other programs may write to the log too; none of these is a record of the product.
        crawl.produce(
            [(0, None, junk, []) for junk in (b"", b"not a record", b"SDLG" + bytes(40), None)],
            topic=crawl.names.fingerprints,
        )
        for topic in (crawl.names.fingerprints, crawl.names.verdicts):
            crawl.produce([(0, None, b"not a record", [(LATIN1, b"")])], topic=topic)
        crawl.produce([(0, b"warm", text("the first good one"), [])])
        crawl.wait_until_committed(1)
        before = peak_bytes(worker)
        crawl.admin.set_config(
            crawl.names.documents,
            {"max.message.bytes": "30000000", "message.timestamp.after.max.ms": str(2**63 - 1)},
        )
        worker.process.send_signal(
            signal.SIGSTOP
        )  # or it would read the batch before it is damaged
        names, damaged = produce_table(crawl, table())
        for offset in damaged:
            damage(tmp_path / "kafka", crawl.names.documents, offset + 1)
        began = time.monotonic()
        worker.process.send_signal(signal.SIGCONT)
        crawl.wait_until_committed(1 + len(names))
        seconds = time.monotonic() - began
        grown = peak_bytes(worker) - before
        print(
            f"{len(names)} bad records in {seconds:.1f} s, peak RSS {before / 1e6:.0f} MB and "
            f"{grown / 1e6:.0f} MB more"
        )

        outcome = Outcome(crawl)

        outcome.check()
        audited = examine(crawl.settings, is_finished=True)
        assert [finding.sentence for finding in audited.findings.shown] == []
        assert audited.records[crawl.names.documents] == len(outcome.source)
        assert ends_of(outcome, names) == expected_ends(names, table())
        for letter in outcome.dead:
            assert header(letter, "__dlq.errors.message").endswith((".", ")")), (
                "the header gives the reason in a sentence"
            )
        found = worker.log.count("a record cannot be read")
        assert found == sum(name in UNREADABLE for name in names)
        assert worker.process.poll() is None
        assert grown < 3 * EXPANDED_BYTES


@pytest.mark.thorough
def test_a_timestamp_of_zero_leaves_as_no_timestamp(make_filter: MakeFilter) -> None:
    """Clients other than librdkafka can write timestamp 0; the audit stays clean."""
    crawl = make_filter(partitions=1)
    crawl.start_both()
    asyncio.run(send_with_times(crawl, [0, 1]))
    crawl.wait_until_committed(2)
    outcome = crawl.outcome()
    found = sorted((message.value, message.timestamp_ms) for message in outcome.unique)
    assert found == [(b"words 0", None), (b"words 1", 1)]
    assert [
        finding.sentence for finding in examine(crawl.settings, is_finished=True).findings.shown
    ] == []


async def send_with_times(crawl: Filter, times_ms: list[int]) -> None:
    """Write one record for each timestamp, in their order."""
    producer = AIOKafkaProducer(bootstrap_servers=crawl.bootstrap)
    await producer.start()
    for time_ms in times_ms:
        await producer.send_and_wait(crawl.names.documents, b"words %d" % time_ms, None, 0, time_ms)
    await producer.stop()


def ends_of(outcome: Outcome, names: list[str]) -> list[tuple[str, str, str]]:
    """Return (row's name, topic, reason or stage) for each source record but the first."""
    by_source: dict[int, tuple[str, str]] = {}
    source = {fingerprint_of(message): message.offset for message in outcome.source}
    places = {
        (offset, place): outcome.outline.batches[offset].position(place).offset
        for offset, batch in outcome.outline.batches.items()
        for place in range(len(batch))
    }
    for topic in ("unique", "duplicates", "dead"):
        for message in getattr(outcome, topic):
            if topic == "dead":
                by_source[int(header(message, "__dlq.errors.offset"))] = (
                    topic,
                    header(message, "dedup.error.stage"),
                )
                continue
            log = header(message, "dedup.log")
            key = fingerprint_of(message)
            offset = places[tuple(map(int, log.split("/")))] if log else source[key]  # type: ignore[index]
            by_source[offset] = (topic, header(message, "dedup.reason"))
    return [(name, *by_source[offset]) for offset, name in enumerate(names, 1)]


def expected_ends(names: list[str], table: list[Row]) -> list[tuple[str, str, str]]:
    """Return what `ends_of` must return."""
    rows = {row.name: row for row in table}
    seen: set[str] = set()
    expected = []
    for name in names:
        row = rows[name]
        is_copy = name in seen and row.ends == "unique"
        seen.add(name)
        expected.append((name, "duplicates", "exact") if is_copy else (name, row.ends, row.why))
    return expected
