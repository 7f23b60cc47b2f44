"""Decoding a record's bytes to a text: what each input becomes; nothing raises."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.domain.document import (
    ID_BYTES_MAX,
    DeadLetter,
    Headers,
    Message,
    Reason,
    Unreadable,
    UnreadableHeaders,
)
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.messages import Messages
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.inputs.fields import parse_json
from stream_dedup.settings.layers import PRESETS, load_settings
from stream_dedup.settings.settings import Settings, ValueOrigin


def decode(
    value: bytes | None, headers: Headers | None = None, key: bytes | None = b"k", **settings: Any
) -> Any:
    """Return what one record becomes, and check that it becomes the same in a batch."""
    message = Message("documents", 0, 7, key, value, 1_790_000_000_000, headers or [])
    decoder = Decoder(Settings(**settings))
    outcome = decoder.decode(message)
    empty, skipped = message._replace(value=None), message._replace(value=b"skipped")
    found = decoder.decode_all(Messages.of([message, empty, message, skipped, message]), {3})
    if isinstance(outcome, DecodedDocument):
        assert found.places == [0, 2, 4]
        rows = zip(
            found.texts,
            found.ids,
            found.times_ms.tolist(),
            found.scopes.tolist(),
            found.sites,
            found.titles,
            strict=True,
        )
        assert [DecodedDocument(*row) for row in rows] == [outcome] * 3
        assert found.outcomes == {1: Reason.TOMBSTONE}
    else:
        expected = ([], {0: outcome, 1: Reason.TOMBSTONE, 2: outcome, 4: outcome})
        assert (found.places, found.outcomes) == expected
    return outcome


def as_json(value: Any, **settings: Any) -> Any:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return decode(raw, value_format="json", **settings)


def test_a_raw_value_is_the_text_and_none_is_a_tombstone() -> None:
    """The key is the id, the record's timestamp the time."""
    assert DecodedDocument("Grüße", b"k", 1_790_000_000_000, 0) == decode("Grüße".encode())
    assert decode(None) is decode(None, value_format="json") is Reason.TOMBSTONE


def test_a_record_that_cannot_be_read_is_no_tombstone() -> None:
    """A record that has only a position becomes a dead letter with the reason."""
    message = Unreadable("documents", 0, 7, None, None, None, [])
    message.why = "failed CRC32C check"
    letter = Decoder(Settings(value_format="json")).decode(message)
    assert isinstance(letter, DeadLetter)
    assert (letter.stage, letter.error_class) == ("decode", "Unreadable")
    assert letter.message.endswith("failed CRC32C check. It remains at its position.")


@pytest.mark.parametrize("value", [b'{"text": "some words"}', b"", None])
@pytest.mark.parametrize(
    "settings", [{}, {"value_format": "json"}, {"text_encoding": "base64"}, {"allow_bypass": True}]
)
def test_a_record_without_its_headers_is_a_dead_letter(
    value: bytes | None, settings: dict[str, Any]
) -> None:
    """Its headers could not be written unchanged, whatever its value is."""
    record = UnreadableHeaders("documents", 0, 7, b"k", value, 1_790_000_000_000, [])
    record.why, record.name = "'utf-8' codec can't decode", r"r\xe9f\xe9rent"
    good = Message("documents", 0, 8, b"k", b'{"text": "d29yZHM="}', 1_790_000_000_000, [])
    decoder = Decoder(Settings(**settings))

    letter = decoder.decode(record)
    found = decoder.decode_all(Messages.of([record, good, record, good]), {2})

    assert isinstance(letter, DeadLetter)
    assert (letter.stage, letter.error_class) == ("decode", "UnreadableHeaders")
    assert r"(r\xe9f\xe9rent)" in letter.message
    assert found.outcomes[0] == letter
    assert set(found.outcomes) <= {0, 1, 3}
    assert not {0, 2} & set(found.places)


def test_invalid_utf8_is_replaced() -> None:
    assert decode(b"caf\xe9 \xff").text == "caf\ufffd \ufffd"
    assert decode(b"caf\xe9 \xff") == decode(b"caf\xe9 \xff")
    assert as_json(b'\xef\xbb\xbf{"text": "caf\xe9"}').text == "caf\ufffd"


RUSSIAN = "Совет гавани закрыл {} причал на ремонт до весны 2026 года: 11 свай из 40 сгнили, сообщает harbour.example 24.11."


