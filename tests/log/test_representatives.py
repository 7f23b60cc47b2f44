"""The bytes on `representatives`: as their schema says, and progress read back or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from stream_dedup.ground.document import Position
from stream_dedup.ground.errors import FormatError
from stream_dedup.log.representatives import (
    PROGRESS_KEY,
    Progress,
    PublishedValue,
    decode_progress,
    encode_key,
    encode_progress,
    encode_value,
)

SCHEMA = json.loads(
    (
        Path(__file__).parent.parent.parent / "topics" / "schemas" / "representatives.schema.json"
    ).read_text(encoding="utf-8")
)
PLACE = Position("documents", bytes(16), 3, 8812)


@pytest.mark.parametrize("rule", range(3))
@pytest.mark.parametrize("copies", [0, 17])
def test_a_value_is_what_the_schema_says(rule: int, copies: int) -> None:
    """With and without copies, by each rule, with an id that is no UTF-8 and a time beyond the
    calendar."""
    value = json.loads(encode_value(PublishedValue(copies, 0, 1 << 61, PLACE, b"caf\xe9", rule)))

    Draft202012Validator(SCHEMA).validate(value)
    why = ("first", "longest", "newest")[rule]
    assert value["best"] == {"position": "documents-3@8812", "id": "caf\ufffd", "why": why}
    assert value.keys() == ({"copies", "first", "last", "best"} if copies else {"best"})
    assert set(SCHEMA["properties"]) == {"copies", "first", "last", "best"}


def test_progress_is_no_position() -> None:
    """So readers can tell them apart."""
    assert encode_key(PLACE) == b"documents-3@8812"
    assert b"@" not in PROGRESS_KEY


def test_progress_is_read_back() -> None:
    """Without a value it is that of an empty topic."""
    progress = Progress("cluster/log", "ab", 8, 9, 3)

    assert decode_progress(encode_progress(progress)) == progress
    assert decode_progress(None) == Progress()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        encode_progress(Progress())[:-1],
        encode_progress(Progress(applied=-1)),
        b"null",
    ]
    + [
        encode_progress(Progress()).replace(b'"applied":0', one)
        for one in (b'"applied":"0"', b'"applied":true', b'"apple":0')
    ],
)
def test_what_no_index_wrote_is_refused(value: bytes) -> None:
    with pytest.raises(FormatError, match="which no index wrote"):
        decode_progress(value)
