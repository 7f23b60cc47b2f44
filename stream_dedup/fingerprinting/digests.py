"""Digests of many texts at once: keyed BLAKE2b-128, as `hashlib` has it."""

from __future__ import annotations

import hashlib
import itertools
from typing import Final

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES: Final = 16


class Digester:
    """Keyed digests of texts; `key` has 1 to 64 bytes."""

    def __init__(self, key: bytes) -> None:
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES, key=key)

    def of(self, data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the digests (n, 16) of texts in UTF-8; text i lies between `bounds` i and i + 1 (n + 1,) of `data`."""
        found, texts = bytearray(), data.data
        for start, end in itertools.pairwise(bounds.tolist()):
            # A key is a block of its own in front of the text: a copy saves compressing it again.
            digest = self._hash.copy()
            digest.update(texts[start:end])
            found += digest.digest()
        return np.frombuffer(found, np.uint8).reshape(-1, DIGEST_BYTES)
