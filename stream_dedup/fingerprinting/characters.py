"""What each code point is, and what normalising makes of it: two tables frozen at one Unicode version.

Invariants: the tables are part of the recipe (their digest is in the recipe id), so prints do not depend on the
Unicode version of the running Python; the files `characters.txt` (kinds) and `foldings.txt` (normalising) hold them as
ranges and are only ever made by `python -m stream_dedup.fingerprinting.characters`, with a Python that knows exactly
`UNICODE_VERSION`.

The kinds of a normalised text's characters decide where its words are:

- `WORD`: letters, marks and numbers (general categories L, M, N). Marks include the vowel signs of Indic scripts, so
  they stay in their word.
- `HAN`: ideographs of the Han script; runs of them are cut by jieba.
- `UNSPACED`: letters and marks of the other scripts that are written without spaces between words: those which
  UAX #14 puts into line breaking class SA (Thai, Lao, Khmer, Myanmar, Tai, Ahom), the syllabaries (Hiragana,
  Katakana, Bopomofo, Yi) and the ideographic scripts beside Han (Tangut, Nushu, Khitan).
- `SEPARATOR`: everything else. `SPACE`: a separator that is white space, as `str.isspace` sees it.
- `IGNORED`: default ignorable code points (zero-width characters, soft hyphens, variation selectors, tags): removed by
  normalising, as NFKC_Casefold of the Unicode standard does, so that inserting them does not make a text new.

Two flags stand beside the kind: `MARK` (counts towards a run of combining marks) and `UNASSIGNED` (no character in
this Unicode version; normalising leaves it alone, whatever a newer Python may know of it).
"""

from __future__ import annotations

import hashlib
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream_dedup.machine.compiled import inlined

Batch: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]  # UTF-8 one after another, and (n + 1,) where each begins

UNICODE_VERSION = "14.0.0"
CODE_POINTS = 0x110000

SEPARATOR, WORD, HAN, UNSPACED, SPACE, IGNORED = range(6)
KIND_BITS = 0x07
MARK = 0x08
UNASSIGNED = 0x10

# Actions of the foldings besides 1 to 254, a combining class, and from `MAPPED` on, a number of a mapping.
COPIED = 0
COMPOSING = 254  # no class is as high
CONTEXTUAL = 255
MAPPED = 256

_SLOTS, _SLOTS_SHIFT = 1 << 13, 64 - 13
_SPREAD = 0x9E3779B97F4A7C15
_FILE = Path(__file__).with_name("characters.txt")
_FOLDINGS_FILE = Path(__file__).with_name("foldings.txt")
_COMPOSITIONS_FILE = Path(__file__).with_name("compositions.txt")

