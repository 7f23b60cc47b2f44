"""Fold traditional Han to simplified: a frozen table of single characters.

Invariants: folding twice changes nothing; the table is part of a recipe that folds (its digest is
in the recipe id); a character becomes one character, regardless of its neighbours. That is coarser
than a converter's phrases, on purpose: two spellings of a text must become equal, and nobody reads
the result.

`han_variants.txt` is made from `TSCharacters.txt` of OpenCC 1.4.2 (Apache-2.0; BYVoid and
contributors), the first candidate of each character, by `python -m tables.han TSCharacters.txt`.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("han_variants.txt")


@cache
def table() -> dict[int, int]:
    """Return the simplified code point of every traditional one that differs, for
    `str.translate`.
    """
    lines = _FILE.read_text("utf-8").splitlines()[1:]
    return {ord(line[0]): ord(line[2]) for line in lines}


@cache
def digest() -> bytes:
    """Return a digest of the table: 16 bytes."""
    return hashlib.blake2b(_FILE.read_bytes(), digest_size=16).digest()
