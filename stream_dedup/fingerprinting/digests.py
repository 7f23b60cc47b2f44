"""Digests of many texts at once: keyed BLAKE2b-128, as `hashlib` has it, eight texts side by side.

Invariants: each digest equals `hashlib.blake2b(text, digest_size=16, key=key)`; how many texts come together, and in which
order, changes none.

`hashlib` holds Python's lock for a text of a page's length, and took a fourth of a fingerprint's time: 2.1 us for 1 kB, and
1.3 here. Eight texts side by side are eight lanes of a vector register: the compression is the same for all, only the words
differ. A long text, which would go alone, is left to `hashlib`, which lets the lock go for it. Method: RFC 7693.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting.hashes import eight_bytes
from stream_dedup.machine.compiled import inlined, kernel

DIGEST_BYTES: Final = 16
LANES: Final = 8
LONG_BYTES: Final = 32_768
_WORDS: Final = 16
_BLOCK_BYTES: Final = 128
_ROUNDS: Final = 12

# RFC 7693, section 2.6: the start is SHA-512's; its first word is mixed with the parameters (section 2.5).
_START: Final = np.array(
    [0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
     0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179], np.uint64,
)  # fmt: skip
# Section 2.7: which word of the block comes where, round by round.
_ORDER: Final = np.array(
    [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
     [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
     [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
     [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
     [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
     [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
     [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
     [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
     [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
     [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
     [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
     [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3]], np.int64,
)  # fmt: skip


class Digester:
    """Keyed digests of texts; `key` has 1 to 64 bytes."""

    def __init__(self, key: bytes) -> None:
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES, key=key)
        self._of_nothing = np.frombuffer(self._hash.digest(), np.uint64).copy()
        # A key is a block of its own in front of the text, so the state behind it is the same for all.
        first = _START.copy()
        first[0] ^= np.uint64(0x01010000 ^ (len(key) << 8) ^ DIGEST_BYTES)
        block = np.frombuffer(key.ljust(_BLOCK_BYTES, b"\0"), np.uint64)
        state = np.repeat(first, LANES)
        words = np.repeat(block, LANES)
        counts, last = np.full(LANES, _BLOCK_BYTES, np.uint64), np.zeros(LANES, np.uint64)
        _compress(state, words, counts, last, _START, _ORDER, np.empty(2 * _WORDS * LANES, np.uint64))
        self._keyed = state

    def of(self, data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the digests (n, 16) of texts in UTF-8; text i lies between `bounds` i and i + 1 (n + 1,) of `data`."""
        digests = np.empty((len(bounds) - 1, DIGEST_BYTES), np.uint8)
        sizes = np.diff(bounds)
        # Texts of a length go together: none waits for a longer one.
        rows = np.argsort(sizes, kind="stable")
        rows, alone = np.split(rows, [np.searchsorted(sizes[rows], LONG_BYTES, side="right")])
        _digest_rows(
            data, bounds, rows, self._keyed, self._of_nothing, digests.view(np.uint64),
            (np.zeros(_WORDS * LANES, np.uint64), np.empty(_BLOCK_BYTES, np.uint8), np.empty(8 * LANES, np.uint64)),
            (np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)),
            _START, _ORDER, np.empty(2 * _WORDS * LANES, np.uint64),
        )  # fmt: skip
        for row in alone.tolist():
            digest = self._hash.copy()
            digest.update(data.data[bounds[row] : bounds[row + 1]])
            digests[row] = np.frombuffer(digest.digest(), np.uint8)
        return digests


