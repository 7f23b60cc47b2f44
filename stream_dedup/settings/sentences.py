"""Messages about invalid settings: a sentence that states the allowed values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from stream_dedup.settings.settings import ValueOrigin
from stream_dedup.settings.units import PATTERNS, as_text

_SHOWN_NAME = re.compile(r"[\w.-]*")
_PLACE = re.compile(r"line (\d+), column (\d+)")


def sentences(error: ValidationError, origins: Mapping[str, ValueOrigin]) -> Iterator[str]:
    """Yield a sentence for each invalid value."""
    for problem in error.errors(include_url=False, include_input=True):
        if problem["type"] == "default_factory_not_called":
            continue  # a default made from another value, which is itself reported
        if not problem["loc"]:
            yield f"{problem['ctx']['error']}."  # about several values
            continue
        name = str(problem["loc"][0])
        origin = origins.get(name, ValueOrigin("default"))
        where = origin.where or name
        must = _must(problem["type"], problem.get("ctx", {}), problem["msg"], problem["input"])
        value = problem["input"]
        shown = repr(
            value if isinstance(value, str | int | float | list | dict) else as_text(value)
        )
        yield f"{where} is {cut(shown)}, but {must.removesuffix(f', not {shown}')}."


def _must(kind: str, context: Mapping[str, Any], message: str, value: object) -> str:
    """Return what a value must be, as the end of a sentence, from pydantic's error."""
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


def mistake(error: Exception) -> str:
    """Return the position of an error in a TOML file, without the parser's message: it may contain
    a password of the file.
    """
    place = _PLACE.search(str(error))
    return f"line {place[1]}, column {place[2]} is not valid" if place else "it is not valid"


def shown_name(text: str) -> str:
    """Return the part of a name in a file that is safe to show: `password=secret`, with a typo for
    `: `, is cut after `password`.
    """
    match = _SHOWN_NAME.match(text)
    shown = match[0] if match else ""
    return shown if shown == text else f"{shown}..."


def why(error: Exception) -> str:
    """Return an error's message for the end of a sentence."""
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)


def cut(text: str, limit: int = 120) -> str:
    """Return a text that is safe to show, with at most `limit` characters."""
    printable = "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text
    )
    return printable if len(printable) <= limit else printable[: limit - 3] + "..."
