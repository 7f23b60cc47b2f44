"""Find the host of a URL and the site of a document.

A host is parsed as browsers parse it: `urlsplit` finds it, UTS 46 maps its letters to one
spelling, and labels that are not ASCII are written in Punycode. A leading `www.`, the port, user
and password, and a final dot are removed. `HTTPS://user@WWW.Bücher.example:8080/` has the host
`xn--bcher-kva.example`, shown to people as `bücher.example`.

Invariants: all functions are pure and raise for no input; a host has at most 253 ASCII characters,
all of them letters, digits, hyphens, underscores and dots, or is an IPv6 address in brackets;
`shown_host` returns printable text.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote, urlsplit

import idna

HOST_CHARACTERS_MAX: Final = 253
_ENCODED_CHARACTERS_MAX: Final = (
    9 * HOST_CHARACTERS_MAX
)  # a percent-encoded letter has up to 9 characters
_CACHED_MAX: Final = 50_000
_CACHED_BYTES_MAX: Final = 300  # an id that is not a URL can have any length
_ACE: Final = "xn--"
_WEB: Final = re.compile(rb"\s*https?:", re.IGNORECASE)
_HOST: Final = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


def host_of(address: bytes) -> str:
    """Return the host of an absolute URL in its ASCII form; empty if there is none."""
    try:
        parts = urlsplit(address.decode("utf-8", "replace").replace("\\", "/"))
        name = parts.hostname if parts.scheme else None
    except ValueError:  # unbalanced brackets, or characters that could pass for a delimiter
        return ""
    if not name or len(name) > _ENCODED_CHARACTERS_MAX:
        return ""
    if ":" in name:  # `urlsplit` has removed the brackets
        return _address_host(name)
    try:
        name = idna.uts46_remap(unquote(name), std3_rules=False)
    except idna.IDNAError:
        return ""
    name = ".".join(map(_ascii_label, name.removesuffix(".").split(".")))
    bare = name.removeprefix("www.")
    name = bare if "." in bare else name
    return name if len(name) <= HOST_CHARACTERS_MAX and _HOST.fullmatch(name) else ""


def shown_host(host: str) -> str:
    """Return a host for people: labels in Punycode become letters where that is reversible."""
    return ".".join(map(_shown_label, host.split("."))) if _ACE in host else host


def named_host(value: bytes) -> str:
    """Return the host in a header or an option, which contains a URL or a bare host."""
    return host_of(value) or host_of(b"//".join((b"http:", value.strip())))


def searched_host(text: str) -> str:
    """Return the host in a search form, a URL or a bare host, as `shown_host` writes it."""
    return shown_host(named_host(text.strip().encode("utf-8", "replace"))) or text.strip()


def is_of_host(host: str, parent: str) -> bool:
    """Return whether a host is `parent` or a subdomain of it; True if `parent` is empty."""
    return not parent or host == parent or host.endswith("." + parent)


def site_of(identifier: bytes) -> str:
    """Return the host of an id that is an `http` or `https` URL; empty for other ids."""
    return host_of(identifier) if _WEB.match(identifier) else ""


def named_site(value: str) -> str:
    """Return the site in a field: the host of a URL, a bare host, or else the text."""
    raw = value.encode("utf-8", "surrogatepass")
    is_bare = not set(raw) & set(b"/?#@\\")
    return (named_host(raw) if is_bare else host_of(raw)) or value.strip()


class HostNames:
    """Finds hosts and caches them, because a crawl repeats the same hosts."""

    def __init__(self, find: Callable[[bytes], str] | None = None) -> None:
        """Find hosts with `find`; by default return `shown_host` of the host of any URL."""
        self._find = find or (lambda address: shown_host(host_of(address)))
        self._known: dict[bytes, str] = {}

    def of(self, identifier: bytes) -> str:
        """Return the host of an id such as `https://example.org/page`; empty if it has none."""
        start = _start_of(identifier)
        host = self._known.get(start)
        if host is None:
            host = self._find(start)
            if len(start) > _CACHED_BYTES_MAX:
                return host
            if len(self._known) >= _CACHED_MAX:
                self._known.clear()
            self._known[start] = host
        return host


def _start_of(identifier: bytes) -> bytes:
    """Return the part of an id that determines its host: nearly always the part up to its path."""
    end = identifier.find(b"/", identifier.find(b"//") + 2)
    return identifier if end < 0 else identifier[:end]


def _address_host(name: str) -> str:
    try:
        return f"[{ipaddress.IPv6Address(name.partition('%')[0]).compressed}]"
    except ValueError:
        return ""


def _ascii_label(label: str) -> str:
    return label if label.isascii() else _ACE + label.encode("punycode").decode("ascii")


def _shown_label(label: str) -> str:
    """Return a label in letters if they are printable and encode to this label, else the label."""
    if not label.startswith(_ACE):
        return label
    try:
        shown = label.removeprefix(_ACE).encode("ascii").decode("punycode")
        is_same = _ascii_label(idna.uts46_remap(shown, std3_rules=False)) == label
    except (ValueError, OverflowError, idna.IDNAError):
        return label
    return shown if is_same and shown.isprintable() else label
