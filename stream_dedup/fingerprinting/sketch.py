"""Compute sketches of texts from their words: 80 values of a byte and 80 of half a byte; the share
of equal values estimates the overlap of two texts' runs of words.

The rules, all frozen by golden vectors:

- A run is three neighbouring words; a text of one or two words has one run of all its words; a text without words has no
  run, and its sketch is zeros. (Such texts are below the floor of features, and never compared.) The
  number of occurrences of a run does not matter.
- A run's hash mixes the hashes of its words (SipHash under the recipe's key, the same as for the fingerprint), each times a
  secret odd number for its place, and a secret offset: only those who know the key can manipulate a
  sketch.
- The first part uses one permutation: the high 32 bits of a run's hash select one of 80 bins (times 80, divided by 2^32), the
  low 32 bits are its rank. A bin stores its lowest rank; its value is the low byte of it.
- The second part uses another one of the same hash: the low 32 bits select the bin, the high 32 bits are the rank, and the
  value is the low half of its low byte. Two values share a byte, the first of them in its low half.
- Densification: an empty bin takes the value of the first full bin of its walk. The walk of each bin is a fixed order of
  all bins, the same for every text and key: by BLAKE2b-64 of the two bins' numbers. Two texts with
  the same runs in the same bins thus fill their empty bins with equal values, but two bins never
  agree only because both are empty.

Two sketches agree in a value with a probability near the Jaccard similarity of the texts' runs,
plus agreement by chance: one in 256 in the first part, one in 16 in the second. Short texts leave
bins empty, and the values that fill them add no information. The second part fills other bins with
the same runs, so it adds information: over pairs of 23 runs the mean of both has an error of 0.042,
the first alone 0.058. (One permutation of 160 bins has more empty bins; its error is 0.046.) The
time is linear in the words, plus at most 2 * 80 * 80 steps.

Sources: Li, Owen, Zhang, "One Permutation Hashing" (NIPS 2012); Shrivastava, Li, "Densifying One
Permutation Hashing via Rotation for Fast Near Neighbor Search" (ICML 2014); Shrivastava, "Optimal
Densification for Fast and Accurate Minwise Hashing" (ICML 2017); Li, König, "b-Bit Minwise Hashing"
(WWW 2010).
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.sketch import SKETCH_BYTES, SKETCH_VALUES
from stream_dedup.fingerprinting.hashes import mix
from stream_dedup.kernels.compiled import inlined

# Raise this with any change of the code that changes a sketch; it is part of the ids of recipes
# with sketches.
RULES: Final = b"sketch 2"
_RUN = 3
_EMPTY: Final = np.uint64(1 << 32)  # greater than every rank


class Sketching(NamedTuple):
    """The inputs of `sketch_words`: secrets (4,) uint64, walks (80, 80) uint8, a buffer for ranks
    (2, 80) uint64, and the rows to fill.

    `rows`: (n, 120) uint8, or (n, 0) if no sketches are wanted.
    """

    secrets: NDArray[np.uint64]
    walks: NDArray[np.uint8]
    ranks: NDArray[np.uint64]
    rows: NDArray[np.uint8]


def derive_sketch_secrets(key: bytes) -> NDArray[np.uint64]:
    """Return the secrets of runs, (4,): an odd multiplier for each place, and an offset."""
    derived = hashlib.blake2b(key, digest_size=8 * (_RUN + 1), person=b"sketch secrets").digest()
    secrets = np.frombuffer(derived, "<u8").astype(np.uint64)
    secrets[:_RUN] |= np.uint64(1)
    return secrets


@functools.cache
def walks() -> NDArray[np.uint8]:
    """Return the walks, (80, 80): the order in which each bin searches for a full one."""

    def rank(bin_number: int, other_bin: int) -> bytes:
        return hashlib.blake2b(
            bytes((bin_number, other_bin)), digest_size=8, person=b"sketch walks"
        ).digest()

    bins = range(SKETCH_VALUES)
    table = np.array(
        [sorted(bins, key=functools.partial(rank, bin_number)) for bin_number in bins], np.uint8
    )
    table.setflags(write=False)
    return table


def sketching(secrets: NDArray[np.uint64], count: int, *, is_wanted: bool) -> Sketching:
    """Return the inputs for the sketches of `count` texts."""
    rows = np.zeros((count, SKETCH_BYTES if is_wanted else 0), np.uint8)
    return Sketching(secrets, walks(), np.empty((2, SKETCH_VALUES), np.uint64), rows)


@inlined
def _rank_of_bin(ranks: Any, walks: Any, bin_number: Any) -> Any:
    """Return the rank of a bin, or of the first full bin of its walk."""
    full_bin = np.uint64(bin_number)
    step = np.int64(0)
    while ranks[full_bin] == _EMPTY:
        full_bin = np.uint64(walks[bin_number, step])
        step += 1
    return ranks[full_bin]


@inlined
def sketch_words(hashes: Any, words: Any, sketching: Any, runs: Any, text: Any) -> None:
    """Fill the row `text` of the sketches from the hashes of its words; `runs` is a buffer for one
    number per word.

    Hashing and binning are separate loops: the first is vectorised, and the second has no
    branches.
    """
    secrets, walks, ranks, rows = sketching
    first = secrets[0]
    second = secrets[1]
    third = secrets[2]
    offset = secrets[3]
    count = max(words - 2, np.int64(0))
    for run in range(count):
        runs[run] = mix(
            hashes[run] * first + hashes[run + 1] * second + hashes[run + 2] * third + offset
        )
    if words == 1:
        runs[0] = mix(hashes[0] * first + offset)
        count = np.int64(1)
    if words == 2:
        runs[0] = mix(hashes[0] * first + hashes[1] * second + offset)
        count = np.int64(1)
    ranks[:] = _EMPTY
    first_ranks = ranks[0]
    second_ranks = ranks[1]
    low_half = np.uint64(0xFFFFFFFF)
    for run in range(count):
        value = runs[np.uint64(run)]
        high = value >> np.uint64(32)
        low = value & low_half
        first_bin = (high * np.uint64(SKETCH_VALUES)) >> np.uint64(32)
        second_bin = (low * np.uint64(SKETCH_VALUES)) >> np.uint64(32)
        first_ranks[first_bin] = min(first_ranks[first_bin], low)
        second_ranks[second_bin] = min(second_ranks[second_bin], high)
    if count > 0:
        for bin_number in range(SKETCH_VALUES):
            rows[text, bin_number] = np.uint8(
                _rank_of_bin(first_ranks, walks, bin_number) & np.uint64(0xFF)
            )
        for bin_number in range(0, SKETCH_VALUES, 2):
            low = _rank_of_bin(second_ranks, walks, bin_number) & np.uint64(0xF)
            high = _rank_of_bin(second_ranks, walks, bin_number + 1) & np.uint64(0xF)
            rows[text, SKETCH_VALUES + bin_number // 2] = np.uint8(low | (high << np.uint64(4)))
