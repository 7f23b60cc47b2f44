"""Dead letters: restoring source records, and filters."""

from __future__ import annotations

from collections import Counter

import pytest

from stream_dedup.domain.document import DeadLetter, Headers, Message, Position, UnreadableHeaders
from stream_dedup.log import headers
from stream_dedup.log.dead_letters import letter_of
from stream_dedup.orders.run_redrive import Selection, original, summary_of
from tests.cli.running import Run


def dead_letter(
    source: Headers, value: bytes | None = b"{", timestamp_ms: int | None = 1234
) -> Message:
    """Return the dead letter that a worker writes for a record with these headers."""
    letter = DeadLetter("decode", "JSONDecodeError", "The value is no JSON.")
    added = headers.of_dead_letter(
        letter, Position("documents", b"", 3, 8812), "group", timestamp_ms
    )
    return Message(
        "dlq.documents", 3, 17, b"key", value, 99, headers.escape_source_headers(source) + added
    )


@pytest.mark.parametrize(
    "given",
    [
        [],
        [("n", b"1"), ("n", None)],
        [("dedup.verdict", b"forged"), ("dedup.prior.verdict", b"forged before")],
        [("__dlq.errors.topic", b"of somebody else"), ("__dlq.errors.offset", b"3")],
    ],
)
def test_a_dead_letter_restores_its_source_record(given: Headers) -> None:
    """Headers in their order and under their names, also those that look like ours; key, value,
    timestamp, partition."""
    letter = letter_of(dead_letter(given))

    fields = (letter.source, letter.stage, letter.error_class, letter.size)
    assert fields == ("documents-3@8812", "decode", "JSONDecodeError", 1)
    assert original(letter) == ("documents", 3, b"key", b"{", 1234, given)
    assert original(letter_of(dead_letter(given, None, None))) == (
        "documents",
        3,
        b"key",
        None,
        None,
        given,
    )


def test_foreign_records_and_cut_dead_letters_are_recognized() -> None:
    """A foreign record has no source; a cut dead letter has the size of the whole value."""
    foreign = letter_of(Message("dlq.documents", 0, 0, None, b"x", None, []))
    cut = letter_of(
        dead_letter([])._replace(
            headers=[*dead_letter([]).headers, (headers.ERROR_TRUNCATED, b"5000")]
        )
    )

    assert (foreign.source, foreign.partition, foreign.stage) == ("", None, "")
    assert (cut.is_cut, cut.size) == (True, 5000)
    unreadable = letter_of(UnreadableHeaders("dlq.documents", 0, 0, None, b"x", None, []))
    assert (unreadable.source, unreadable.is_cut) == ("", True)


@pytest.mark.parametrize(
    "header",
    [
        (headers.ERROR_TRUNCATED, b"5000"),
        (headers.ERROR_KEY_TRUNCATED, b"5000"),
        (headers.ERROR_HEADERS_DROPPED, b"1"),
        (headers.ERROR_HEADERS_UNREADABLE, b"r\\xe9"),
        (headers.ERROR_CLASS, b"Unreadable"),
    ],
)
def test_an_incomplete_dead_letter_is_not_sent_back(header: tuple[str, bytes]) -> None:
    """It would come back as another record: without its value a tombstone, without its headers one
    that never had them."""
    assert letter_of(dead_letter([])._replace(headers=[*dead_letter([]).headers, header])).is_cut
    assert not letter_of(dead_letter([header])).is_cut  # a header of that name that a crawler sent


def test_a_letter_before_the_committed_offset_is_shown_as_sent_back() -> None:
    cut = dead_letter([])._replace(
        headers=[*dead_letter([]).headers, (headers.ERROR_TRUNCATED, b"5000")]
    )

    def fields(letter: Message, documents: str, first_unsent: int) -> tuple[bool, bool]:
        row = letter_of(letter).to_fields(documents, first_unsent)
        return row["can_be_sent_back"], row["sent_back"]

    assert fields(dead_letter([]), "documents", 18) == (True, True)
    assert fields(dead_letter([]), "documents", 17) == (True, False)
    assert fields(cut, "documents", 18) == (False, False)
    assert fields(dead_letter([]), "other", 18) == (False, False)


def test_filters_select_by_stage_class_and_reason() -> None:
    letter = letter_of(dead_letter([]))

    assert Selection().includes(letter)
    assert Selection(("size", "decode"), ("JSONDecodeError",), "no json").includes(letter)
    assert not Selection(("size",)).includes(letter)
    assert not Selection((), ("ValueError",)).includes(letter)
    assert not Selection((), (), "timestamp").includes(letter)


def test_audit_refuses_shadow_mode(run: Run) -> None:
    """Shadow mode delivers nothing; the sentence names what can be compared instead."""
    ended = run("audit", "--set", "mode=shadow", "-b", "localhost:1")

    assert ended.code == 78
    assert "audit --verify" in ended.words


def test_a_filter_without_a_match_names_what_the_topic_contains() -> None:
    kinds = Counter({("decode", "JSONDecodeError"): 2, ("size", "TooLarge"): 1})
    listed = "2 decode/JSONDecodeError, 1 size/TooLarge"
    expected = f"No dead letter on dlq matches. It contains: {listed}."
    assert summary_of("dlq", Counter(), kinds, 0) == expected
    assert summary_of("dlq", kinds, Counter(), 2) == f"3 dead letters on dlq: {listed}; 2 shown."
    assert summary_of("dlq", Counter(), Counter(), 0) == "0 dead letters on dlq; 0 shown."