@kernel
def _digest_rows(
    data: Any, bounds: Any, rows: Any, keyed: Any, of_nothing: Any, digests: Any, blocks: Any, marks: Any, start: Any,
    order: Any, room: Any,
) -> None:  # fmt: skip
    """Fill `digests` (n, 2); `rows` names the texts, the short first."""
    words, content, state = blocks
    counts, last = marks
    done = 0
    while done < len(rows) and bounds[rows[done] + 1] == bounds[rows[done]]:
        digests[rows[done], 0] = of_nothing[0]
        digests[rows[done], 1] = of_nothing[1]
        done += 1
    for first in range(done, len(rows), LANES):
        lanes = min(LANES, len(rows) - first)
        longest = rows[first + lanes - 1]
        for at in range(8 * LANES):
            state[at] = keyed[at]
        for block in range((bounds[longest + 1] - bounds[longest] + _BLOCK_BYTES - 1) // _BLOCK_BYTES):
            for lane in range(lanes):
                row = rows[first + lane]
                begin = bounds[row] + block * _BLOCK_BYTES
                size = min(bounds[row + 1] - begin, _BLOCK_BYTES)
                if size <= 0:
                    continue  # it has its digest; what its lane makes now is nobody's
                if size == _BLOCK_BYTES:
                    for word in range(_WORDS):
                        words[word * LANES + lane] = eight_bytes(data, begin + 8 * word)
                else:
                    for at in range(_BLOCK_BYTES):
                        content[at] = data[begin + at] if at < size else np.uint8(0)
                    for word in range(_WORDS):
                        words[word * LANES + lane] = eight_bytes(content, 8 * word)
                counts[lane] = np.uint64((block + 1) * _BLOCK_BYTES + size)
                last[lane] = np.uint64(0xFFFFFFFFFFFFFFFF) if begin + size == bounds[row + 1] else np.uint64(0)
            _compress(state, words, counts, last, start, order, room)
            for lane in range(lanes):
                row = rows[first + lane]
                begin = bounds[row] + block * _BLOCK_BYTES
                if begin < bounds[row + 1] <= begin + _BLOCK_BYTES:
                    digests[row, 0] = state[lane]
                    digests[row, 1] = state[LANES + lane]


@kernel
def _compress(state: Any, words: Any, counts: Any, last: Any, start: Any, order: Any, room: Any) -> None:
    """Take a block of each lane in (RFC 7693, section 3.2). All arrays hold words by lanes: (16 * 8,), `state` (8 * 8,)."""
    for at in range(8 * LANES):
        room[at] = state[at]
        room[8 * LANES + at] = start[at // LANES]
    for lane in range(LANES):
        room[12 * LANES + lane] ^= counts[lane]
        room[14 * LANES + lane] ^= last[lane]
    for turn in range(_ROUNDS):
        for word in range(_WORDS):
            for lane in range(LANES):
                room[(_WORDS + word) * LANES + lane] = words[order[turn, word] * LANES + lane]
        # In one memory with constant distances, so that the compiler sees that the lanes do not meet.
        for lane in range(LANES):
            a, b, c, d = room[lane], room[8 + lane], room[16 + lane], room[24 + lane]
            e, f, g, h = room[32 + lane], room[40 + lane], room[48 + lane], room[56 + lane]
            i, j, k, n = room[64 + lane], room[72 + lane], room[80 + lane], room[88 + lane]
            o, p, q, r = room[96 + lane], room[104 + lane], room[112 + lane], room[120 + lane]
            a, e, i, o = _mix(a, e, i, o, room[128 + lane], room[136 + lane])
            b, f, j, p = _mix(b, f, j, p, room[144 + lane], room[152 + lane])
            c, g, k, q = _mix(c, g, k, q, room[160 + lane], room[168 + lane])
            d, h, n, r = _mix(d, h, n, r, room[176 + lane], room[184 + lane])
            a, f, k, r = _mix(a, f, k, r, room[192 + lane], room[200 + lane])
            b, g, n, o = _mix(b, g, n, o, room[208 + lane], room[216 + lane])
            c, h, i, p = _mix(c, h, i, p, room[224 + lane], room[232 + lane])
            d, e, j, q = _mix(d, e, j, q, room[240 + lane], room[248 + lane])
            room[lane], room[8 + lane], room[16 + lane], room[24 + lane] = a, b, c, d
            room[32 + lane], room[40 + lane], room[48 + lane], room[56 + lane] = e, f, g, h
            room[64 + lane], room[72 + lane], room[80 + lane], room[88 + lane] = i, j, k, n
            room[96 + lane], room[104 + lane], room[112 + lane], room[120 + lane] = o, p, q, r
    for at in range(8 * LANES):
        state[at] ^= room[at] ^ room[8 * LANES + at]


@inlined
def _mix(a: Any, b: Any, c: Any, d: Any, x: Any, y: Any) -> Any:
    """Mix two words of the block into four of the state (RFC 7693, section 3.1)."""
    a = a + b + x
    d ^= a
    d = d >> np.uint64(32) | d << np.uint64(32)
    c += d
    b ^= c
    b = b >> np.uint64(24) | b << np.uint64(40)
    a = a + b + y
    d ^= a
    d = d >> np.uint64(16) | d << np.uint64(48)
    c += d
    b ^= c
    b = b >> np.uint64(63) | b << np.uint64(1)
    return a, b, c, d
