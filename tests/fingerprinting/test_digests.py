"""Digests of many texts at once are `hashlib`'s, one by one."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dedup.fingerprinting.digests import LANES, LONG_BYTES, Digester

_EDGES = [0, 1, 7, 8, 127, 128, 129, 255, 256, 257, 1000, 4096]


def digests(key: bytes, texts: list[bytes]) -> list[bytes]:
    data = np.frombuffer(b"".join(texts), np.uint8)
    bounds = np.array([0, *itertools.accumulate(map(len, texts))], np.int64)
    return [row.tobytes() for row in Digester(key).of(data, bounds)]


def by_hashlib(key: bytes, texts: list[bytes]) -> list[bytes]:
    return [hashlib.blake2b(text, digest_size=16, key=key).digest() for text in texts]


@settings(deadline=None)  # the kernel may have to be compiled first
@given(
    st.binary(min_size=1, max_size=64),
    st.lists(st.tuples(st.sampled_from(_EDGES) | st.integers(0, 600), st.binary(min_size=1, max_size=9)), max_size=3 * LANES),
)
def test_digests_equal_hashlib(key: bytes, drawn: list[tuple[int, bytes]]) -> None:
    """Any texts of any lengths, in any order, under any key."""
    texts = [(piece * (size // len(piece) + 1))[:size] for size, piece in drawn]

    assert digests(key, texts) == by_hashlib(key, texts)


@pytest.mark.parametrize("size", [LONG_BYTES, LONG_BYTES + 1, 200_000])
def test_a_long_text_among_short_ones(size: int) -> None:
    """What goes alone has its digest at its place."""
    texts = [b"a", b"b" * size, b"", b"c" * 130]

    assert digests(b"key", texts) == by_hashlib(b"key", texts)
