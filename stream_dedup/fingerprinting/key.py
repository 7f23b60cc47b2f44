"""Load the secret key of fingerprints.

Invariants: a key has 16 to 64 bytes; it is never shown, only a short digest of it inside the recipe
id; fingerprints of different keys are not comparable. Those who know the key can make texts that
share a fingerprint on purpose, so the public demo key is only for trials.
"""

from __future__ import annotations

from pathlib import Path

from stream_dedup.domain.errors import ConfigurationError

KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 64
PUBLIC_DEMO_KEY = b"stream-dedup public demo key: not a secret"

_HOW_TO_MAKE_ONE = "make one with `openssl rand -hex 32`"


def load_key(path: Path | None) -> bytes:
    """Return the key in a file, or the public demo key if `path` is None.

    32 to 128 hexadecimal digits, with white space around them, are decoded; any other content is
    the key itself, 16 to 64 bytes. Raises ConfigurationError for a file that cannot be read or does
    not contain a key.
    """
    if path is None:
        return PUBLIC_DEMO_KEY
    try:
        with path.open("rb") as file:
            content = file.read(4 * KEY_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(
            f"The fingerprint key file {path} cannot be read ({error.strerror}): name a readable "
            f"file, or {_HOW_TO_MAKE_ONE}."
        ) from error
    digits = content.strip()
    if 2 * KEY_BYTES_MIN <= len(digits) <= 2 * KEY_BYTES_MAX and all(
        digit in b"0123456789abcdefABCDEF" for digit in digits
    ):
        if len(digits) % 2:
            raise ConfigurationError(
                f"The fingerprint key file {path} contains an odd number of hexadecimal digits: a "
                f"digit is missing or doubled; restore the file, or {_HOW_TO_MAKE_ONE}."
            )
        content = bytes.fromhex(digits.decode())
    check_key(content, f"The fingerprint key file {path}")
    return content


def check_key(key: bytes, subject: str) -> None:
    """Raise ConfigurationError if these bytes cannot be a key; `subject` begins the message."""
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        size_text = f"more than {KEY_BYTES_MAX}" if len(key) > KEY_BYTES_MAX else str(len(key))
        raise ConfigurationError(
            f"{subject} contains {size_text} bytes, but a key has {KEY_BYTES_MIN} to "
            f"{KEY_BYTES_MAX} bytes, raw or as hexadecimal digits: {_HOW_TO_MAKE_ONE}."
        )
    if len(set(key)) == 1:
        raise ConfigurationError(
            f"{subject} contains one byte repeated, which is not a secret: {_HOW_TO_MAKE_ONE}."
        )
