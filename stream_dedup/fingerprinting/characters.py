"""The kind of each code point, and its normalised form: two tables frozen at one Unicode version.

Invariants: the tables are part of the recipe (their digest is in the recipe id), so fingerprints do
not depend on the Unicode version of the running Python; the files `characters.txt` (kinds) and
`foldings.txt` (normalising) contain them as ranges, and `compositions.txt` lists for compiled code
the pairs that `foldings.txt` marks as depending on neighbours. `python -m tables.characters`
generates all three, with a Python of exactly `UNICODE_VERSION`.

The kinds of a normalised text's characters decide where its words are:

- `WORD`: letters, marks and numbers (general categories L, M, N). Marks include the vowel signs of Indic scripts, so
  they stay in their word.
- `HAN`: ideographs of the Han script; runs of them are cut by jieba.
- `UNSPACED`: letters and marks of the other scripts that are written without spaces between words: the scripts
  of line breaking class SA of UAX #14 (Thai, Lao, Khmer, Myanmar, Tai, Ahom), the syllabaries
  (Hiragana, Katakana, Bopomofo, Yi) and the ideographic scripts beside Han (Tangut, Nushu, Khitan).
- `SEPARATOR`: everything else, and the letters of `APOSTROPHES`. `SPACE`: a separator that is white space by `str.isspace`.
- `IGNORED`: default ignorable code points (zero-width characters, soft hyphens, variation selectors, tags): removed by
  normalising, as NFKC_Casefold of the Unicode standard does, so inserting them does not make a new
  text.

Two flags are stored with the kind: `MARK` (counts towards a run of combining marks) and
`UNASSIGNED` (no character in this Unicode version; normalising does not change it, even if a newer
Python would).
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream_dedup.kernels.compiled import inlined

Batch: TypeAlias = tuple[
    NDArray[np.uint8], NDArray[np.int64]
]  # concatenated UTF-8, and the start of each text (n + 1,)

UNICODE_VERSION = "14.0.0"
CODE_POINTS = 0x110000

SEPARATOR, WORD, HAN, UNSPACED, SPACE, IGNORED = range(6)
KIND_BITS = 0x07
MARK = 0x08
UNASSIGNED = 0x10

APOSTROPHES = "\u02bb\u02bc"
"""Letters that keyboards write as apostrophes or quotation marks, which separate words: `o\u02bb` and
`g\u02bb` of Uzbek, the apostrophe of Ukrainian."""

CHILLUS = {
    0x0D54: "\u0d2e\u0d4d",
    0x0D55: "\u0d2f\u0d4d",
    0x0D56: "\u0d34\u0d4d",
    0x0D7A: "\u0d23\u0d4d",
    0x0D7B: "\u0d28\u0d4d",
    0x0D7C: "\u0d30\u0d4d",
    0x0D7D: "\u0d32\u0d4d",
    0x0D7E: "\u0d33\u0d4d",
    0x0D7F: "\u0d15\u0d4d",
}
"""Letters of Malayalam without a vowel, and their spelling as consonant and virama, which texts
from before Unicode 5.1 use with a joiner after it."""

# Special actions of the foldings. 1 to 253 are a combining class; `MAPPED` and above are the number
# of a mapping.
COPIED = 0
COMPOSING = 254  # higher than every combining class
CONTEXTUAL = 255
MAPPED = 256

_SLOTS, _SLOTS_SHIFT = 1 << 13, 64 - 13
_SPREAD = 0x9E3779B97F4A7C15
_FILE = Path(__file__).with_name("characters.txt")
_FOLDINGS_FILE = Path(__file__).with_name("foldings.txt")
_COMPOSITIONS_FILE = Path(__file__).with_name("compositions.txt")


@cache
def table() -> NDArray[np.uint8]:
    """Return kind and flags of every code point: (0x110000,), read-only."""
    kinds = np.zeros(CODE_POINTS, np.uint8)
    for line in _FILE.read_text("ascii").splitlines()[1:]:
        first, last, kind = (int(field, 16) for field in line.split())
        kinds[first : last + 1] = kind
    kinds.setflags(write=False)
    return kinds


class Foldings(NamedTuple):
    """The normalised form of every code point, as arrays that kernels read.

    `actions`: (0x110000,): `COPIED`; 1 to 253, copied, and its combining class; `CONTEXTUAL`, needs
    its neighbours; `MAPPED` and above, replaced by mapping number `action - MAPPED`. `offsets`: (m
    + 1,), the start of each mapping in `replacements`, UTF-8. `trailing`: (m,), the combining class
    of each mapping's last character. `ascii`: (128,), the normalised form of each ASCII character:
    lower case, and a space for white space. `pairs`, `composed`: an open-addressing table with the
    keys `first << 21 | second`. The value of a pair is its composition, or 0 if `unicodedata` must
    compute it. The value of a second code point alone (`first` 0) is its combining class, and its
    action is `COMPOSING`. A first one alone (`second` 0) has the value 0 if it contains a mark,
    otherwise no key. `simple`: (2048,), for a code point of two bytes its two normalised bytes if
    they do not depend on neighbours, first byte high; else 0.
    """

    actions: NDArray[np.uint16]
    offsets: NDArray[np.int32]
    replacements: NDArray[np.uint8]
    trailing: NDArray[np.uint8]
    ascii: NDArray[np.uint8]
    pairs: NDArray[np.uint64]
    composed: NDArray[np.int32]
    simple: NDArray[np.uint16]


@cache
def foldings() -> Foldings:
    """Return the foldings, read-only."""
    return make_foldings({})


def make_foldings(replaced: Mapping[int, int]) -> Foldings:
    """Return the foldings, read-only, with some code points of their results replaced by others.

    Normalising must not change the replaced code points or their replacements in any context.
    """
    actions = np.full(CODE_POINTS, COPIED, np.uint16)
    mappings: dict[str, int] = {}
    for line in _FOLDINGS_FILE.read_text("ascii").splitlines()[1:]:
        first, last, folding = line.split(" ", 2)
        if folding == "?":
            action = CONTEXTUAL
        elif folding[0] == ">":
            action = MAPPED + mappings.setdefault(folding, len(mappings))
        else:
            action = int(folding)
        actions[int(first, 16) : int(last, 16) + 1] = action
    for code_point, replacement in replaced.items():
        actions[code_point] = MAPPED + mappings.setdefault(f">{replacement:X}", len(mappings))
    texts = [
        "".join(chr(int(part, 16)) for part in mapping[1:].split()).translate(replaced)
        for mapping in mappings
    ]
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    trailing = np.array(
        [unicodedata.combining(text[-1]) if text else 0 for text in texts], np.uint8
    )
    lower = np.frombuffer(
        "".join(" " if character.isspace() else character for character in map(chr, range(128)))
        .lower()
        .encode(),
        np.uint8,
    )
    pairs, composed = _compositions(actions)
    simple = np.zeros(1 << 11, np.uint16)
    for code_point in range(0x80, 1 << 11):
        mapping_number = int(actions[code_point]) - MAPPED
        encoded_result = chr(code_point).encode() if mapping_number == COPIED - MAPPED else b""
        if mapping_number >= 0 and not trailing[mapping_number]:
            encoded_result = encoded[mapping_number]
        if (
            len(encoded_result) == 2
            and encoded_result[0] >= 0x80
            and not table()[code_point] & MARK
        ):
            simple[code_point] = encoded_result[0] << 8 | encoded_result[1]
    result_foldings = Foldings(
        actions,
        offsets,
        np.frombuffer(b"".join(encoded), np.uint8),
        trailing,
        lower,
        pairs,
        composed,
        simple,
    )
    for array in result_foldings:
        array.setflags(write=False)
    return result_foldings


def _compositions(actions: NDArray[np.uint16]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return the hash table of pairs of code points, (`_SLOTS`,), and the composition of each pair,
    (`_SLOTS`,); write `COMPOSING` to `actions` for the second code points.
    """
    pairs = np.zeros(_SLOTS, np.uint64)
    composed = np.zeros(_SLOTS, np.int32)
    for line in _COMPOSITIONS_FILE.read_text("ascii").splitlines()[1:]:
        first, second, result = (int(field, 16) for field in line.split())
        key = first << 21 | second
        slot = (key * _SPREAD & 0xFFFF_FFFF_FFFF_FFFF) >> _SLOTS_SHIFT
        while pairs[slot]:
            slot = (slot + 1) % _SLOTS
        pairs[slot] = key
        composed[slot] = result
        if second:
            actions[second] = COMPOSING
    return pairs, composed


