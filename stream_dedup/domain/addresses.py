"""Addresses of texts that lie outside Kafka, and which of them may be read.

    s3://crawl/pages/2026/a.html.gz    https://store.example/pages/a?version=3    file:///srv/pages/a.txt

A prefix such as `s3://crawl/pages` allows what lies below it, and never
`s3://crawl/pages-of-others`: it ends where a part of the path ends. `s3://crawl` allows a bucket,
`https://store.example` a host on its usual port. A scheme alone is no prefix.

Invariants: pure; for every address the answer is a value; a sentence about an address shows neither
a password nor what stands behind `?`, where signed addresses carry theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from stream_dedup.domain.printable import printable

SCHEMES: Final = (
    "s3",
    "s3a",
    "gs",
    "gcs",
    "abfs",
    "abfss",
    "az",
    "http",
    "https",
    "file",
    "memory",
)
ADDRESS_BYTES_MAX: Final = 4096
_SHOWN_MAX = 300
_FORM = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_WEB = ("http", "https")
_NAMES_ACCOUNT = ("abfs", "abfss", "az")  # container@account
# What a prefix lacks that is a scheme alone: it would allow all that the worker's credentials do.
_FIRST = {**dict.fromkeys(_WEB, "no host"), **dict.fromkeys(("file", "memory"), "no folder")}


class TextAddress(NamedTuple):
    """One that may be read. `origin` is scheme and host, bucket or container; `path` is behind it,
    without `?`.
    """

    whole: str
    scheme: str
    origin: str
    path: str


def parse_prefixes(written: str) -> tuple[str, ...]:
    """Return the prefixes that stand in a setting, with commas between them, each without a slash
    at its end.

    Raises:
        ValueError: one of them is no address that could be read.
    """
    found = []
    for prefix in filter(None, (part.strip() for part in written.split(","))):
        scheme, separator, rest = prefix.partition("://")
        scheme = scheme.lower()
        if not separator or scheme not in SCHEMES:
            raise ValueError(
                f"{shown(prefix)} must begin with one of s3://, gs://, abfs://, http://, https:// or "
                "file:///"
            )
        path = rest.rstrip("/")
        parsed = (
            _parsed(f"{scheme}://{path}/")
            if path
            else f"it names {_FIRST.get(scheme, 'no bucket')}"
        )
        if isinstance(parsed, str):
            raise ValueError(f"{shown(prefix)} cannot be a prefix: {parsed}")  # noqa: TRY004 - what a setting is refused with
        if "?" in rest or "#" in rest:
            raise ValueError(f"{shown(prefix)} cannot be a prefix: it ends before ? and #")
        found.append(f"{parsed.origin}{parsed.path}".rstrip("/"))
    if not found:
        raise ValueError("names no prefix; write one such as s3://crawl/pages")
    return tuple(found)


def checked(address: str, prefixes: Sequence[str]) -> TextAddress | str:
    """Return an address that may be read, or a sentence that says why it may not."""
    if (
        len(address) > ADDRESS_BYTES_MAX
        or len(address.encode("utf-8", "replace")) > ADDRESS_BYTES_MAX
    ):
        return (
            f"The address of the text, {shown(address)}, is longer than {ADDRESS_BYTES_MAX} bytes."
        )
    parsed = _parsed(address)
    if isinstance(parsed, str):
        return f"The address of the text, {shown(address)}, cannot be read: {parsed}."
    whole = parsed.origin + parsed.path
    if not any(
        whole == prefix or whole.startswith(prefix if prefix.endswith("/") else prefix + "/")
        for prefix in prefixes
    ):
        return (
            f"The address of the text, {shown(address)}, begins with none of the prefixes that may "
            "be read; if it should, add "
            "its own to STREAM_DEDUP_TEXT_PREFIXES, then redrive it."
        )
    return parsed


def scheme_of(prefix: str) -> str:
    """Return the scheme of a prefix or an address that was checked."""
    return prefix.partition("://")[0]


def has_credentials(address: str) -> bool:
    """Return whether an address holds a user name or a password, also one with a slash in it."""
    scheme, separator, rest = address.partition("://")
    authority, _, path = rest.partition("/")
    if not separator or "@" not in rest:
        return False
    names_account = scheme.lower() in _NAMES_ACCOUNT
    is_port = scheme.lower() in _WEB and _HOST.fullmatch(authority)
    has_colon = ":" in authority.rpartition("@")[0] or (
        ":" in authority and "@" in path and not is_port
    )
    return has_colon or ("@" in authority and not names_account)


def shown(address: str) -> str:
    """Return an address for a sentence: printable, short, without a password and what stands behind
    `?`.
    """
    scheme, separator, rest = address[: ADDRESS_BYTES_MAX + 1].partition("://")
    if separator and "@" not in rest.partition("/")[0] and has_credentials(address):
        rest = "***@" + rest.rpartition("@")[2]  # a slash in the password
    elif separator:
        authority, slash, path = rest.partition("/")
        name, separator_at, host = authority.rpartition("@")
        authority = (
            f"{'***' if ':' in name or not path else name}@{host}" if separator_at else authority
        )
        rest = authority + slash + path
    whole = scheme + separator + rest
    bare = whole.partition("?")[0]
    return printable(bare + ("?..." if bare != whole else ""), _SHOWN_MAX)


def _parsed(address: str) -> TextAddress | str:
    """Return the parts of an address, with scheme and host in lower case, or what is wrong with
    it.
    """
    if any(
        ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 or 0xD800 <= ord(character) < 0xE000
        for character in address
    ):
        return "it holds a control character"
    if address != address.strip():
        return "it begins or ends with a space"
    match = _FORM.fullmatch(address)
    if match is None:
        return "it is no address with a scheme, such as s3://crawl/pages/a.html"
    scheme, authority, path, rest = match[1].lower(), match[2], match[3], match[4]
    if scheme not in SCHEMES:
        return f"its scheme {scheme!r:.40} is none that is read"
    if ":" in authority.rpartition("@")[0] or ("@" in authority and scheme not in _NAMES_ACCOUNT):
        return (
            "it holds a user name or a password; give the worker its credentials by its environment"
        )
    if scheme in _WEB:
        if not _HOST.fullmatch(authority):
            return "its host is no name or number in ASCII (a name in other letters is written xn--...)"
        if " " in address or "\\" in address:
            return "a space or a backslash in it must be written %20 or %5C"
        authority = authority.lower()
    elif scheme in ("file", "memory"):
        if authority and scheme == "file":
            return "a file has no host: it is written file:///, then its path"
        path, rest = path + rest, ""
    elif not authority:
        return "it names no bucket"
    # Some servers read %2e, a backslash, or what stands before a semicolon, as a path's own dots.
    if any(
        part.partition(";")[0] in (".", "..")
        for part in re.split(r"[/\\]", f"{path}/{unquote(path)}")
    ):
        return "its path holds . or .."
    if scheme == "memory":
        path, authority = f"/{authority}{path}", ""
    return TextAddress(
        f"{scheme}://{authority}{path}{rest}", scheme, f"{scheme}://{authority}", path
    )
