"""What is said of an argument of another kind than what is needed."""

from __future__ import annotations

from typing import TypeVar

from stream_dedup.domain.errors import InputError

T = TypeVar("T")


def kind_of(value: object) -> str:
    """Return what a value is, with its article: `None`, `an int`, `a dict`."""
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def given(value: object) -> str:
    """Return that, as the end of a sentence that says what is needed."""
    return f"{kind_of(value)} was given"


def checked(value: object, kind: type[T], what: str, wanted: str, where: str = "") -> T:
    """Return a value of the kind that is needed.

    Raises:
        InputError: it is of another; the sentence says `what` must be `wanted`, and begins with
        `where`.
    """
    if not isinstance(value, kind):
        raise InputError(f"{where}{what} must be {wanted}, and {given(value)}.")
    return value
