"""`tap`: the line that it prints for a record of an output topic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.cli.tap_lines import lines
from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import (
    DeadLetter,
    Headers,
    LogPlace,
    Message,
    Position,
    Reason,
    Representative,
)
from stream_dedup.inputs.decoder import ids_of
from stream_dedup.log import headers
from stream_dedup.log.output_records import Tapped
from stream_dedup.log.output_records import describe as describe_with
from stream_dedup.log.schema import Judgement
from stream_dedup.settings.settings import Settings

HERE = Position("documents", bytes(16), 1, 77)
OF = Representative(Position("documents", bytes(16), 3, 8812), b"http://kept", 0)


def message(topic: str, message_headers: Headers, key: bytes | None = b"http://me") -> Message:
    return Message(topic, 1, 2, key, b"value", 1_700_000_000_000, message_headers)


def describe(record: Message, dead_letters: str) -> Tapped:
    return describe_with(record, dead_letters, record.key)


def line_of(tapped: Tapped) -> str:
    """Return the line that is written to a pipe."""
    (line,) = lines(tapped, None)
    return line.plain


def verdict(reason: Reason, *more: Any) -> Headers:
    return headers.of_verdict(HERE, "words:128", b"00ff", Judgement(reason, LogPlace(5, 6), *more))


DLQ = "p.dlq.documents"
FORGED: Headers = [(headers.VERDICT, b"duplicate"), (headers.REASON, b"exact")]
LETTER = headers.of_dead_letter(
    DeadLetter("field", "MissingField", "The value has no field 'text'."), OF.position, "g", 5
)
OF_KEPT: dict[str, str | None] = {"of_id": "http://kept", "of_position": "documents-3@8812"}
NEAR = verdict(Reason.NEAR, 7, OF)
BETTER = verdict(Reason.NEAR, 7, OF, 70, 17, BetterRule.NEWEST)
KEPT_BY_SITE = Judgement(Reason.NEW, LogPlace(5, 6), of=OF, similarity=78)
SIBLING = {name.replace("of_", "sibling_"): value for name, value in OF_KEPT.items()}
CASES: dict[str, tuple[Message, dict[str, str | None], str]] = {
    # the record, the fields read from it, the parts of its line
    "a duplicate names the kept document": (
        message("duplicates", NEAR),
        {"verdict": "duplicate", "reason": "near", "distance": "7", "id": "http://me"}
        | {"time": "2023-11-14T22:13:20.000Z", "copies": None, "better": None}
        | OF_KEPT,
        "duplicate|near|7 bits|http://me|of http://kept|documents-3@8812|2023-11-14 22:13:20Z ",
    ),
    "a better copy says so, with its number and the rule": (
        message("duplicates", BETTER),
        {"copies": "17", "better": "newest", "similarity": "0.70"},
        "0.70|copy 17  better: newest  of http://kept",
    ),
    "a page that its site kept names its sibling": (
        message("unique", headers.of_verdict(HERE, "r", None, KEPT_BY_SITE)),
        SIBLING | {"verdict": "unique", "sibling_similarity": "0.78", "of_id": None},
        "0.78 like http://kept|documents-3@8812",
    ),
    "an exact copy is 1.0 alike": (
        message("duplicates", verdict(Reason.EXACT, 0, OF)),
        {"similarity": "1.00"},
        "1.00 ",
    ),
    "somebody else's record is shown as such": (
        Message("unique", 0, 0, None, None, None, []),
        {"verdict": "unknown", "time": None, "id": None},
        "unknown",
    ),
    "a dead letter says why": (
        message(DLQ, LETTER, None),
        {"verdict": "dead-letter", "reason": "field", "id": None},
        "The value has no field 'text'.|(no id)",
    ),
    "our headers win over forged ones before them": (
        message("unique", [*FORGED, *headers.of_verdict(HERE, "r", None, Reason.NEW)]),
        {"verdict": "unique", "reason": "new"},
        "unique|new",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_line_of_a_record_has_its_fields(case: str) -> None:
    """Fields are read from our headers; the line has no part for a missing field."""
    record, fields, shown = CASES[case]

    tapped = describe(record, DLQ)

    assert {name: getattr(tapped, name) for name in fields} == fields
    line = line_of(tapped)
    assert [part for part in shown.split("|") if part not in line] == []
    assert tapped.copies or ("copy" not in line and "better" not in line)


@pytest.mark.parametrize("width", [20, 80, 100, 130])
def test_no_part_is_broken_on_a_terminal(width: int) -> None:
    """Ids, the position and the command stand whole on one line each, and what can fit the terminal
    does."""
    of = Representative(OF.position, b"https://kept.example/a/long/path/of/a/page/2026", 0)
    verdict_headers = verdict(Reason.NEAR, 7, of)
    parts = [
        "https://me.example/a/path/as/they/are",
        "of https://kept.example/a/long/path/of/a/page/2026",
        "documents-3@8812",
    ]
    parts.append("stream-dedup release documents-1@77")

    found = [
        line.plain
        for line in lines(
            describe(message("duplicates", verdict_headers, parts[0].encode()), "dlq"), width
        )
    ]

    assert [part for part in parts if not any(part in line for line in found)] == []
    assert all(len(line) <= max(width, 4 + len(parts[1])) for line in found)
    assert all(line.startswith("    ") for line in found[1:])


def test_the_id_is_the_one_that_the_worker_reads() -> None:
    """At the id's field where there is one, though the text is a page that nobody takes apart here;
    else the key."""
    find = ids_of(
        Settings(value_format="json", id_field="page.url", text_field="page.html", text_is="html")
    )
    value = b'{"page": {"url": "https://a.example/", "html": "<p>x"}}'

    assert find(Message("unique", 0, 0, None, value, None, [])) == b"https://a.example/"
    assert find(Message("unique", 0, 0, b"k", b"no JSON", None, [])) == b"k"
    assert ids_of(Settings())(Message("unique", 0, 0, b"k", value, None, [])) == b"k"


NAMES = (
    headers.VERDICT,
    headers.REASON,
    headers.DISTANCE,
    headers.OF_ID,
    headers.OF_POSITION,
    headers.DLQ_MESSAGE,
)
HEADER_NAMES = st.sampled_from([*NAMES, headers.ERROR_STAGE])


@given(
    st.lists(st.tuples(HEADER_NAMES, st.none() | st.binary(max_size=300))),
    st.none() | st.binary(max_size=300),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(["unique", "dlq.documents"]),
)
def test_the_line_of_any_record_is_printable(
    record_headers: Headers, key: bytes | None, timestamp_ms: int | None, topic: str
) -> None:
    """No key, header or timestamp, however hostile, raises or puts a control character on the
    line."""
    line = line_of(
        describe(Message(topic, 0, 0, key, None, timestamp_ms, record_headers), "dlq.documents")
    )

    assert line.isprintable()
