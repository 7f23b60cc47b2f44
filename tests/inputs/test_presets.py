"""Each preset eats a record in its crawler's own format."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.presets import PRESETS
from stream_dedup.settings.settings import Origin, Settings

SAMPLES = Path(__file__).parent / "samples"
FETCHED_MS = 1_795_252_502_000
URL = b"https://stadtblatt.example/bruecke"


def decode(name: str, **settings: str) -> DecodedDocument:
    """Return the document that a sample's record becomes; its timestamp is 17, and it has no key."""
    message = Message("documents", 0, 0, None, (SAMPLES / name).read_bytes(), 17, [])
    found = Decoder(load_settings(settings, environ={})).decode(message)
    assert isinstance(found, DecodedDocument), found
    return found


def test_nutch() -> None:
    """Every field is an array; its dates are no dates that can be read, so the record's own time counts."""
    found = decode("nutch.json", input_preset="nutch")

    assert found.text.startswith("Der Brückenbau beginnt im März Die Stadt")
    assert (found.id, found.time_ms) == (URL, 17)


@pytest.mark.parametrize(
    ("name", "settings", "time_ms"),
    [
        ("scrapy-cluster.json", {"input_preset": "scrapy-cluster"}, FETCHED_MS + 736),
        ("scrapy-cluster-base64.json", {"input_preset": "scrapy-cluster", "text_encoding": "base64"}, FETCHED_MS + 736),
        ("ache.json", {"input_preset": "ache"}, FETCHED_MS),
    ],
)
def test_pages(name: str, settings: dict[str, str], time_ms: int) -> None:
    found = decode(name, **settings)

    assert found.text.split("\n")[0] == "Der Brückenbau beginnt im März"
    assert "mit großer Mehrheit" in found.text
    assert "auch am Wochenende" in found.text
    for other in ("Cookies", "Politik", "Impressum", "kein Text", "<"):
        assert other not in found.text
    assert (found.id, found.time_ms) == (URL, time_ms)


def test_explicit_settings_win_and_the_preset_is_an_origin(tmp_path: Path) -> None:
    """A preset is below flags, environment and file, and above the defaults."""
    file = tmp_path / "settings.toml"
    file.write_text('input_preset = "nutch"\ntext_field = "title"\n')

    found = load_settings({"group": "a"}, file, {"STREAM_DEDUP_ID_FIELD": "url"})

    assert (found.value_format, found.text_field, found.id_field) == ("json", "title", "url")
    assert found.origin("value_format") == Origin("preset", "nutch")
    assert str(found.origin("value_format")) == "preset nutch"
    assert found.origin("text_field").source == "file"
    assert found.origin("id_field").source == "environment"


def test_a_preset_is_named_where_it_does_not_fit() -> None:
    """What contradicts a preset is said with its name; a name that is none has the nearest beside it."""
    with pytest.raises(ConfigurationError, match=r"nutch is 'content', but needs STREAM_DEDUP_VALUE_FORMAT=json"):
        load_settings({"input_preset": "nutch", "value_format": "raw"}, environ={})
    with pytest.raises(ConfigurationError, match="did you mean nutch"):
        load_settings({"input_preset": "nutsch"}, environ={})


def test_presets_hold_settings() -> None:
    for name, values in PRESETS.items():
        settings = load_settings({"input_preset": name}, environ={})
        assert {field: getattr(settings, field) for field in values} == dict(values)
        assert set(values) <= set(Settings.model_fields)
