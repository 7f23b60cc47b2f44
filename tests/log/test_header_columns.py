"""Headers made by columns equal those made one by one; foreign ones pass, forged ones are
renamed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import DeadLetter, LogPlace, Position, Reason, Representative
from stream_dedup.domain.sketch import NOT_COMPARED
from stream_dedup.log import epochs, header_columns, headers
from stream_dedup.log.answers import CHAIN_START, LogAnswer, decode, encode
from stream_dedup.log.header_columns import HeaderColumns, SourcePlaces
from stream_dedup.log.schema import Judgement, NamedRepresentatives, Verdicts

RECIPE = "words:128:é:y"
OUTCOMES = [reason for reason in Reason if reason.verdict is not None]
DAY_MS = 86_400_000
NOWHERE = SourcePlaces("d", np.zeros(1, np.int32), np.zeros(1, np.int64))
# Where calendars and decimals are hard: leap days, ends of years and centuries, the calendar's own
# ends, before 1970.
TIMES_MS = [
    0,
    -1,
    1,
    951_782_400_000,
    951_868_799_999,
    4_107_542_400_000,
    -62_135_596_800_000,
    -62_135_596_800_001,
    253_402_300_799_999,
    253_402_300_800_000,
    2**62,
    -(2**62),
    1_700_000_000_123,
]


def written(columns: HeaderColumns) -> list[list[tuple[str, bytes]]]:
    raw, found, start, j = columns.values.tobytes(), [], 0, 0
    for stop in columns.record_ends.tolist():
        record_headers = []
        for _ in range(stop - j):
            record_headers.append(
                (columns.names[columns.name_numbers[j]], raw[start : columns.value_ends[j]])
            )
            start, j = int(columns.value_ends[j]), j + 1
        found.append(record_headers)
    return found


def random_judgement(chance: random.Random, reason: Reason) -> Judgement:
    """Return a verdict with numbers from all of their ranges."""
    place = LogPlace(
        chance.choice([0, 9, 10, 99, chance.getrandbits(63)]), chance.choice([0, 999, 2**32 - 1])
    )
    if 10 <= reason < 20:
        time_ms = chance.choice([*TIMES_MS, chance.randrange(-70_000 * DAY_MS, 2_932_897 * DAY_MS)])
        position = Position(
            chance.choice(["documents", "größe"]),
            bytes(16),
            chance.choice([0, 63]),
            chance.getrandbits(40),
        )
        of = Representative(position, b"id" * chance.randrange(4), time_ms)
        similarity = chance.choice([NOT_COMPARED, 0, 100, chance.randrange(101)])
        copies = chance.choice([0, 1, 9, 10, 2**32 - 1])
        return Judgement(
            reason,
            place,
            chance.randrange(256),
            of,
            similarity,
            copies,
            chance.choice([0, *BetterRule]),
        )
    return Judgement(reason, place)


@pytest.mark.parametrize("seed", range(20))
def test_headers_made_by_columns_equal_those_made_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    judgements = [
        random_judgement(chance, chance.choice(list(Reason)))
        for _ in range(chance.choice([0, 1, 60]))
    ]
    count = len(judgements)
    digits = chance.choice([16, 32])
    prints = np.array(
        [list(b"%0*x" % (digits, chance.getrandbits(4 * digits))) for _ in range(count)], np.uint8
    )
    prints = prints.reshape(count, digits)
    offsets = [chance.choice([0, 9, 10, chance.getrandbits(63)]) for _ in range(count)]
    partitions = [chance.choice([0, 9, 10, 63, 2**31 - 1]) for _ in range(count)]
    topic = chance.choice(["documents", "größe", ""])
    places = SourcePlaces(topic, np.array(partitions, np.int32), np.array(offsets, np.int64))
    positions = [Position(topic, b"", *pair) for pair in zip(partitions, offsets, strict=True)]
    wanted = np.array(
        [
            judgement.reason.verdict is not None and chance.random() < 0.8
            for judgement in judgements
        ],
        np.bool_,
    )
    sent = decode(encode(LogAnswer(7, bytes(16), 1, judgements), CHAIN_START)[0])
    expected = [
        [
            *headers.of_verdict(positions[place], RECIPE, prints[place].tobytes(), judgement),
        ]
        if wanted[place]
        else []
        for place, judgement in enumerate(judgements)
    ]

    for verdicts in (Verdicts.of(judgements), sent.judgements):  # type: ignore[union-attr]
        assert isinstance(verdicts, Verdicts)
        assert (
            written(header_columns.of_verdicts(RECIPE, places, prints, verdicts, wanted))
            == expected
        ), f"seed {seed}"


@pytest.mark.parametrize("reason", [Reason.STALE, Reason.RETRACTED])
def test_a_reason_that_is_no_outcome_is_refused(reason: Reason) -> None:
    verdicts = Verdicts.of([Judgement(reason, LogPlace(1, 2))])
    with pytest.raises(ValueError, match="cannot be delivered"):
        header_columns.of_verdicts(
            "r", NOWHERE, np.zeros((1, 2), np.uint8), verdicts, np.ones(1, np.bool_)
        )


def test_all_duplicate_reasons_are_in_the_range_that_the_kernel_expects() -> None:
    assert {
        int(reason) for reason in OUTCOMES if reason.verdict and reason.verdict.value == "duplicate"
    } <= set(range(10, 20))
    assert not {
        int(reason) for reason in OUTCOMES if reason.verdict and reason.verdict.value == "unique"
    } & set(range(10, 20))


def test_named_is_a_sequence_of_representatives() -> None:
    """Indexing, slicing and iterating return the representatives that it was made of."""
    representatives = [
        Representative(Position("d", bytes(16), place % 2, place), b"i" * place, place)
        for place in range(4)
    ]
    named = NamedRepresentatives.of(representatives)

    assert list(named) == representatives
    assert [named[place] for place in range(4)] == representatives
    assert named[-1] == representatives[-1]
    assert named[1:3] == representatives[1:3]
    with pytest.raises(IndexError):
        named[4]


def test_foreign_headers_pass_and_ours_are_renamed() -> None:
    """Headers keep their order and values; only a name in our namespace is moved aside."""
    source_headers = [
        ("traceparent", b"00-1"),
        ("dedup.verdict", b"unique"),
        ("x", None),
        ("x", b"\xff"),
        ("dedup.prior.log", b"1"),
        ("__dlq.errors.topic", b"forged"),
        ("__dlq.errors.prior.topic", b"forged before"),
        ("__dlq.other", b"2"),
        ("dedup", b"3"),
    ]

    assert (
        headers.unescape_source_headers(headers.escape_source_headers(source_headers))
        == source_headers
    )
    assert headers.escape_source_headers(source_headers) == [
        ("traceparent", b"00-1"),
        ("dedup.prior.verdict", b"unique"),
        ("x", None),
        ("x", b"\xff"),
        ("dedup.prior.prior.log", b"1"),
        ("__dlq.errors.prior.topic", b"forged"),
        ("__dlq.errors.prior.prior.topic", b"forged before"),
        ("__dlq.other", b"2"),
        ("dedup", b"3"),
    ]


def test_a_dead_letter_names_its_place_in_its_first_header_of_that_name() -> None:
    """Consumers read the first or the last header of a name, whatever headers the record came
    with."""
    source_headers = [("__dlq.errors.topic", b"forged"), ("__dlq.errors.offset", b"1")]
    letter = DeadLetter("decode", "NoText", "It holds no text.")
    position = Position("documents", bytes(16), 3, 8812)
    found = headers.escape_source_headers(source_headers) + headers.of_dead_letter(
        letter, position, "group", 0
    )

    for name, value in ((headers.DLQ_TOPIC, b"documents"), (headers.DLQ_OFFSET, b"8812")):
        assert [header_value for known, header_value in found if known == name] == [value]


def test_a_name_counts_its_bytes() -> None:
    """A name counts as many bytes as it has in UTF-8."""
    for name in ("x" * 900_000, "ü" * 900_000, "\U0001f40b" * 9):
        size = headers.header_bytes(name, b"12")
        assert 0 <= size - len(name.encode()) - 2 <= 20


def test_a_duplicate_names_what_it_is_a_copy_of() -> None:
    kept = Representative(Position("documents", bytes(16), 3, 8812), b"https://a.example/1", 0)
    own_headers = dict(
        headers.of_verdict(
            Position("documents", bytes(16), 1, 9001),
            "words:128:x:y",
            b"00ff",
            Judgement(
                Reason.NEAR,
                LogPlace(8812, 17),
                distance=2,
                of=kept,
                similarity=88,
                copies=17,
                better=BetterRule.LONGEST,
            ),
        )
    )

    assert own_headers == {
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
    long = Position("t" * 249, bytes(16), 2**31 - 1, 2**63 - 1)
    kept = Representative(long, b"i" * 512, 253_402_300_799_999)
    generator = random.Random(3)
    for own_headers in (
        headers.of_verdict(
            long,
            "r" * 60,
            b"f" * 32,
            Judgement(
                Reason.UNCHANGED,
                LogPlace(2**63, 2**31),
                distance=128,
                of=kept,
                similarity=80,
                copies=2**32 - 1,
                better=BetterRule.LONGEST,
            ),
        ),
        headers.of_dead_letter(
            DeadLetter("fingerprint", "E" * 60, "€" * 2000), long, "g" * 200, 253_402_300_799_999
        ),
    ):
        value = generator.randbytes(500)
        for source_headers in (
            [],
            [("dedup." + "x" * 50, b"1" * 100)] * 20,
            [("__dlq.errors." + "ü" * 50, b"1" * 100)] * 20,
        ):
            added = headers.escape_source_headers(source_headers) + own_headers
            real = (
                sum(len(name.encode()) + len(header or b"") + 10 for name, header in added)
                + len(value)
                + 20
            )

            assert real <= headers.record_bytes(b"", value, source_headers)


def test_epochs_are_read_as_they_were_written() -> None:
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
            for text in (
                "",
                "8812",
                "8812/",
                "/17",
                "-1/0",
                "1/-1",
                "1/2/3",
                "1 /2",
                "٣/1",
                "1/²",
                "9223372036854775808/0",
            )
        ),
    ],
)
def test_a_place_in_the_log_is_read_as_it_is_written(
    text: str, place: tuple[int, int] | None
) -> None:
    """A place is two whole numbers in the range of an offset; any other text is no place."""
    assert headers.parse_log_place(text) == place
    assert place is None or str(headers.parse_log_place(text)) == text