@pytest.mark.parametrize(
    "settings",
    [{}, {"value_format": "json"}, {"text_encoding": "base64"}],
    ids=["raw", "json", "base64"],
)
def test_a_text_in_another_encoding_is_a_dead_letter(settings: dict[str, Any]) -> None:
    """Read as UTF-8 it would keep only digits and names, which different texts share; a few lost
    letters are no problem."""

    def record(text: str, encoding: str) -> Message:
        raw = text.encode(encoding)
        value = b'{"text": "' + raw + b'"}' if "value_format" in settings else raw
        value = base64.b64encode(value) if "text_encoding" in settings else value
        return Message("documents", 0, 0, b"k", value, 1_790_000_000_000, [])

    decoder = Decoder(Settings(**settings))
    whole = record(
        "Le conseil a fermé le vieux ponton, dit la municipalité: "
        + "il sera réparé avant l'été. " * 9,
        "latin-1",
    )
    for encoding in ("cp1251", "koi8-r", "cp866", "gb18030"):
        found = decoder.decode_all(
            Messages.of(
                [whole, *(record(RUSSIAN.format(n), encoding) for n in ("северный", "южный"))]
            )
        )
        assert found.places == [0]
        shown = {(letter.stage, letter.error_class) for letter in found.outcomes.values()}
        assert shown == {("decode", "OtherEncoding")}
        assert "are not UTF-8" in found.outcomes[1].message
    assert decoder.decode_all(Messages.of([record(RUSSIAN.format("южный"), "utf-8")])).places == [0]


def test_bypass_only_where_it_is_allowed() -> None:
    bypass_headers: Headers = [("dedup.bypass", b"true")]
    assert decode(b"x", bypass_headers, allow_bypass=True) is Reason.BYPASS
    assert decode(b"x", bypass_headers).text == "x"
    assert decode(b"x", [("dedup.bypass", b"no")], allow_bypass=True).text == "x"


