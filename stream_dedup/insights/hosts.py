"""Which host a document belongs to.

Invariants: the host of a document is the host of its id, if that is an absolute URL; in lower case,
without user, port and final dot; an id that is no URL, or whose host could not be one, belongs to
no host. A pure function of the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, cast

HOST_CHARACTERS_MAX: Final = 253
_CACHED_MAX: Final = 50_000
_CACHED_BYTES_MAX: Final = 300  # of each; an id that is no URL may have any length
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*:\Z")
_END: Final = re.compile(r"[/?#\\]")
_PORT: Final = re.compile(r":\d*\Z")
# Letters of all scripts are names too (an internationalised name that was not encoded); an address
# in brackets is one.
_HOST: Final = re.compile(r"(?:[\w-]+(?:\.[\w-]+)*|\[[0-9a-f:.]+\])\Z")


class HostNames:
    """Finds hosts, and remembers those it found: a crawl names the same few again and again."""

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

    def of(self, identifier: bytes) -> str:
        """Return the host of an id such as `https://example.org/page`; nothing if it has none."""
        end = identifier.find(b"/", 8)  # the one after the host, in nearly every id
        site = identifier if end < 0 else identifier[:end]
        found = self._known.get(site)
        if found is None:
            parts = site.split(b"/", 3)
            is_url = len(parts) >= 3 and not parts[1] and _SCHEME.match(parts[0])
            found = host_of_authority(parts[2]) if is_url else ""
            if len(site) > _CACHED_BYTES_MAX:
                return found
            if len(self._known) >= _CACHED_MAX:
                self._known.clear()
            self._known[site] = found
        return found

    def of_many(self, identifiers: Sequence[bytes]) -> list[str]:
        """Return the host of each id."""
        known = self._known
        sites = [one if (end := one.find(b"/", 8)) < 0 else one[:end] for one in identifiers]
        found = list(map(known.get, sites))
        if None not in found:
            return cast("list[str]", found)
        return [
            self.of(one) if host is None else host
            for one, host in zip(identifiers, found, strict=True)
        ]

    def named(self, value: bytes) -> str:
        """Return the host that a header holds: a URL, or the bare host."""
        return self.of(value) or host_of_authority(value)


def host_of_authority(authority: bytes) -> str:
    """Return the host of `user@Example.org:8080`: `example.org`; nothing if that could not be
    one.
    """
    text = _END.split(authority.decode("utf-8", "replace"), 1)[0]
    host = _PORT.sub("", text.rsplit("@", 1)[-1]).removesuffix(".").lower()
    return host if len(host) <= HOST_CHARACTERS_MAX and _HOST.match(host) else ""
