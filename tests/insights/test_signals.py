"""Counts, events and rows of hosts, against plain models; random tests print their seed."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from stream_dedup.domain.errors import FormatError, OtherFormatError
from stream_dedup.domain.topics import topic_folder
from stream_dedup.insights.signals import SLICE_MS, HostLedger, HostRow, Observed

DAY = 86_400
NOW_MS = 1_790_000_000_000
REASONS = ("new", "too-short", "exact", "near", "unchanged", "returned", "revised")
SCHEMA = json.loads((topic_folder() / "schemas" / "host-signals.schema.json").read_text())
CHECK = Draft202012Validator(SCHEMA, format_checker=FormatChecker())


def record(number: int, reason: str = "new", **more: Any) -> Observed:
    fields = {"partition": "unique-0", "offset": number, "time_ms": NOW_MS, "size": 1_000}
    return Observed(**{**fields, "reason": reason, "id": b"id-%d" % number, **more})


def dropped(number: int, page: int = 0, reason: str = "near") -> Observed:
    position = f"documents-0@{page}"
    return record(number, reason, kind="one-page", page=f"page-{page}", position=position)


def sibling(number: int, page: int = 0) -> Observed:
    position = f"documents-0@{page}"
    return record(number, kind="template", page=f"page-{page}", position=position)


def signals(ledger: HostLedger, host: str = "a.example") -> dict[str, Any]:
    found = {name: value for name, _, value in ledger.changes()[0]}[host]
    assert found is not None
    value: dict[str, Any] = json.loads(found)
    CHECK.validate(value)
    return value


def events(value: dict[str, Any]) -> list[tuple[str, str]]:
    return [(event["event"], event.get("of", "")) for event in value["events"]]


@pytest.mark.parametrize("salt", range(5))
def test_the_signals_equal_a_plain_count(salt: int) -> None:
    """Repeated records, and rows that are stored and read again, do not change the counts."""
    seed = int(os.environ.get("SEED", "0")) + salt
    print("seed", seed)
    chance = random.Random(seed)
    ledger, known, ends = HostLedger(10), [], {"unique-0": 0, "duplicates-3": 0}
    for _ in range(300):
        part = chance.choice(sorted(ends))
        ends[part] += chance.randint(1, 3)  # a transaction's marker has an offset too
        reason = chance.choice(REASONS)
        size, time_ms = chance.randrange(1000), NOW_MS + chance.randrange(3 * SLICE_MS)
        known.append(record(ends[part], reason, partition=part, size=size, time_ms=time_ms))
    rows: dict[bytes, bytes] = {}
    for first in range(0, len(known), 50):
        for observation in known[first : first + 50]:
            assert ledger.count("a.example", observation)
        rows.update((host.encode(), row) for host, row, _ in ledger.changes()[0] if row)
        assert ledger.load(rows.items()) == 0
        assert not any(
            ledger.count("a.example", observation)
            for observation in chance.sample(known[: first + 50], 20)
        )
    ledger.count("a.example", record(ends["unique-0"] + 1, "new", size=0))
    known.append(record(0, "new", size=0))

    value = signals(ledger)
    counts = {
        reason: sum(observation.reason == reason for observation in known) for reason in REASONS
    }
    wasted = sum(
        observation.size for observation in known if observation.reason in ("exact", "near")
    )
    assert {name: value[name] for name in counts if name in value} == {
        name: count for name, count in counts.items() if name not in ("new", "too-short")
    }
    assert (value["documents"], value["bytes"]) == (
        len(known),
        sum(observation.size for observation in known),
    )
    assert value["bytes_wasted"] == wasted
    assert value["duplicate_ratio"] == round((counts["exact"] + counts["near"]) / len(known), 4)
    assert value["unchanged_ratio"] == round(counts["unchanged"] / len(known), 4)


def test_a_page_that_is_fetched_again_is_no_duplicate() -> None:
    """The original of a story, fetched a hundred times: no duplicates, no waste, no event."""
    ledger = HostLedger(10)
    reasons = ["new", *["unchanged", "returned", "revised"] * 33]
    for number, reason in enumerate(reasons):
        ledger.count("a.example", record(number, reason, id=b"the story"))

    value = signals(ledger)
    assert (value["documents"], value["unchanged"], value["revised"]) == (100, 33, 33)
    assert (value["duplicate_ratio"], value["bytes_wasted"], value["events"]) == (0.0, 0, [])


def test_a_calendar_is_a_template_and_articles_are_none() -> None:
    """Of 2,000 months each resembles the first; of 2,000 articles none has a sibling."""
    ledger = HostLedger(10)
    for number in range(2_000):
        ledger.count("calendar.example", sibling(number) if number else record(number))
        ledger.count("articles.example", record(number, partition="unique-1"))
    written, begun = ledger.changes()

    values = {host: json.loads(value or b"") for host, _, value in written}
    calendar = values["calendar.example"]
    assert (calendar["siblings"], events(calendar)) == (1_999, [("template", "page-0")])
    assert calendar["events"][0]["position"] == "documents-0@0"
    assert calendar["events"][0]["documents"] > 1_000
    assert (values["articles.example"]["siblings"], values["articles.example"]["events"]) == (0, [])
    assert [(host, event["event"]) for host, event in begun] == [("calendar.example", "template")]


@pytest.mark.parametrize(
    ("make", "kind", "begins"), [(dropped, "one-page", 20), (sibling, "template", 50)]
)
def test_an_event_begins_once_and_ends_well_below(make: Any, kind: str, begins: int) -> None:
    """The event ends once its pages have left the window."""
    ledger = HostLedger(10)
    found, offset = [], 0
    for ids in (begins // 2, 2 * begins, begins):
        for _ in range(ids):
            ledger.count("a.example", make(offset))
            offset += 1
        _, begun = ledger.changes()
        assert [event["event"] for _, event in begun if event["event"] == kind] == (
            [kind] if not found and ids > begins else []
        )
        found += begun
    for windows in (1, 2):
        time_ms = NOW_MS + windows * DAY * 1000
        ledger.count("a.example", record(offset + windows, time_ms=time_ms))
    assert events(signals(ledger)) == []


@pytest.mark.parametrize(("make", "begins"), [(dropped, 20), (sibling, 50)])
def test_an_event_names_at_most_the_documents_of_the_host(make: Any, begins: int) -> None:
    """The number of ids is an estimate; the number of documents is counted."""
    ledger = HostLedger(10)
    for number in range(3 * begins):
        ledger.count("a.example", make(number))
        for event in signals(ledger)["events"]:
            assert event["documents"] <= number + 1


def test_a_host_whose_documents_are_nearly_all_copies_vanishes() -> None:
    ledger = HostLedger(10)
    for number in range(45):
        ledger.count("a.example", dropped(number, page=number))
    for number in range(45, 50):
        ledger.count("a.example", record(number))

    assert events(signals(ledger)) == [("vanishing", "")]


@pytest.mark.parametrize(("size", "kinds"), [(10, []), (1_000, ["one-page", "vanishing"])])
def test_equal_captions_are_no_event(size: int, kinds: list[str]) -> None:
    """Short titles and captions are often equal; equal longer texts are an event."""
    ledger = HostLedger(10)
    for number in range(60):
        ledger.count("a.example", dropped(number)._replace(size=size))

    assert sorted(kind for kind, _ in events(signals(ledger))) == kinds


def test_a_recreated_topic_is_counted() -> None:
    """Its offsets start again, and its records are newer."""
    ledger = HostLedger(10)
    for observation in (record(900), record(3, time_ms=NOW_MS + 1), record(4, time_ms=NOW_MS + 1)):
        assert ledger.count("a.example", observation)
    assert not ledger.count("a.example", record(4, time_ms=NOW_MS + 1))


def test_the_number_of_hosts_is_bounded() -> None:
    """Hosts that were seen longest ago are dropped; both topics get a null value."""
    ledger = HostLedger(2)
    for number, host in enumerate("abac"):
        ledger.count(host, record(number))
    written, _ = ledger.changes()
    assert written[-1] == ("b", None, None)
    assert ledger.hosts == 2


def test_the_window_ends_with_the_latest_document_of_the_host() -> None:
    """Documents from before the window are gone; a late record counts at the latest time."""
    row = HostRow()
    for number, time_ms in enumerate((NOW_MS, NOW_MS + DAY * 1000, NOW_MS)):
        row.count(record(number, time_ms=time_ms))
    assert row.signals("a")[0]["documents"] == 2


def test_a_row_that_cannot_be_read_is_left_out() -> None:
    """A row of a newer format stops the role, because it must not be overwritten."""
    ledger = HostLedger(10)
    ledger.count("a", record(1))
    ((_, row, _),) = ledger.changes()[0]
    assert row is not None
    newer = row.replace(b'"format":1', b'"format":2')
    for raw in (b"", b"{}", b"[1]", b'{"format":1}', row[:-9]):
        with pytest.raises(FormatError):
            HostRow.decode(raw)
        assert ledger.load([(b"a", raw)]) == 1
    with pytest.raises(OtherFormatError, match="reads 1"):
        ledger.load([(b"a", newer)])


def test_the_size_of_a_row_is_bounded() -> None:
    """A row has 100 pages at most."""
    row = HostRow()
    for number in range(2_000):
        row.count(dropped(number, page=number // 2))
    assert len(row.pages) == 100
    assert len(row.encode()) < 30_000


def test_a_released_document_is_counted_once() -> None:
    """Its first record was counted; the release is a change of the host."""
    ledger = HostLedger(10)
    ledger.count("a.example", record(0, "near", partition="duplicates-0"))
    ledger.count("a.example", record(0, "released", time_ms=NOW_MS + 1000))
    value = signals(ledger)
    assert (value["documents"], value["bytes"], value["near"]) == (1, 1_000, 1)
    assert value["last_change"] is not None
