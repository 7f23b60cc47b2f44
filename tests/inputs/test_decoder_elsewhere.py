"""Records that name the address of their text: what each becomes, whatever stands there and whatever lies there."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from stream_dedup.checks.reading import check_reading, reading_of
from stream_dedup.cli.tap import ids_of
from stream_dedup.ground.document import DeadLetter, Headers, Message, Reason
from stream_dedup.ground.errors import ConfigurationError, TextAwayError
from stream_dedup.ground.messages import Messages
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings
from tests.inputs.store_server import Pages, Reply


@pytest.fixture
def pages(pages: Pages) -> Pages:
    pages.by_path["/a"] = Reply(b"the text")
    return pages


def settings_for(pages: Pages, **more: str) -> Settings:
    given = {"value_format": "json", "text_at": "page.uri", "text_prefixes": pages.url, "id_field": "id", **more}
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


def test_the_text_is_what_lies_at_the_address_in_a_field(pages: Pages) -> None:
    found = decoder(pages).decode(message({"page": {"uri": pages.url + "/a"}, "id": "one", "text": "not this"}))
    assert (text_of(found), found.id) == ("the text", b"one")  # type: ignore[union-attr]
    assert text_of(decoder(pages).decode(message({"page": [{"uri": [pages.url + "/a"]}]}))) == "the text"


def test_the_text_is_what_lies_at_the_address_in_the_last_header_of_that_name(pages: Pages) -> None:
    by = Decoder(load_settings({"text_at": "header:text-uri", "text_prefixes": pages.url}, environ={}))
    headers: Headers = [("text-uri", b"file:///etc/passwd"), ("text-uri", f"{pages.url}/a".encode()), ("other", b"x")]
    assert text_of(by.decode(message(b"whatever", headers))) == "the text"
    assert text_of(by.decode(message(b"inside"))) == "inside"
    assert text_of(by.decode(message(b"inside", [("text-uri", None)]))) == "inside"


@pytest.mark.parametrize("named", [{}, {"page": None}, {"page": {"uri": None}}, {"page": {"uri": ""}}])
def test_a_record_without_an_address_has_its_text_inside(pages: Pages, named: dict[str, Any]) -> None:
    assert text_of(decoder(pages).decode(message({"text": "inside", **named}))) == "inside"
    found = decoder(pages).decode(message(named))
    assert isinstance(found, DeadLetter)
    assert (found.stage, found.error_class, "page.uri" in found.message) == ("field", "MissingField", True)


@pytest.mark.parametrize("uri", [7, ["a", "b"], {"a": 1}, True])
def test_what_is_no_address_is_a_dead_letter(pages: Pages, uri: Any) -> None:
    found = decoder(pages).decode(message({"page": {"uri": uri}, "text": "inside"}))
    assert isinstance(found, DeadLetter)
    assert (found.stage, found.error_class) == ("field", "NotAnAddress")


def test_a_header_that_is_no_utf_8_is_a_dead_letter(pages: Pages) -> None:
    by = Decoder(load_settings({"text_at": "header:text-uri", "text_prefixes": pages.url}, environ={}))
    found = by.decode(message(b"inside", [("text-uri", b"\xff")]))
    assert isinstance(found, DeadLetter)
    assert found.error_class == "NotAnAddress"


def test_tombstones_and_what_is_broken_are_what_they_were(pages: Pages) -> None:
    by = decoder(pages)
    assert by.decode(message(None)) is Reason.TOMBSTONE
    broken = by.decode(message(b"{"))
    assert isinstance(broken, DeadLetter)
    assert broken.stage == "decode"
    assert pages.asked == []


def test_what_lies_there_is_a_page_or_base64_as_the_settings_say(pages: Pages) -> None:
    html = "<html><head><meta charset=cp1252></head><body><p>Grüße aus dem Süden, wo lange Sätze stehen.</p></body></html>"
    pages.by_path |= {"/page": Reply(gzip.compress(html.encode("cp1252"))), "/b64": Reply(base64.b64encode(b"packed twice"))}
    assert "Grüße aus dem Süden" in text_of(
        decoder(pages, text_is="html").decode(message({"page": {"uri": pages.url + "/page"}}))
    )
    found = decoder(pages, text_encoding="base64").decode(message({"page": {"uri": pages.url + "/b64"}}))
    assert text_of(found) == "packed twice"


def test_a_text_that_is_away_raises_and_one_that_is_missing_does_not(pages: Pages) -> None:
    pages.by_path["/away"] = Reply(status=503)
    by = decoder(pages)
    with pytest.raises(TextAwayError):
        by.decode(message({"page": {"uri": pages.url + "/away"}}))
    missing = by.decode(message({"page": {"uri": pages.url + "/none"}}))
    assert isinstance(missing, DeadLetter)
    assert (missing.stage, missing.is_timed) == ("fetch", True)
    refused = by.decode(message({"page": {"uri": "http://127.0.0.1:1/"}}))
    assert isinstance(refused, DeadLetter)
    assert (refused.stage, refused.error_class, refused.is_timed) == ("fetch", "AddressRefused", False)


def test_only_what_has_an_address_that_may_be_read_is_fetched(pages: Pages) -> None:
    values: list[Any] = [
        {"page": {"uri": pages.url + "/a"}},
        {"text": "inside"},
        None,
        b"{",
        {"page": {"uri": "s3://elsewhere/a"}},
        {"page": {"uri": pages.url + "/skipped"}},
        {"page": {"uri": pages.url + "/b"}},
    ]
    by = decoder(pages)
    messages = Messages.of([message(one)._replace(offset=at) for at, one in enumerate(values)])
    addresses = by.addresses(messages, {5})
    assert {place: one.path for place, one in addresses.items()} == {0: "/a", 6: "/b"}
    missing = DeadLetter("fetch", "NotFound", "is not there", is_timed=True)
    found = by.decode_all(messages, {5}, {0: b"fetched", 6: missing})
    assert (found.places, found.texts) == ([0, 1], ["fetched", "inside"])
    assert {place: getattr(one, "stage", one) for place, one in found.passed_over.items()} == {
        2: Reason.TOMBSTONE,
        3: "decode",
        4: "fetch",
        6: "fetch",
    }
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
def test_a_batch_of_both_kinds_is_decoded_as_one_by_one(pages: Pages, given: dict[str, str], inside: bytes) -> None:
    """Values that hold a text and name an address too have theirs fetched, whatever quick way there is for those around."""
    by = Decoder(load_settings({**given, "text_prefixes": pages.url}, environ={}))
    is_header = given["text_at"].startswith("header:")
    named = inside if is_header else json.dumps({"text": "not this", "uri": f"{pages.url}/a"}).encode()
    headers: Headers = [("text-uri", f"{pages.url}/a".encode())] if is_header else []
    kinds = [(inside, []), (named, headers), (None, headers), (inside, []), (named, headers)]
    messages = Messages.of([message(*one)._replace(offset=at) for at, one in enumerate(kinds)])
    addresses = by.addresses(messages)
    assert [*addresses] == [1, 4]
    fetched = dict(zip(addresses, by.fetch([*addresses.values()], 0, 1 << 20, 1 << 20, lambda: False), strict=True))
    found = by.decode_all(messages, fetched=fetched)
    assert (found.places, found.texts) == ([0, 1, 3, 4], ["inside", "the text", "inside", "the text"])
    assert found.texts == [text_of(by.decode(messages[place])) for place in found.places]
    assert found.passed_over == {2: Reason.TOMBSTONE}


def test_who_fetches_nothing_says_so_and_knows_the_id(pages: Pages) -> None:
    record = message({"page": {"uri": pages.url + "/a?secret"}, "id": "one"})
    by = Decoder(settings_for(pages), fetches=False)
    found = by.decode(record)
    assert isinstance(found, DeadLetter)
    assert found.message == f"The text lies at {pages.url}/a?..., and is not fetched here."
    assert by.id_of(record) == b"one"
    assert ids_of(settings_for(pages))(record) == b"one"
    assert by.id_of(message(b"{")) == b"key"
    assert pages.asked == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"text_at": "uri", "text_prefixes": "s3://a"}, "VALUE_FORMAT=json"),
        ({"text_at": "header:", "text_prefixes": "s3://a"}, "must name a header"),
        ({"text_at": "a..b", "value_format": "json", "text_prefixes": "s3://a"}, "dotted path"),
        ({"text_at": "uri", "value_format": "json"}, "STREAM_DEDUP_TEXT_PREFIXES=s3://crawl/pages"),
        ({"text_at": "uri", "value_format": "json", "text_prefixes": "ftp://a"}, "must begin with one of s3://"),
        ({"text_bytes": "10"}, "at least"),
        ({"text_timeout": "10"}, "with its unit"),
        ({"text_fetches": "0"}, "at least 1"),
    ],
)
def test_settings_that_cannot_be_are_told_with_the_remedy(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_settings(given, environ={})


def test_vectors_are_not_fetched(pages: Pages) -> None:
    with pytest.raises(ConfigurationError, match="unset STREAM_DEDUP_TEXT_AT"):
        Decoder(settings_for(pages), takes_vectors=True)


def test_workers_of_one_log_read_texts_at_the_same_place(pages: Pages) -> None:
    with_address, without = settings_for(pages), load_settings({"value_format": "json", "id_field": "id"}, environ={})
    assert "text_at" not in reading_of(without)  # as logs say that are older than the setting
    assert check_reading(with_address, reading_of(with_address)).state.value == "ok"
    for one, other in ((with_address, without), (without, with_address)):
        found = check_reading(one, reading_of(other))
        assert found.state.value == "refused"
        assert "STREAM_DEDUP_TEXT_AT=page.uri" in found.sentence
