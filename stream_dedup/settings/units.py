"""Values as people write them: times, sizes, names, folders; and what a setting's text must look
like.

Invariant: a bare number is no time, because its unit would be a guess.
"""

from __future__ import annotations

import ipaddress
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    FilePath,
    TypeAdapter,
    ValidationError,
)

from stream_dedup.domain.addresses import parse_prefixes

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+\Z")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_DURATION_UNIT_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
BROKERS = r"^\s*[^\s,/]+:\d{1,5}\s*(,\s*[^\s,/]+:\d{1,5}\s*)*$"
HOST = r"^[A-Za-z0-9.:_-]+$"
_HOST_AND_PATH = r"(\*|(\*\.)?[A-Za-z0-9._-]+)(/[A-Za-z0-9._~-]{1,64}){0,8}"
HOSTS = rf"^\s*{_HOST_AND_PATH}(\s*,\s*{_HOST_AND_PATH})*\s*$|^$"
WEB_ADDRESS = r"^https?://[A-Za-z0-9.\[\]:_-]{1,255}(/[A-Za-z0-9._~/-]*)?$"
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
HEADER_PLACE = "header:"
"""What a place that is a header begins with, and not a field."""


NAME = r"^[A-Za-z0-9._-]{1,200}$"

PATTERNS = {
    BROKERS: "host:port, or several of them separated by commas",
    HOST: "a host name or an address, without a port",
    HOSTS: "host names without a port, perhaps with a path such as /dedup, separated by commas; *.example.org stands for all "
    "below it",
    WEB_ADDRESS: "an address such as http://index:8080",
    NAME: "made of 1 to 200 letters, digits, dots, underscores and hyphens",
}

_BYTE_SIZE = TypeAdapter(ByteSize)


def parse_duration(value: object) -> timedelta:
    """Return a time written like `250ms`, `15m`, `30d` or `1h30m`.

    Raises:
        ValueError: it is not written so; a bare number is refused, because its unit would be a
        guess.
    """
    if isinstance(value, timedelta):
        return value
    text = str(value).strip().lower().replace(" ", "")
    if not _DURATION.match(text):
        raise ValueError("must be a time with its unit, such as 250ms, 30s, 15m, 12h or 30d")
    parts = _DURATION_PART.findall(text)
    try:
        return timedelta(
            milliseconds=sum(float(count) * _DURATION_UNIT_MS[unit] for count, unit in parts)
        )
    except OverflowError as error:
        raise ValueError("must be a time of at most 999999999d") from error


def within(least: str, most: str, words: str) -> AfterValidator:
    """Return the check that a time is in these limits; pydantic would tell those of an optional
    time as Python code.
    """
    low, high = parse_duration(least), parse_duration(most)

    def check(value: timedelta) -> timedelta:
        if not low <= value <= high:
            raise ValueError(f"must be {words}")
        return value

    return AfterValidator(check)


def parse_size(value: object) -> int:
    """Return a size in bytes, written like `500MB` (10^6) or `1GiB` (2^30), or as a number of
    bytes.

    Raises:
        ValueError: it is not written so.
    """
    try:
        return int(_BYTE_SIZE.validate_python(value.strip() if isinstance(value, str) else value))
    except (ValidationError, OverflowError) as error:
        raise ValueError("must be a size such as 500MB, 1GiB or 65536") from error


def format_duration(value: timedelta) -> str:
    """Return a time as `parse_duration` reads it, in the largest unit that leaves a whole
    number.
    """
    total_ms = round(value.total_seconds() * 1000)
    for unit in ("w", "d", "h", "m", "s"):
        if total_ms and total_ms % _DURATION_UNIT_MS[unit] == 0:
            return f"{total_ms // _DURATION_UNIT_MS[unit]}{unit}"
    return f"{total_ms}ms"


def _no_bool(value: object) -> object:
    # YAML reads `on` and `yes` as booleans, and pydantic would take True for the number 1.
    if isinstance(value, bool):
        raise ValueError("must be a whole number")  # noqa: TRY004 - pydantic collects ValueError only
    return value


def _expand(value: object) -> object:
    try:
        return Path(value).expanduser() if isinstance(value, str | Path) and str(value) else value
    except RuntimeError as error:
        raise ValueError("must not begin with the home folder of a user who has none") from error


def parse_place(value: str) -> str:
    """Return a folder, or an address in a store to which files can be written.

    Raises:
        ValueError: it is no such address.
    """
    if "://" not in value:
        return str(_expand(value))
    place, *more = parse_prefixes(value)
    if more or place.startswith(("http:", "https:", "file:")):
        raise ValueError(
            "must be a folder, or one address that begins with s3://, gs:// or abfs://"
        )
    return place


