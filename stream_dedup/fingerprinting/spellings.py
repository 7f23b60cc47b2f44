"""Fold variants of letters: a frozen table, and the step `spelling` before features are taken.

Invariants: folding twice changes nothing; a code point becomes one of at most two bytes of UTF-8,
or nothing, regardless of its neighbours; a letter of a word stays a letter of a word, so words
begin and end where they did; the table is part of the recipe (its digest is in the recipe id). The
text digest is taken before this step: two spellings of one text are near, at a similarity of 1, and
`exact` still means the same normalised text.

The folded letters are those that search engines fold, such as Lucene's analysers for Arabic and
Persian and Meilisearch's charabia:

- Latin, Greek, Arabic: a letter with marks is its base, by Unicode's decomposition (`é`, `ộ`, `ά`, `أ`, `ؤ`).
- Combining marks of Latin, Greek, Hebrew and Arabic are dropped: vowel signs, points, accents, and so is the tatweel.
- Latin letters with a stroke are their base, by their Unicode name (`đ`, `ł`, `ø`). `ð` is `d`, because it is typed for `đ`;
  the dotless `ı` is `i`, because capitals of Turkish are folded by the rule of other languages.
- Arabic: alef wasla is alef; yeh without dots, Persian yeh and yeh barree are yeh; keheh is kaf; teh marbuta and the forms of
  heh are heh. Both rows of digits are ASCII's.
- Apostrophes (backtick, single quotation marks, the letters of `characters.APOSTROPHES`) are ASCII's; in all recipes they
  separate words.
- Cyrillic: `ё` is `е`. Other Cyrillic letters with marks (`й`, `ї`, `ў`) are separate letters.

`spellings.txt` contains the table as ranges; `python -m tables.spellings` generates it, with a
Python of exactly `characters.UNICODE_VERSION`.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting import characters
from stream_dedup.fingerprinting.characters import Batch, code_point_at
from stream_dedup.kernels.byte_arrays import copy_bytes
from stream_dedup.kernels.compiled import inlined, kernel

# Only code points of at most two bytes in UTF-8, and those from `_BEGIN` to `END`, may be folded.
_TWO_BYTES, _BEGIN, END = 0x800, 0x1DC0, 0x2020
_ROOM: Final = 8  # a code point is written with the maximum number of bytes
_FILE = Path(__file__).with_name("spellings.txt")

# Bits of a row of `spelling_table`.
_LENGTH, IS_WORD = 16, 18
STAYS: Final = 3 << _LENGTH


@cache
def table() -> dict[int, int | None]:
    """Return the replacement of every folded code point, None to remove it, for `str.translate`."""
    rows = (
        (int(field, 16) for field in line.split())
        for line in _FILE.read_text("ascii").splitlines()[1:]
    )
    return {
        code_point: replacement or None
        for first, last, replacement in rows
        for code_point in range(first, last + 1)
    }


@cache
def digest() -> bytes:
    """Return a digest of the table: 16 bytes."""
    return hashlib.blake2b(_FILE.read_bytes(), digest_size=16).digest()


@cache
def spelling_table(*, folded: bool = False) -> NDArray[np.uint32]:
    """Return the bytes that `spell` writes for each code point below `END`, packed in a number.

    From the lowest bit: the last byte; the first byte (equal to the last, if there is only one); the
    number of bytes, 3 for a code point of three bytes, which is copied; and at `IS_WORD` whether it
    is part of words. Without `folded` no code point changes.
    """
    rows = np.full(END, STAYS, np.uint32)
    kinds = characters.table()
    for code_point in (*range(_TWO_BYTES), *range(_BEGIN, END)):
        replacement = table().get(code_point, code_point) if folded else code_point
        encoded = b"" if replacement is None else chr(replacement).encode()
        first, last = (encoded[0], encoded[-1]) if encoded else (0, 0)
        is_word = int(kinds[code_point]) & characters.KIND_BITS == characters.WORD
        rows[code_point] = last | first << 8 | min(len(encoded), 3) << _LENGTH | is_word << IS_WORD
    rows.setflags(write=False)
    return rows


@inlined
def spelling_of(code_point: Any, spelling_table: Any) -> Any:
    """Return the row of `spelling_table` for a code point, or `STAYS`."""
    if code_point < _TWO_BYTES or _BEGIN <= code_point < END:
        return spelling_table[np.uint64(code_point)]
    return np.uint32(STAYS)


@inlined
def spell(spelling: Any, data: Any, end: Any) -> Any:
    """Write the bytes of a row, two or fewer; return the new end. A row without bytes overwrites one
    byte after the end, other rows none.
    """
    length = np.int64(spelling >> _LENGTH) & 3
    data[np.uint64(end)] = spelling >> 8
    data[np.uint64(end + (length >> 1))] = spelling
    return end + length


@kernel
def _fold_each(data: Any, offsets: Any, spelling_table: Any, out: Any, ends: Any) -> None:
    """Write the folded texts to `out`, and the end of each result to `ends` (n + 1,)."""
    end = np.int64(0)
    for text in range(len(offsets) - 1):
        place = offsets[text]
        while place < offsets[text + 1]:
            code_point, length = code_point_at(data, place)
            spelling = spelling_of(code_point, spelling_table)
            end = (
                copy_bytes(data, place, place + length, out, end)
                if spelling & STAYS == STAYS
                else spell(spelling, out, end)
            )
            place += length
        ends[text + 1] = end


def fold_batch(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Batch:
    """Apply the step `spelling` to a batch of UTF-8."""
    out = np.empty(len(data) + _ROOM, np.uint8)
    ends = np.zeros(len(offsets), np.int64)
    _fold_each(data, offsets, spelling_table(folded=True), out, ends)
    return out, ends


def fold(text: str) -> str:
    """Return a text after the step `spelling`."""
    return text.translate(table())