@cache
def digest() -> bytes:
    """Return a digest of both tables: 16 bytes."""
    return hashlib.blake2b(
        _FILE.read_bytes() + _FOLDINGS_FILE.read_bytes(), digest_size=16
    ).digest()


@inlined
def of_two_bytes(first: Any, second: Any) -> Any:
    """Return the code point of a sequence of two bytes, as an int64."""
    return np.int64(first & 0x1F) << 6 | np.int64(second & 0x3F)


@inlined
def code_point_at(data: Any, place: Any) -> Any:
    """Return the code point that begins at `place` of valid UTF-8 (surrogates allowed), and its
    length in bytes.
    """
    first = np.int64(data[place])
    if first < 0x80:
        return first, 1
    if first < 0xE0:
        return of_two_bytes(first, data[place + 1]), 2
    second = np.int64(data[place + 1]) & 0x3F
    third = np.int64(data[place + 2]) & 0x3F
    if first < 0xF0:
        return (first & 0x0F) << 12 | second << 6 | third, 3
    return (first & 0x07) << 18 | second << 12 | third << 6 | (np.int64(data[place + 3]) & 0x3F), 4


@inlined
def composition(first: Any, second: Any, foldings: Any) -> Any:
    """Return the table's value for a pair, or for a second alone (`first` 0); -1 if missing."""
    key = np.uint64(first) << np.uint64(21) | np.uint64(second)
    slot = np.int64((key * np.uint64(_SPREAD)) >> np.uint64(_SLOTS_SHIFT))
    while foldings.pairs[slot] != 0:
        if foldings.pairs[slot] == key:
            return np.int64(foldings.composed[slot])
        slot = (slot + 1) & (_SLOTS - 1)
    return np.int64(-1)
