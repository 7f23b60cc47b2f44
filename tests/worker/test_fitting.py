"""A dead letter always fits its topic, and names what was left out."""

from __future__ import annotations

import os
import random

import pytest

from stream_dedup.domain.document import DeadLetter, Headers, LogPlace, Message, Position, Reason
from stream_dedup.log import headers
from stream_dedup.log.schema import Judgement
from stream_dedup.worker.outputs import OutputWriter, fit
from stream_dedup.worker.prepare import Decision, InFlight

LETTER, PLACE = DeadLetter("size", "TooLarge", "It is too large."), Position("documents", b"", 0, 7)
RECORD_BYTES_MAX = 20_000
ROOM = RECORD_BYTES_MAX - headers.record_bytes(None, None, [])


def parse_counts(made: Headers) -> dict[str, int]:
    return {name: int(value or b"") for name, value in made}


def test_a_record_that_fits_is_unchanged() -> None:
    """A record of exactly the limit is unchanged."""
    given: Headers = [("a", b"1"), ("b", None), ("", b"")]
    used = headers.record_bytes(b"key", None, given)
    message = Message("documents", 0, 7, b"key", b"v" * (RECORD_BYTES_MAX - used), 1, given)

    assert fit(message, RECORD_BYTES_MAX) == (b"key", message.value, given, [])
    assert parse_counts(
        fit(
            message._replace(value=b"v" * (RECORD_BYTES_MAX - used + 1)), RECORD_BYTES_MAX
        ).error_headers
    ) == {headers.ERROR_TRUNCATED: RECORD_BYTES_MAX - used + 1}


def test_the_value_is_truncated_before_key_and_headers() -> None:
    """Key and headers stay complete while they fit without the value."""
    given: Headers = [("h", b"x" * (ROOM - 1000))]
    key, value, kept, why = fit(
        Message("documents", 0, 7, b"k" * 900, b"v" * 5000, 1, given), RECORD_BYTES_MAX
    )

    assert (key, kept, parse_counts(why)) == (b"k" * 900, given, {headers.ERROR_TRUNCATED: 5000})
    assert value == b"v" * (RECORD_BYTES_MAX - headers.record_bytes(key, None, given))


def test_the_largest_headers_are_left_out() -> None:
    """The others keep their order, and the value has room again."""
    given: Headers = [
        ("small", b"1"),
        ("huge", b"x" * 1_400_000),
        ("small", b"2"),
        ("large", b"y" * ROOM),
        ("last", b""),
    ]
    key, value, kept, why = fit(
        Message("documents", 0, 7, b"key", b"value", 1, given), RECORD_BYTES_MAX
    )

    assert (key, value, kept) == (b"key", b"value", [given[0], given[2], given[4]])
    assert parse_counts(why) == {headers.ERROR_HEADERS_DROPPED: 2}


def test_more_headers_than_can_be_read_are_left_out() -> None:
    """librdkafka returns no headers at all if a record has more than 100,000."""
    given: Headers = [("", b"")] * 60_000 + [("h", b"")] * 30 + [("", b"")] * 40_000
    key, value, kept, why = fit(Message("documents", 0, 7, b"key", b"value", 1, given), 10_000_000)

    assert (key, value, kept) == (b"key", b"value", [("", b"")] * 99_980)
    assert parse_counts(why) == {headers.ERROR_HEADERS_DROPPED: 50}
    assert (
        len(kept) + len(why) + len(headers.of_dead_letter(LETTER, PLACE, "group", 1)) + 3 <= 100_000
    )


def test_a_huge_key_is_cut_to_a_quarter() -> None:
    """The key may have a quarter of the room, and the value the rest."""
    message = Message(
        "documents", 0, 7, b"k" * 100_000_000, b"v" * RECORD_BYTES_MAX, 1, [("h", b"1")]
    )
    key, value, kept, why = fit(message, RECORD_BYTES_MAX)

    assert (key, kept) == (b"k" * (ROOM // 4), [("h", b"1")])
    assert parse_counts(why) == {
        headers.ERROR_KEY_TRUNCATED: 100_000_000,
        headers.ERROR_TRUNCATED: RECORD_BYTES_MAX,
    }
    assert len(value or b"") > ROOM // 2


@pytest.mark.parametrize("decided", [LETTER, Judgement(Reason.RETRACTED, LogPlace(9, 0))])
def test_every_letter_fits(decided: Decision) -> None:
    """Random keys, values and headers, in sizes around the limit; also of what an output
    refused."""
    chance = random.Random(os.environ["TEST_SEED"])
    keys = {("documents", 0)}
    for _ in range(300):
        size = chance.choice([10, 1000, ROOM // 3, ROOM, 3 * RECORD_BYTES_MAX])
        given: Headers = [
            (
                chance.choice(["", "h", "dedup.verdict", "é" * 50]),
                chance.choice([None, b"", b"x" * chance.randrange(size)]),
            )
            for _ in range(chance.choice([0, 1, 3, 500]))
        ]
        message = Message(
            "documents",
            0,
            7,
            chance.choice([None, b"k" * chance.randrange(size)]),
            chance.choice([None, b"v" * chance.randrange(size)]),
            1,
            given,
        )
        batch = InFlight(
            [message], [decided], [None], [], b"stamp", dict.fromkeys(keys, 0), set(keys)
        )
        (emitted,) = OutputWriter(
            "unique", "duplicates", "dead", "group", "r", RECORD_BYTES_MAX
        ).of(batch)
        out = emitted.output
        real = sum(len(name.encode()) + len(value or b"") + 10 for name, value in out.headers)
        letter_headers = dict(out.headers)

        assert real + len(out.key or b"") + len(out.value or b"") + 100 <= RECORD_BYTES_MAX
        assert (letter_headers["__dlq.errors.topic"], letter_headers["__dlq.errors.offset"]) == (
            b"documents",
            b"7",
        )
        assert (headers.ERROR_TRUNCATED in letter_headers) == (out.value != message.value)
        assert (headers.ERROR_KEY_TRUNCATED in letter_headers) == (out.key != message.key)
        source_header_count = len(out.headers) - sum(
            name.startswith(("dedup.error.", "dedup.position", "__dlq.")) for name, _ in out.headers
        )
        assert (
            int(letter_headers.get(headers.ERROR_HEADERS_DROPPED) or b"0")
            == len(given) - source_header_count
        )
