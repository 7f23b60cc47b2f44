"""Traditional Han folded to simplified: a frozen table of single characters.

Invariants: folding twice changes nothing; the table is part of a recipe that folds (its digest is in the recipe id); a
character becomes one character, whatever stands beside it. That is coarser than a converter's phrases, on purpose: two
spellings of one text are to meet, and nobody reads the result.

`han_variants.txt` is made from `TSCharacters.txt` of OpenCC 1.4.2 (Apache-2.0; BYVoid and contributors), the first
candidate of each character, by `python -m stream_dedup.fingerprinting.variants TSCharacters.txt`.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

SOURCE = "OpenCC 1.4.2"
_FILE = Path(__file__).with_name("han_variants.txt")


def generate(source: str) -> str:
    """Return the text of `han_variants.txt`, a line `traditional simplified` a character, from OpenCC's table."""
    first = {}
    for line in source.splitlines():
        if line and not line.startswith("#"):
            traditional, candidates = line.split("\t")
            first[traditional] = candidates.split(" ")[0]
    lines = [
        f"# Traditional Han and what it becomes; from TSCharacters.txt of {SOURCE}, Apache-2.0, https://github.com/BYVoid/OpenCC"
    ]
    for traditional in sorted(first):
        simplified = first[traditional]
        while first.get(simplified, simplified) != simplified:  # a chain would make folding twice another text
            simplified = first[simplified]
        if len(traditional) == len(simplified) == 1 and traditional != simplified:
            lines.append(f"{traditional} {simplified}")
    return "\n".join(lines) + "\n"


@cache
def table() -> dict[int, int]:
    """Return the simplified code point of every traditional one that has another, as `str.translate` takes it."""
    lines = _FILE.read_text("utf-8").splitlines()[1:]
    return {ord(line[0]): ord(line[2]) for line in lines}


@cache
def digest() -> bytes:
    """Return 16 bytes that name the content of the table."""
    return hashlib.blake2b(_FILE.read_bytes(), digest_size=16).digest()


def main() -> None:
    """Write the file beside this module, from the one named."""
    _FILE.write_text(generate(Path(sys.argv[1]).read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
