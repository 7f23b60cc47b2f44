"""Normalise texts: texts with the same normalised form are equal.

Invariants: a pure function of the text, equal under every Unicode version since
`characters.UNICODE_VERSION`; the time is linear in the text; the result has no surrogate, no
default ignorable code point, and no white space except single spaces inside.

The steps, in this order:

1. Every surrogate (a `str` from JSON may contain lone ones) becomes U+FFFD, so the text can be
   encoded.
2. Default ignorable code points (zero-width characters, soft hyphens, variation selectors, tags)
   are removed, as NFKC_Casefold of the Unicode standard does; but a zero-width non-joiner between
   two letters of the Arabic script becomes a space, because it is Persian's half-space, which is
   often written as a space.
3. Runs of combining marks are cut after `MARKS_MAX`: the stream-safe limit of UAX #15. Canonical
   ordering is quadratic in such a run, and no text of any language comes near the limit.
4. A chillu of Malayalam becomes consonant and virama (step 2 removed the joiner of the older
   spelling); then NFKC, full case folding, and NFKC again, because folding can undo it.
5. Every stretch of white space becomes one space; none remains at the ends.

Punctuation and symbols remain: the text digest covers them, so texts of emoji or punctuation only
are distinct. Control characters other than white space remain too; they separate words. Traditional
and simplified Han are distinct, unless they are folded: step 4 then ends with `variants.table`.

`normalise` is the definition. `normalise_batch` returns the same bytes: a kernel normalises every
text whose code points do not depend on their neighbours (`characters.foldings`), and `normalise`
the others.
"""

from __future__ import annotations

import itertools
import sys
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting import characters
from stream_dedup.fingerprinting.characters import (
    COMPOSING,
    CONTEXTUAL,
    IGNORED,
    KIND_BITS,
    MAPPED,
    MARK,
    UNASSIGNED,
    WORD,
    Batch,
    Foldings,
    code_point_at,
    composition,
    of_two_bytes,
)
from stream_dedup.fingerprinting.variants import han as variants
from stream_dedup.kernels.byte_arrays import copy_bytes
from stream_dedup.kernels.compiled import inlined, kernel

MARKS_MAX = 30

_REPLACEMENT = 0xFFFD
_NATIVE_UTF_32 = f"utf-32-{sys.byteorder[0]}e"
_SPACE = 0x20
_WHOLE, _DEPENDS, _FULL = range(3)
_NON_JOINER = 0x200C
_ARABIC_FIRST, _ARABIC_LAST = 0x0600, 0x06FF
_ROOM = 64  # more than the longest replacement of one code point, in bytes


@inlined
def _is_arabic(code_point: Any, kinds: Any) -> Any:
    """Return whether a code point is a letter, mark or digit of the Arabic script's block."""
    return _ARABIC_FIRST <= code_point <= _ARABIC_LAST and kinds[code_point] & KIND_BITS == WORD


@kernel
def _clean(code_points: Any, kinds: Any, out: Any) -> Any:
    """Apply steps 1 to 3 to code points; return the number of code points written to `out`."""
    count = 0
    marks = 0
    for place in range(len(code_points)):
        code_point = code_points[place]
        if 0xD800 <= code_point < 0xE000:
            code_point = np.uint32(_REPLACEMENT)
        kind = kinds[code_point]
        if kind & KIND_BITS == IGNORED:
            between = code_point == _NON_JOINER and 0 < place < len(code_points) - 1
            if (
                between
                and _is_arabic(code_points[place - 1], kinds)
                and _is_arabic(code_points[place + 1], kinds)
            ):
                out[count] = _SPACE
                count += 1
                marks = 0
            continue
        marks = marks + 1 if kind & MARK else 0
        if marks <= MARKS_MAX:
            out[count] = code_point
            count += 1
    return count


def fold_fully(text: str) -> str:
    """Return a text after step 4; all its code points must be assigned."""
    folded = unicodedata.normalize("NFKC", text.translate(characters.CHILLUS)).casefold()
    return unicodedata.normalize("NFKC", folded)


