"""Parse JSON values, and read fields by their dotted paths as texts, times and scopes. Pure."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import re
from typing import Any, Final

import msgspec

from stream_dedup.domain.document import DeadLetter

MISSING: Final = object()
decode_json = msgspec.json.Decoder().decode
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The largest number of values in one JSON value: three bytes (`{},`) become an object of 72 bytes.
VALUES_MAX: Final = 1_000_000
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[{,'))
_TEXT: Final = re.compile(rb'"[^"]*"?')


def parse_or_letter(value: bytes) -> Any | DeadLetter:
    """Return a parsed JSON value, or the dead letter of one that cannot be parsed."""
    try:
        return parse_json(value)
    except (ValueError, RecursionError) as error:
        why = without_line_number(f"The value is not JSON that can be read: {error}.")
        return DeadLetter("decode", type(error).__name__, why)


def parse_json(value: bytes) -> Any:
    """Return a parsed JSON value, as `json.loads` parses it after invalid UTF-8 is replaced.

    msgspec needs a fifth of the time, with equal results; values that it refuses (NaN, lone
    surrogates, invalid UTF-8, numbers beyond a float) are parsed by `json`.

    Raises:
        ValueError, RecursionError: it is not valid JSON, or has more than `VALUES_MAX` values.
    """
    content = value.removeprefix(_BYTE_ORDER_MARK)
    # A value has at least two bytes, with its comma.
    if len(content) > 2 * VALUES_MAX and _values_of(content) > VALUES_MAX:
        raise ValueError(f"it has more than {VALUES_MAX:,} values")
    try:
        return decode_json(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return json.loads(content.decode("utf-8", "replace"))


def without_line_number(message: str) -> str:
    """Return an error message about JSON on one line without the line number, which is always 1."""
    return re.sub(r"( at)?: line 1 column (\d+) \(char \d+\)", r" at character \2", message)


def _values_of(content: bytes) -> int:
    """Return an upper bound of the number of values in JSON without parsing it: the number of commas
    and opening brackets outside of texts, plus one.
    """
    # Without escapes, and without pairs of quotes (the end of a text and the start of the next, or an
    # empty text).
    signs = content.replace(rb"\\", b"").replace(rb"\"", b"")
    signs = signs.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    return 1 + len(signs) - sum(text.end() - text.start() for text in _TEXT.finditer(signs))


def scope_number(name: str) -> int:
    """Return the number of a scope in the log, never 0, which is the scope of documents without
    one.
    """
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def field_at(fields: Any, path: str) -> Any:
    """Return the value at a dotted path, or `MISSING`; a field whose name contains the dots takes
    precedence.
    """
    if isinstance(fields, dict):
        found = fields.get(path, MISSING)
        if found is not MISSING:
            return found
    for name in path.split("."):
        if isinstance(fields, list) and len(fields) == 1:
            fields = fields[0]
        if not isinstance(fields, dict) or name not in fields:
            return MISSING
        fields = fields[name]
    return fields


def joined_texts(found: Any) -> Any:
    """Return a list of texts as one text, a line for each, and anything else unchanged."""
    if isinstance(found, list) and all(isinstance(part, str) for part in found):
        return "\n".join(found)
    return found


def scalar(found: Any) -> str | None:
    """Return a text or finite number, or the first item of a list of them, as text; None for other
    values.
    """
    if isinstance(found, list) and found:
        found = found[0]
    if isinstance(found, str):
        return found
    if isinstance(found, bool) or (isinstance(found, float) and not math.isfinite(found)):
        return None
    return str(found) if isinstance(found, int | float) else None


def time_ms_of(found: Any) -> int | None:
    """Return a time field as milliseconds: a number of seconds or milliseconds, or RFC 3339; None
    if it is neither.
    """
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < 1e15:
        return int(found * 1000 if found < 1e11 else found)
    if isinstance(found, str):
        try:
            found = dt.datetime.fromisoformat(found)
        except ValueError:
            return None
    if isinstance(found, dt.datetime):  # such as a timestamp of Avro
        moment = found
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        try:
            return int(moment.timestamp() * 1000)
        except (OverflowError, ValueError):
            return None
    return None


def kind_of(found: Any) -> str:
    """Return the kind of a field's value for a message."""
    names = {
        dict: "an object",
        list: "a list that is not all texts",
        bool: "a truth value",
        type(None): "null",
        str: "a text",
    }
    return names.get(type(found), "a number")
