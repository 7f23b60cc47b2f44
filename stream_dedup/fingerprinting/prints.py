"""Compute fingerprints and sketches of a batch of texts in one kernel.

The hashes of words and characters, frozen by golden vectors:

- A word's hash is SipHash-1-3 of its UTF-8 bytes under a key derived from the recipe's key. Only those who know the key
  can make two words collide, or steer a fingerprint.
- A bigram's hash mixes the hashes of its two words, in order, under further secrets of the same key; a shingle's hash mixes
  the hash of all words but the last with the hash of the last word.
- A character n-gram's hash mixes the sum of its code points, each multiplied by a secret odd number for its place.

`simhash` describes how the hashes become bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.presets import OF_CHARACTERS, OF_WORDS
from stream_dedup.fingerprinting.characters import code_point_at
from stream_dedup.fingerprinting.hashes import (
    BIGRAM_FIRST,
    BIGRAM_OFFSET,
    BIGRAM_SECOND,
    HIGH_HALF,
    SIP_KEY_0,
    SIP_KEY_1,
    last_block,
    mix,
    sip_hash_between,
    sip_hash_block,
)
from stream_dedup.fingerprinting.simhash import add_features, sign
from stream_dedup.fingerprinting.sketch import Sketching, sketch_words
from stream_dedup.fingerprinting.tokens import BYTES_PER_WORD_MIN, words_between
from stream_dedup.kernels.compiled import allocating_kernel, inlined, kernel


class Texts(NamedTuple):
    """Normalised texts: `data` uint8, their concatenated UTF-8; `offsets` (n + 1,) int64, the start
    of each.

    The kernel overwrites `data`: words are spelt in place.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]


class Cutting(NamedTuple):
    """The tables that cut texts into words: kinds of characters, spellings, and for Han a
    dictionary and its buffers.
    """

    kinds: NDArray[np.uint8]
    spelling: NDArray[np.uint32]
    dictionary: Any
    scratch: Any


class Secrets(NamedTuple):
    """The secrets derived from the recipe's key: for words, and for runs of characters."""

    of_words: NDArray[np.uint64]
    of_characters: NDArray[np.uint64]


class Weighing(NamedTuple):
    """The features of a recipe and their weights.

    `groups` (g, 3) int64: for each group `OF_WORDS` or `OF_CHARACTERS`, the length of a run, and
    the scale of the weights; `weights`: `simhash.WEIGHTS`; `bits`: the width of a fingerprint.
    """

    groups: NDArray[np.int64]
    weights: NDArray[np.int64]
    bits: int


class Results(NamedTuple):
    """The results of the kernel: `prints` (n, bits / 64 rounded up) uint64, `features` (n,) uint32,
    the number of distinct features, and sketches.
    """

    prints: NDArray[np.uint64]
    features: NDArray[np.uint32]
    sketching: Sketching


@inlined
def count_one(value: Any, keys: Any, counts: Any, order: Any, mask: Any, distinct: Any) -> Any:
    """Count an occurrence of a feature; return the number of distinct features.

    `keys` and `counts` are an open-addressing table; `order` lists the slots in use. There is no
    branch on whether a feature is new: in running text no processor can predict it. (A hash of 0,
    one in 2^64, would count as new each time.)
    """
    # Unsigned: numba then omits the check for negative indexes.
    slot = np.uint64(value >> np.uint64(32)) & np.uint64(mask)
    while keys[slot] != 0 and keys[slot] != value:
        slot = (slot + np.uint64(1)) & np.uint64(mask)
    order[np.uint64(distinct)] = slot
    distinct += np.int64(keys[slot] == 0)
    keys[slot] = value
    counts[slot] += np.uint32(1)
    return distinct


@inlined
def count_runs(values: Any, number: Any, keys: Any, counts: Any, order: Any, size: Any) -> Any:
    """Count the first `number` features of `values` in an emptied table of `size` slots; return the
    number of distinct ones.
    """
    keys[:size] = 0
    counts[:size] = 0
    distinct = np.int64(0)
    for run in range(number):
        distinct = count_one(values[run], keys, counts, order, size - 1, distinct)
    return distinct


@inlined
def decode_points(data: Any, start: Any, stop: Any, points: Any, places: Any) -> Any:
    """Write the code points of UTF-8 to `points`, and the start of each to `places`; return their
    number.
    """
    count: Any = np.int64(0)
    place = start
    while place < stop:
        code_point, length = code_point_at(data, place)
        points[count] = code_point
        places[count] = place
        count += 1
        place += length
    places[count] = stop
    return count


@inlined
def hash_words(
    data: Any, starts: Any, stops: Any, words: Any, secrets: Any, hashes: Any, long_words: Any
) -> None:
    """Write the keyed hash of each word; `long_words` is a buffer for as many numbers.

    Most words are shorter than a block of SipHash: they are hashed in vector registers, the others
    after them.
    """
    key_0 = secrets[SIP_KEY_0]
    key_1 = secrets[SIP_KEY_1]
    longer = np.int64(0)
    for word in range(words):
        length = stops[word] - starts[word]
        hashes[word] = last_block(data, starts[word], stops[word], length)
        long_words[np.uint64(longer)] = word
        longer += np.int64(length >= 8)
    for word in range(words):
        hashes[word] = sip_hash_block(hashes[word], key_0, key_1)
    for place in range(longer):
        word_number = np.int64(long_words[place])
        hashes[word_number] = sip_hash_between(
            data, starts[word_number], stops[word_number], key_0, key_1, 1, 3
        )


