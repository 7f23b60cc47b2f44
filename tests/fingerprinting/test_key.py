"""The key file."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_dedup.fingerprinting import PUBLIC_DEMO_KEY, Recipe, load_key
from stream_dedup.ground.errors import ConfigurationError

KEY = bytes(range(1, 33))


def write(folder: Path, content: bytes) -> Path:
    """A key file with this content."""
    path = folder / "fingerprint.key"
    path.write_bytes(content)
    return path


def test_no_file_means_the_public_key() -> None:
    """Without a key file the demo key serves, and the recipe knows that a warning is due."""
    assert load_key(None) == PUBLIC_DEMO_KEY
    assert Recipe(key=load_key(None)).uses_demo_key


@pytest.mark.parametrize(
    "content", [KEY.hex().encode(), KEY.hex().upper().encode() + b"\n", b"  " + KEY.hex().encode() + b"\r\n"]
)
def test_hexadecimal_digits_are_read_as_such(tmp_path: Path, content: bytes) -> None:
    """Upper or lower case, with or without a line end: one key."""
    assert load_key(write(tmp_path, content)) == KEY


@pytest.mark.parametrize("key", [bytes(range(16)), bytes(range(64)), b"correct horse battery staple\n", b"\n" * 8 + b"\t" * 8])
def test_other_bytes_are_the_key_as_they_are(tmp_path: Path, key: bytes) -> None:
    """Sixteen to sixty-four raw bytes are taken byte for byte, white space included."""
    assert load_key(write(tmp_path, key)) == key


def test_the_shortest_and_longest_hexadecimal_keys(tmp_path: Path) -> None:
    """Thirty-two digits make sixteen bytes, a hundred and twenty-eight make sixty-four."""
    assert load_key(write(tmp_path, bytes(range(16)).hex().encode())) == bytes(range(16))
    assert load_key(write(tmp_path, bytes(range(64)).hex().encode() + b"\n")) == bytes(range(64))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds 0 bytes"),
        (b"too short", "holds 9 bytes"),
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


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, or a directory in its place, is a configuration error and not a traceback."""
    with pytest.raises(ConfigurationError, match=r"missing\.key cannot be read"):
        load_key(tmp_path / "missing.key")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_key(tmp_path)


def test_errors_do_not_show_the_content(tmp_path: Path) -> None:
    """What stands in a damaged key file is a secret still."""
    with pytest.raises(ConfigurationError) as caught:
        load_key(write(tmp_path, b"nearly-a-key"))
    assert "nearly" not in str(caught.value)
