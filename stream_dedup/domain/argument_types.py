"""Check the type of an argument of the Python API."""

from __future__ import annotations

from typing import Final, TypeVar

from stream_dedup.domain.errors import InputError

T = TypeVar("T")
_WORDS: Final = {"bytes": "a bytes object", "ndarray": "a NumPy array"}


def kind_of(value: object) -> str:
    """Return the name of the type of a value with its article: `None`, `an int`, `a dict`."""
    name = type(value).__name__
    if name in _WORDS:
        return _WORDS[name]
    return "None" if value is None else f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def given_kind(value: object) -> str:
    """Return the end of an error's sentence, such as `an int was given`."""
    return f"{kind_of(value)} was given"


def checked(value: object, kind: type[T], subject: str, expected: str, where: str = "") -> T:
    """Return `value` if it is a `kind`.

    Raises:
        InputError: the value has another type. The message is `where` and the sentence "`subject`
        must be `expected`, and a ... was given".
    """
    if not isinstance(value, kind):
        raise InputError(f"{where}{subject} must be {expected}, and {given_kind(value)}.")
    return value
