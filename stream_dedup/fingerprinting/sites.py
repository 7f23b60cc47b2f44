"""Hash sites and titles for the log: 64-bit keyed hashes, 0 for none.

Invariants: a hash depends only on the name and the recipe's key; titles are normalised like texts,
so two titles that differ in case, width or white space are equal; no name has the hash 0. Only
those who know the key can make two names collide.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.relations import Origin
from stream_dedup.fingerprinting.normalise import normalise_batch
from stream_dedup.fingerprinting.recipe import Recipe

HASH_BYTES: Final = 8
_CACHED_MAX: Final = 50_000


class SiteHasher:
    """Hash sites and titles under the key of a recipe; cache the hashes of sites."""

    def __init__(self, recipe: Recipe) -> None:
        key, size = recipe.key, HASH_BYTES
        self._fold_han = recipe.languages.fold_han
        self._site = hashlib.blake2b(digest_size=size, key=key, person=b"document site")
        self._title = hashlib.blake2b(digest_size=size, key=key, person=b"document title")
        self._known: dict[str, int] = {"": 0}

    def hash_sites(self, sites: Sequence[str]) -> NDArray[np.uint64]:
        """Return the hash of each site, (n,); 0 for an empty one."""
        if len(self._known) > _CACHED_MAX:
            self._known = {"": 0}
        known = self._known
        for site in set(sites).difference(known):
            known[site] = _hash(self._site, site.encode("utf-8", "replace"))
        return np.fromiter(map(known.__getitem__, sites), np.uint64, len(sites))

    def hash_titles(self, titles: Sequence[str]) -> NDArray[np.uint64]:
        """Return the hash of each title, (n,); 0 for one that is empty after normalising."""
        if not any(titles):
            return np.zeros(len(titles), np.uint64)
        data, bounds = normalise_batch(titles, fold_han=self._fold_han)
        hashes = (
            _hash(self._title, data[start:stop].tobytes()) if start < stop else 0
            for start, stop in itertools.pairwise(bounds.tolist())
        )
        return np.fromiter(hashes, np.uint64, len(titles))

    def origin_of(self, site: str, title: str, identifier: bytes = b"") -> Origin:
        """Return the origin of a document: the hashes of its site and title, and the CRC of its
        id.
        """
        id_crc = (zlib.crc32(identifier) or 1) if identifier else 0
        return Origin(int(self.hash_sites([site])[0]), int(self.hash_titles([title])[0]), id_crc)


def _hash(keyed: hashlib.blake2b, name: bytes) -> int:
    digest = keyed.copy()  # the copy saves hashing the key again
    digest.update(name)
    return int.from_bytes(digest.digest(), "little") or 1
