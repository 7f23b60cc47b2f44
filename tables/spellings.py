"""Makes `spellings.txt` of `stream_dedup/fingerprinting`: `python -m tables.spellings`."""

from __future__ import annotations

import unicodedata

from stream_dedup.fingerprinting.characters import APOSTROPHES
from stream_dedup.fingerprinting.spellings import END
from tables.characters import FOLDER, ranges, require_version

_SCRIPTS = ("LATIN", "GREEK", "ARABIC")
# Combining marks of these scripts; those of all alphabets together stand in the first and the last
# two.
_MARKS = ((0x0300, 0x036F), (0x0591, 0x05C7), (0x0610, 0x06ED), (0x1DC0, 0x1DFF))
_BY_HAND = {
    0x00F0: 0x0064,  # eth
    0x00D0: 0x0044,
    0x0131: 0x0069,  # dotless i
    0x0401: 0x0415,  # io
    0x0451: 0x0435,
    0x0671: 0x0627,  # alef wasla
    0x0649: 0x064A,  # yeh without dots
    0x06CC: 0x064A,  # Persian yeh
    0x06D2: 0x064A,  # yeh barree
    0x06A9: 0x0643,  # keheh
    0x0629: 0x0647,  # teh marbuta
    0x06C0: 0x0647,  # heh with yeh
    0x06C1: 0x0647,  # heh goal
    0x0640: 0,  # tatweel
    **dict.fromkeys(map(ord, "`\u2018\u2019" + APOSTROPHES), ord("'")),
}


def _becomes(code_point: int) -> int:
    """Return what one code point becomes, 0 for nothing, by this Python's Unicode data."""
    if code_point in _BY_HAND:
        return _BY_HAND[code_point]
    character = chr(code_point)
    name = unicodedata.name(character, "")
    folded = code_point
    if unicodedata.category(character) == "Mn" and any(
        first <= code_point <= last for first, last in _MARKS
    ):
        return 0
    if name.startswith(("ARABIC-INDIC DIGIT", "EXTENDED ARABIC-INDIC DIGIT")):
        return ord(str(unicodedata.decimal(character)))
    if name.startswith(_SCRIPTS) and unicodedata.category(character)[0] == "L":
        base, *marks = list(unicodedata.normalize("NFD", character))
        if all(unicodedata.category(mark) == "Mn" for mark in marks):
            folded = ord(base)
        plain, stroke, rest = unicodedata.name(chr(folded)).partition(" WITH STROKE")
        if stroke and not rest and plain[:-1] in {"LATIN SMALL LETTER ", "LATIN CAPITAL LETTER "}:
            folded = ord(unicodedata.lookup(plain))
    return folded if folded == code_point else _becomes(folded)


def generate() -> str:
    """Return the text of `spellings.txt`: a line `first last becomes` (hexadecimal) a range, 0 for
    what is dropped.
    """
    lines = [
        (
            f"# Unicode {unicodedata.unidata_version}: first code point, last code point, what they "
            "become"
        )
    ]
    for first, last, folded in ranges(
        None if _becomes(one) == one else _becomes(one) for one in range(END)
    ):
        if folded is not None:
            lines.append(f"{first:X} {last:X} {folded:X}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file."""
    require_version()
    (FOLDER / "spellings.txt").write_text(generate(), "ascii")


if __name__ == "__main__":
    main()
