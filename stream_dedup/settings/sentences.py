"""Messages about invalid settings: a sentence that states the allowed values."""

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
)  # a character or a kind of token, as in a parser's "expected ..."


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
    """Return the error in a file and its position, without the file's words: they may be a
    password.
    """
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f", at line {mark.line + 1}, column {mark.column + 1}"
        return _without_words(error.problem or error.context or "it is not YAML") + place
    if isinstance(error, yaml.YAMLError | tomllib.TOMLDecodeError):
        return _without_words(str(error))
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a value does not match its tag (!!int, !!timestamp)"


def _without_words(text: str) -> str:
    unquoted = _QUOTED.sub(lambda match: match[0] if _MARK.fullmatch(match[1] or "") else "", text)
    return " ".join(re.sub(r"\([\s,]*\)", "", unquoted).split())


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
