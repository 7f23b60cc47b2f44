"""Headers: foreign ones pass, forged ones do not."""

from __future__ import annotations

import random

import pytest

from stream_dedup.ground.better import BetterRule
from stream_dedup.ground.document import DeadLetter, LogPlace, Position, Reason, Representative
from stream_dedup.log import epochs, headers


def test_foreign_headers_pass_and_ours_are_renamed() -> None:
    """Headers keep their order and values; only a name in our namespace is moved aside."""
    came = [("traceparent", b"00-1"), ("dedup.verdict", b"unique"), ("x", None), ("x", b"\xff"), ("dedup.prior.log", b"1")]

    assert headers.passed_on(came) == [
        ("traceparent", b"00-1"),
        ("dedup.prior.verdict", b"unique"),
        ("x", None),
        ("x", b"\xff"),
        ("dedup.prior.prior.log", b"1"),
    ]


def test_a_duplicate_names_what_it_is_a_copy_of() -> None:
    """A duplicate's headers say why, how far, of what, and where in the log that was decided."""
    kept = Representative(Position("documents", bytes(16), 3, 8812), b"https://a.example/1", 0)
    own = dict(
        headers.of_verdict(
            *(Position("documents", bytes(16), 1, 9001), Reason.NEAR, "words:128:x:y", b"00ff", LogPlace(8812, 17), 2, kept),
            *(88, 17, BetterRule.LONGEST),
        )
    )

    assert own == {
        "dedup.verdict": b"duplicate",
        "dedup.reason": b"near",
        "dedup.recipe": b"words:128:x:y",
        "dedup.fingerprint": b"00ff",
        "dedup.distance": b"2",
        "dedup.similarity": b"0.88",
        "dedup.copies": b"17",
        "dedup.better": b"longest",
        "dedup.of.id": b"https://a.example/1",
        "dedup.of.position": b"documents-3@8812",
        "dedup.of.time": b"1970-01-01T00:00:00.000Z",
        "dedup.log": b"8812/17",
        "dedup.position": b"documents-1@9001",
    }


def test_the_size_bound_is_an_upper_bound() -> None:
    """What `record_bytes` promises is never less than what a verdict or a dead letter adds."""
    long = Position("t" * 249, bytes(16), 2**31 - 1, 2**63 - 1)
    kept = Representative(long, b"i" * 512, 253_402_300_799_999)
    generator = random.Random(3)
    for own in (
        headers.of_verdict(
            long, Reason.UNCHANGED, "r" * 60, b"f" * 32, LogPlace(2**63, 2**31), 128, kept, 80, 2**32 - 1, BetterRule.AUTHORITY
        ),
        headers.of_dead_letter(DeadLetter("fingerprint", "E" * 60, "€" * 2000), long, "g" * 200, 253_402_300_799_999),
    ):
        value = generator.randbytes(500)
        for came in ([], [("dedup." + "x" * 50, b"1" * 100)] * 20):
            added = headers.passed_on(came) + own
            real = sum(len(name.encode()) + len(header or b"") + 10 for name, header in added) + len(value) + 20

            assert real <= headers.record_bytes(b"", value, came)


def test_epochs_there_and_back() -> None:
    """An epoch survives the metadata of a committed offset; foreign metadata is none."""
    assert epochs.from_metadata(epochs.to_metadata(7)) == 7
    for foreign in (None, "", "7", "epoch=7", "stream-dedup epoch=-1", "stream-dedup epoch=1 "):
        assert epochs.from_metadata(foreign) is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("8812/17", (8812, 17)),
        ("9223372036854775807/0", (2**63 - 1, 0)),
        *(
            (text, None)
            for text in ("", "8812", "8812/", "/17", "-1/0", "1/-1", "1/2/3", "1 /2", "٣/1", "1/²", "9223372036854775808/0")
        ),
    ],
)
def test_a_place_in_the_log_is_read_as_it_is_written(text: str, place: tuple[int, int] | None) -> None:
    """Two whole numbers that an offset can be; what is none names no place."""
    assert headers.place_of(text) == place
    assert place is None or str(headers.place_of(text)) == text