@pytest.mark.parametrize(
    ("value", "stage", "error_class", "message_part"),
    [
        (b"", "decode", "JSONDecodeError", "not JSON"),
        (b"{", "decode", "JSONDecodeError", "not JSON"),
        (b"[" * 100_000, "decode", "RecursionError", "not JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "decode", "ValueError", "not JSON"),
        ({"title": "x"}, "field", "MissingField", "no field 'text'"),
        ([1, 2], "field", "NotObject", "The value is a list; an object is expected"),
        ("only a text", "field", "NotObject", "The value is a text; an object is expected"),
        ({"text": 7}, "field", "NotText", "a number"),
        ({"text": None}, "field", "NotText", "null"),
        ({"text": True}, "field", "NotText", "a truth value"),
        ({"text": {"a": "b"}}, "field", "NotText", "an object"),
        ({"text": ["a", 7]}, "field", "NotText", "a list that is not all texts"),
    ],
)
def test_what_has_no_text_is_a_dead_letter(
    value: Any, stage: str, error_class: str, message_part: str
) -> None:
    letter = as_json(value)

    assert isinstance(letter, DeadLetter)
    assert (stage, error_class) == (letter.stage, letter.error_class)
    assert message_part in letter.message


def test_confluents_frame_is_removed_and_never_guessed() -> None:
    for schema in (0, 1, 2**31):
        assert (
            decode(
                b"\0" + schema.to_bytes(4, "big") + b'{"text": "x"}', value_format="confluent-json"
            ).text
            == "x"
        )
    bad = (b"", b"\0\0\0\0", b'{"text":"x"}', b"\1\0\0\0\1{}", b"\0\0\0\0\1{")
    letters = [decode(value, value_format="confluent-json") for value in bad]
    assert [letter.error_class for letter in letters] == ["NotFramed"] * 4 + ["JSONDecodeError"]


def test_json_fields() -> None:
    value = {
        "page": {"body": ["one", "two"], "id": 17},
        "at": "2026-03-01T00:00:00Z",
        "site": "a.example",
    }
    found = as_json(
        value, text_field="page.body", id_field="page.id", time_field="at", scope_field="site"
    )

    assert (found.text, found.id, found.time_ms) == ("one\ntwo", b"17", 1_772_323_200_000)
    assert found.scope == as_json({"text": "x", "site": "a.example"}, scope_field="site").scope
    assert found.scope != as_json({"text": "x", "site": "b.example"}, scope_field="site").scope
    assert as_json({"text": "x"}, scope_field="site").scope == 0
    found = as_json(
        {"page": {"body": "one", "id": "seventeen"}}, text_field="page.body", id_field="page.id"
    )
    assert (found.text, found.id) == ("one", b"seventeen")
    assert as_json({"a.b": "flat", "a": {"b": "deep"}}, text_field="a.b").text == "flat"
    found = as_json({"text": "x", "at": "yesterday"}, id_field="url", time_field="at")
    assert (found.id, found.time_ms) == (b"k", 1_790_000_000_000), (
        "without its own, those of the record"
    )


@pytest.mark.parametrize(
    ("time", "time_ms"),
    [
        (1_772_323_200, 1_772_323_200_000),
        (1_772_323_200_123, 1_772_323_200_123),
        ("2026-03-01T01:00:00+01:00", 1_772_323_200_000),
        ("2026-03-01", 1_772_323_200_000),
        (["2026-03-01"], 1_772_323_200_000),
        (True, 1_790_000_000_000),
        (-5, 1_790_000_000_000),
        (1e300, 1_790_000_000_000),
        ("9999-12-31T23:59:59-23:59", 253_402_300_799_999),
    ],
)
def test_times(time: Any, time_ms: int) -> None:
    assert time_ms == as_json({"text": "x", "at": time}, time_field="at").time_ms


def test_base64_text() -> None:
    text = base64.b64encode("你好".encode()).decode()
    assert as_json({"text": text}, text_encoding="base64").text == "你好"
    letter = as_json({"text": "a"}, text_encoding="base64")
    assert isinstance(letter, DeadLetter)
    assert letter.stage == "decode"


@pytest.mark.parametrize(
    ("value", "settings", "site"),
    [
        ({"text": "t"}, {}, "key.example"),
        ({"text": "t", "url": "https://www.Shop.example/1"}, {"id_field": "url"}, "shop.example"),
        ({"text": "t", "url": "page-7"}, {"id_field": "url"}, ""),
        ({"text": "t", "url": ""}, {"id_field": "url"}, "key.example"),
        ({"text": "t", "site": "www.Shop.example"}, {"site_field": "site"}, "shop.example"),
        ({"text": "t", "m": {"site": ["The Docs"]}}, {"site_field": "m.site"}, "The Docs"),
        ({"text": "t", "site": 7}, {"site_field": "site"}, "7"),
        ({"text": "t", "site": " "}, {"site_field": "site"}, "key.example"),
        ({"text": "t", "site": None}, {"site_field": "site"}, "key.example"),
    ],
)
def test_the_site_is_that_of_its_field_or_the_host_of_the_id(
    value: Any, settings: dict[str, str], site: str
) -> None:
    found = as_json(value, key=b"https://key.example/7", **settings)

    assert found.site == site


@pytest.mark.parametrize(
    ("value", "title"),
    [
        ({"text": "t", "title": "A  Page"}, "A  Page"),
        ({"text": "t", "title": ["A page", "another"]}, "A page"),
        ({"text": "t", "title": []}, ""),
        ({"text": "t", "title": {"de": "Seite"}}, ""),
        ({"text": "t"}, ""),
    ],
)
def test_the_title_is_that_of_its_field(value: Any, title: str) -> None:
    """A list gives its first; another field can be named, and the text is no title of itself."""
    assert (
        as_json(value).title
        == as_json({"text": "t", "meta": value}, title_field="meta.title").title
        == title
    )
    assert as_json(value, title_field="text").title == ""
    assert as_json({"title": "A text"}, text_field="title").title == ""


@pytest.mark.parametrize(("key", "identifier"), [(b"k", b"k"), (b"", b""), (None, b"")])
def test_an_empty_id_is_an_absent_one(key: bytes | None, identifier: bytes) -> None:
    for value in ({"text": "t", "url": ""}, {"text": "t", "url": None}, {"text": "t", "url": [""]}):
        assert as_json(value, id_field="url", key=key).id == identifier


def test_odd_ids_fit_the_log_and_stay_distinct() -> None:
    """Two long ids with one prefix stay distinct, and so do ids with half a surrogate pair."""
    first_id, second_id = decode(b"x", key=b"k" * 5000).id, decode(b"x", key=b"k" * 5001).id

    assert len(first_id) == len(second_id) == ID_BYTES_MAX
    assert first_id != second_id
    assert (
        len({as_json(rb'{"text": "a", "id": "\ud8%02x"}' % n, id_field="id").id for n in range(3)})
        == 3
    )


@pytest.mark.parametrize(
    "value",
    [
        b'{"a": "\\ud800"}',
        b'{"a": "\\ud83d\\ude00 \\u0000"}',
        b'{"a": 12345678901234567890123, "b": -9223372036854775809, "c": 18446744073709551616}',
        b'{"a": NaN, "b": -Infinity}',
        b'{"a": 1e400, "b": 1e23, "c": 5e-324, "d": -0.0, "e": -0, "f": 0.1234567890123456789012345678901234567890}',
        b'{"a": "\xff\xed\xa0\x80", "\xfe": 1}',
        b'{"a": 1, "a": 2}',
        b" [1.0, 1E5, true, null]\n",
        b"\xef\xbb\xbf{}",
    ],
)
def test_the_quick_parser_agrees_with_the_library(value: bytes) -> None:
    """The result equals that of json, down to the type of each number, whether or not msgspec reads
    it."""
    expected = json.loads(value.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace"))

    assert repr(parse_json(value)) == repr(expected)


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b'{"a": 01}', b'{"a": 1.}', b"[1,]", b'"\x01"', b"\xc2\xa0{}", b"[" * 100_000],
)
def test_invalid_json_is_refused_by_both_parsers(value: bytes) -> None:
    """Otherwise a value would be judged on one path and be a dead letter on another."""
    with pytest.raises((ValueError, RecursionError)):
        parse_json(value)


