"""Confluent's frame around JSON."""

from __future__ import annotations

import json

import pytest

from stream_dedup.ground.document import DeadLetter, Message
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.settings.layers import load_settings


def decode(value: bytes) -> object:
    settings = load_settings({"value_format": "confluent-json", "id_field": "url"}, environ={})
    return Decoder(settings).decode(Message("documents", 0, 0, b"key", value, 17, []))


def test_the_json_behind_the_frame_is_judged() -> None:
    """Five bytes go, whatever the schema's id is, and no registry is asked."""
    raw = json.dumps({"text": "Grüße", "url": "u"}).encode()

    for schema in (0, 1, 2**31):
        assert decode(b"\0" + schema.to_bytes(4, "big") + raw) == DecodedDocument("Grüße", b"u", 17, 0)


@pytest.mark.parametrize("value", [b"", b"\0\0\0\0", b'{"text":"x"}', b"\1\0\0\0\1{}"])
def test_what_has_no_frame_is_a_dead_letter(value: bytes) -> None:
    """It is never taken for JSON by a guess."""
    found = decode(value)

    assert isinstance(found, DeadLetter)
    assert (found.stage, found.error_class) == ("decode", "NotFramed")


def test_what_is_no_json_behind_the_frame_is_a_dead_letter() -> None:
    """As without a frame."""
    found = decode(b"\0\0\0\0\1{")

    assert isinstance(found, DeadLetter)
    assert (found.stage, found.error_class) == ("decode", "JSONDecodeError")
