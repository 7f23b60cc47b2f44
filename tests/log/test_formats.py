"""Every format that a release wrote is read, and written again byte for byte; what is newer or
older stops, and says so."""

from __future__ import annotations

import contextlib
import json
import os
import random
import zlib
from dataclasses import fields
from typing import Any

import pytest

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import Mode, Reason
from stream_dedup.domain.errors import FormatError, OtherFormatError
from stream_dedup.domain.plan import Plan
from stream_dedup.log import answers, records
from stream_dedup.log.record_frame import framed
from stream_dedup.log.records import Batch, Control, Release, Seed
from tests.log.golden import FOLDER
from tests.log.test_answers import ANSWER
from tests.log.test_records import make_batch

FORMATS = sorted(int(path.name) for path in FOLDER.iterdir())


def golden(form: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / str(form) / f"{name}.json").read_text())
    return found


KINDS = {"records": records.decode, "answers": answers.decode}
RAWS = {
    f"{one} of {form}": (KINDS[kind], raw)
    for form in FORMATS
    for kind in KINDS
    for one, raw in golden(form, kind).items()
}


def written_again(raw: bytes, form: int) -> bytes:
    record = records.decode(raw)
    if isinstance(record, Control):
        return records.encode_control(record)
    if isinstance(record, Seed):
        return records.encode_seed(record.batch, form)
    return (
        records.encode_release(record, form)
        if isinstance(record, Release)
        else records.encode_batch(record, form)
    )


def test_every_format_has_its_files_and_its_decoders() -> None:
    """All records have one number; who adds a format adds its files (`python -m tests.log.golden`),
    and drops none."""
    assert (
        sorted(records.FORMATS)
        == sorted(answers.FORMATS)
        == FORMATS
        == list(range(1, len(FORMATS) + 1))
    )


@pytest.mark.parametrize("form", FORMATS)
def test_records_are_read_and_written_as_they_were(form: int) -> None:
    found = {name: bytes.fromhex(text) for name, text in golden(form, "records").items()}
    kinds = {type(records.decode(raw)) for raw in found.values()}
    orders = {
        one.type: one.fields.keys()
        for one in map(records.decode, found.values())
        if isinstance(one, Control)
    }

    assert {name: written_again(raw, form) for name, raw in found.items()} == found
    assert kinds == {Batch, Control, Seed, Release}
    assert {
        kind: known - {"format"} for kind, known in records.FORMATS[form].orders.items()
    } == orders


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["log", "log-orders"])
def test_logs_and_their_answers_are_read_and_written_as_they_were(form: int, name: str) -> None:
    recorded = golden(form, name)
    readable = 0
    for _, text in recorded["log"]:
        raw = None if text is None else bytes.fromhex(text)
        try:
            again = written_again(raw, form) if raw is not None else None
        except FormatError:
            continue
        readable += again is not None
        assert again == raw
    chain = answers.CHAIN_START
    for text in recorded["answers"].values():
        answer = answers.decode(bytes.fromhex(text))
        assert not isinstance(answer, answers.Announce)
        raw, chain = answers.encode(answer, chain, form)
        assert (raw.hex(), chain) == (text, answer.chain)

    assert readable > 30
    assert len(recorded["answers"]) > 20


@pytest.mark.parametrize("form", FORMATS)
def test_answers_are_read_and_written_as_they_were(form: int) -> None:
    found = golden(form, "answers")
    answer, rejected, announce = (
        answers.decode(bytes.fromhex(found[name])) for name in ("answer", "rejected", "announce")
    )

    assert isinstance(answer, answers.LogAnswer)
    assert isinstance(rejected, answers.Rejected)
    assert isinstance(announce, answers.Announce)
    assert answers.encode(answer, answers.CHAIN_START, form)[0].hex() == found["answer"]
    assert answers.encode(rejected, answers.CHAIN_START, form)[0].hex() == found["rejected"]
    assert answers.encode_announce(announce, form).hex() == found["announce"]


def test_what_format_1_can_say_is_frozen() -> None:
    """A new reason, mode, rule, field of a plan or kind of record is another format, even where the
    bytes have room for it: a program that knows format 1 alone would judge by less than the
    others."""
    assert sorted(records.FORMATS[1].decoders) == [1, 2, 3, 4]
    assert sorted(answers.FORMATS[1].decoders) == [1, 2, 3]
    assert {name: sorted(known) for name, known in records.FORMATS[1].orders.items()} == {
        "begun": ["log", "partitions", "topic", "topic_id"],
        "declare": sorted(DECLARE),
        "forget": ["ids"],
        "opened": ["log"],
        "plan": ["better", "format", "plan", "window"],
        "reading": ["changes", "log", "settings"],
        "retract": ["positions", "topic", "topic_id"],
    }
    assert {one.name.lower(): int(one) for one in Mode} == {
        "enforce": 0,
        "annotate": 1,
        "shadow": 2,
    }
    assert {one.label: int(one) for one in BetterRule} == {
        "longest": 1,
        "newest": 2,
    }
    assert {one.label: int(one) for one in Reason} == REASONS
    assert {field.name for field in fields(Plan)} == records.FORMATS[1].parts["plan"] == set(PLAN)


UNIQUE, DUPLICATE = (
    "new too-short empty tombstone bypass fail-open released",
    "exact near unchanged revised returned",
)
REASONS = {label: number for number, label in enumerate(UNIQUE.split(), 1)}
REASONS |= {label: number for number, label in enumerate(DUPLICATE.split(), 10)} | {
    "stale": 20,
    "retracted": 21,
}
DECLARE = [
    "recipe",
    "plan",
    "group",
    "floor",
    "mode",
    "better",
    "width",
    "window",
    "sketch_bytes",
    "count_copies",
    "log_ids",
]
DECLARE += ["format"]
PLAN = [
    "width",
    "blocks",
    "radius",
    "threshold",
    "key_blocks",
    "by_length",
    "ratio",
    "bands",
    "similarity",
    "asked",
    "unsure",
    "same_site",
    "other_title",
]


