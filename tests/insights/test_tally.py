"""What a worker sends: everything once, within bounds, as the schema says."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from stream_dedup.ground.document import Position, Reason, Representative
from stream_dedup.ground.errors import FormatError, OtherFormatError
from stream_dedup.ground.topics import topic_folder
from stream_dedup.insights import record, tally
from stream_dedup.insights.counts import ReasonCounts, distinct
from stream_dedup.insights.record import HOSTS_MAX, PAGES_MAX, RECORD_BYTES_MAX, InsightsRecord
from stream_dedup.insights.tally import HostTally

SCHEMA = Draft202012Validator(
    json.loads((topic_folder() / "schemas" / "insights.schema.json").read_text())
)
OUTCOMES = [reason for reason in Reason if reason.verdict is not None]


def kept(offset: int, identifier: bytes = b"https://a.example/0") -> Representative:
    return Representative(Position("documents", bytes(16), 0, offset), identifier, 0)


def add_document(
    counter: HostTally,
    host: str,
    identifier: bytes,
    reason: int,
    size: int,
    of: Representative | None,
    now_ms: int,
) -> None:
    counter.add_alike(host, reason, 1, size, now_ms)
    if of is not None:
        counter.add_named(host, identifier, reason, of)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["", *"abcdefgh"]), st.sampled_from(OUTCOMES), st.integers(0, 9)),
        max_size=80,
    ),
    st.data(),
)
def test_every_document_is_sent_once(
    documents: list[tuple[str, Reason, int]], data: st.DataObject
) -> None:
    """However the documents are cut into records, the sums are those of a plain count."""
    counter, sent = HostTally("w"), list[InsightsRecord]()
    expected: Counter[tuple[str, str]] = Counter()
    for number, (host, reason, size) in enumerate(documents):
        add_document(counter, host, b"%d" % number, reason, size, kept(size), 1000 + number)
        expected[host, "documents"] += 1
        expected[host, "bytes"] += size
        if reason >= Reason.EXACT:
            expected[host, reason.label] += 1
            expected[host, "bytes_wasted"] += size
        if data.draw(st.booleans()) and (one := counter.take_record()):
            sent.append(one)
    while one := counter.take_record():
        sent.append(one)

    found: Counter[tuple[str, str]] = Counter()
    for one in sent:
        again = record.decode(record.encode(one))
        assert again == one
        SCHEMA.validate(json.loads(record.encode(one)))
        for host, counts in [
            ("", again.other),
            *((host, each.counts) for host, each in again.hosts.items()),
        ]:
            found.update({(host, name): count for name, count in counts._asdict().items()})
    assert +found == +expected


def test_a_record_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many hosts with the longest names and ids fit; the rest waits, the busiest and the longest
    waiting go first, and what no room was left for is `other`."""
    monkeypatch.setattr(tally, "WAITING_MAX", 1000)
    counter = HostTally("w" * 500)
    for number in range(1200):
        host = f"{number:04}".ljust(253, "\U00020000")
        for at in range(20):
            add_document(counter, host, b"%d" % at, Reason.EXACT, 1, kept(at, b"\0" * 512), 0)
    busy = "busy.example"
    monkeypatch.setattr(tally, "WAITING_MAX", 1001)
    add_document(counter, busy, b"", Reason.NEW, 1, None, 7)
    for _ in range(30):
        add_document(counter, busy, b"", Reason.UNCHANGED, 1, None, 9)

    first = counter.take_record()

    assert first is not None
    assert len(record.encode(first)) < RECORD_BYTES_MAX
    assert (len(first.hosts), sum(len(one.pages) for one in first.hosts.values())) == (
        HOSTS_MAX,
        PAGES_MAX,
    )
    assert first.other.documents == 200 * 20
    assert first.hosts[busy].last_change_ms == 7
    assert [host[:4] for host in first.hosts if host != busy].count("0000") == 1
    sent = [first]
    while one := counter.take_record():
        sent.append(one)
    assert sum(len(one.hosts) for one in sent) == 1001
    assert len(sent) == 5


def test_an_estimate_is_near_and_a_union_never_doubles() -> None:
    """Linear counting of up to some hundred ids is within a fifth; the same ids again change
    nothing."""
    counter = HostTally("w")
    for _ in range(2):
        for number in range(200):
            add_document(
                counter, "a.example", b"https://a.example/%d" % number, Reason.NEAR, 1, kept(0), 0
            )

    one = counter.take_record()

    assert one is not None
    (page,) = one.hosts["a.example"].pages.values()
    assert 160 <= distinct(page.bits) <= 240
    assert (distinct(0), distinct(1 << 9), distinct((1 << 256) - 1)) == (0, 1, 1420)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"{}",
        b"\x80\x04\x95",
        b'{"format":0}',
        b"[" * 100_000,
        b" " * 1_000_000,
    ],
)
def test_what_is_no_record_is_refused(raw: bytes | None) -> None:
    """Anything else on the topic is an error of ours; a pickle is bytes like others."""
    with pytest.raises(FormatError):
        record.decode(raw)


@pytest.mark.parametrize(
    "change",
    [{"documents": -1}, {"documents": True}, {"bytes": "1"}, {"near": 1e300}, {"pages": [{}]}],
)
def test_wrong_counts_are_refused(change: dict[str, object]) -> None:
    """A record is taken whole or not at all."""
    body = json.loads(record.encode(InsightsRecord("w", {"a": record.HostCounts(ReasonCounts(1))})))
    body["hosts"]["a"] |= change

    with pytest.raises(FormatError):
        record.decode(json.dumps(body).encode())


def test_a_newer_format_says_so() -> None:
    """It is told from garbage, because the remedy is another one; unknown fields of our own format
    are passed over."""
    body = json.loads(record.encode(InsightsRecord("w"))) | {"later": 1}
    assert record.decode(json.dumps(body).encode()) == InsightsRecord("w")

    with pytest.raises(OtherFormatError, match="upgrade"):
        record.decode(json.dumps(body | {"format": 2}).encode())
