"""`tap`: what a record of an output topic says, and that it cannot say it to the terminal itself."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.cli.tap import _line, describe
from stream_dedup.ground.document import DeadLetter, Headers, LogPlace, Message, Position, Reason, Representative
from stream_dedup.log import headers

OF = Representative(Position("documents", bytes(16), 3, 8812), b"http://kept", 0)


def message(topic: str, own: Headers, key: bytes | None = b"http://me") -> Message:
    return Message(topic, 1, 2, key, b"value", 1_700_000_000_000, own)


def test_a_duplicate_names_the_kept_document() -> None:
    """Verdict, reason, distance, both ids and the position are read from our headers."""
    own = headers.of_verdict(Reason.NEAR, "words:128", b"00ff", LogPlace(5, 6), 7, OF)

    tapped = describe(message("duplicates", own), "dlq.documents")

    assert (tapped.verdict, tapped.reason, tapped.distance) == ("duplicate", "near", "7")
    assert (tapped.id, tapped.of_id, tapped.of_position) == ("http://me", "http://kept", "documents-3@8812")
    assert tapped.time == "2023-11-14T22:13:20.000Z"
    line = _line(tapped).plain
    for part in ("duplicate", "near", "7", "http://me", "of http://kept", "documents-3@8812", "2023-11-1"):
        assert part in line


def test_a_dead_letter_says_why() -> None:
    """The stage is the reason, and the sentence is shown."""
    letter = DeadLetter("field", "MissingField", "The value has no field 'text'.")
    own = headers.of_dead_letter(letter, OF.position, "group", 5)

    tapped = describe(message("p.dlq.documents", own, None), "p.dlq.documents")

    assert (tapped.verdict, tapped.reason, tapped.id) == ("dead-letter", "field", None)
    assert "The value has no field 'text'." in _line(tapped).plain
    assert "(no key)" in _line(tapped).plain


def test_our_headers_win_over_forged_ones_before_them() -> None:
    """What a producer wrote stands before our headers; the last of a name is ours."""
    forged: Headers = [(headers.VERDICT, b"duplicate"), (headers.REASON, b"exact")]
    own = headers.of_verdict(Reason.NEW, "r", None, None)

    tapped = describe(message("unique", forged + own), "dlq.documents")

    assert (tapped.verdict, tapped.reason) == ("unique", "new")


def test_somebody_else_s_record_is_shown_as_such() -> None:
    """A record without our headers is no crash."""
    tapped = describe(Message("unique", 0, 0, None, None, None, []), "dlq.documents")

    assert (tapped.verdict, tapped.time, tapped.id) == ("unknown", None, None)
    assert "unknown" in _line(tapped).plain


def test_today_is_shown_by_the_clock() -> None:
    """A verdict of now is shown with its time of day."""
    now = Message("unique", 0, 0, None, None, int(time.time() * 1000), [])

    assert _line(describe(now, "d")).plain[2] == ":"


HEADER_NAMES = st.sampled_from(
    [
        headers.VERDICT,
        headers.REASON,
        headers.DISTANCE,
        headers.OF_ID,
        headers.OF_POSITION,
        headers.DLQ_MESSAGE,
        headers.ERROR_STAGE,
    ]
)


@given(
    st.lists(st.tuples(HEADER_NAMES, st.none() | st.binary(max_size=300))),
    st.none() | st.binary(max_size=300),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(["unique", "dlq.documents"]),
)
def test_whatever_a_record_says_its_line_is_printable(
    own: Headers, key: bytes | None, timestamp_ms: int | None, topic: str
) -> None:
    """No key, header or timestamp, however hostile, raises or puts a control character on the line."""
    line = _line(describe(Message(topic, 0, 0, key, None, timestamp_ms, own), "dlq.documents")).plain

    assert line.isprintable()