@inlined
def chain_words(hashes: Any, words: Any, length: Any, secrets: Any, chained: Any) -> Any:
    """Write the hash of each run of `length` words; return the number of runs."""
    for word in range(words):
        chained[word] = hashes[word]
    for further in range(1, length):
        for word in range(words - further):
            chained[word] = mix(
                chained[word] * secrets[BIGRAM_FIRST]
                + hashes[word + further] * secrets[BIGRAM_SECOND]
                + secrets[BIGRAM_OFFSET]
            )
    return max(words - length + 1, 0)


@inlined
def hash_points(
    points: Any, characters: Any, length: Any, character_secrets: Any, hashes: Any
) -> Any:
    """Write the keyed hash of each run of `length` code points; return the number of runs.

    The outer loop is over the places of a run, so the inner loops are vectorised.
    """
    runs = max(characters - length + 1, 0)
    for run in range(runs):
        hashes[run] = character_secrets[0]
    for place in range(length):
        secret = character_secrets[1 + place]
        for run in range(runs):
            hashes[run] += np.uint64(points[run + place]) * secret
    for run in range(runs):
        hashes[run] = mix(hashes[run])
    return runs


@inlined
def table_size(features: Any) -> Any:
    """Return the number of slots of an open-addressing table for `features`: a power of two, at
    least twice their number.
    """
    size: Any = np.int64(64)
    while size < 2 * features:
        size *= 2
    return size


@allocating_kernel
def fingerprint_batch(texts: Any, cutting: Any, secrets: Any, weighing: Any, results: Any) -> None:
    """Fingerprint a batch: read `Texts`, `Cutting`, `Secrets` and `Weighing`, and fill `Results`.

    The time is linear in the texts; the memory is that for the words or characters of the longest
    text.
    """
    offsets, groups = texts.offsets, weighing.groups
    longest = np.int64(0)
    for text in range(len(offsets) - 1):
        longest = max(longest, offsets[text + 1] - offsets[text])
    needs_words = False
    needs_points = False
    for group in range(len(groups)):
        needs_words |= groups[group, 0] == OF_WORDS
        needs_points |= groups[group, 0] == OF_CHARACTERS
    most_words = longest // BYTES_PER_WORD_MIN + 1 if needs_words else 0
    most_points = longest if needs_points else 0
    most = max(most_words, most_points)
    slots = table_size(most)
    _fingerprint_each(
        texts,
        cutting,
        secrets,
        weighing,
        results,
        (needs_words, needs_points),
        (
            np.empty(most_words, np.int64),
            np.empty(most_words, np.int64),
            np.empty(most_words, np.uint64),
        ),
        (np.empty(most_points, np.uint32), np.empty(most_points + 1, np.int64)),
        np.empty(most, np.uint64),
        (np.empty(slots, np.uint64), np.empty(slots, np.uint32), np.empty(slots, np.uint32)),
        (
            np.empty(most, np.uint64),
            np.empty(most, np.uint32),
            np.empty(most, np.uint64),
            np.zeros((2, 128), np.uint32),
        ),
        np.empty(128, np.int64),
    )


@kernel
def _fingerprint_each(
    texts: Any,
    cutting: Any,
    secrets: Any,
    weighing: Any,
    results: Any,
    needs: Any,
    cut: Any,
    decoded: Any,
    chained: Any,
    table: Any,
    gathered: Any,
    ones: Any,
) -> None:
    """Fingerprint each text, with the buffers of `fingerprint_batch`, which are large enough for
    the longest text.

    Arrays are unpacked from their tuples before the loop, because each access counts a reference.
    """
    data, offsets = texts
    kinds, spelling, dictionary, scratch = cutting
    of_words, of_characters = secrets
    groups, weights, bits = weighing
    prints, features, sketching = results
    needs_words, needs_points = needs
    starts, stops, hashes = cut
    points, places = decoded
    keys, counts, order = table
    high_half = of_words[HIGH_HALF]
    for text in range(len(offsets) - 1):
        words = np.int64(0)
        characters = np.int64(0)
        if needs_words:
            words = words_between(
                data,
                offsets[text],
                offsets[text + 1],
                kinds,
                spelling,
                dictionary,
                scratch,
                starts,
                stops,
            )
            hash_words(data, starts, stops, words, of_words, hashes, chained)
        if needs_points:
            characters = decode_points(data, offsets[text], offsets[text + 1], points, places)
        ones[:] = 0
        total = np.int64(0)
        features[text] = 0
        size = table_size(max(words, characters))
        for group in range(len(groups)):
            length = groups[group, 1]
            if groups[group, 0] == OF_WORDS:
                runs = chain_words(hashes, words, length, of_words, chained)
            else:
                runs = hash_points(points, characters, length, of_characters, chained)
            distinct = count_runs(chained, runs, keys, counts, order, size)
            total += add_features(
                table, distinct, gathered, groups[group, 2], weights, high_half, ones
            )
            features[text] += distinct
        sign(ones, total, bits, prints[text])
        if needs_words and sketching.rows.shape[1] > 0:
            sketch_words(hashes, words, sketching, chained, text)
