"""Any record becomes a document, a reason or a dead letter: nothing is raised, and the others are
read."""

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
from stream_dedup.inputs import decoder as decoder_module
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


def find_log_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the log records, without those of Kafka clients that other tests left open."""
    return [record for record in caplog.records if not record.name.startswith("stream_dedup.kafka")]


def message(value: bytes | None, offset: int = 0, headers: Any = ()) -> Message:
    return Message("documents", 3, offset, b"key", value, 5, list(headers))


def damage_bytes(good: bytes, rng: random.Random) -> bytes:
    """Return `good` with random damage, or random bytes."""
    raw = bytearray(good if rng.random() < 0.8 else rng.randbytes(rng.choice((0, 1, 5, 6, 300))))
    for _ in range(rng.choice((0, 1, 1, 2, 8))):
        start = rng.randrange(len(raw) + 1)
        chance = rng.random()
        if chance < 0.4 and start < len(raw):
            raw[start] ^= 1 << rng.randrange(8)
        elif chance < 0.6:
            raw[start:start] = rng.choice(
                (b"\xff" * 9, b"\0", b'"', b"\\ud800", b"1e999", rng.randbytes(4))
            )
        elif chance < 0.8:
            del raw[start : start + rng.choice((1, 3, 100))]
        else:
            raw[start:start] = raw[: rng.randrange(len(raw) + 1)]
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


def settings_of(kind: str, schema_server: SchemaServer) -> tuple[dict[str, str], list[bytes]]:
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
        schema_server.has(7, AVRO, schemaType="AVRO")
        given = {
            "value_format": kind,
            "registry_url": schema_server.url,
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
def test_any_value_is_a_document_or_an_expected_dead_letter(
    kind: str, schema_server: SchemaServer, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    given, good = settings_of(kind, schema_server)
    decoder = Decoder(load_settings(given, environ={}), takes_vectors=kind == "vector")
    values = [damage_bytes(rng.choice(good), rng) for _ in range(ROUNDS)]

    outcomes = [decoder.decode(message(value)) for value in [*good, *values]]
    batch = decoder.decode_all(
        Messages.of([message(value, index) for index, value in enumerate(values)])
    )

    assert all(isinstance(outcome, DecodedDocument) for outcome in outcomes[: len(good)])
    assert all(isinstance(outcome, DecodedDocument | DeadLetter | Reason) for outcome in outcomes)
    assert [
        index
        for index, outcome in enumerate(outcomes[len(good) :])
        if isinstance(outcome, DecodedDocument)
    ] == batch.places
    assert all(isinstance(decoder.id_of(message(value)), bytes) for value in values)
    assert find_log_records(caplog) == [], "the decoder knows no such error, and should"


def test_any_address_and_any_stored_bytes_have_an_outcome(
    pages: Pages, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    given = {"value_format": "json", "text_at": "at", "text_prefixes": pages.url, "text_is": "html"}
    decoder = Decoder(load_settings(given, environ={}))
    packed = [gzip.compress(b"<p>some words</p>"), zstandard.compress(b"some words"), b"some words"]
    for number in range(60):
        pages.by_path[f"/{number}.gz"] = Reply(damage_bytes(rng.choice(packed), rng))
    written = [f"{pages.url}/{number}.gz" for number in range(60)]
    written += [
        damage_bytes(f"{pages.url}/1.gz".encode(), rng).decode("utf-8", "replace")
        for _ in range(ROUNDS)
    ]
    values = [json.dumps({"at": address}).encode() for address in written]
    messages = Messages.of([message(value, index) for index, value in enumerate(values)])

    found = decoder.addresses(messages)
    outcomes = [
        decoder.decode(messages[index])
        for index in {*range(60), *(set(range(len(values))) - found.keys())}
    ]

    assert found.keys() >= set(range(60))
    assert all(isinstance(outcome, DecodedDocument | DeadLetter) for outcome in outcomes)
    assert find_log_records(caplog) == []


def test_any_packed_bytes_are_unpacked_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    plain = b"some words " * 50
    for suffix, packed in ((".gz", gzip.compress(plain)), (".zst", zstandard.compress(plain))):
        for _ in range(ROUNDS):
            try:
                found = unpack(suffix, damage_bytes(packed, rng), 2000)
            except InputError:
                continue
            assert found is None or len(found) <= 2000


@pytest.mark.parametrize(
    "codec", ["idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"]
)
def test_an_encoding_that_no_page_uses_is_ignored(codec: str) -> None:
    """Some of these codecs raise, and one takes quadratic time."""
    page = f"<meta charset={codec}><p>Gr\u00fc\u00dfe, a-bc \\x41</p>"
    assert decode_page(page.encode()) == page


# -- unexpected errors


class UnforeseenError(Exception):
    pass


def raise_for_bad_value(decoder: Decoder, error: BaseException) -> None:
    """Make the decoder raise `error` for the value `bad`."""
    known = decoder._decode_text

    def read(written: str | bytes) -> Any:
        if written in ("bad", b"bad"):
            raise error
        return known(written)

    decoder._decode_text = read  # type: ignore[method-assign]


def test_an_unexpected_error_is_a_dead_letter_and_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(unexpected_errors.time, "monotonic", lambda: now[0])
    decoder = Decoder(load_settings({"text_is": "html"}, environ={}))
    raise_for_bad_value(decoder, UnforeseenError("it\nis\x1b odd."))
    messages = Messages.of(
        [
            message(b"<p>good</p>", 0),
            message(b"bad", 1),
            message(b"<p>better</p>", 2),
            message(b"bad", 3),
        ]
    )

    found = decoder.decode_all(messages)

    assert (found.places, found.texts) == ([0, 2], ["good", "better"])
    letter = found.outcomes[1]
    assert found.outcomes == {1: letter, 3: letter}
    assert isinstance(letter, DeadLetter)
    shown = (letter.stage, letter.error_class, letter.can_vary)
    assert shown == ("decode", "UnforeseenError", True)
    assert letter.message == r"The decoder failed with an unexpected error: it\nis\x1b odd."
    (log_record,) = caplog.records
    shown = (log_record.levelno, log_record.position, log_record.exc_info is not None)
    assert shown == (logging.WARNING, "documents-3@1", True)
    now[0] += 59.9
    decoder.decode(message(b"bad"))
    assert len(caplog.records) == 1
    now[0] += 0.2
    decoder.decode(message(b"bad"))
    assert len(caplog.records) == 2


def test_an_unexpected_error_in_a_field_does_not_break_ids_and_addresses(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"value_format": "json", "text_at": "at", "text_prefixes": pages.url}
    decoder = Decoder(load_settings(given, environ={}))
    known = decoder_module.parse_or_letter
    pages.by_path["/a"] = Reply(b"some words")

    def parse_or_raise(value: bytes) -> Any:
        if value == b"bad":
            raise UnforeseenError
        return known(value)

    monkeypatch.setattr(decoder_module, "parse_or_letter", parse_or_raise)
    messages = Messages.of([message(b"bad", 0), message(b'{"at": "%s/a"}' % pages.url.encode(), 1)])
    assert list(decoder.addresses(messages)) == [1]
    assert decoder.id_of(messages[0]) == b"key"
    found = decoder.decode_all(messages)
    assert (found.places, [*found.outcomes]) == ([1], [0])


@pytest.mark.parametrize(
    "error",
    [
        RegistryAwayError("away"),
        TextAwayError("away"),
        AwayError("away"),
        MemoryError(),
        KeyboardInterrupt(),
    ],
)
def test_unavailability_lack_of_memory_and_interrupts_are_raised(
    error: BaseException,
) -> None:
    decoder = Decoder(load_settings({"text_is": "html"}, environ={}))
    raise_for_bad_value(decoder, error)
    with pytest.raises(type(error)):
        decoder.decode_all(Messages.of([message(b"bad")]))


@pytest.mark.parametrize("form", ["json", "avro"])
def test_lack_of_memory_within_a_library_is_raised(
    form: str, schema_server: SchemaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_memory_error(*_: Any, **__: Any) -> Any:
        raise MemoryError

    schema_server.has(7, AVRO)
    more = {"registry_url": schema_server.url} if form == "avro" else {}
    decoder = Decoder(load_settings({"value_format": form, "id_field": "a.b", **more}, environ={}))
    if form == "avro":
        decoder._registry._readers[7] = raise_memory_error  # type: ignore[union-attr]
    else:
        monkeypatch.setattr("stream_dedup.inputs.fields.decode_json", raise_memory_error)
    with pytest.raises(MemoryError):
        decoder.decode(message(b"\0\0\0\0\x07some words" if form == "avro" else b"{}"))


@pytest.mark.parametrize("where", ["unpack", "_classify"])
def test_an_unexpected_error_in_one_fetched_text_affects_no_other(
    where: str, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in unpacking makes a dead letter; an error in classifying a reply counts as away."""

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
    text_fetcher = TextFetcher([pages.url], FetchLimits(4, 1000, 5.0))
    first = text_fetcher.check(f"{pages.url}/{'a' if where == 'unpack' else 'b'}")
    second = text_fetcher.check(f"{pages.url}/c")
    assert not isinstance(first, DeadLetter)
    assert not isinstance(second, DeadLetter)
    if where == "unpack":
        letter = text_fetcher.fetch_one(first)
        assert isinstance(letter, DeadLetter)
        assert (letter.stage, letter.error_class) == ("fetch", "UnforeseenError")
    else:
        with pytest.raises(TextAwayError, match="UnforeseenError"):
            text_fetcher.fetch([first], 0, 1000, 1000, lambda: len(pages.asked) > 50)
    assert text_fetcher.fetch_one(second) == b"plain"
