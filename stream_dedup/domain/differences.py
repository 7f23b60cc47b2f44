"""Compare two texts word by word, and two fingerprints block by block. All functions are pure.

Invariant: the work is bounded for every text. Only the first `SHOWN` characters and the first
`COMPARED` words of each text are compared; a note says how much was left out.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

SHOWN: Final = 40_000
COMPARED: Final = 4_000
_CONTEXT_WORDS: Final = 40
# A word with the space after it; a character of a script that is written without spaces; a mark.
_TOKEN: Final = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]\s*"
    r"|[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]{1,200}\s*|[^\w\s]{1,200}\s*|\s+"
)
# Characters that are not replaced by escapes. Persian, Indic scripts and emoji need the joiners.
_KEPT: Final = frozenset("\n\t\u200c\u200d")


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A run of words of both texts. `kind` is `same`, `changed` (both sides), `removed` (left only),
    `added` (right only) or `skipped`.
    """

    kind: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class TextComparison:
    """Both texts as pieces. `similarity` is the Jaccard similarity of their runs of three words, 0
    to 1; `changes` the number of pieces that differ; `note` says how much was not compared.
    """

    pieces: tuple[TextPiece, ...]
    similarity: float
    changes: int
    note: str = ""


def shown(text: str) -> str:
    """Return a text with its control characters written as escapes, so that none of them reorders
    or hides other characters.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in _KEPT
        else char.encode("unicode_escape").decode("ascii")
        if not "\ud800" <= char <= "\udfff"
        else f"\\u{ord(char):04x}"
        for char in text.replace("\r\n", "\n")
    )


def compare(left: str, right: str, *, folded: bool = True) -> TextComparison:
    """Compare the kept text (left) with another text (right). With `folded`, the middle of long
    equal runs is skipped.
    """
    first, second = (_TOKEN.findall(text[:SHOWN])[:COMPARED] for text in (left, right))
    cut_notes = [
        f"the {name} is longer than the part compared here ({len(''.join(tokens)):,} of "
        f"{len(text):,} characters)"
        for name, text, tokens in (("kept text", left, first), ("other text", right, second))
        if len("".join(tokens)) < len(text)
    ]
    left_words, right_words = (
        [token.strip().casefold() for token in tokens] for tokens in (first, second)
    )
    pieces: list[TextPiece] = []
    # autojunk (the default) bounds the time: it ignores words that make up more than a hundredth of
    # a long text.
    for action, left_start, left_stop, right_start, right_stop in difflib.SequenceMatcher(
        None, left_words, right_words
    ).get_opcodes():
        old, new = first[left_start:left_stop], second[right_start:right_stop]
        if action == "equal" and folded and len(old) > 3 * _CONTEXT_WORDS:
            pieces.append(_piece("same", old[:_CONTEXT_WORDS], new[:_CONTEXT_WORDS]))
            skipped = f"{len(old) - 2 * _CONTEXT_WORDS:,} equal words"
            pieces.append(TextPiece("skipped", skipped, skipped))
            pieces.append(_piece("same", old[-_CONTEXT_WORDS:], new[-_CONTEXT_WORDS:]))
        else:
            kind = {"equal": "same", "replace": "changed", "delete": "removed", "insert": "added"}[
                action
            ]
            pieces.append(_piece(kind, old, new))
    changes = sum(piece.kind in ("changed", "removed", "added") for piece in pieces)
    note = "; ".join(cut_notes)
    return TextComparison(
        tuple(pieces),
        _jaccard(left_words, right_words),
        changes,
        note[:1].upper() + note[1:] + "." if note else "",
    )


def _piece(kind: str, left: list[str], right: list[str]) -> TextPiece:
    return TextPiece(kind, shown("".join(left)), shown("".join(right)))


def _jaccard(left: list[str], right: list[str]) -> float:
    left_shingles, right_shingles = (
        {tuple(words[start : start + 3]) for start in range(max(1, len(words) - 2))}
        for words in (left, right)
    )
    return len(left_shingles & right_shingles) / len(left_shingles | right_shingles)


class BlockComparison(NamedTuple):
    """A block of two fingerprints in hex, and the number of bits in which they differ."""

    left: str
    right: str
    bits: int


def compare_blocks(left: str, right: str, digits: int = 4) -> list[BlockComparison]:
    """Return the comparison of each block of two fingerprints in hex; an empty list if the texts are
    not fingerprints of one length.
    """
    if len(left) != len(right) or not left or not re.fullmatch(r"[0-9a-f]+", left + right):
        return []
    pairs = [
        (left[start : start + digits], right[start : start + digits])
        for start in range(0, len(left), digits)
    ]
    return [
        BlockComparison(
            left_block, right_block, (int(left_block, 16) ^ int(right_block, 16)).bit_count()
        )
        for left_block, right_block in pairs
    ]