@pytest.mark.parametrize(
    ("magic", "decode"), [(one.MAGIC, one.decode) for one in (records, answers)]
)
@pytest.mark.parametrize(
    ("form", "says"),
    [(2, "has the format 2, but this version reads up to 1: upgrade"), (0, "reads none below 1")],
)
def test_another_format_is_told_from_damage(
    magic: bytes, decode: Any, form: int, says: str
) -> None:
    """A whole record of another format says which one; where it is cut, it is damaged like any
    other."""
    raw = framed(magic, form, 1, b"whatever comes")

    with pytest.raises(OtherFormatError, match=says):
        decode(raw)
    with pytest.raises(FormatError, match="checksum") as found:
        decode(raw[:-1])
    assert type(found.value) is FormatError


def checked(raw: bytes) -> bytes:
    return raw + zlib.crc32(raw).to_bytes(4, "little")


@pytest.mark.parametrize("name", RAWS)
def test_what_is_cut_or_flipped_anywhere_is_damaged(name: str) -> None:
    """Also where somebody gave what is cut a checksum: no field is read past the end."""
    decode, raw = RAWS[name][0], bytes.fromhex(RAWS[name][1])
    for at in range(len(raw)):
        for bad in (
            raw[:at] + bytes([raw[at] ^ 0x41]) + raw[at + 1 :],
            raw[:at],
            checked(raw[: min(at, len(raw) - 5)]),
        ):
            with pytest.raises(FormatError) as found:
                decode(bad)
        assert type(found.value) is FormatError, at


@pytest.mark.parametrize("name", RAWS)
def test_a_hostile_body_is_read_or_refused(name: str) -> None:
    """One that claims what it does not hold ends in no other error, though its checksum is
    right."""
    print("seed", os.environ["TEST_SEED"])
    generator = random.Random(f"{os.environ['TEST_SEED']} {name}")
    decode, raw = RAWS[name][0], bytes.fromhex(RAWS[name][1])
    for _ in range(400):
        hostile = bytearray(raw[:-4])
        for _ in range(generator.randint(1, 4)):
            hostile[generator.randrange(6, len(hostile))] = generator.getrandbits(8)
        with contextlib.suppress(FormatError):
            decode(
                checked(
                    bytes(
                        hostile[
                            : generator.choice([len(hostile), generator.randint(6, len(hostile))])
                        ]
                    )
                )
            )


@pytest.mark.parametrize("mark", [b"SDF1", b"SDF3", b"SDV4"])
def test_what_came_before_the_first_release_is_told(mark: bytes) -> None:
    """Its magic was its version: a whole record of it stops the role; rubbish that begins so is
    rubbish."""
    with pytest.raises(
        OtherFormatError, match=r"before the first release.*STREAM_DEDUP_TOPIC_PREFIX.*seed"
    ):
        records.decode(framed(mark, 1, 1, b"whatever"))
    with pytest.raises(FormatError, match="checksum") as found:
        records.decode(mark + bytes(40))
    assert type(found.value) is FormatError


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (
            framed(records.MAGIC, 1, 77, b"{}"),
            "the kind 77, which this version does not know: upgrade",
        ),
        (
            framed(records.MAGIC, 1, 2, b'{"type":"merge"}'),
            "an order 'merge', which this version does not know: upgrade",
        ),
        (
            framed(records.MAGIC, 1, 2, b'{"ids":[],"until":1,"type":"forget"}'),
            "a field 'until' in an order forget, which",
        ),
        (
            framed(records.MAGIC, 1, 2, b'{"plan":{"tails":32},"type":"plan"}'),
            "a field 'tails' in the plan of an order plan",
        ),
        (
            framed(records.MAGIC, 1, 2, b'{"format":2,"type":"plan"}'),
            "declares format 2, but this version writes up to 1",
        ),
        (
            framed(records.MAGIC, 1, 2, b'{"format":2,"type":"declare"}'),
            "declares format 2, but this version writes up to 1",
        ),
    ],
)
def test_what_a_newer_program_says_stops(raw: bytes, says: str) -> None:
    """Passed over, it would leave this replica with other verdicts than those that know it."""
    with pytest.raises(OtherFormatError, match=says):
        records.decode(raw)


def test_an_answer_that_says_more_stops() -> None:
    """A worker that meets a reason or a kind of a newer index ends instead of waiting."""
    raw = bytearray(answers.encode(ANSWER, answers.CHAIN_START)[0])
    raw[6 + 32 + 4] = 250  # the first reason

    with pytest.raises(OtherFormatError, match="a reason that this version does not know: upgrade"):
        answers.decode(checked(bytes(raw[:-4])))
    with pytest.raises(OtherFormatError, match="the kind 9"):
        answers.decode(framed(answers.MAGIC, 1, 9, b""))


def test_a_batch_is_written_in_the_format_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one unless a newer is named; an order in the first that knows its fields, whatever
    there is beside it."""
    orders = {"forget": frozenset({"ids", "until"})}
    monkeypatch.setitem(records.FORMATS, 2, records.FORMATS[1]._replace(orders=orders))

    assert records.encode_batch(make_batch())[4] == 1
    assert records.encode_batch(make_batch(), 2)[4] == 2
    assert records.encode_control(Control("forget", {"ids": []}))[4] == 1
    newer = records.encode_control(Control("forget", {"ids": [], "until": 1}))
    assert newer[4] == 2
    assert records.decode(newer) == Control("forget", {"ids": [], "until": 1})
