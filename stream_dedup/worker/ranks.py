"""How high the host of each document stands in a file of ranks, for the rule `authority` of what is
better.

A line is `RANK,HOST` as in Tranco's lists, or a host alone, whose rank is then the number of its
line; 1 is the highest. A host that is not in the file has the rank of the nearest domain above it
that is: `news.example.org` that of `example.org`.

Invariants: a pure function of the file's bytes and the id; of a host that stands twice the higher
rank counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.better import RANK_MAX, UNRANKED
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.insights.hosts import HostNames, host_of_authority

_CACHED_MAX: Final = 50_000


class HostRanks:
    """The ranks of hosts, by name."""

    def __init__(self, ranks: dict[str, int]) -> None:
        self._ranks = ranks
        self._known: dict[str, int] = {}
        self._names = HostNames()

    @classmethod
    def read(cls, path: Path | None) -> Self | None:
        """Return what a file says, or None where there is none.

        Raises:
            ConfigurationError: it cannot be read, or a line is none of a file of ranks.
        """
        if path is None:
            return None
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"The file of ranks {path} cannot be read: {error.strerror}."
            ) from error
        ranks: dict[str, int] = {}
        for number, line in enumerate(raw.splitlines(), 1):
            text = line.strip()
            if not text or text.startswith(b"#"):
                continue
            first, comma, rest = text.partition(b",")
            host = host_of_authority(rest.strip() if comma else text)
            rank = int(first) if comma and first.isdigit() else 0 if comma else number
            if not host or not 0 < rank <= RANK_MAX:
                raise ConfigurationError(
                    f"Line {number} of the file of ranks {path} is {text[:60]!r}, and must be "
                    "RANK,HOST with a rank of 1 to "
                    f"{RANK_MAX}, or a host alone."
                )
            ranks[host] = min(rank, ranks.get(host, rank))
        return cls(ranks)

    def of(self, identifiers: Sequence[bytes]) -> NDArray[np.uint32]:
        """Return the rank of each document's host, by the documents' ids; `UNRANKED` where there is
        none.
        """
        if len(self._known) > _CACHED_MAX:
            self._known.clear()
        known, hosts = self._known, self._names.of_many(identifiers)
        for host in set(hosts).difference(known):
            known[host] = self._rank(host)
        return np.fromiter(map(known.__getitem__, hosts), np.uint32, len(hosts))

    def _rank(self, host: str) -> int:
        while host:
            if host in self._ranks:
                return self._ranks[host]
            host = host.partition(".")[2]
        return UNRANKED