@cache
def _foldings(fold_han: bool) -> Foldings:
    return characters.make_foldings(variants.table()) if fold_han else characters.foldings()


def normalise(text: str, *, fold_han: bool = False) -> str:
    """Return the normalised text; texts with equal results are equal for the filter.

    `fold_han`: traditional Han becomes simplified.

    Sources: The Unicode Standard 3.13 (D145 and D146, NFKC_Casefold); UAX #15, section 13
    (Stream-Safe Text Format).
    """
    if text.isascii():
        return " ".join(text.lower().split())
    joined = " ".join(_fold_assigned(limit_marks(text)).split())
    return joined.translate(variants.table()) if fold_han else joined


def _code_points(text: str) -> NDArray[np.uint32]:
    # Without the byte order mark.
    return np.frombuffer(text.encode("utf-32", "surrogatepass"), np.uint32)[1:]


def limit_marks(text: str) -> str:
    """Return a text after steps 1 to 3."""
    code_points = _code_points(text)
    cleaned = np.empty(len(code_points), np.uint32)
    return (
        cleaned[: _clean(code_points, characters.table(), cleaned)].tobytes().decode(_NATIVE_UTF_32)
    )


def _fold_assigned(text: str) -> str:
    """Return a text with every run of assigned code points folded.

    Unassigned ones neither combine nor decompose; they are left out, because a newer Python may
    have assigned them.
    """
    code_points = _code_points(text)
    unassigned = (characters.table()[code_points] & UNASSIGNED) != 0
    edges = [0, *(np.flatnonzero(unassigned[1:] != unassigned[:-1]) + 1).tolist(), len(code_points)]
    parts = []
    for start, stop in itertools.pairwise(edges):
        part = code_points[start:stop].tobytes().decode(_NATIVE_UTF_32)
        parts.append(part if start < stop and unassigned[start] else fold_fully(part))
    return "".join(parts)


@inlined
def _normalise_ascii(
    data: Any, place: Any, stop: Any, lower: Any, out: Any, end: Any, last_byte: Any
) -> Any:
    """Normalise up to the first byte that is not ASCII; return the positions of reading and
    writing, and the last byte written.
    """
    while place < stop:
        byte = data[np.uint64(place)]  # unsigned: numba omits the check for negative indexes
        if byte >= 0x80:
            break
        byte = lower[byte]
        out[np.uint64(end)] = byte
        end += np.int64((byte != _SPACE) | (last_byte != _SPACE))
        last_byte = byte
        place += 1
    return place, end, last_byte


@inlined
def _normalise_simple(
    data: Any,
    place: Any,
    stop: Any,
    foldings: Any,
    out: Any,
    end: Any,
    last_byte: Any,
    last_point: Any,
) -> Any:
    """Normalise code points of two bytes that do not depend on their neighbours, and single ASCII
    characters between them.

    Return the positions of reading and writing, the last byte written, and the code point that was
    copied last, or -1.
    """
    while place + 1 < stop:
        byte = data[np.uint64(place)]
        following = data[np.uint64(place + 1)]
        if byte < 0x80:
            if following < 0x80:
                break
            byte = foldings.ascii[byte]
            out[np.uint64(end)] = byte
            end += np.int64((byte != _SPACE) | (last_byte != _SPACE))
            last_byte = byte
            last_point = np.int64(-1)
            place += 1
            continue
        if byte >= 0xE0:
            break
        code_point = of_two_bytes(byte, following)
        simple = foldings.simple[np.uint64(code_point)]
        if simple == 0:
            break
        out[np.uint64(end)] = simple >> 8
        out[np.uint64(end + 1)] = simple & 0xFF
        end += 2
        place += 2
        last_byte = np.uint8(0xFF)
        last_point = (
            code_point if simple == (np.int64(byte) << 8 | np.int64(following)) else np.int64(-1)
        )
    return place, end, last_byte, last_point


