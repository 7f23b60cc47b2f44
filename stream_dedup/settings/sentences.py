"""Describe invalid settings in sentences that state the allowed values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from stream_dedup.settings.settings import ValueOrigin
from stream_dedup.settings.units import PATTERNS, as_text

_SAFE_NAME = re.compile(r"[\w.-]*")
_POSITION = re.compile(r"line (\d+), column (\d+)")


def describe_problems(error: ValidationError, origins: Mapping[str, ValueOrigin]) -> Iterator[str]:
    """Yield a sentence for each invalid value."""
    for problem in error.errors(include_url=False, include_input=True):
        if problem["type"] == "default_factory_not_called":
            continue  # the default depends on another invalid value, which is reported itself
        if not problem["loc"]:
            yield f"{problem['ctx']['error']}."  # a problem of several values
            continue
        name = str(problem["loc"][0])
        origin = origins.get(name, ValueOrigin("default"))
        location = origin.where or name
        requirement = _requirement_of(
            problem["type"], problem.get("ctx", {}), problem["msg"], problem["input"]
        )
        value = problem["input"]
        shown = repr(
            value if isinstance(value, str | int | float | list | dict) else as_text(value)
        )
        yield f"{location} is {shorten(shown)}, but {requirement.removesuffix(f', not {shown}')}."


def _requirement_of(kind: str, context: Mapping[str, Any], message: str, value: object) -> str:
    """Return what a value must be, for the end of a sentence, from an error of pydantic."""
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(context["expected"]))
        near = difflib.get_close_matches(str(value).lower(), allowed, n=1, cutoff=0.5)
        return f"must be {' or '.join(allowed)}" + (f" (did you mean {near[0]}?)" if near else "")
    bounds = {
        "greater_than_equal": "must be at least {ge}",
        "less_than_equal": "must be at most {le}",
        "string_too_long": "must have at most {max_length} characters",
    }
    if kind in bounds:
        return bounds[kind].format(**{name: as_text(limit) for name, limit in context.items()})
    if kind.startswith("int_"):
        return "must be a whole number"
    if kind.startswith("bool_"):
        return "must be true or false"
    if kind.startswith("string_type"):
        return "must be a text"
    if kind.startswith("path_"):
        return "must name a file that exists" if kind == "path_not_file" else "must be a path"
    if kind == "string_pattern_mismatch":
        return f"must be {PATTERNS[context['pattern']]}"
    return f"it cannot be used: {message}"


def describe_toml_error(error: Exception) -> str:
    """Return the position of an error in a TOML file. The parser's message is left out, because it may
    contain a password.
    """
    match = _POSITION.search(str(error))
    return f"line {match[1]}, column {match[2]} is not valid" if match else "it is not valid"


def safe_name(text: str) -> str:
    """Return the part of a name in a file that is safe to show. A typing error such as
    `password=secret` makes a secret part of a name, so the name is cut after `password`.
    """
    match = _SAFE_NAME.match(text)
    shown = match[0] if match else ""
    return shown if shown == text else f"{shown}..."


def describe_error(error: Exception) -> str:
    """Return an error's message for the end of a sentence."""
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)


def shorten(text: str, limit: int = 120) -> str:
    """Return a printable text with at most `limit` characters."""
    printable = "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text
    )
    return printable if len(printable) <= limit else printable[: limit - 3] + "..."
