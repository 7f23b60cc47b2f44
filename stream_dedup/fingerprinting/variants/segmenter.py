"""Mark the words of Japanese, Thai, Lao, Khmer and Burmese in normalised texts, with ICU's
dictionaries.

Invariants: a pure function of the text and of ICU's version, which is in the recipe id; the time is
linear in the text, because ICU gets a run in pieces of at most `PIECE` characters; scripts without
a dictionary of ICU are not marked.

A run is a maximal sequence of Han characters and of letters and marks of these scripts; a run of
Han only is not marked, and jieba cuts it. So jieba cuts `東京都` alone, and ICU all of
`私は東京都に住む`: in Japanese a word often begins in Han and ends in Hiragana.

The library is icu4py (MIT; ICU under Unicode-3.0), which contains ICU with its dictionaries: one
engine for all five scripts, typed, maintained, in C++. Only this module uses it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.extras import install_command
from stream_dedup.fingerprinting import characters
from stream_dedup.fingerprinting.characters import HAN, KIND_BITS, UNSPACED, code_point_at
from stream_dedup.kernels.compiled import inlined, kernel

PIECE = 512
BEGINS, GOES_ON = 1, 2
_NEWLINE = 0x0A
_SEPARATOR = -1


@inlined
def _has_dictionary(code_point: Any) -> Any:
    return (
        0x0E00 <= code_point <= 0x0EFF  # Thai, Lao
        or 0x1000 <= code_point <= 0x109F  # Myanmar
        or 0xA9E0 <= code_point <= 0xA9FF
        or 0xAA60 <= code_point <= 0xAA7F
        or 0x1780 <= code_point <= 0x17FF  # Khmer
        or 0x3040 <= code_point <= 0x30FF  # Hiragana, Katakana
        or 0x31F0 <= code_point <= 0x31FF
    )


@inlined
def _is_segmented(code_point: Any, kinds: Any) -> Any:
    kind = kinds[code_point] & KIND_BITS
    return kind == HAN or (kind == UNSPACED and _has_dictionary(code_point))


@kernel
def _mark_runs(data: Any, offsets: Any, kinds: Any, marks: Any, origins: Any) -> Any:
    """Mark every character of the runs with `GOES_ON`; write the positions of their bytes to
    `origins`, with a separator after each piece.

    Return the number of positions written, at most 4 / 3 of the bytes of `data`.
    """
    filled = 0
    for text in range(len(offsets) - 1):
        place = offsets[text]
        stop = offsets[text + 1]
        while place < stop:
            code_point, length = code_point_at(data, place)
            if not _is_segmented(code_point, kinds):
                place += length
                continue
            begin = place
            has_letters = False
            while place < stop:
                code_point, length = code_point_at(data, place)
                if not _is_segmented(code_point, kinds):
                    break
                has_letters = has_letters or kinds[code_point] & KIND_BITS != HAN
                place += length
            if not has_letters:
                continue
            inside = begin
            count = 0
            while inside < place:
                code_point, length = code_point_at(data, inside)
                if count == PIECE:
                    origins[filled] = _SEPARATOR
                    filled += 1
                    count = 0
                marks[inside] = GOES_ON
                for byte in range(inside, inside + length):
                    origins[filled] = byte
                    filled += 1
                inside += length
                count += 1
            origins[filled] = _SEPARATOR
            filled += 1
    return filled


def version() -> str:
    """Return the engine's name and version, such as `icu-78.3`.

    Raises ConfigurationError if icu4py is not installed.
    """
    try:
        import icu4py  # noqa: PLC0415 - behind an extra
    except ImportError as error:
        raise ConfigurationError(
            "The segmenter `icu` needs the package icu4py, which is not installed; run: "
            f"{install_command('segment')}; or set the segmenter to `pairs`."
        ) from error
    return f"icu-{icu4py.icu_version}"


def mark_words(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return for every byte of normalised texts `BEGINS` if a word of ICU begins there, `GOES_ON`
    within such a word, else 0.

    `data`, `offsets`: the concatenated UTF-8 of the texts, and (n + 1,) the start of each. Only the
    first byte of a character is marked.
    """
    size = int(offsets[-1])
    marks = np.zeros(size, np.uint8)
    # A run has three bytes or more and one separator; a long run has one for every 512 characters.
    origins = np.empty(size + size // 3 + 1, np.int64)
    filled = _mark_runs(data, offsets, characters.table(), marks, origins)
    if not filled:
        return marks
    from icu4py.breakers import WordBreaker  # noqa: PLC0415 - behind an extra

    origins = origins[:filled]
    joined = np.where(origins == _SEPARATOR, np.uint8(_NEWLINE), data[origins])
    # ICU counts in units of UTF-16, of which a character of four bytes has two.
    begins_character = (joined & 0xC0) != 0x80
    first_bytes = np.repeat(origins[begins_character], 1 + (joined[begins_character] >= 0xF0))
    breaks = WordBreaker(joined.tobytes().decode(), "root").segments()
    begins = first_bytes[np.fromiter((begin for begin, _ in breaks), np.int64)]
    marks[begins[begins != _SEPARATOR]] = BEGINS
    return marks
