"""Split normalised texts into words.

Invariants: a pure function of the text, of jieba's dictionary and model, and of the `languages`,
whose digests are all in the recipe id; the time is linear in the text.

A text is first split by script (`characters` defines the kinds of code points):

- A maximal run of `WORD` characters is one word.
- A maximal run of `HAN` is cut into words as `jieba.cut` does, in pieces of at most `HAN_PIECE` characters.
- In a run of `UNSPACED` characters every two neighbours are a word, overlapping; a single character is a word.
- All other characters separate words.
- A run of `WORD` characters is spelt by the rules of `spellings`, if the recipe has that step; a word that becomes empty is
  dropped.
- Words of the stop list are dropped: the words before and after them become a bigram.

Words of all kinds form one sequence in text order; bigrams span scripts and punctuation.

Why two characters: measured on Japanese with random edits, they find the same share of pairs at
Jaccard 0.8 as words do in spaced scripts; single characters find too many pairs below 0.65, triples
miss some above 0.8.

Only jieba's data is used (`jieba_data`); a kernel cuts the words (`jieba_cut`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_dedup.fingerprinting import characters, spellings
from stream_dedup.fingerprinting.characters import (
    HAN,
    KIND_BITS,
    UNSPACED,
    WORD,
    code_point_at,
    of_two_bytes,
)
from stream_dedup.fingerprinting.hashes import FNV_OFFSET, FNV_PRIME, eight_bytes
from stream_dedup.fingerprinting.jieba_cut import HAN_PIECE, cut_piece, scratch
from stream_dedup.fingerprinting.jieba_data import (
    FIRST_KNOWN,
    Dictionary,
)
from stream_dedup.fingerprinting.spellings import IS_WORD, STAYS, spell, spelling_of
from stream_dedup.kernels.compiled import allocating_kernel, inlined, lowest_bit

# On average: a word of one byte is followed by a separator, or by a word of another kind, whose
# characters have three bytes.
BYTES_PER_WORD_MIN = 2
_STRETCH = 64
_HIGHEST = 0x8080808080808080  # bits of eight bytes


@inlined
def _is_stop_word(data: Any, start: Any, stop: Any, dictionary: Any) -> Any:
    value = np.uint64(FNV_OFFSET)
    for place in range(start, stop):
        value = (value ^ np.uint64(data[place])) * np.uint64(FNV_PRIME)
    mask = len(dictionary.stop_slots) - 1
    slot = np.int64(value & np.uint64(mask))
    while dictionary.stop_slots[slot] != 0:
        number = dictionary.stop_slots[slot]
        begin = dictionary.stop_offsets[number - 1]
        if dictionary.stop_offsets[number] - begin == stop - start:
            same = True
            for byte in range(stop - start):
                same = same and dictionary.stop_bytes[begin + byte] == data[start + byte]
            if same:
                return True
        slot = (slot + 1) & mask
    return False


@inlined
def _mask_word_bytes(block: Any) -> Any:
    """Return a mask with the highest bit of each of eight ASCII bytes that is a letter or a digit.

    Adding 128 minus a bound sets a byte's highest bit if it reaches the bound, and never carries
    into the next byte.
    """
    lower = block | np.uint64(0x2020202020202020)
    letters = (lower + np.uint64(0x1F1F1F1F1F1F1F1F)) & ~(lower + np.uint64(0x0505050505050505))
    digits = (block + np.uint64(0x5050505050505050)) & ~(block + np.uint64(0x4646464646464646))
    return (letters | digits) & np.uint64(_HIGHEST)


@inlined
def _ascii_words(
    data: Any, place: Any, stop: Any, kinds: Any, starts: Any, stops: Any, words: Any
) -> Any:
    """Find the words up to the first byte that is not ASCII; ASCII has only words and separators.

    Return the position of that byte, the number of words so far, and the start of the last word if
    it may continue there, or -1. No processor can predict where words begin and end, so the loop
    over bytes has no branches. Of 64 ASCII bytes, the edges of words are computed as the bits of a
    number, and only these are visited.
    """
    inside = np.int64(0)
    begin = place
    while place < stop:
        if place + _STRETCH <= stop:
            beyond = np.uint64(0)
            word_bits = np.uint64(0)
            for block_number in range(8):
                block = eight_bytes(data, place + 8 * block_number)
                beyond |= block
                # The product gathers the eight bits in its highest byte; the first byte's is the lowest.
                bits = (
                    (_mask_word_bytes(block) >> np.uint64(7)) * np.uint64(0x0102040810204080)
                ) >> np.uint64(56)
                word_bits |= bits << np.uint64(8 * block_number)
            if beyond & np.uint64(_HIGHEST) == 0:
                before = word_bits << np.uint64(1) | np.uint64(inside)
                begins = word_bits & ~before
                ends = before & ~word_bits
                starts[np.uint64(words)] = begin
                begun = words + inside
                while begins != 0:
                    starts[np.uint64(begun)] = place + lowest_bit(begins)
                    begun += 1
                    begins &= begins - np.uint64(1)
                while ends != 0:
                    stops[np.uint64(words)] = place + lowest_bit(ends)
                    words += 1
                    ends &= ends - np.uint64(1)
                inside = np.int64(word_bits >> np.uint64(63))
                begin = starts[np.uint64(words)] if inside else begin
                place += _STRETCH
                continue
        for _ in range(min(_STRETCH, stop - place)):
            byte = data[np.uint64(place)]  # unsigned: numba omits the check for negative indexes
            if byte >= 0x80:
                return place, words, begin if inside else np.int64(-1)
            is_word = np.int64(kinds[byte] & KIND_BITS == WORD)
            begin = begin if inside else place
            starts[np.uint64(words)] = begin
            stops[np.uint64(words)] = place
            words += inside & (1 - is_word)
            inside = is_word
            place += 1
    return place, words, begin if inside else np.int64(-1)


@inlined
def _alphabet_words(
    data: Any, place: Any, stop: Any, spelling_table: Any, starts: Any, stops: Any, words: Any
) -> Any:
    """Find the words up to the first code point of more than two bytes: alphabets from Latin to
    Arabic have only words and separators.

    Stop at two ASCII characters of which the first is a separator, so `_ascii_words` can continue,
    and before the text's last byte. Each word is spelt in place. Return the values of `_ascii_words`,
    and the end of the last word's spelling. The loop is bound by memory, so the spelling costs
    almost no time.
    """
    inside = np.int64(0)
    begin = place
    end = place
    while place + 1 < stop:
        byte = data[np.uint64(place)]
        following = data[np.uint64(place + 1)]
        if byte >= 0xE0:
            break
        has_two = np.int64(byte >= 0x80)
        code_point = of_two_bytes(byte, following) if has_two else np.int64(byte)
        spelling = spelling_table[np.uint64(code_point)]
        is_word = np.int64(spelling >> IS_WORD)
        if (byte | following) < 0x80 and not is_word and not inside:
            break
        begin = begin if inside else place
        end = end if inside else place
        starts[np.uint64(words)] = begin
        stops[np.uint64(words)] = end
        words += inside & (1 - is_word) & np.int64(end > begin)
        inside = is_word
        end = spell(spelling, data, end)
        place += 1 + has_two
    return place, words, begin if inside else np.int64(-1), end


@inlined
def _spell_to_end(
    data: Any, place: Any, stop: Any, kinds: Any, spelling_table: Any, end: Any
) -> Any:
    """Spell the characters of a word, starting at `place`; return their end in the text, and the
    end of their spelling.
    """
    while place < stop:
        code_point, length = code_point_at(data, place)
        if kinds[code_point] & KIND_BITS != WORD:
            break
        spelling = spelling_of(code_point, spelling_table)
        if spelling & STAYS != STAYS:
            end = spell(spelling, data, end)
        else:
            if end < place:
                for byte in range(length):
                    data[end + byte] = data[place + byte]
            end += length
        place += length
    return place, end


@inlined
def _pairs(
    data: Any,
    begin: Any,
    place: Any,
    stop: Any,
    kinds: Any,
    starts: Any,
    stops: Any,
    words: Any,
) -> Any:
    """Make a word of every two neighbours in a run of unspaced characters, whose first character is
    `data[begin:place]`.

    Return the end of the run, and the number of words so far.
    """
    previous = begin
    alone = True
    while place < stop:
        code_point, length = code_point_at(data, place)
        if kinds[code_point] & KIND_BITS != UNSPACED:
            break
        starts[words] = previous
        stops[words] = place + length
        words += 1
        alone = False
        previous = place
        place += length
    if alone:
        starts[words] = begin
        stops[words] = place
        words += 1
    return place, words


@inlined
def _remove_stop_words(data: Any, dictionary: Any, starts: Any, stops: Any, words: Any) -> Any:
    """Remove the words of the stop list, and close the gaps; return the number of the others."""
    kept_count: Any = np.int64(0)
    for word in range(words):
        if not _is_stop_word(data, starts[word], stops[word], dictionary):
            starts[kept_count] = starts[word]
            stops[kept_count] = stops[word]
            kept_count += 1
    return kept_count


@inlined
def _han_piece(data: Any, begin: Any, stop: Any, kinds: Any, scratch: Any) -> Any:
    """Write the places of a piece of Chinese text, at most `HAN_PIECE` characters, to `scratch`;
    return the end of the piece and its number of characters.
    """
    place = begin
    count: Any = np.int64(0)
    while place < stop and count < HAN_PIECE:
        code_point, length = code_point_at(data, place)
        if kinds[code_point] & KIND_BITS != HAN:
            break
        scratch.places[count] = place
        scratch.known[count] = code_point - FIRST_KNOWN
        count += 1
        place += length
    scratch.places[count] = place
    return place, count


@inlined
def words_between(
    data: Any,
    start: Any,
    stop: Any,
    kinds: Any,
    spelling_table: Any,
    dictionary: Any,
    scratch: Any,
    starts: Any,
    stops: Any,
) -> Any:
    """Find the words of `data[start:stop]` (UTF-8); fill `starts` and `stops` with their positions,
    return their number.

    Words are spelt in `data` itself, by `spelling_table` (see `spellings.spelling_table`).
    """
    # Not 0: numba would compile the callees twice, for a constant and for a variable.
    words: Any = np.int64(0)
    place = start
    while place < stop:
        if data[place] < 0x80:
            place, words, begin = _ascii_words(data, place, stop, kinds, starts, stops, words)
            if begin < 0:
                continue
            kind: Any = np.int64(WORD)
            end = place
            unspelt = place  # the start of the word's characters that are not spelt yet
        elif data[place] < 0xE0:
            place, words, begin, end = _alphabet_words(
                data, place, stop, spelling_table, starts, stops, words
            )
            if begin < 0:
                continue
            kind = np.int64(WORD)
            unspelt = place
        else:
            code_point, length = code_point_at(data, place)
            kind = np.int64(kinds[code_point] & KIND_BITS)
            begin = place
            end = place
            unspelt = place
            place += length
        if kind == WORD:
            place, end = _spell_to_end(data, unspelt, stop, kinds, spelling_table, end)
            starts[words] = begin
            stops[words] = end
            words += np.int64(end > begin)
        elif kind == HAN:
            place, count = _han_piece(data, begin, stop, kinds, scratch)
            words = cut_piece(count, dictionary, scratch, starts, stops, words)
        elif kind == UNSPACED:
            place, words = _pairs(data, begin, place, stop, kinds, starts, stops, words)
    return (
        _remove_stop_words(data, dictionary, starts, stops, words)
        if len(dictionary.stop_slots) > 0
        else words
    )


@allocating_kernel
def _spans(data: Any, kinds: Any, spelling_table: Any, dictionary: Any, scratch: Any) -> Any:
    starts = np.empty(len(data) // BYTES_PER_WORD_MIN + 1, np.int64)
    stops = np.empty(len(data) // BYTES_PER_WORD_MIN + 1, np.int64)
    words = words_between(
        data, np.int64(0), len(data), kinds, spelling_table, dictionary, scratch, starts, stops
    )
    return starts[:words], stops[:words]


def cut(
    normalised: bytes, dictionary: Dictionary, *, folded: bool
) -> tuple[bytearray, list[tuple[int, int]]]:
    """Return a normalised text in UTF-8 with its words spelt in place, if `folded`, and the (start,
    stop) byte positions of the words.
    """
    spelt, spelling_table = bytearray(normalised), spellings.spelling_table(folded=folded)
    data = np.frombuffer(spelt, np.uint8)
    starts, stops = _spans(data, characters.table(), spelling_table, dictionary, scratch())
    return spelt, list(zip(starts.tolist(), stops.tolist(), strict=True))
