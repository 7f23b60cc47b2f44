"""Parse the addresses of texts that are stored outside Kafka, and check them against the allowed
prefixes.

    s3://crawl/pages/2026/a.html.gz    https://store.example/pages/a?version=3    file:///srv/pages/a.txt

The prefix `s3://crawl/pages` allows all addresses below that folder, but not
`s3://crawl/pages-of-others`: a prefix matches whole components of the path. `s3://crawl` allows a
bucket, `https://store.example` a host on its default port. A scheme alone is not a prefix.

Invariants: all functions are pure; `checked` returns a value for every address and never raises; a
message about an address shows neither a password nor the text after `?`, which in a signed address
contains the signature.
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
_PATTERN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_WEB_SCHEMES = ("http", "https")
_ACCOUNT_SCHEMES = ("abfs", "abfss", "az")  # of addresses with container@account
# The missing part of a prefix that is a scheme alone. Such a prefix would allow every address that
# the worker's credentials can read.
_MISSING_PART = {
    **dict.fromkeys(_WEB_SCHEMES, "no host"),
    **dict.fromkeys(("file", "memory"), "no folder"),
}


class TextAddress(NamedTuple):
    """An address that may be read, and its parts. `origin` is the scheme with the host, bucket or container;
    `path` is the path after it, without `?`.
    """

    url: str
    scheme: str
    origin: str
    path: str


def parse_prefixes(written: str) -> tuple[str, ...]:
    """Return the prefixes in a comma-separated setting, each without a trailing slash.

    Raises:
        ValueError: the setting is empty, or a prefix is not a readable address.
    """
    prefixes = []
    for prefix in filter(None, (part.strip() for part in written.split(","))):
        scheme, separator, remainder = prefix.partition("://")
        scheme = scheme.lower()
        if not separator or scheme not in SCHEMES:
            raise ValueError(
                f"{shown(prefix)} must begin with one of s3://, gs://, abfs://, http://, https:// or "
                "file:///"
            )
        path = remainder.rstrip("/")
        parsed = (
            _parsed(f"{scheme}://{path}/")
            if path
            else f"it names {_MISSING_PART.get(scheme, 'no bucket')}"
        )
        if isinstance(parsed, str):
            raise ValueError(f"{shown(prefix)} cannot be a prefix: {parsed}")  # noqa: TRY004 - settings expect a ValueError
        if "?" in remainder or "#" in remainder:
            raise ValueError(f"{shown(prefix)} cannot be a prefix: it contains ? or #")
        prefixes.append(f"{parsed.origin}{parsed.path}".rstrip("/"))
    if not prefixes:
        raise ValueError("names no prefix; write one such as s3://crawl/pages")
    return tuple(prefixes)


def checked(address: str, prefixes: Sequence[str]) -> TextAddress | str:
    """Return the parsed address, or a sentence that says why it must not be read."""
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
    location = parsed.origin + parsed.path
    if not any(
        location == prefix or location.startswith(prefix if prefix.endswith("/") else prefix + "/")
        for prefix in prefixes
    ):
        return (
            f"The address of the text, {shown(address)}, begins with none of the prefixes in "
            "STREAM_DEDUP_TEXT_PREFIXES. To read this text, add a prefix of its address there, "
            "then redrive the record."
        )
    return parsed


def scheme_of(prefix: str) -> str:
    """Return the scheme of a valid prefix or address."""
    return prefix.partition("://")[0]


def has_credentials(address: str) -> bool:
    """Return whether an address contains a user name or a password, even one with a slash."""
    scheme, separator, remainder = address.partition("://")
    authority, _, path = remainder.partition("/")
    if not separator or "@" not in remainder:
        return False
    names_account = scheme.lower() in _ACCOUNT_SCHEMES
    is_port = scheme.lower() in _WEB_SCHEMES and _HOST.fullmatch(authority)
    has_colon = ":" in authority.rpartition("@")[0] or (
        ":" in authority and "@" in path and not is_port
    )
    return has_colon or ("@" in authority and not names_account)


def shown(address: str) -> str:
    """Return an address as messages show it: printable, short, without a password and without the
    text after `?`.
    """
    scheme, separator, remainder = address[: ADDRESS_BYTES_MAX + 1].partition("://")
    if separator and "@" not in remainder.partition("/")[0] and has_credentials(address):
        remainder = "***@" + remainder.rpartition("@")[2]  # the password contains a slash
    elif separator:
        authority, slash, path = remainder.partition("/")
        name, at_sign, host = authority.rpartition("@")
        authority = f"{'***' if ':' in name or not path else name}@{host}" if at_sign else authority
        remainder = authority + slash + path
    full_address = scheme + separator + remainder
    without_query = full_address.partition("?")[0]
    return printable(without_query + ("?..." if without_query != full_address else ""), _SHOWN_MAX)


def _parsed(address: str) -> TextAddress | str:
    """Return the parts of an address, with scheme and host in lower case, or a phrase that says why
    the address is invalid.
    """
    if any(
        ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 or 0xD800 <= ord(character) < 0xE000
        for character in address
    ):
        return "it contains a control character"
    if address != address.strip():
        return "it begins or ends with a space"
    match = _PATTERN.fullmatch(address)
    if match is None:
        return "it is not an address with a scheme, such as s3://crawl/pages/a.html"
    scheme, authority, path, remainder = match[1].lower(), match[2], match[3], match[4]
    if scheme not in SCHEMES:
        return f"its scheme {scheme!r:.40} is not supported"
    if ":" in authority.rpartition("@")[0] or ("@" in authority and scheme not in _ACCOUNT_SCHEMES):
        return "it contains a user name or a password; pass credentials in the worker's environment"
    if scheme in _WEB_SCHEMES:
        if not _HOST.fullmatch(authority):
            return (
                "its host is not a name or an IP address in ASCII (write other letters as xn--...)"
            )
        if " " in address or "\\" in address:
            return "a space or a backslash in it must be written %20 or %5C"
        authority = authority.lower()
    elif scheme in ("file", "memory"):
        if authority and scheme == "file":
            return "the address of a file has no host; write file:/// and the path"
        path, remainder = path + remainder, ""
    elif not authority:
        return "it names no bucket"
    # Some servers decode %2e to a dot, treat a backslash as a slash, or ignore the text after a
    # semicolon.
    if any(
        part.partition(";")[0] in (".", "..")
        for part in re.split(r"[/\\]", f"{path}/{unquote(path)}")
    ):
        return "its path contains . or .."
    if scheme == "memory":
        path, authority = f"/{authority}{path}", ""
    return TextAddress(
        f"{scheme}://{authority}{path}{remainder}", scheme, f"{scheme}://{authority}", path
    )