# -- each preset reads a record of its crawler


SAMPLES = Path(__file__).parent / "samples"
FETCHED_MS = 1_795_252_502_000
URL = b"https://stadtblatt.example/bruecke"


def decode_sample(name: str, **settings: str) -> DecodedDocument:
    """Return the document that a sample's record becomes; its timestamp is 17, and it has no
    key."""
    message = Message("documents", 0, 0, None, (SAMPLES / name).read_bytes(), 17, [])
    found = Decoder(load_settings(settings, environ={})).decode(message)
    assert isinstance(found, DecodedDocument), found
    return found


def test_the_nutch_preset_reads_its_records() -> None:
    """Every field is an array, and the dates are unreadable, so the record's timestamp is used."""
    found = decode_sample("nutch.json", input_preset="nutch")

    assert found.text.startswith("Der Brückenbau beginnt im März Die Stadt")
    assert (found.id, found.time_ms) == (URL, 17)
    assert (found.site, found.title) == ("stadtblatt.example", "Der Brückenbau beginnt im März")


@pytest.mark.parametrize(
    ("name", "settings", "time_ms"),
    [
        ("scrapy-cluster.json", {"input_preset": "scrapy-cluster"}, FETCHED_MS + 736),
        (
            "scrapy-cluster-base64.json",
            {"input_preset": "scrapy-cluster", "text_encoding": "base64"},
            FETCHED_MS + 736,
        ),
        ("ache.json", {"input_preset": "ache"}, FETCHED_MS),
    ],
)
def test_the_page_presets_read_their_records(
    name: str, settings: dict[str, str], time_ms: int
) -> None:
    found = decode_sample(name, **settings)

    assert found.text.split("\n")[0] == "Der Brückenbau beginnt im März"
    assert "mit großer Mehrheit" in found.text
    assert "auch am Wochenende" in found.text
    for other in ("Cookies", "Politik", "Impressum", "kein Text", "<"):
        assert other not in found.text
    assert (found.id, found.time_ms) == (URL, time_ms)
    assert (found.site, found.title) == ("stadtblatt.example", "Der Brückenbau – Stadtblatt")
    assert decode_sample(name, **settings, title_field="url").title == URL.decode()


def test_explicit_settings_win_and_the_preset_is_an_origin(tmp_path: Path) -> None:
    """A preset is below flags, environment and file, and above the defaults."""
    file = tmp_path / "settings.toml"
    file.write_text('input_preset = "nutch"\ntext_field = "title"\n')

    found = load_settings({"group": "a"}, file, {"STREAM_DEDUP_ID_FIELD": "url"})

    assert (found.value_format, found.text_field, found.id_field) == ("json", "title", "url")
    assert found.origin("value_format") == ValueOrigin("preset", "nutch")
    assert str(found.origin("value_format")) == "preset nutch"
    assert found.origin("text_field").source == "file"
    assert found.origin("id_field").source == "environment"


def test_a_preset_is_named_where_it_does_not_fit() -> None:
    """A contradiction is reported with the preset's name, an unknown preset with the nearest
    name."""
    with pytest.raises(
        ConfigurationError, match=r"nutch is 'content', but needs STREAM_DEDUP_VALUE_FORMAT=json"
    ):
        load_settings({"input_preset": "nutch", "value_format": "raw"}, environ={})
    with pytest.raises(ConfigurationError, match="did you mean nutch"):
        load_settings({"input_preset": "nutsch"}, environ={})


def test_presets_contain_only_valid_settings() -> None:
    for name, values in PRESETS.items():
        settings = load_settings({"input_preset": name}, environ={})
        assert {field: getattr(settings, field) for field in values} == dict(values)
        assert set(values) <= set(Settings.model_fields)
