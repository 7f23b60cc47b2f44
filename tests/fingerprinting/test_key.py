"""The key file."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_dedup.fingerprinting import PUBLIC_DEMO_KEY, Recipe, load_key
from stream_dedup.ground.errors import ConfigurationError

KEY = bytes(range(1, 33))


def write(folder: Path, content: bytes) -> Path:
    path = folder / "fingerprint.key"
    path.write_bytes(content)
    return path


def test_no_file_means_the_public_key() -> None:
    """Without a key file the demo key serves, and the recipe knows that a warning is due."""
    assert load_key(None) == PUBLIC_DEMO_KEY
    assert Recipe(key=load_key(None)).uses_demo_key


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (KEY.hex().encode(), KEY),
        (KEY.hex().upper().encode() + b"\n", KEY),
        (b"  " + KEY.hex().encode() + b"\r\n", KEY),
        (bytes(range(16)).hex().encode(), bytes(range(16))),
        (bytes(range(64)).hex().encode() + b"\n", bytes(range(64))),
        *((raw, raw) for raw in (bytes(range(16)), bytes(range(64)), b"correct horse battery staple\n", b"\n" * 8 + b"\t" * 8)),
    ],
)
def test_a_key_is_hexadecimal_digits_or_bytes(tmp_path: Path, content: bytes, key: bytes) -> None:
    """Digits in any case, with or without white space around them; else the bytes as they are, of sixteen to sixty-four."""
    assert load_key(write(tmp_path, content)) == key


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds 0 bytes"),
        (b"too short", "holds 9 bytes"),
        (b"nearly-a-key", "holds 12 bytes"),
        (b"abc123\n", "holds 7 bytes"),
        (bytes(range(65)), "holds more than 64 bytes"),
        (b"x" * 32, "one byte repeated"),
        (b"00" * 16, "one byte repeated"),
        (b"a1" * 20 + b"a", "odd number of hexadecimal digits"),
        (bytes(range(100)) * 10_000, "holds more than 64 bytes"),
    ],
)
def test_what_is_no_key_is_refused_with_the_remedy(tmp_path: Path, content: bytes, sentence: str) -> None:
    """Too short, too long, damaged or no secret at all: a sentence that names the file and how to make a key."""
    path = write(tmp_path, content)

    with pytest.raises(ConfigurationError, match=sentence) as caught:
        load_key(path)
    assert str(path) in str(caught.value)
    assert "openssl rand" in str(caught.value)
    assert "nearly" not in str(caught.value)  # what stands in a damaged key file is a secret still


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, or a directory in its place, is a configuration error and not a traceback."""
    with pytest.raises(ConfigurationError, match=r"missing\.key cannot be read"):
        load_key(tmp_path / "missing.key")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_key(tmp_path)
