"""Parse and check the values of settings: times, sizes, names, folders.

Invariant: a time needs a unit; a number without a unit is refused.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

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
_BROKER = r"\s*([A-Za-z0-9._-]+|\[[^\s,/\]]+\]):\d{1,5}\s*"
BROKERS = rf"^{_BROKER}(,{_BROKER})*$"
HOST = r"^[A-Za-z0-9.:_-]+$"
_HOST_AND_PATH = r"(\*|(\*\.)?[A-Za-z0-9._-]+)(/[A-Za-z0-9._~-]{1,64}){0,8}"
HOSTS = rf"^\s*{_HOST_AND_PATH}(\s*,\s*{_HOST_AND_PATH})*\s*$|^$"
WEB_ADDRESS = r"^https?://[A-Za-z0-9.\[\]:_-]{1,255}(/[A-Za-z0-9._~/-]*)?$"
HEADER_PREFIX = "header:"
"""With this prefix TEXT_AT names a header instead of a field."""


NAME = r"^[A-Za-z0-9._-]{1,200}$"

PATTERNS = {
    BROKERS: "host:port, or several of them separated by commas",
    HOST: "a host name or an address, without a port",
    HOSTS: "host names without a port, perhaps with a path such as /dedup, separated by commas; *.example.org means all "
    "below it",
    WEB_ADDRESS: "a URL such as http://index:8080",
    NAME: "made of 1 to 200 letters, digits, dots, underscores and hyphens",
}

_BYTE_SIZE = TypeAdapter(ByteSize)


def parse_duration(value: object) -> timedelta:
    """Parse a time such as `250ms`, `15m`, `30d` or `1h30m`.

    Raises:
        ValueError: another format, such as a number without a unit.
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


def within(low: str, high: str, requirement: str) -> AfterValidator:
    """Return a validator that checks that a time is between `low` and `high`; its error contains
    the `requirement`. The errors of pydantic would show the limits as Python code.
    """
    low_duration, high_duration = parse_duration(low), parse_duration(high)

    def check(value: timedelta) -> timedelta:
        if not low_duration <= value <= high_duration:
            raise ValueError(f"must be {requirement}")
        return value

    return AfterValidator(check)


def parse_size(value: object) -> int:
    """Parse a size such as `500MB` (10^6), `1GiB` (2^30) or a number of bytes; return bytes.

    Raises:
        ValueError: another format.
    """
    try:
        return int(_BYTE_SIZE.validate_python(value.strip() if isinstance(value, str) else value))
    except (ValidationError, OverflowError) as error:
        raise ValueError("must be a size such as 500MB, 1GiB or 65536") from error


def format_duration(value: timedelta) -> str:
    """Format a time in the largest unit in which it is a whole number."""
    total_ms = round(value.total_seconds() * 1000)
    for unit in ("w", "d", "h", "m", "s"):
        if total_ms and total_ms % _DURATION_UNIT_MS[unit] == 0:
            return f"{total_ms // _DURATION_UNIT_MS[unit]}{unit}"
    return f"{total_ms}ms"


def _no_bool(value: object) -> object:
    # YAML reads `on` and `yes` as booleans, and pydantic would convert True to 1.
    if isinstance(value, bool):
        raise ValueError("must be a whole number")  # noqa: TRY004 - pydantic collects ValueError only
    return value


def _expand(value: object) -> object:
    try:
        return Path(value).expanduser() if isinstance(value, str | Path) and str(value) else value
    except RuntimeError as error:
        raise ValueError(
            "must not begin with the home folder (~NAME) of an unknown user"
        ) from error


def parse_folder_or_url(value: str) -> str:
    """Return the path of a folder, or the URL of a folder in a writable object store.

    Raises:
        ValueError: another kind of URL.
    """
    if "://" not in value:
        return str(_expand(value))
    url, *more = parse_prefixes(value)
    if more or url.startswith(("http:", "https:", "file:")):
        raise ValueError("must be a folder, or one URL that begins with s3://, gs:// or abfs://")
    return url


def parse_window(value: object) -> timedelta | None:
    """Parse a time as `parse_duration` does; return None for `none`, which means no limit.

    Raises:
        ValueError: another format.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return parse_duration(value)


def check_window(value: object) -> str | None:
    """Return a normalised window, such as `30d` or `30d,refresh`; None for `none`.

    Raises:
        ValueError: another format, or a length out of range.
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


def split_hosts(value: str) -> list[tuple[str, str]]:
    """Return (host, path) of each host in a comma-separated list; paths lack the first slash."""
    hosts = [host.strip().partition("/") for host in value.split(",") if host.strip()]
    return [(name, path) for name, _, path in hosts]


def _field_path(value: str) -> str:
    if not all(value.split(".")):
        raise ValueError("must be a dotted path of names, such as page.body")
    return value


def _text_location(value: str) -> str:
    name = value.removeprefix(HEADER_PREFIX)
    if name == value:
        return _field_path(value)
    if not name or len(name) > 200:
        raise ValueError("must name a header of 1 to 200 characters, as in header:text-uri")
    return value


def _topic(value: str) -> str:
    # Kafka's rule for topic names.
    if value in (".", "..") or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", value):
        raise ValueError(
            "must be a topic's name: 1 to 249 letters, digits, dots, hyphens and underscores"
        )
    return value


Whole = BeforeValidator(_no_bool)
Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Folder = Annotated[Path, BeforeValidator(_expand)]
ReadableFile = Annotated[FilePath, BeforeValidator(_expand)]
FieldPath = Annotated[str, AfterValidator(_field_path)]
TextLocation = Annotated[str, AfterValidator(_text_location)]
TopicName = Annotated[str, AfterValidator(_topic)]
TextPrefixes = Annotated[str, AfterValidator(lambda value: ",".join(parse_prefixes(value)))]
Name = Annotated[str, Field(pattern=NAME)]
Brokers = Annotated[str, Field(pattern=BROKERS)]
Host = Annotated[str, Field(pattern=HOST)]
FolderOrUrl = Annotated[str, AfterValidator(parse_folder_or_url)]


def as_text(value: object) -> str:
    """Format the value of a setting as the environment contains it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return format_duration(value) if isinstance(value, timedelta) else str(value)