@inlined
def _length_of(code_point: Any) -> Any:
    """Return the number of bytes of a code point beyond ASCII in UTF-8."""
    return 2 + np.int64(code_point >= 0x800) + np.int64(code_point >= 0x10000)


@inlined
def _write(code_point: Any, out: Any, end: Any) -> Any:
    """Write a code point beyond ASCII as UTF-8; return the new end."""
    length = _length_of(code_point)
    for byte in range(length - 1, 0, -1):
        out[end + byte] = 0x80 | (code_point & 0x3F)
        code_point >>= 6
    out[end] = ((0xF00 >> length) & 0xFF) | code_point
    return end + length


@inlined
def _is_half_space(data: Any, place: Any, start: Any, stop: Any, kinds: Any) -> Any:
    """Return whether the three bytes before `place` are between two letters of Arabic, of two bytes
    each.
    """
    if (
        place - 5 < start
        or place + 2 > stop
        or data[place - 5] & 0xE0 != 0xC0
        or data[place] & 0xE0 != 0xC0
    ):
        return False
    before = of_two_bytes(data[place - 5], data[place - 4])
    return _is_arabic(before, kinds) and _is_arabic(
        of_two_bytes(data[place], data[place + 1]), kinds
    )


@inlined
def _write_mapping(
    replacements: Any, first: Any, last: Any, out: Any, end: Any, last_byte: Any
) -> Any:
    """Write the replacement of a code point, without doubled spaces; return the new end, and the
    last byte.
    """
    for source in range(first, last):
        byte = replacements[source]
        out[end] = byte
        end += np.int64((byte != _SPACE) | (last_byte != _SPACE))
        last_byte = byte
    return end, last_byte


@inlined
def _composed(last_point: Any, code_point: Any, combining: Any, foldings: Any) -> Any:
    """Return the combining class of a composing code point, or `CONTEXTUAL` if its neighbours must
    be read, and its composition with the code point before, or -1.

    Directly after a combining mark the code point does not compose in this kernel.
    """
    action = np.int64(composition(np.int64(0), code_point, foldings))
    composed_point = np.int64(-1) if combining else composition(last_point, code_point, foldings)
    # Canonical ordering may move a second mark before the first, which is already written, alone or
    # within a composed character.
    second_mark = action and (combining or composition(last_point, np.int64(0), foldings) == 0)
    if last_point < 0 or composed_point == 0 or second_mark:
        return np.int64(CONTEXTUAL), np.int64(-1)
    return action, composed_point


@inlined
def _normalise_one(
    data: Any, first: Any, stop: Any, kinds: Any, foldings: Any, out: Any, begin: Any
) -> Any:
    """Normalise the text `data[first:stop]` into `out` from `begin` on; return the end of the result
    and how it ended: `_WHOLE`, `_DEPENDS` on its context, or `_FULL`, as `out` may be too short for
    it and all later texts.
    """
    end = begin
    place = first
    # As if a space were before the text: leading spaces are dropped like doubled ones.
    last_byte = np.uint8(_SPACE)
    combining: Any = 0
    marks = 0
    last_point: Any = np.int64(-1)  # the code point that was copied unchanged last, or -1
    while place < stop:
        if data[place] < 0x80:
            place, end, last_byte = _normalise_ascii(
                data, place, stop, foldings.ascii, out, end, last_byte
            )
            combining = marks = 0
            last_point = np.int64(-1)
            continue
        code_point, length = code_point_at(data, place)
        if length == 2 and foldings.simple[code_point] != 0:
            place, end, last_byte, last_point = _normalise_simple(
                data, place, stop, foldings, out, end, last_byte, last_point
            )
            combining = marks = 0
            continue
        action = np.int64(foldings.actions[code_point])
        place += length
        if action >= MAPPED:
            start = np.int64(foldings.offsets[action - MAPPED])
            last = np.int64(foldings.offsets[action - MAPPED + 1])
            if start == last:
                if code_point == _NON_JOINER and _is_half_space(data, place, first, stop, kinds):
                    out[end] = _SPACE
                    end += 1
                    last_byte = np.uint8(_SPACE)
                    combining = marks = 0
                    last_point = np.int64(-1)
                continue  # removed: the characters on both sides become neighbours
            marks = marks + 1 if kinds[code_point] & MARK else 0
            if len(out) < end + (last - start) + (len(data) - place):
                return end, _FULL
            end, last_byte = _write_mapping(foldings.replacements, start, last, out, end, last_byte)
            combining = np.int64(foldings.trailing[action - MAPPED])
            last_point = np.int64(-1)
            continue
        marks = marks + 1 if kinds[code_point] & MARK else 0
        if action == COMPOSING:
            action, composed_point = _composed(last_point, code_point, combining, foldings)
            if composed_point > 0:
                end -= _length_of(last_point)
                end, last_point = _write(composed_point, out, end), composed_point
                continue
        if action == CONTEXTUAL or (action != 0 and action < combining) or marks > MARKS_MAX:
            return begin, _DEPENDS
        combining = action
        last_point = code_point
        end = copy_bytes(data, place - length, place, out, end)
        last_byte = np.uint8(0xFF)
    return end - np.int64(end > begin and last_byte == _SPACE), _WHOLE


