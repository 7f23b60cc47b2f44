"""What the engine must find, by looking at every text: ten lines, and no engine."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction


def scan(texts: Mapping[str, list[str]], clue: list[str], least: float) -> dict[str, Fraction]:
    """Return the texts (by name, in words) that hold at least that share of a clue, each with its share."""

    def runs(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}

    length = min(2, len(clue))
    wanted = runs(clue)
    shares = {name: Fraction(len(wanted & runs(words)), len(wanted)) for name, words in texts.items()}
    return {name: share for name, share in shares.items() if share >= Fraction(str(least)) and share > 0}
