"""The secret that prints are made with.

Invariants: a key is 16 to 64 bytes; it is never shown, only a short digest of it is, inside the
recipe id; prints of different keys are incomparable. Those who know the key can make texts that
share a fingerprint on purpose, so the public demo key is for trying things out.
"""

from __future__ import annotations

from pathlib import Path

from stream_dedup.domain.errors import ConfigurationError

KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 64
PUBLIC_DEMO_KEY = b"stream-dedup public demo key: not a secret"

_HOW_TO_MAKE_ONE = "make one with `openssl rand -hex 32`"


def load_key(path: Path | None) -> bytes:
    """Return the key in a file, or the public demo key if there is no file to read.

    A file that holds 32 to 128 hexadecimal digits and nothing else but white space around them is
    read as such; any other is the key byte for byte, 16 to 64 of them. Raises ConfigurationError
    for a file that cannot be read or is no key.
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
                f"The fingerprint key file {path} holds an odd number of hexadecimal digits: one "
                "is missing or "
                f"doubled; restore the file, or {_HOW_TO_MAKE_ONE}."
            )
        content = bytes.fromhex(digits.decode())
    check_key(content, f"The fingerprint key file {path}")
    return content


def check_key(key: bytes, what: str) -> None:
    """Raise ConfigurationError if these bytes cannot serve as a key; `what` begins the sentence."""
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        held = f"more than {KEY_BYTES_MAX}" if len(key) > KEY_BYTES_MAX else str(len(key))
        raise ConfigurationError(
            f"{what} holds {held} bytes, and a key is {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes, "
            "raw or "
            f"as hexadecimal digits: {_HOW_TO_MAKE_ONE}."
        )
    if len(set(key)) == 1:
        raise ConfigurationError(
            f"{what} holds one byte repeated, which is no secret: {_HOW_TO_MAKE_ONE}."
        )
