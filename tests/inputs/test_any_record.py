"""Whatever one record holds, it is a document, a reason or a dead letter: nothing is raised, and
the others are read."""

from __future__ import annotations

import base64
import gzip
import io
import json
import logging
import random
import struct
from typing import Any

import fastavro
import pytest
import zstandard

from stream_dedup.domain import unexpected_errors
from stream_dedup.domain.document import DeadLetter, Message, Reason
from stream_dedup.domain.errors import AwayError, InputError, RegistryAwayError, TextAwayError
from stream_dedup.domain.messages import Messages
from stream_dedup.inputs import decoder as room
from stream_dedup.inputs.charset import decode_page
from stream_dedup.inputs.claim_checks import FetchLimits, TextFetcher
from stream_dedup.inputs.compressed import unpack
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.settings.layers import load_settings
from tests.inputs.registry_server import SchemaServer
from tests.inputs.store_server import Pages, Reply

ROUNDS = 400
AVRO = {
    "type": "record",
    "name": "Page",
    "fields": [
        {"name": "text", "type": ["null", "string", "bytes"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {
            "name": "kinds",
            "type": {
                "type": "array",
                "items": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
            },
        },
        {"name": "meta", "type": {"type": "map", "values": ["null", "Page"]}},
    ],
}


@pytest.fixture
def seed() -> int:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    return seed


def said_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what was logged, but for clients that another test left to themselves."""
    return [one for one in caplog.records if not one.name.startswith("stream_dedup.kafka")]


def message(value: bytes | None, offset: int = 0, headers: Any = ()) -> Message:
    return Message("documents", 3, offset, b"key", value, 5, list(headers))


def spoilt(good: bytes, rng: random.Random) -> bytes:
    """Return bytes that are nearly those, or any."""
    raw = bytearray(good if rng.random() < 0.8 else rng.randbytes(rng.choice((0, 1, 5, 6, 300))))
    for _ in range(rng.choice((0, 1, 1, 2, 8))):
        at = rng.randrange(len(raw) + 1)
        what = rng.random()
        if what < 0.4 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif what < 0.6:
            raw[at:at] = rng.choice(
                (b"\xff" * 9, b"\0", b'"', b"\\ud800", b"1e999", rng.randbytes(4))
            )
        elif what < 0.8:
            del raw[at : at + rng.choice((1, 3, 100))]
        else:
            raw[at:at] = raw[: rng.randrange(len(raw) + 1)]
    return bytes(raw)


def avro_value() -> bytes:
    out = io.BytesIO()
    fields = {
        "text": "some words",
        "at": 1_700_000_000_000,
        "price": b"1",
        "kinds": ["A", "B"],
        "meta": {},
    }
    plain = json.loads(json.dumps(AVRO).replace('"logicalType": "decimal", ', ""))
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), fields)
    return out.getvalue()


def settings_of(kind: str, stand: SchemaServer) -> tuple[dict[str, str], list[bytes]]:
    """Return the settings of a kind of input, and good values."""
    fields = {
        "text": "some words",
        "at": "2026-01-02T03:04:05Z",
        "scope": 7,
        "page": {"text": ["a", "b"]},
    }
    as_json = json.dumps(fields).encode()
    in_json = {"time_field": "at", "scope_field": "scope", "id_field": "page.text"}
    if kind == "avro":
        stand.has(7, AVRO, schemaType="AVRO")
        given = {
            "value_format": kind,
            "registry_url": stand.url,
            "time_field": "at",
            "id_field": "meta.text",
        }
        return given, [struct.pack(">bI", 0, 7) + avro_value()]
    return {
        "raw": ({}, [b"some words"]),
        "html": (
            {"text_is": "html"},
            [b"<html><meta charset=gbk><p>some words</p>", b"\xef\xbb\xbf<p>a</p>"],
        ),
        "base64": ({"text_encoding": "base64"}, [base64.b64encode(b"some words")]),
        "json": ({"value_format": "json", **in_json}, [as_json]),
        "plain json": ({"value_format": "json"}, [as_json]),
        "framed json": ({"value_format": "confluent-json", **in_json}, [b"\0\0\0\0\x07" + as_json]),
        "html in json": (
            {"value_format": "json", "text_is": "html"},
            [b'{"text": "<p>\\ud800 some words</p>"}'],
        ),
        "vector": ({"value_format": "json", "text_field": "text"}, [b'{"text": [1, 2.5, -3, 0]}']),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "raw",
        "html",
        "base64",
        "json",
        "plain json",
        "framed json",
        "html in json",
        "vector",
        "avro",
    ],
)
def test_any_value_is_a_document_or_a_dead_letter_that_was_foreseen(
    kind: str, stand: SchemaServer, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    given, good = settings_of(kind, stand)
    by = Decoder(load_settings(given, environ={}), takes_vectors=kind == "vector")
    values = [spoilt(rng.choice(good), rng) for _ in range(ROUNDS)]

    one_by_one = [by.decode(message(value)) for value in [*good, *values]]
    at_once = by.decode_all(Messages.of([message(value, at) for at, value in enumerate(values)]))

    assert all(isinstance(one, DecodedDocument) for one in one_by_one[: len(good)])
    assert all(isinstance(one, DecodedDocument | DeadLetter | Reason) for one in one_by_one)
    assert [
        at for at, one in enumerate(one_by_one[len(good) :]) if isinstance(one, DecodedDocument)
    ] == at_once.places
    assert all(isinstance(by.id_of(message(value)), bytes) for value in values)
    assert said_in(caplog) == [], "the decoder knows no such error, and should"


def test_any_address_and_whatever_lies_there(
    pages: Pages, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    given = {"value_format": "json", "text_at": "at", "text_prefixes": pages.url, "text_is": "html"}
    by = Decoder(load_settings(given, environ={}))
    packed = [gzip.compress(b"<p>some words</p>"), zstandard.compress(b"some words"), b"some words"]
    for number in range(60):
        pages.by_path[f"/{number}.gz"] = Reply(spoilt(rng.choice(packed), rng))
    written = [f"{pages.url}/{number}.gz" for number in range(60)]
    written += [
        spoilt(f"{pages.url}/1.gz".encode(), rng).decode("utf-8", "replace") for _ in range(ROUNDS)
    ]
    values = [json.dumps({"at": one}).encode() for one in written]
    messages = Messages.of([message(value, at) for at, value in enumerate(values)])

    found = by.addresses(messages)
    outcomes = [
        by.decode(messages[at]) for at in {*range(60), *(set(range(len(values))) - found.keys())}
    ]

    assert found.keys() >= set(range(60))
    assert all(isinstance(one, DecodedDocument | DeadLetter) for one in outcomes)
    assert said_in(caplog) == []


def test_any_packed_bytes_are_unpacked_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    plain = b"some words " * 50
    for suffix, packed in ((".gz", gzip.compress(plain)), (".zst", zstandard.compress(plain))):
        for _ in range(ROUNDS):
            try:
                found = unpack(suffix, spoilt(packed, rng), 2000)
            except InputError:
                continue
            assert found is None or len(found) <= 2000


@pytest.mark.parametrize(
    "codec", ["idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"]
)
def test_an_encoding_that_is_no_pages_is_read_as_none(codec: str) -> None:
    """Some refuse what they do not know, and one takes quadratic time."""
    page = f"<meta charset={codec}><p>Gr\u00fc\u00dfe, a-bc \\x41</p>"
    assert decode_page(page.encode()) == page


# -- what nobody foresaw


class UnforeseenError(Exception):
    pass


def raising(by: Decoder, what: BaseException) -> None:
    """Have one value lead the decoder to an error."""
    known = by._decode_text

    def read(written: str | bytes) -> Any:
        if written in ("bad", b"bad"):
            raise what
        return known(written)

    by._decode_text = read  # type: ignore[method-assign]


def test_what_nobody_foresaw_is_the_records_dead_letter_and_said_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(unexpected_errors.time, "monotonic", lambda: now[0])
    by = Decoder(load_settings({"text_is": "html"}, environ={}))
    raising(by, UnforeseenError("it\nis\x1b odd."))
    messages = Messages.of(
        [
            message(b"<p>good</p>", 0),
            message(b"bad", 1),
            message(b"<p>better</p>", 2),
            message(b"bad", 3),
        ]
    )

    found = by.decode_all(messages)

    assert (found.places, found.texts) == ([0, 2], ["good", "better"])
    letter = found.outcomes[1]
    assert found.outcomes == {1: letter, 3: letter}
    assert isinstance(letter, DeadLetter)
    shown = (letter.stage, letter.error_class, letter.is_timed)
    assert shown == ("decode", "UnforeseenError", True)
    assert letter.message == r"The decoder failed with an unexpected error: it\nis\x1b odd."
    (said,) = caplog.records
    shown = (said.levelno, said.position, said.exc_info is not None)
    assert shown == (logging.WARNING, "documents-3@1", True)
    now[0] += 59.9
    by.decode(message(b"bad"))
    assert len(caplog.records) == 1
    now[0] += 0.2
    by.decode(message(b"bad"))
    assert len(caplog.records) == 2


def test_what_nobody_foresaw_of_fields_is_told_of_ids_and_addresses_too(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"value_format": "json", "text_at": "at", "text_prefixes": pages.url}
    by = Decoder(load_settings(given, environ={}))
    known = room.parse_or_letter
    pages.by_path["/a"] = Reply(b"some words")

    def parsed(value: bytes) -> Any:
        if value == b"bad":
            raise UnforeseenError
        return known(value)

    monkeypatch.setattr(room, "parse_or_letter", parsed)
    messages = Messages.of([message(b"bad", 0), message(b'{"at": "%s/a"}' % pages.url.encode(), 1)])
    assert list(by.addresses(messages)) == [1]
    assert by.id_of(messages[0]) == b"key"
    found = by.decode_all(messages)
    assert (found.places, [*found.outcomes]) == ([1], [0])


@pytest.mark.parametrize(
    "what",
    [
        RegistryAwayError("away"),
        TextAwayError("away"),
        AwayError("away"),
        MemoryError(),
        KeyboardInterrupt(),
    ],
)
def test_what_is_away_want_of_memory_and_the_stop_are_no_fault_of_the_record(
    what: BaseException,
) -> None:
    by = Decoder(load_settings({"text_is": "html"}, environ={}))
    raising(by, what)
    with pytest.raises(type(what)):
        by.decode_all(Messages.of([message(b"bad")]))


@pytest.mark.parametrize("form", ["json", "avro"])
def test_want_of_memory_within_a_library_is_no_fault_of_the_record(
    form: str, stand: SchemaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError

    stand.has(7, AVRO)
    more = {"registry_url": stand.url} if form == "avro" else {}
    by = Decoder(load_settings({"value_format": form, "id_field": "a.b", **more}, environ={}))
    if form == "avro":
        by._registry._readers[7] = no_memory  # type: ignore[union-attr]
    else:
        monkeypatch.setattr("stream_dedup.inputs.fields.decode_json", no_memory)
    with pytest.raises(MemoryError):
        by.decode(message(b"\0\0\0\0\x07some words" if form == "avro" else b"{}"))


@pytest.mark.parametrize("where", ["unpack", "_classify"])
def test_what_nobody_foresaw_of_a_fetched_text_costs_no_other(
    where: str, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what came it is a dead letter; of an answer that cannot be told it counts as away."""

    def raise_it(*_: Any) -> Any:
        raise UnforeseenError("odd")

    pages.by_path |= {
        "/a": Reply(gzip.compress(b"packed")),
        "/b": Reply(status=500),
        "/c": Reply(b"plain"),
    }
    monkeypatch.setattr(
        f"stream_dedup.inputs.{'claim_checks.unpack' if where == 'unpack' else 'stores.TextStores._classify'}",
        raise_it,
    )
    by = TextFetcher([pages.url], FetchLimits(4, 1000, 5.0))
    first = by.check(f"{pages.url}/{'a' if where == 'unpack' else 'b'}")
    second = by.check(f"{pages.url}/c")
    assert not isinstance(first, DeadLetter)
    assert not isinstance(second, DeadLetter)
    if where == "unpack":
        letter = by.fetch_one(first)
        assert isinstance(letter, DeadLetter)
        assert (letter.stage, letter.error_class) == ("fetch", "UnforeseenError")
    else:
        with pytest.raises(TextAwayError, match="UnforeseenError"):
            by.fetch([first], 0, 1000, 1000, lambda: len(pages.asked) > 50)
    assert by.fetch_one(second) == b"plain"
