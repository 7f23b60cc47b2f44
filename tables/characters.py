"""Makes the three tables of characters of `stream_dedup/fingerprinting`: `python -m
tables.characters`.

Whoever makes them anew changes every print: raise `characters.UNICODE_VERSION` and
`recipe.RULES_VERSION` with them.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from stream_dedup import fingerprinting
from stream_dedup.fingerprinting.characters import (
    APOSTROPHES,
    CHILLUS,
    CODE_POINTS,
    HAN,
    IGNORED,
    KIND_BITS,
    MARK,
    SEPARATOR,
    SPACE,
    UNASSIGNED,
    UNICODE_VERSION,
    UNSPACED,
    WORD,
)

FOLDER = Path(fingerprinting.__file__).parent

# Default_Ignorable_Code_Point of DerivedCoreProperties.txt, which Python's unicodedata does not
# carry.
_DEFAULT_IGNORABLE = (
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
# Letters and numerals of the Han script besides the ideographs proper: iteration mark, zero,
# Hangzhou numerals.
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
    # Tangut, Khitan, Nushu
    (0x17000, 0x18AFF), (0x18B00, 0x18CFF), (0x18D00, 0x18D7F), (0x1B170, 0x1B2FF),
)  # fmt: skip


def _within(code_point: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= code_point <= last for first, last in ranges)


def _kind(code_point: int) -> int:
    """Return the kind of one code point, flags included, by this Python's Unicode data."""
    character = chr(code_point)
    category = unicodedata.category(character)
    flags = 0
    # The half-width voicing marks are letters, but compatibility decomposition turns them into
    # marks.
    if category[0] == "M" or unicodedata.combining(unicodedata.normalize("NFKD", character)[0]):
        flags |= MARK
    if category == "Cn":
        flags |= UNASSIGNED
    if _within(code_point, _DEFAULT_IGNORABLE):
        return IGNORED | flags
    if character.isspace():
        return SPACE | flags
    if category[0] not in "LMN" or character in APOSTROPHES:
        return SEPARATOR | flags
    ideograph = unicodedata.name(character, "").startswith(
        ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH")
    )
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


def kinds() -> str:
    """Return the text of `characters.txt`: a line `first last kind` (hexadecimal) a range,
    separators left out.
    """
    lines = [
        (
            f"# Unicode {unicodedata.unidata_version}: first code point, last code point, kind and "
            "flags"
        )
    ]
    for first, last, kind in ranges(iter(_kinds())):
        if kind != SEPARATOR:
            lines.append(f"{first:X} {last:X} {kind:X}")
    return "\n".join(lines) + "\n"


@cache
def _second_of_pairs() -> frozenset[str]:
    """Return every character that can compose with one before it."""
    seconds = {
        chr(code_point) for code_point in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
    }  # Hangul jamo
    for code_point in range(CODE_POINTS):
        decomposition = unicodedata.decomposition(chr(code_point)).split()
        if len(decomposition) == 2 and not decomposition[0].startswith("<"):
            seconds.add(chr(int(decomposition[1], 16)))
    return frozenset(seconds)


def _folding(code_point: int, seconds: frozenset[str]) -> str:
    """Return what normalising makes of one code point: `=` itself, a combining class, `?` it
    depends, `>` and text.
    """
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
    folded = CHILLUS.get(code_point, unicodedata.normalize("NFKC", character).casefold())
    mapped = unicodedata.normalize("NFKC", folded)
    combining = unicodedata.combining(character)
    if (
        combining
        and character not in seconds
        and mapped == character == unicodedata.normalize("NFKD", character)
    ):
        return str(combining)
    composed = unicodedata.normalize("NFKC", character)
    for form in (
        unicodedata.normalize("NFKD", character),
        unicodedata.normalize("NFKD", folded),
        mapped,
    ):
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


def foldings() -> str:
    """Return the text of `foldings.txt`: a line `first last folding` a range, copied code points
    left out.
    """
    lines = [
        (
            f"# Unicode {unicodedata.unidata_version}: first code point, last code point, combining "
            "class, ? or >text"
        )
    ]
    for first, last, folding in ranges(iter(_foldings())):
        if folding != "=":
            lines.append(f"{first:X} {last:X} {folding}")
    return "\n".join(lines) + "\n"


def _composing() -> set[str]:
    """Return those that compose with nothing but the character right before them, and are
    themselves otherwise.

    Of the contextual ones these are the common: vowel signs and nuktas of the Indic scripts,
    Myanmar, voicing marks. Hangul is left out, which composes by three.
    """
    return {
        second
        for second in _second_of_pairs()
        if _foldings()[ord(second)] == "?"
        and second == second.casefold() == unicodedata.normalize("NFKD", second)
        and not 0x1100 <= ord(second) < 0x1200
    }


def compositions() -> str:
    """Return the text of `compositions.txt`: a line `0 second class` for each, and `first second
    composed` for each pair.

    A line `first 0 0` is for each that ends in a mark once it is decomposed: a second mark may have
    to go before that.

    Only what `foldings.txt` calls contextual stands here, and nothing that has two cases: it says
    the same once more, so that compiled code can do it, and is no part of the recipe.
    """
    known = _foldings()
    composing = _composing()
    lines = [
        (
            f"# Unicode {unicodedata.unidata_version}: first code point or 0, second, what they "
            "compose to, or the second's class"
        )
    ]
    lines += [
        f"0 {ord(second):X} {unicodedata.combining(second):X}" for second in sorted(composing)
    ]
    for code_point in range(CODE_POINTS):
        composed = chr(code_point)
        if known[code_point] == "=" and unicodedata.combining(
            unicodedata.normalize("NFD", composed)[-1]
        ):
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


def require_version() -> None:
    """End the program if this Python knows another Unicode version than `UNICODE_VERSION`."""
    if unicodedata.unidata_version != UNICODE_VERSION:
        sys.exit(
            f"This Python knows Unicode {unicodedata.unidata_version}; the tables are frozen at "
            f"{UNICODE_VERSION}. "
            "Run this with a Python of that version, or raise UNICODE_VERSION and with it every "
            "print."
        )


MADE = {"characters.txt": kinds, "foldings.txt": foldings, "compositions.txt": compositions}


def main() -> None:
    """Write the three files."""
    require_version()
    for name, make in MADE.items():
        (FOLDER / name).write_text(make(), "ascii")


if __name__ == "__main__":
    main()
