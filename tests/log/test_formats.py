"""Every released format is read and written again byte for byte; newer and older ones are
refused."""

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
    f"{record_name} of {form}": (KINDS[kind], raw)
    for form in FORMATS
    for kind in KINDS
    for record_name, raw in golden(form, kind).items()
}


def encode_again(raw: bytes, form: int) -> bytes:
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
    """A new format needs its files (`python -m tests.log.golden`); no format is dropped."""
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
        record.type: record.fields.keys()
        for record in map(records.decode, found.values())
        if isinstance(record, Control)
    }

    assert {name: encode_again(raw, form) for name, raw in found.items()} == found
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
            again = encode_again(raw, form) if raw is not None else None
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


def test_the_values_of_format_1_are_frozen() -> None:
    """A new reason, mode, rule, plan field or record kind needs a new format: a program that knows
    only format 1 would judge by other rules."""
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
    assert {member.name.lower(): int(member) for member in Mode} == {
        "enforce": 0,
        "annotate": 1,
        "shadow": 2,
    }
    assert {member.label: int(member) for member in BetterRule} == {
        "longest": 1,
        "newest": 2,
    }
    assert {member.label: int(member) for member in Reason} == REASONS
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
    ("magic", "decode"), [(module.MAGIC, module.decode) for module in (records, answers)]
)
@pytest.mark.parametrize(
    ("form", "pattern"),
    [(2, "has the format 2, but this version reads up to 1: upgrade"), (0, "reads none below 1")],
)
def test_another_format_is_distinguished_from_damage(
    magic: bytes, decode: Any, form: int, pattern: str
) -> None:
    """A complete record of another format is reported with its format; a truncated one is
    damaged."""
    raw = framed(magic, form, 1, b"whatever comes")

    with pytest.raises(OtherFormatError, match=pattern):
        decode(raw)
    with pytest.raises(FormatError, match="checksum") as found:
        decode(raw[:-1])
    assert type(found.value) is FormatError


def add_checksum(raw: bytes) -> bytes:
    return raw + zlib.crc32(raw).to_bytes(4, "little")


@pytest.mark.parametrize("name", RAWS)
def test_a_truncated_or_changed_record_is_damaged(name: str) -> None:
    """No field is read past the end, even if a truncated record has a valid checksum."""
    decode, raw = RAWS[name][0], bytes.fromhex(RAWS[name][1])
    for position in range(len(raw)):
        for bad in (
            raw[:position] + bytes([raw[position] ^ 0x41]) + raw[position + 1 :],
            raw[:position],
            add_checksum(raw[: min(position, len(raw) - 5)]),
        ):
            with pytest.raises(FormatError) as found:
                decode(bad)
        assert type(found.value) is FormatError, position


@pytest.mark.parametrize("name", RAWS)
def test_a_hostile_body_is_read_or_refused(name: str) -> None:
    """A body with false lengths and a valid checksum raises no other error."""
    print("seed", os.environ["TEST_SEED"])
    generator = random.Random(f"{os.environ['TEST_SEED']} {name}")
    decode, raw = RAWS[name][0], bytes.fromhex(RAWS[name][1])
    for _ in range(400):
        hostile = bytearray(raw[:-4])
        for _ in range(generator.randint(1, 4)):
            hostile[generator.randrange(6, len(hostile))] = generator.getrandbits(8)
        with contextlib.suppress(FormatError):
            decode(
                add_checksum(
                    bytes(
                        hostile[
                            : generator.choice([len(hostile), generator.randint(6, len(hostile))])
                        ]
                    )
                )
            )


@pytest.mark.parametrize("mark", [b"SDF1", b"SDF3", b"SDV4"])
def test_a_record_from_before_the_first_release_is_reported(mark: bytes) -> None:
    """A complete record of that time is reported as such; other bytes with its magic are
    damaged."""
    with pytest.raises(
        OtherFormatError, match=r"before the first release.*STREAM_DEDUP_TOPIC_PREFIX.*seed"
    ):
        records.decode(framed(mark, 1, 1, b"whatever"))
    with pytest.raises(FormatError, match="checksum") as found:
        records.decode(mark + bytes(40))
    assert type(found.value) is FormatError


@pytest.mark.parametrize(
    ("raw", "pattern"),
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
def test_a_record_of_a_newer_program_is_refused(raw: bytes, pattern: str) -> None:
    """If it were skipped, this replica would have other verdicts than newer ones."""
    with pytest.raises(OtherFormatError, match=pattern):
        records.decode(raw)


def test_an_answer_of_a_newer_program_is_refused() -> None:
    """A worker that meets a reason or a kind of a newer index ends instead of waiting."""
    raw = bytearray(answers.encode(ANSWER, answers.CHAIN_START)[0])
    raw[6 + 32 + 4] = 250  # the first reason

    with pytest.raises(OtherFormatError, match="a reason that this version does not know: upgrade"):
        answers.decode(add_checksum(bytes(raw[:-4])))
    with pytest.raises(OtherFormatError, match="the kind 9"):
        answers.decode(framed(answers.MAGIC, 1, 9, b""))


def test_a_batch_is_written_in_the_requested_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches use format 1 unless told otherwise; an order uses the first format that has its
    fields."""
    orders = {"forget": frozenset({"ids", "until"})}
    monkeypatch.setitem(records.FORMATS, 2, records.FORMATS[1]._replace(orders=orders))

    assert records.encode_batch(make_batch())[4] == 1
    assert records.encode_batch(make_batch(), 2)[4] == 2
    assert records.encode_control(Control("forget", {"ids": []}))[4] == 1
    newer = records.encode_control(Control("forget", {"ids": [], "until": 1}))
    assert newer[4] == 2
    assert records.decode(newer) == Control("forget", {"ids": [], "until": 1})
