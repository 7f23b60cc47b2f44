"""Windows, signals and events: against a model, and as tables."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from stream_dedup.ground.errors import FormatError, OtherFormatError
from stream_dedup.ground.topics import topic_folder
from stream_dedup.insights import row as rows
from stream_dedup.insights.counts import ReasonCounts, bit_of
from stream_dedup.insights.ledger import HostLedger, SignalChange, rfc3339
from stream_dedup.insights.record import HostCounts, InsightsRecord, ReportedPage
from stream_dedup.insights.row import OTHER, SLICES, HostRow, Stamp

SCHEMA = Draft202012Validator(
    json.loads((topic_folder() / "schemas" / "host-signals.schema.json").read_text()),
    format_checker=FormatChecker(),
)
WINDOW_SECONDS = 24
SLICE_MS = 1000


def ledger(hosts_max: int = 1000, keep_seconds: int = 3600) -> HostLedger:
    return HostLedger(WINDOW_SECONDS, keep_seconds, hosts_max)


def seen(documents: int, **more: int) -> HostCounts:
    return HostCounts(ReasonCounts(documents, **more))


def body_of(change: SignalChange) -> dict[str, object]:
    assert change.signals is not None
    found = json.loads(change.signals)
    SCHEMA.validate(found)
    return dict(found)


class Model:
    """A host as a list of what came and when."""

    def __init__(self) -> None:
        self.came: dict[int, tuple[int, int]] = {}  # offset: (time, documents)

    def add(self, offset: int, time_ms: int, documents: int) -> None:
        latest = max([time_ms, *(time for time, _ in self.came.values())])
        self.came.setdefault(offset, (latest, documents))

    def total(self) -> int:
        latest = max(time for time, _ in self.came.values()) // SLICE_MS
        return sum(
            count for time, count in self.came.values() if time // SLICE_MS > latest - SLICES
        )


STEPS = st.lists(
    st.tuples(
        st.integers(-1500, 40_000),
        st.integers(1, 5),
        st.sampled_from(["next", "next", "next", "again", "restart"]),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_a_window_is_the_model_s(steps: list[tuple[int, int, str]]) -> None:
    """Records in order, read again after a restart, with a clock that steps back: the sum is that
    of the slices of the window that ends with the latest, each record once."""
    one, model, sent = ledger(), Model(), list[tuple[InsightsRecord, Stamp]]()
    table: dict[bytes, bytes] = {}
    time_ms = 10_000_000
    for ahead, documents, what in steps:
        if what == "restart":
            one = ledger()
            one.load(table.items())
        if what == "next" or not sent:
            time_ms += ahead
            sent.append((InsightsRecord("w", {"a": seen(documents)}), Stamp(time_ms, len(sent))))
            model.add(len(sent) - 1, time_ms, documents)
        again = sent[-3:] if what != "next" else sent[-1:]
        for record, stamp in again:
            one.apply(record, stamp)
        table |= {change.host.encode(): change.row for change in one.changes()[0] if change.row}
        total = rows.decode(table[b"a"], SLICE_MS).total().documents
        assert total == model.total()
    assert one.view(10).total.documents == model.total()


def test_a_record_read_again_counts_nothing() -> None:
    """Below the row's stamp it is known; a topic created again, whose offsets begin anew, is
    not."""
    one = ledger()
    record = InsightsRecord("w", {"a": seen(3)}, ReasonCounts(2))
    assert one.apply(record, Stamp(5_000, 7))
    assert len(one.changes()[0]) == 2
    assert not one.apply(record, Stamp(5_000, 7))
    assert not one.apply(record, Stamp(4_000, 6))
    assert one.changes() == ([], [])
    assert one.apply(record, Stamp(5_001, 0))
    one.changes()
    assert one.view(1).total.documents == 6
    assert one.view(1).other.documents == 4


def test_signals_follow_their_schema() -> None:
    one = ledger()
    counts = ReasonCounts(
        20, exact=1, near=2, unchanged=3, returned=5, revised=1, bytes=1000, bytes_wasted=700
    )
    one.apply(
        InsightsRecord("w", {"a.example": HostCounts(counts, 1_700_000_000_000)}, ReasonCounts(5)),
        Stamp(1_800_000_000_000, 1),
    )

    written = {change.host: change for change in one.changes()[0]}

    assert written[OTHER].signals is None
    body = body_of(written["a.example"])
    assert (body["duplicate_ratio"], body["unchanged_ratio"], body["bytes_wasted"]) == (
        0.6,
        0.15,
        700,
    )
    assert (body["unchanged"], body["returned"]) == (3, 5)
    assert body["last_change"] == "2023-11-14T22:13:20Z"
    assert body["updated"] == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize("time_ms", [-1, 0, 1 << 52])
def test_any_time_can_be_written(time_ms: int) -> None:
    assert len(rfc3339(time_ms)) == 20


def fell(on: str, ids: range) -> HostCounts:
    bits = 0
    for number in ids:
        bits |= bit_of(b"https://a.example/%d" % number)
    return HostCounts(
        ReasonCounts(4 * len(ids), exact=len(ids)),
        None,
        {on: ReportedPage("https://a.example/login", bits)},
    )


def kinds(one: HostLedger, record: HostCounts, stamp: Stamp) -> tuple[list[str], list[str]]:
    """Return what goes on, and what has just begun."""
    one.apply(InsightsRecord("w", {"a": record}), stamp)
    changes, begun = one.changes()
    events = body_of(changes[0])["events"]
    assert isinstance(events, list)
    return [event["event"] for event in events], [new.event.kind for new in begun]


def test_many_ids_on_one_document_is_told_once() -> None:
    """It begins at twenty different ids, not at twenty documents; goes on without being told again,
    also after a restart; ends when a window has passed; and may then begin again."""
    one = ledger()
    assert kinds(one, fell("d-0@1", range(15)), Stamp(100_000, 0)) == ([], [])
    assert kinds(one, fell("d-0@1", range(15)), Stamp(101_000, 1)) == ([], [])
    assert kinds(one, fell("d-0@1", range(10, 32)), Stamp(102_000, 2)) == (
        ["one-page"],
        ["one-page"],
    )
    assert kinds(one, fell("d-0@1", range(32, 34)), Stamp(103_000, 3)) == (["one-page"], [])
    one.apply(InsightsRecord("w", {"a": seen(1)}), Stamp(103_500, 4))
    table = [(change.host.encode(), change.row) for change in one.changes()[0] if change.row]
    again = ledger()
    assert again.load(table) == 0
    assert kinds(again, fell("d-0@1", range(33, 35)), Stamp(104_000, 5)) == (["one-page"], [])
    later = 104_000 + 2 * WINDOW_SECONDS * 1000
    assert kinds(again, seen(1), Stamp(later, 6)) == ([], [])
    assert kinds(again, fell("d-0@1", range(40)), Stamp(later + 1, 7)) == (
        ["one-page"],
        ["one-page"],
    )
    assert kinds(again, fell("d-0@1", range(15)), Stamp(later + 2 * WINDOW_SECONDS * 1000, 8)) == (
        ["one-page"],
        [],
    )
    assert [new.event.kind for new in again.view(1).recent] == ["one-page"]


def test_a_host_whose_documents_vanish_is_told() -> None:
    """Nine of ten dropped in favour of other ids, of at least fifty; the same pages crawled again
    are no such thing."""
    assert kinds(ledger(), seen(49, near=49), Stamp(0, 0)) == ([], [])
    assert kinds(ledger(), seen(50, unchanged=50), Stamp(0, 0)) == ([], [])
    assert kinds(ledger(), seen(50, near=44), Stamp(0, 0)) == ([], [])
    one = ledger()
    assert kinds(one, seen(50, near=40, exact=5), Stamp(0, 0)) == (["vanishing"], ["vanishing"])
    assert kinds(one, seen(3), Stamp(1, 1)) == (["vanishing"], [])
    assert kinds(one, seen(10), Stamp(2, 2)) == ([], [])


def test_what_is_not_heard_of_is_forgotten() -> None:
    """Beyond the number of hosts, and beyond the time to keep: null on both topics, the longest
    silent first."""
    one = ledger(hosts_max=2, keep_seconds=100)
    for number, host in enumerate(("a", "b", "a", "c")):
        one.apply(InsightsRecord("w", {host: seen(1)}), Stamp(number * 1000, number))
    changes, _ = one.changes()
    assert [change.host for change in changes if change.row is None] == ["b"]
    one.apply(InsightsRecord("w", {"d": seen(1)}), Stamp(200_000, 4))
    changes, _ = one.changes()
    assert {(change.host, change.signals) for change in changes if change.row is None} == {
        ("a", None),
        ("c", None),
    }
    assert (one.hosts, [shown.host for shown in one.view(10).hosts]) == (1, ["d"])


def test_a_row_stays_small() -> None:
    row = HostRow(SLICE_MS)
    for number in range(500):
        row.add_counts(fell(f"d-0@{number}", range(3)), Stamp(number * 500, number))
    assert (len(row.slices), len(row.targets)) == (SLICES, rows.PAGES_MAX)
    assert len(rows.encode(row)) < 6000


def test_a_row_of_another_window_begins_empty_and_a_damaged_one_is_refused() -> None:
    """The stamp and the last change survive another window; what cannot be read is left out and
    counted."""
    row = HostRow(SLICE_MS)
    row.add_counts(HostCounts(ReasonCounts(5), 3), Stamp(9_000, 9))
    raw = rows.encode(row)
    assert rows.decode(raw, SLICE_MS) == row
    other = rows.decode(raw, 2 * SLICE_MS)
    assert (other.total().documents, other.last_change_ms, other.holds(Stamp(9_000, 9))) == (
        0,
        3,
        True,
    )
    for damaged in (raw[:-9], b"{}", b'{"format":0}', b"\x80"):
        with pytest.raises(FormatError):
            rows.decode(damaged, SLICE_MS)
    assert ledger().load([(b"a", raw), (b"b", b"{")]) == 1


def test_a_row_of_a_newer_version_ends_the_role() -> None:
    """Left out, it would be written over, and be lost for the newer version."""
    row = rows.encode(HostRow(SLICE_MS))
    with pytest.raises(
        OtherFormatError, match="hosts is of format 2, and this program reads up to 1: upgrade"
    ):
        ledger().load([(b"a", row), (b"b", b'{"format":2}')])
