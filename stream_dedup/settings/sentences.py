"""What is wrong with a setting, as a sentence that says what it must be."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from stream_dedup.settings.settings import ValueOrigin
from stream_dedup.settings.units import PATTERNS, as_text

_SHOWN_NAME = re.compile(r"[\w.-]*")
_QUOTED = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"(?:[^"\\]|\\.)*")""")
_MARK = re.compile(
    r"\W|<[a-z ]+>"
)  # a character or a kind of token, as parsers name what they expected


def sentences(error: ValidationError, origins: Mapping[str, ValueOrigin]) -> Iterator[str]:
    """Yield a sentence for each value that cannot be."""
    for one in error.errors(include_url=False, include_input=True):
        if one["type"] == "default_factory_not_called":
            continue  # a default made from another value, which is itself reported
        if not one["loc"]:
            yield f"{one['ctx']['error']}."  # of several values together
            continue
        name = str(one["loc"][0])
        origin = origins.get(name, ValueOrigin("default"))
        where = origin.where or name
        must = _must(one["type"], one.get("ctx", {}), one["msg"], one["input"])
        given = one["input"]
        shown = repr(
            given if isinstance(given, str | int | float | list | dict) else as_text(given)
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
    limits = {
        "greater_than_equal": "must be at least {ge}",
        "less_than_equal": "must be at most {le}",
        "string_too_long": "must have at most {max_length} characters",
    }
    if kind in limits:
        return limits[kind].format(**{name: as_text(limit) for name, limit in context.items()})
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
    """Return what is wrong in a file and where, without the words that stand there: they may be a
    password.
    """
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", at line {mark.line + 1}, column {mark.column + 1}"
        return _without_words(error.problem or error.context or "it is no YAML") + where
    if isinstance(error, yaml.YAMLError | tomllib.TOMLDecodeError):
        return _without_words(str(error))
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a value of it cannot be what its tag (!!int, !!timestamp) says"


def _without_words(text: str) -> str:
    kept = _QUOTED.sub(lambda found: found[0] if _MARK.fullmatch(found[1] or "") else "", text)
    return " ".join(re.sub(r"\([\s,]*\)", "", kept).split())


def shown_name(text: str) -> str:
    """Return a name in a file as it may be shown: `password=secret` without its end, where a colon
    and a space were meant.
    """
    found = _SHOWN_NAME.match(text)
    shown = found[0] if found else ""
    return shown if shown == text else f"{shown}..."


def why(error: Exception) -> str:
    """Return what an error says, for the end of a sentence."""
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)


def cut(text: str, limit: int = 120) -> str:
    """Return a text that is safe to show, cut to at most that number of characters."""
    printable = "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text
    )
    return printable if len(printable) <= limit else printable[: limit - 3] + "..."