# Default_Ignorable_Code_Point of DerivedCoreProperties.txt, which Python's unicodedata does not carry.
_DEFAULT_IGNORABLE = (
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
# Letters and numerals of the Han script besides the ideographs proper: iteration mark, zero, Hangzhou numerals.
_HAN_BESIDES = ((0x3005, 0x3005), (0x3007, 0x3007), (0x3021, 0x3029), (0x3038, 0x303B))
_UNSPACED_BLOCKS = (
    (0x0E00, 0x0E7F),  # Thai
    (0x0E80, 0x0EFF),  # Lao
    (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0xAA80, 0xAADF),  # Tai Le, New Tai Lue, Tai Tham, Tai Viet
    (0x11700, 0x1174F),  # Ahom
    (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x1AFF0, 0x1B16F),  # Hiragana, Katakana
    (0x3100, 0x312F), (0x31A0, 0x31BF),  # Bopomofo
    (0xA000, 0xA48F),  # Yi
    (0x17000, 0x18AFF), (0x18B00, 0x18CFF), (0x18D00, 0x18D7F), (0x1B170, 0x1B2FF),  # Tangut, Khitan, Nushu
)  # fmt: skip


def _within(code_point: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= code_point <= last for first, last in ranges)


def _kind(code_point: int) -> int:
    """Return the kind of one code point, flags included, by this Python's Unicode data."""
    character = chr(code_point)
    category = unicodedata.category(character)
    flags = 0
    # The half-width voicing marks are letters, but compatibility decomposition turns them into marks.
    if category[0] == "M" or unicodedata.combining(unicodedata.normalize("NFKD", character)[0]):
        flags |= MARK
    if category == "Cn":
        flags |= UNASSIGNED
    if _within(code_point, _DEFAULT_IGNORABLE):
        return IGNORED | flags
    if character.isspace():
        return SPACE | flags
    if category[0] not in "LMN":
        return SEPARATOR | flags
    ideograph = unicodedata.name(character, "").startswith(("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH"))
    if ideograph or _within(code_point, _HAN_BESIDES):
        return HAN | flags
    if category[0] in "LM" and _within(code_point, _UNSPACED_BLOCKS):
        return UNSPACED | flags
    return WORD | flags


@cache  # all three files are made from it
def _kinds() -> bytes:
    """Return the kind of every code point, flags included, by this Python's Unicode data."""
    return bytes(map(_kind, range(CODE_POINTS)))


def ranges(values: Iterator[Any]) -> Iterator[tuple[int, int, Any]]:
    """Yield first code point, last code point and value of every range of equal values."""
    first, value = 0, next(values)
    for code_point, following in enumerate(values, 1):
        if following != value:
            yield first, code_point - 1, value
            first, value = code_point, following
    yield first, CODE_POINTS - 1, value


def generate_kinds() -> str:
    """Return the text of `characters.txt`: a line `first last kind` (hexadecimal) a range, separators left out."""
    lines = [f"# Unicode {unicodedata.unidata_version}: first code point, last code point, kind and flags"]
    for first, last, kind in ranges(iter(_kinds())):
        if kind != SEPARATOR:
            lines.append(f"{first:X} {last:X} {kind:X}")
    return "\n".join(lines) + "\n"


@cache
def _second_of_pairs() -> frozenset[str]:
    """Return every character that can compose with one before it."""
    seconds = {chr(code_point) for code_point in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}  # Hangul jamo
    for code_point in range(CODE_POINTS):
        decomposition = unicodedata.decomposition(chr(code_point)).split()
        if len(decomposition) == 2 and not decomposition[0].startswith("<"):
            seconds.add(chr(int(decomposition[1], 16)))
    return frozenset(seconds)


def _folding(code_point: int, seconds: frozenset[str]) -> str:
    """Return what normalising makes of one code point: `=` itself, a combining class, `?` it depends, `>` and text."""
    character = chr(code_point)
    kind = _kinds()[code_point]
    if kind & KIND_BITS == IGNORED:
        return ">"
    if kind & UNASSIGNED:
        return "="
    if 0xD800 <= code_point <= 0xDFFF:
        return ">FFFD"
    if kind & KIND_BITS == SPACE:
        return ">20"
    folded = unicodedata.normalize("NFKC", character).casefold()
    mapped = unicodedata.normalize("NFKC", folded)
    combining = unicodedata.combining(character)
    if combining and character not in seconds and mapped == character == unicodedata.normalize("NFKD", character):
        return str(combining)
    composed = unicodedata.normalize("NFKC", character)
    for form in (unicodedata.normalize("NFKD", character), unicodedata.normalize("NFKD", folded), mapped):
        if form[0] in seconds or unicodedata.combining(form[0]):
            return "?"
    if unicodedata.combining(composed[-1]) > unicodedata.combining(mapped[-1]):
        return "?"  # a mark after it may be moved before it, which the result no longer shows
    return "=" if mapped == character else ">" + " ".join(f"{ord(part):X}" for part in mapped)


@cache  # two files are made from it
def _foldings() -> list[str]:
    """Return what normalising makes of every code point."""
    seconds = _second_of_pairs()
    return [_folding(code_point, seconds) for code_point in range(CODE_POINTS)]


def generate_foldings() -> str:
    """Return the text of `foldings.txt`: a line `first last folding` a range, copied code points left out."""
    lines = [f"# Unicode {unicodedata.unidata_version}: first code point, last code point, combining class, ? or >text"]
    for first, last, folding in ranges(iter(_foldings())):
        if folding != "=":
            lines.append(f"{first:X} {last:X} {folding}")
    return "\n".join(lines) + "\n"


def _composing() -> set[str]:
    """Return those that compose with nothing but the character right before them, and are themselves otherwise.

    Of the contextual ones these are the common: vowel signs and nuktas of the Indic scripts, Myanmar, voicing marks.
    Hangul is left out, which composes by three.
    """
    return {
        second
        for second in _second_of_pairs()
        if _foldings()[ord(second)] == "?"
        and second == second.casefold() == unicodedata.normalize("NFKD", second)
        and not 0x1100 <= ord(second) < 0x1200
    }


def generate_compositions() -> str:
    """Return the text of `compositions.txt`: a line `0 second class` for each, and `first second composed` for each pair.

    A line `first 0 0` is for each that ends in a mark once it is decomposed: a second mark may have to go before that.

    Only what `foldings.txt` calls contextual stands here, and nothing that has two cases: it says the same once more, so
    that compiled code can do it, and is no part of the recipe.
    """
    known = _foldings()
    composing = _composing()
    lines = [
        f"# Unicode {unicodedata.unidata_version}: first code point or 0, second, what they compose to, or the second's class"
    ]
    lines += [f"0 {ord(second):X} {unicodedata.combining(second):X}" for second in sorted(composing)]
    for code_point in range(CODE_POINTS):
        composed = chr(code_point)
        if known[code_point] == "=" and unicodedata.combining(unicodedata.normalize("NFD", composed)[-1]):
            lines.append(f"{code_point:X} 0 0")
        parts = unicodedata.decomposition(composed).split()
        if len(parts) != 2 or parts[0].startswith("<") or chr(int(parts[1], 16)) not in composing:
            continue
        first, second = (chr(int(part, 16)) for part in parts)
        if unicodedata.normalize("NFC", first + second) != composed:
            continue  # excluded from composition
        plain = known[code_point] == known[ord(first)] == "=" and first.upper() == first
        lines.append(f"{ord(first):X} {ord(second):X} {code_point if plain else 0:X}")
    return "\n".join(lines) + "\n"


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
    """What normalising makes of every code point by itself.

    `actions`: (0x110000,): `COPIED`; 1 to 254, copied, and its combining class; `CONTEXTUAL`, needs its neighbours;
    from `MAPPED` on, replaced by mapping number `action - MAPPED`. `offsets`: (m + 1,), where each mapping begins in
    `replacements`, UTF-8. `trailing`: (m,), the combining class of each mapping's last character. `ascii`: (128,),
    what each ASCII character becomes: lower case, and white space a space. `pairs`, `composed`: an open-addressing table
    from `first << 21 | second` to what they compose to, or 0 where only `unicodedata` knows; from a second alone to its
    combining class; and from a first alone to 0 if a mark is part of it. Seconds have the action `COMPOSING`. `simple`:
    (2048,), for a code point of two bytes the two bytes that it becomes whatever stands around it, first byte high; else 0.
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

    Both may only be such as normalising leaves alone wherever they stand.
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
    for code_point, by in replaced.items():
        actions[code_point] = MAPPED + mappings.setdefault(f">{by:X}", len(mappings))
    texts = ["".join(chr(int(part, 16)) for part in mapping[1:].split()).translate(replaced) for mapping in mappings]
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    trailing = np.array([unicodedata.combining(text[-1]) if text else 0 for text in texts], np.uint8)
    lower = np.frombuffer(
        "".join(" " if character.isspace() else character for character in map(chr, range(128))).lower().encode(), np.uint8
    )
    pairs = np.zeros(_SLOTS, np.uint64)
    composed = np.zeros(_SLOTS, np.int32)
    for line in _COMPOSITIONS_FILE.read_text("ascii").splitlines()[1:]:
        first_part, second, result = (int(field, 16) for field in line.split())
        key = first_part << 21 | second
        slot = (key * _SPREAD & 0xFFFF_FFFF_FFFF_FFFF) >> _SLOTS_SHIFT
        while pairs[slot]:
            slot = (slot + 1) % _SLOTS
        pairs[slot] = key
        composed[slot] = result
        if second:
            actions[second] = COMPOSING
    simple = np.zeros(1 << 11, np.uint16)
    for code_point in range(0x80, 1 << 11):
        number = int(actions[code_point]) - MAPPED
        becomes = chr(code_point).encode() if number == COPIED - MAPPED else b""
        if number >= 0 and not trailing[number]:
            becomes = encoded[number]
        if len(becomes) == 2 and becomes[0] >= 0x80 and not table()[code_point] & MARK:
            simple[code_point] = becomes[0] << 8 | becomes[1]
    made = Foldings(actions, offsets, np.frombuffer(b"".join(encoded), np.uint8), trailing, lower, pairs, composed, simple)
    for array in made:
        array.setflags(write=False)
    return made


@cache
def digest() -> bytes:
    """Return 16 bytes that name the content of both tables."""
    return hashlib.blake2b(_FILE.read_bytes() + _FOLDINGS_FILE.read_bytes(), digest_size=16).digest()


@inlined
def of_two_bytes(first: Any, second: Any) -> Any:
    """Return the code point of a sequence of two bytes, as an int64."""
    return np.int64(first & 0x1F) << 6 | np.int64(second & 0x3F)


@inlined
def code_point_at(data: Any, place: Any) -> Any:
    """Return the code point that begins at `place` of valid UTF-8 (surrogates allowed), and its length in bytes."""
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
    """Return what the table says of a pair, or of a second alone (`first` 0); -1 for what it does not hold."""
    key = np.uint64(first) << np.uint64(21) | np.uint64(second)
    slot = np.int64((key * np.uint64(_SPREAD)) >> np.uint64(_SLOTS_SHIFT))
    while foldings.pairs[slot] != 0:
        if foldings.pairs[slot] == key:
            return np.int64(foldings.composed[slot])
        slot = (slot + 1) & (_SLOTS - 1)
    return np.int64(-1)


def require_version() -> None:
    """End the program if this Python knows another Unicode version than `UNICODE_VERSION`."""
    if unicodedata.unidata_version != UNICODE_VERSION:
        sys.exit(
            f"This Python knows Unicode {unicodedata.unidata_version}; the tables are frozen at {UNICODE_VERSION}. "
            "Run this with a Python of that version, or raise UNICODE_VERSION and with it every print."
        )


def main() -> None:
    """Write the three files beside this module."""
    require_version()
    _FILE.write_text(generate_kinds(), "ascii")
    _FOLDINGS_FILE.write_text(generate_foldings(), "ascii")
    _COMPOSITIONS_FILE.write_text(generate_compositions(), "ascii")


if __name__ == "__main__":
    main()
