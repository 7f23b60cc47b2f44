"""A dead letter always fits its topic, and says what it lacks."""

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
MOST = 20_000
ROOM = MOST - headers.record_bytes(None, None, [])


def said(made: Headers) -> dict[str, int]:
    return {name: int(value or b"") for name, value in made}


def test_what_fits_is_what_it_was() -> None:
    """To the last byte."""
    given: Headers = [("a", b"1"), ("b", None), ("", b"")]
    used = headers.record_bytes(b"key", None, given)
    message = Message("documents", 0, 7, b"key", b"v" * (MOST - used), 1, given)

    assert fit(message, MOST) == (b"key", message.value, given, [])
    assert said(fit(message._replace(value=b"v" * (MOST - used + 1)), MOST).error_headers) == {
        headers.ERROR_TRUNCATED: MOST - used + 1
    }


def test_a_value_gives_way_to_key_and_headers() -> None:
    """They stay whole while they fit by themselves."""
    given: Headers = [("h", b"x" * (ROOM - 1000))]
    key, value, kept, why = fit(Message("documents", 0, 7, b"k" * 900, b"v" * 5000, 1, given), MOST)

    assert (key, kept, said(why)) == (b"k" * 900, given, {headers.ERROR_TRUNCATED: 5000})
    assert value == b"v" * (MOST - headers.record_bytes(key, None, given))


def test_the_largest_headers_are_left_out() -> None:
    """The others keep their order, and the value has room again."""
    given: Headers = [
        ("small", b"1"),
        ("huge", b"x" * 1_400_000),
        ("small", b"2"),
        ("large", b"y" * ROOM),
        ("last", b""),
    ]
    key, value, kept, why = fit(Message("documents", 0, 7, b"key", b"value", 1, given), MOST)

    assert (key, value, kept) == (b"key", b"value", [given[0], given[2], given[4]])
    assert said(why) == {headers.ERROR_HEADERS_DROPPED: 2}


def test_more_headers_than_can_be_read_are_left_out() -> None:
    """librdkafka gives none of more than 100,000, so ours would be lost with theirs."""
    given: Headers = [("", b"")] * 60_000 + [("h", b"")] * 30 + [("", b"")] * 40_000
    key, value, kept, why = fit(Message("documents", 0, 7, b"key", b"value", 1, given), 10_000_000)

    assert (key, value, kept) == (b"key", b"value", [("", b"")] * 99_980)
    assert said(why) == {headers.ERROR_HEADERS_DROPPED: 50}
    assert (
        len(kept) + len(why) + len(headers.of_dead_letter(LETTER, PLACE, "group", 1)) + 3 <= 100_000
    )


def test_a_huge_key_is_cut_to_a_quarter() -> None:
    """It is what the record is called, so most of the room is not taken from it."""
    message = Message("documents", 0, 7, b"k" * 100_000_000, b"v" * MOST, 1, [("h", b"1")])
    key, value, kept, why = fit(message, MOST)

    assert (key, kept) == (b"k" * (ROOM // 4), [("h", b"1")])
    assert said(why) == {headers.ERROR_KEY_TRUNCATED: 100_000_000, headers.ERROR_TRUNCATED: MOST}
    assert len(value or b"") > ROOM // 2


@pytest.mark.parametrize("decided", [LETTER, Judgement(Reason.RETRACTED, LogPlace(9, 0))])
def test_every_letter_fits(decided: Decision) -> None:
    """Random keys, values and headers, in sizes around the limit; also of what an output
    refused."""
    chance = random.Random(os.environ["TEST_SEED"])
    keys = {("documents", 0)}
    for _ in range(300):
        size = chance.choice([10, 1000, ROOM // 3, ROOM, 3 * MOST])
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
        (one,) = OutputWriter("unique", "duplicates", "dead", "group", "r", MOST).of(batch)
        out = one.output
        real = sum(len(name.encode()) + len(value or b"") + 10 for name, value in out.headers)
        own = dict(out.headers)

        assert real + len(out.key or b"") + len(out.value or b"") + 100 <= MOST
        assert (own["__dlq.errors.topic"], own["__dlq.errors.offset"]) == (b"documents", b"7")
        assert (headers.ERROR_TRUNCATED in own) == (out.value != message.value)
        assert (headers.ERROR_KEY_TRUNCATED in own) == (out.key != message.key)
        came = len(out.headers) - sum(
            name.startswith(("dedup.error.", "dedup.position", "__dlq.")) for name, _ in out.headers
        )
        assert int(own.get(headers.ERROR_HEADERS_DROPPED) or b"0") == len(given) - came
