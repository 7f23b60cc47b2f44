"""Makes `han_variants.txt` of `stream_dedup/fingerprinting/variants`: `python -m tables.han
TSCharacters.txt`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tables.characters import FOLDER

SOURCE = "OpenCC 1.4.2"


def generate(source: str) -> str:
    """Return the text of `han_variants.txt`, a line `traditional simplified` a character, from
    OpenCC's table.
    """
    first = {}
    for line in source.splitlines():
        if line and not line.startswith("#"):
            traditional, candidates = line.split("\t")
            first[traditional] = candidates.split(" ")[0]
    lines = [
        (
            f"# Traditional Han and what it becomes; from TSCharacters.txt of {SOURCE}, Apache-2.0, "
            "https://github.com/BYVoid/OpenCC"
        )
    ]
    for traditional in sorted(first):
        simplified = first[traditional]
        while (
            first.get(simplified, simplified) != simplified
        ):  # a chain would make folding twice another text
            simplified = first[simplified]
        if len(traditional) == len(simplified) == 1 and traditional != simplified:
            lines.append(f"{traditional} {simplified}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file, from the one named."""
    (FOLDER / "variants" / "han_variants.txt").write_text(
        generate(Path(sys.argv[1]).read_text("utf-8")), "utf-8"
    )


if __name__ == "__main__":
    main()
