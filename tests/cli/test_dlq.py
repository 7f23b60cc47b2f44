"""Dead letters: told as they are, restored as they came, and what was sent back recorded without a
gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stream_dedup.domain.document import DeadLetter, Headers, Message, Position, UnreadableHeaders
from stream_dedup.log import headers
from stream_dedup.log.letters import SentLetters, letter_of
from stream_dedup.orders.redriving import Selection, original


def dead(found: Headers, value: bytes | None = b"{", timestamp_ms: int | None = 1234) -> Message:
    """Return the letter that a worker makes of a record with these headers."""
    letter = DeadLetter("decode", "JSONDecodeError", "The value is no JSON.")
    own = headers.of_dead_letter(letter, Position("documents", b"", 3, 8812), "group", timestamp_ms)
    return Message("dlq.documents", 3, 17, b"key", value, 99, headers.passed_on(found) + own)


@pytest.mark.parametrize(
    "came",
    [
        [],
        [("n", b"1"), ("n", None)],
        [("dedup.verdict", b"forged"), ("dedup.prior.verdict", b"forged before")],
        [("__dlq.errors.topic", b"of somebody else"), ("__dlq.errors.offset", b"3")],
    ],
)
def test_a_letter_is_restored_as_it_came(came: Headers) -> None:
    """Headers in their order and under their names, also those that look like ours; key, value,
    timestamp, partition."""
    letter = letter_of(dead(came))

    told = (letter.source, letter.stage, letter.error_class, letter.size)
    assert told == ("documents-3@8812", "decode", "JSONDecodeError", 1)
    assert original(letter) == ("documents", 3, b"key", b"{", 1234, came)
    assert original(letter_of(dead(came, None, None))) == ("documents", 3, b"key", None, None, came)


def test_a_record_that_is_no_letter_is_shown_and_never_sent() -> None:
    """Somebody else's record on the topic has no source; one that was cut says how large it was."""
    foreign = letter_of(Message("dlq.documents", 0, 0, None, b"x", None, []))
    cut = letter_of(
        dead([])._replace(headers=[*dead([]).headers, (headers.ERROR_TRUNCATED, b"5000")])
    )

    assert (foreign.source, foreign.partition, foreign.stage) == ("", None, "")
    assert (cut.is_cut, cut.size) == (True, 5000)
    unreadable = letter_of(UnreadableHeaders("dlq.documents", 0, 0, None, b"x", None, []))
    assert (unreadable.source, unreadable.is_cut) == ("", True)


@pytest.mark.parametrize(
    "lacks",
    [
        (headers.ERROR_TRUNCATED, b"5000"),
        (headers.ERROR_KEY_TRUNCATED, b"5000"),
        (headers.ERROR_HEADERS_DROPPED, b"1"),
        (headers.ERROR_HEADERS_UNREADABLE, b"r\\xe9"),
        (headers.ERROR_CLASS, b"Unreadable"),
    ],
)
def test_a_letter_that_lacks_something_is_not_sent_back(lacks: tuple[str, bytes]) -> None:
    """It would come back as another record: without its value a tombstone, without its headers one
    that never had them."""
    assert letter_of(dead([])._replace(headers=[*dead([]).headers, lacks])).is_cut
    assert not letter_of(dead([lacks])).is_cut  # a header of that name that a crawler sent


def test_what_was_sent_back_is_known_of_each_letter() -> None:
    """Also behind a letter that waits, and through the metadata of a commit; one that cannot be sent
    back never counts as sent."""
    sent = SentLetters.after(11, sent=[3, 15, 17, 21, 23], waiting=[11, 19])

    assert sent == SentLetters.of_commit(11, sent.metadata)
    assert sent.metadata == "15-17 21-23"
    offsets = [10, 11, 15, 16, 17, 19, 20, 21, 23, 24]
    assert [offset for offset in offsets if not sent.includes(offset)] == [11, 19, 20, 24]
    for metadata in (None, "", "of somebody else"):
        assert SentLetters.of_commit(7, metadata) == SentLetters(7)
    many = SentLetters.after(0, range(1, 9_000, 2), range(0, 9_000, 2))
    known = SentLetters.of_commit(0, many.metadata)
    assert len(many.metadata) <= 4_000
    assert known.ranges == many.ranges[: len(known.ranges)]
    assert len(known.ranges) > 300

    cut = letter_of(
        dead([])._replace(headers=[*dead([]).headers, (headers.ERROR_TRUNCATED, b"5000")])
    )
    for letter, can_be_sent in ((letter_of(dead([])), True), (cut, False)):
        fields = letter.to_fields("documents", SentLetters(99))
        assert (fields["can_be_sent_back"], fields["sent_back"]) == (can_be_sent, can_be_sent)
    assert not letter_of(dead([])).to_fields("other", SentLetters(99))["sent_back"]


def test_filters_look_at_stage_class_and_reason() -> None:
    letter = letter_of(dead([]))

    assert Selection().includes(letter)
    assert Selection(("size", "decode"), ("JSONDecodeError",), "no json").includes(letter)
    assert not Selection(("size",)).includes(letter)
    assert not Selection((), ("ValueError",)).includes(letter)
    assert not Selection((), (), "timestamp").includes(letter)


def test_a_shadow_has_nothing_to_audit(run: Callable[..., Any]) -> None:
    """It delivers nothing; the sentence says what can be compared instead."""
    ended = run("audit", "--set", "mode=shadow", "-b", "localhost:1")

    assert ended.code == 78
    assert "audit --verify" in ended.words
