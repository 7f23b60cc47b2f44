"""Records that contain the address of their text: what each of them becomes."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from stream_dedup.domain.document import DeadLetter, Headers, Message, Reason
from stream_dedup.domain.errors import ConfigurationError, TextAwayError
from stream_dedup.domain.messages import Messages
from stream_dedup.inputs.decoder import DecodedDocument, Decoder, ids_of
from stream_dedup.preflight.declaration import check_reading, reading_of
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings
from tests.inputs.store_server import Pages, Reply


@pytest.fixture
def pages(pages: Pages) -> Pages:
    pages.by_path["/a"] = Reply(b"the text")
    return pages


def settings_for(pages: Pages, **more: str) -> Settings:
    given = {
        "value_format": "json",
        "text_at": "page.uri",
        "text_prefixes": pages.url,
        "id_field": "id",
        **more,
    }
    return load_settings(given, environ={})


def decoder(pages: Pages, **more: str) -> Decoder:
    return Decoder(settings_for(pages, **more))


def message(value: Any, headers: Headers | None = None) -> Message:
    raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return Message("documents", 0, 7, b"key", raw, 5, headers or [])


def text_of(found: Any) -> str:
    assert isinstance(found, DecodedDocument), found
    assert isinstance(found.text, str)
    return found.text


IN_FIELD = {"value_format": "json", "text_at": "page.uri", "id_field": "id"}
IN_HEADER = {"text_at": "header:text-uri"}
WITHOUT_ADDRESS: list[dict[str, Any]] = [
    {},
    {"page": None},
    {"page": {"uri": None}},
    {"page": {"uri": ""}},
]
NOT_AN_ADDRESS = ("field", "NotAnAddress")
GREETING = "Grüße aus dem Süden, wo lange Sätze stehen."
HTML = f"<html><head><meta charset=cp1252></head><body><p>{GREETING}</p></body></html>"


@pytest.mark.parametrize(
    ("given", "value", "headers", "expected"),
    [
        (IN_FIELD, {"page": {"uri": "URL/a"}, "text": "not this"}, [], "the text"),
        (IN_FIELD, {"page": [{"uri": ["URL/a"]}], "id": "key"}, [], "the text"),
        *((IN_FIELD, {"text": "inside", **fields}, [], "inside") for fields in WITHOUT_ADDRESS),
        *((IN_FIELD, fields, [], ("field", "MissingField")) for fields in WITHOUT_ADDRESS),
        *(
            (IN_FIELD, {"page": {"uri": uri}, "text": "in"}, [], NOT_AN_ADDRESS)
            for uri in (7, ["a", "b"], {"a": 1}, True)
        ),
        (IN_FIELD, None, [], Reason.TOMBSTONE),
        (IN_FIELD, b"{", [], ("decode", "JSONDecodeError")),
        (IN_FIELD, {"page": {"uri": "http://127.0.0.1:1/"}}, [], ("fetch", "AddressRefused")),
        (IN_FIELD, {"page": {"uri": "URL/none"}}, [], ("fetch", "NotFound")),
        (IN_FIELD | {"text_is": "html"}, {"page": {"uri": "URL/page"}}, [], GREETING),
        (IN_FIELD | {"text_encoding": "base64"}, {"page": {"uri": "URL/b64"}}, [], "packed twice"),
        (IN_HEADER, b"any", [("text-uri", b"file:///x"), ("text-uri", b"URL/a")], "the text"),
        (IN_HEADER, b"inside", [], "inside"),
        (IN_HEADER, b"inside", [("text-uri", None)], "inside"),
        (IN_HEADER, b"inside", [("text-uri", b"\xff")], NOT_AN_ADDRESS),
    ],
)
def test_the_text_of_a_record_is_read_from_its_address(
    pages: Pages, given: dict[str, str], value: Any, headers: Headers, expected: Any
) -> None:
    """The address is in a field or in the last header of that name; without one the text is
    inline."""
    pages.by_path |= {
        "/page": Reply(gzip.compress(HTML.encode("cp1252"))),
        "/b64": Reply(base64.b64encode(b"packed twice")),
    }
    url = pages.url.encode()
    record = message(value, [(name, raw and raw.replace(b"URL", url)) for name, raw in headers])
    record = record._replace(value=record.value and record.value.replace(b"URL", url))

    found = Decoder(load_settings({"text_prefixes": pages.url, **given}, environ={})).decode(record)

    if isinstance(expected, tuple):
        assert isinstance(found, DeadLetter), found
        assert (found.stage, found.error_class) == expected
        assert found.can_vary == (found.error_class == "NotFound")
        assert found.error_class != "MissingField" or "page.uri" in found.message
    else:
        assert found is expected or text_of(found) == expected
        assert found is expected or found.id == b"key"  # type: ignore[union-attr]
    assert bool(pages.asked) == ("URL/" in f"{value}{headers}")


def test_an_unavailable_text_raises(pages: Pages) -> None:
    pages.by_path["/away"] = Reply(status=503)
    with pytest.raises(TextAwayError):
        decoder(pages).decode(message({"page": {"uri": pages.url + "/away"}}))


def test_only_allowed_addresses_are_fetched(pages: Pages) -> None:
    values: list[Any] = [
        {"page": {"uri": pages.url + "/a"}},
        {"text": "inside"},
        None,
        b"{",
        {"page": {"uri": "s3://elsewhere/a"}},
        {"page": {"uri": pages.url + "/skipped"}},
        {"page": {"uri": pages.url + "/b"}},
    ]
    record_decoder = decoder(pages)
    messages = Messages.of(
        [message(value)._replace(offset=offset) for offset, value in enumerate(values)]
    )
    addresses = record_decoder.addresses(messages, {5})
    assert {place: address.path for place, address in addresses.items()} == {0: "/a", 6: "/b"}
    missing = DeadLetter("fetch", "NotFound", "is not there", can_vary=True)
    found = record_decoder.decode_all(messages, {5}, {0: b"fetched", 6: missing})
    assert (found.places, found.texts) == ([0, 1], ["fetched", "inside"])
    shown = {place: getattr(outcome, "stage", outcome) for place, outcome in found.outcomes.items()}
    assert shown == {2: Reason.TOMBSTONE, 3: "decode", 4: "fetch", 6: "fetch"}
    assert pages.asked == []


@pytest.mark.parametrize(
    ("given", "inside"),
    [
        ({"text_at": "header:text-uri"}, b"inside"),
        ({"text_at": "header:text-uri", "value_format": "json"}, b'{"text": "inside"}'),
        ({"text_at": "uri", "value_format": "json"}, b'{"text": "inside"}'),
    ],
    ids=["raw, a header", "json, a header", "json, a field"],
)
def test_a_batch_with_and_without_addresses_decodes_as_record_by_record(
    pages: Pages, given: dict[str, str], inside: bytes
) -> None:
    """A value with both a text and an address has its text fetched, also within a batch."""
    record_decoder = Decoder(load_settings({**given, "text_prefixes": pages.url}, environ={}))
    is_header = given["text_at"].startswith("header:")
    with_address = (
        inside if is_header else json.dumps({"text": "not this", "uri": f"{pages.url}/a"}).encode()
    )
    headers: Headers = [("text-uri", f"{pages.url}/a".encode())] if is_header else []
    kinds = [
        (inside, []),
        (with_address, headers),
        (None, headers),
        (inside, []),
        (with_address, headers),
    ]
    messages = Messages.of(
        [message(*record)._replace(offset=offset) for offset, record in enumerate(kinds)]
    )
    addresses = record_decoder.addresses(messages)
    assert [*addresses] == [1, 4]
    fetched = dict(
        zip(
            addresses,
            record_decoder.fetch([*addresses.values()], 0, 1 << 20, 1 << 20, lambda: False),
            strict=True,
        )
    )
    found = record_decoder.decode_all(messages, fetched=fetched)
    expected = ([0, 1, 3, 4], ["inside", "the text", "inside", "the text"])
    assert (found.places, found.texts) == expected
    assert found.texts == [
        text_of(record_decoder.decode(messages[place])) for place in found.places
    ]
    assert found.outcomes == {2: Reason.TOMBSTONE}


def test_without_fetching_the_letter_says_so_and_the_id_is_read(pages: Pages) -> None:
    record = message({"page": {"uri": pages.url + "/a?secret"}, "id": "one"})
    record_decoder = Decoder(settings_for(pages), fetches=False)
    found = record_decoder.decode(record)
    assert isinstance(found, DeadLetter)
    assert found.message == f"The text is stored at {pages.url}/a?..., but is not fetched here."
    assert record_decoder.id_of(record) == ids_of(settings_for(pages))(record) == b"one"
    assert record_decoder.id_of(message(b"{")) == b"key"
    assert pages.asked == []


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ({"text_at": "uri", "text_prefixes": "s3://a"}, "VALUE_FORMAT=json"),
        ({"text_at": "header:", "text_prefixes": "s3://a"}, "must name a header"),
        ({"text_at": "a..b", "value_format": "json", "text_prefixes": "s3://a"}, "dotted path"),
        ({"text_at": "uri", "value_format": "json"}, "STREAM_DEDUP_TEXT_PREFIXES=s3://crawl/pages"),
        (
            {"text_at": "uri", "value_format": "json", "text_prefixes": "ftp://a"},
            "must begin with one of s3://",
        ),
        ({"text_bytes": "10"}, "at least"),
    ],
)
def test_invalid_settings_are_refused_with_the_remedy(given: dict[str, str], pattern: str) -> None:
    with pytest.raises(ConfigurationError, match=pattern):
        load_settings(given, environ={})


def test_vectors_are_not_fetched(pages: Pages) -> None:
    with pytest.raises(ConfigurationError, match="unset STREAM_DEDUP_TEXT_AT"):
        Decoder(settings_for(pages), takes_vectors=True)


def test_workers_of_one_log_read_texts_at_the_same_place(pages: Pages) -> None:
    with_address = settings_for(pages)
    without = load_settings({"value_format": "json", "id_field": "id"}, environ={})
    assert "text_at" not in reading_of(without)  # as in logs older than the setting
    assert check_reading(with_address, reading_of(with_address)).state.value == "ok"
    for settings, other_settings in ((with_address, without), (without, with_address)):
        found = check_reading(settings, reading_of(other_settings))
        assert found.state.value == "refused"
        assert "STREAM_DEDUP_TEXT_AT=page.uri" in found.sentence