@kernel
def _normalise_each(
    data: Any,
    offsets: Any,
    first_text: Any,
    kinds: Any,
    foldings: Any,
    out: Any,
    ends: Any,
    contextual: Any,
) -> Any:
    """Normalise concatenated texts of UTF-8 into `out`, starting with text number `first_text`.

    Write the end of each result to `ends` (n + 1,), and 1 to `contextual` for each text that
    depends on its context (its result is then empty). Return the number of the first text that was
    not normalised because `out` may be too short for the rest.
    """
    for text in range(first_text, len(offsets) - 1):
        end, ending = _normalise_one(
            data, offsets[text], offsets[text + 1], kinds, foldings, out, ends[text]
        )
        if ending == _FULL:
            return text
        contextual[text] = np.uint8(ending == _DEPENDS)
        ends[text + 1] = end
    return len(offsets) - 1


def _joined(encoded: Sequence[bytes]) -> Batch:
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
    return np.frombuffer(bytearray(b"".join(encoded)), np.uint8), offsets


def clean_batch(texts: Sequence[str], *, fold_han: bool = False) -> Batch:
    """Return the texts of a batch after steps 1 to 3, with simplified Han if `fold_han`."""
    replaced = variants.table() if fold_han else {}
    return _joined([limit_marks(text).translate(replaced).encode() for text in texts])


def normalise_batch(texts: Sequence[str], *, fold_han: bool = False) -> Batch:
    """Normalise a batch; callers may overwrite the result."""
    foldings = _foldings(fold_han)
    data, offsets = _joined([text.encode("utf-8", "surrogatepass") for text in texts])
    bounds = np.zeros(len(texts) + 1, np.int64)
    contextual = np.zeros(len(texts), np.uint8)
    out = np.empty(len(data) + _ROOM, np.uint8)
    done = 0
    while done < len(texts):
        done = _normalise_each(
            data, offsets, done, characters.table(), foldings, out, bounds, contextual
        )
        if done < len(texts):
            out = np.concatenate((out[: bounds[done]], np.empty(2 * len(out), np.uint8)))
    contextual_texts = np.flatnonzero(contextual)
    if not len(contextual_texts):
        return out, bounds
    pieces = []
    done = 0
    for text in contextual_texts.tolist():
        pieces += [
            out[bounds[done] : bounds[text]].tobytes(),
            normalise(texts[text], fold_han=fold_han).encode(),
        ]
        done = text
    pieces.append(out[bounds[done] : bounds[-1]].tobytes())
    lengths = np.diff(bounds)
    lengths[contextual_texts] = list(map(len, pieces[1::2]))
    np.cumsum(lengths, out=bounds[1:])
    return np.frombuffer(bytearray(b"".join(pieces)), np.uint8), bounds
