"""Documents crafted to fall into one bucket of the index: possible with a known key, in vain against a secret one."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from stream_dedup.fingerprinting import Fingerprinter, Recipe
from tests.fingerprinting.texts import OTHER_KEY

BLOCK_BITS = 8  # of the 16 of a block, so that some thousand texts are search enough
TEXTS = 4000


def test_a_flood_made_with_the_public_key_spreads_under_another() -> None:
    """Of 4,000 texts those that share a block under the public key share it no more than any others do under a secret key."""
    dice = random.Random(17)
    texts = [" ".join(f"{dice.getrandbits(24):x}" for _ in range(20)) for _ in range(TEXTS)]

    def blocks(recipe: Recipe) -> list[int]:
        prints = Fingerprinter(recipe).fingerprint(texts).prints
        return (prints[:, 0] & np.uint64((1 << BLOCK_BITS) - 1)).tolist()

    known, secret = blocks(Recipe()), blocks(Recipe(key=OTHER_KEY))
    bucket, crafted = Counter(known).most_common(1)[0]
    flood = [other for own, other in zip(known, secret, strict=True) if own == bucket]
    assert crafted == len(flood) > TEXTS / (1 << BLOCK_BITS)

    fullest = Counter(flood).most_common(1)[0][1]
    print(f"{crafted} texts in one bucket under the known key, at most {fullest} under another")
    assert fullest < crafted / 3