def parse_window(value: object) -> timedelta | None:
    """Return a time as `parse_duration` does; None for `none`, which is for ever.

    Raises:
        ValueError: it is neither.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return parse_duration(value)


def check_window(value: object) -> str | None:
    """Return a window's length, perhaps with `,refresh` behind it; None for `none`.

    Raises:
        ValueError: it is not written so, or its length cannot be.
    """
    if value is None:
        return None
    length, comma, rest = str(value).partition(",")
    if comma and rest.strip() != "refresh":
        raise ValueError("must be a time such as 30d, or 30d,refresh")
    window = parse_window(length)
    if window is None:
        return None
    if not timedelta(seconds=1) <= window <= timedelta(days=366_000):
        raise ValueError("must be at least 1 second and at most a thousand years, or none")
    return format_duration(window) + (",refresh" if comma else "")


class KeptBounds(NamedTuple):
    """The age and the bytes of documents that are kept; None is no bound."""

    age: timedelta | None = None
    size_bytes: int | None = None


def parse_bounds(value: str) -> KeptBounds:
    """Return the bounds of `90d`, `20GB` or `90d,20GB`.

    Raises:
        ValueError: it is not written so, or one is out of range.
    """
    found = KeptBounds()
    for part in value.split(","):
        if _DURATION.match(part.strip().lower()):
            found = found._replace(age=parse_duration(part))
        else:
            found = found._replace(size_bytes=parse_size(part))
    if found.age is not None and not timedelta(minutes=1) <= found.age <= timedelta(days=3660):
        raise ValueError("must keep documents for at least 1 minute and at most 3660 days")
    if found.size_bytes is not None and found.size_bytes < 1_000_000:
        raise ValueError("must keep at least 1MB")
    return found


def check_bounds(value: str) -> str:
    """Return what `parse_bounds` takes, as it is written."""
    parse_bounds(value)
    return value


def split_hosts(value: str) -> list[tuple[str, str]]:
    """Return the (host, path) of each of some hosts, the path without its first slash."""
    hosts = [host.strip().partition("/") for host in value.split(",") if host.strip()]
    return [(name, path) for name, _, path in hosts]


def check_languages(value: str) -> str:
    """Return the names of rules without spaces.

    Raises:
        ValueError: one is none.
    """
    names = [name.strip().lower() for name in value.split(",") if name.strip()]
    if not {"icu", "same-han"}.issuperset(names):
        raise ValueError("must be icu, same-han, or both separated by a comma")
    return ",".join(names)


def _field_path(value: str) -> str:
    if not all(value.split(".")):
        raise ValueError("must be a dotted path of names, such as page.body")
    return value


def _text_place(value: str) -> str:
    name = value.removeprefix(HEADER_PLACE)
    if name == value:
        return _field_path(value)
    if not name or len(name) > 200:
        raise ValueError("must name a header of 1 to 200 characters, as in header:text-uri")
    return value


def check_brokers(value: str) -> str:
    """Return a list of `host:port`, if each of them can be an address.

    Raises:
        ValueError: one cannot.
    """
    for one in value.split(","):
        host, _, port = one.strip().rpartition(":")
        inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        check_host(inner)
        if ":" in host and inner == host:
            raise ValueError(f"an IPv6 address stands in brackets, as in [{host}]:{port}")
        if not 1 <= int(port) <= 65535:
            raise ValueError(f"a port is 1 to 65535, not {port}")
    return value


def _topic(value: str) -> str:
    # Kafka's own rule.
    if value in (".", "..") or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", value):
        raise ValueError(
            "must be a topic's name: 1 to 249 letters, digits, dots, hyphens and underscores"
        )
    return value


def check_host(value: str) -> str:
    """Return a host name or an address, if it can be one.

    Raises:
        ValueError: it cannot.
    """
    labels = value.removesuffix(".").split(".")
    if ":" in value or labels[-1].isdigit():  # no top-level domain is a number
        try:
            ipaddress.ip_address(value)
        except ValueError as error:
            raise ValueError(f"{value} is no address") from error
    elif len(value) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{value} is no host name")
    return value


Whole = BeforeValidator(_no_bool)
Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Folder = Annotated[Path, BeforeValidator(_expand)]
ReadableFile = Annotated[FilePath, BeforeValidator(_expand)]
FieldPath = Annotated[str, AfterValidator(_field_path)]
TextPlace = Annotated[str, AfterValidator(_text_place)]
TopicName = Annotated[str, AfterValidator(_topic)]
TextPrefixes = Annotated[str, AfterValidator(lambda value: ",".join(parse_prefixes(value)))]
Name = Annotated[str, Field(pattern=NAME)]
Brokers = Annotated[str, Field(pattern=BROKERS), AfterValidator(check_brokers)]
Host = Annotated[str, Field(pattern=HOST), AfterValidator(check_host)]
Place = Annotated[str, AfterValidator(parse_place)]


def as_text(value: object) -> str:
    """Return a setting's value as one would write it in the environment."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return format_duration(value) if isinstance(value, timedelta) else str(value)
