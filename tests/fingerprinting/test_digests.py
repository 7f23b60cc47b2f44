"""Digests of many texts at once are `hashlib`'s, one by one."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.fingerprinting.digests import Digester


@given(st.binary(min_size=1, max_size=64), st.lists(st.binary(max_size=400), max_size=5))
def test_digests_equal_hashlib(key: bytes, texts: list[bytes]) -> None:
    data = np.frombuffer(b"".join(texts), np.uint8)
    bounds = np.array([0, *itertools.accumulate(map(len, texts))], np.int64)

    found = Digester(key).of(data, bounds)

    assert found.shape == (len(texts), 16)
    assert [row.tobytes() for row in found] == [hashlib.blake2b(text, digest_size=16, key=key).digest() for text in texts]
