"""Records on `fingerprints` are read whole or refused; `test_formats` compares their bytes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stream_dedup.domain.document import Mode
from stream_dedup.domain.errors import FormatError
from stream_dedup.log import records
from stream_dedup.log.record_frame import framed


def make_batch(count: int = 3, words: int = 2, id_bytes: int = 9, size: int = 120) -> records.Batch:
    generator = random.Random(7)
    return records.Batch(
        recipe="words:128:jieba-0.42.1:1f3a9c",
        mode=Mode.ENFORCE,
        nonce=bytes(range(16)),
        number=42,
        sources=(
            records.Source("documents", bytes(range(100, 116)), 3, 0, 8812),
            records.Source("crawl.documents", bytes(16), 0, 2, 0),
        ),
        source=np.array([index % 2 for index in range(count)], np.uint16),
        offset=np.arange(8812, 8812 + count, dtype=np.int64),
        value_digest=np.array([generator.getrandbits(64) for _ in range(count)], np.uint64),
        text_digest=np.array(
            [[generator.getrandbits(8) for _ in range(16)] for _ in range(count)], np.uint8
        ),
        prints=np.array(
            [[generator.getrandbits(64) for _ in range(words)] for _ in range(count)], np.uint64
        ),
        sketches=np.frombuffer(generator.randbytes(count * size), np.uint8).reshape(count, size),
        features=np.arange(count, dtype=np.uint32),
        scope=np.arange(count, dtype=np.uint64) << np.uint64(40),
        site=np.arange(count, dtype=np.uint64) << np.uint64(56),
        title=np.array([generator.getrandbits(64) for _ in range(count)], np.uint64),
        time_ms=np.full(count, 1_790_000_000_000, np.int64),
        ids=tuple((f"id-{index}-é".encode() * 100)[:id_bytes] for index in range(count)),
    )


def is_same_batch(left: records.Batch, right: records.Batch) -> bool:
    for name in records.Batch.__dataclass_fields__:
        left_value, right_value = getattr(left, name), getattr(right, name)
        if name == "ids":
            left_value, right_value = tuple(left_value), tuple(right_value)
        equal = (
            np.array_equal(left_value, right_value)
            if isinstance(left_value, np.ndarray)
            else left_value == right_value
        )
        if not equal:
            return False
    return True


@pytest.mark.parametrize("count", [1, 2, 1000])
@pytest.mark.parametrize("words", [1, 2, 4])
@pytest.mark.parametrize("size", [0, 120])
def test_a_batch_is_decoded_as_it_was_encoded(count: int, words: int, size: int) -> None:
    batch = make_batch(count, words, size=size)

    decoded = records.decode(records.encode_batch(batch))

    assert isinstance(decoded, records.Batch)
    assert is_same_batch(batch, decoded)


def test_seeds_and_releases_are_decoded_as_they_were_encoded() -> None:
    """Seeds, releases and batches are distinguished; a release has exactly one document."""
    seed = records.decode(records.encode_seed(make_batch(5)))
    release = records.decode(records.encode_release(records.Release(make_batch(1), 1 << 63)))

    assert isinstance(seed, records.Seed)
    assert is_same_batch(make_batch(5), seed.batch)
    assert isinstance(release, records.Release)
    assert is_same_batch(make_batch(1), release.batch)
    assert release.unique_from == 1 << 63
    with pytest.raises(FormatError, match="one document, but this one has 2"):
        records.encode_release(records.Release(make_batch(2), 0))
    body = records.encode_batch(make_batch(2))[6:-4]
    with pytest.raises(FormatError, match="releases 2 documents"):
        records.decode(framed(records.MAGIC, 1, records.KIND_RELEASE, bytes(8) + body))


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda: records.decode(None), "no value"),
        (lambda: records.encode_batch(make_batch(1001)), "1001"),
        (lambda: records.encode_batch(make_batch(1000, 2, 400)), "at most 300000 bytes"),
        (
            lambda: records.decode(records.encode_batch(make_batch(1, 2, 513))),
            "more than 512 bytes",
        ),
        (
            lambda: records.encode_batch(replace(make_batch(3), sketches=make_batch(2).sketches)),
            "has 2 of 120 bytes",
        ),
    ],
)
def test_records_beyond_the_limits_are_refused(make: Callable[[], object], pattern: str) -> None:
    """A record with too many documents or bytes, or with too few sketches, is refused."""
    with pytest.raises(FormatError, match=pattern):
        make()


def test_split_sizes_fills_records_within_the_limits() -> None:
    generator = random.Random(os.environ["TEST_SEED"])
    print("seed", os.environ["TEST_SEED"])
    for _ in range(30):
        sizes = [generator.choice([0, 10, 80, 512]) for _ in range(generator.randint(1, 4000))]
        pieces = list(records.split_sizes(sizes, 128, 120, 2))

        assert sum(pieces) == len(sizes)
        assert max(pieces) <= records.DOCUMENTS_MAX
        start = 0
        for piece in pieces:
            records.encode_batch(
                replace(make_batch(piece), ids=tuple(map(bytes, sizes[start : start + piece])))
            )
            start += piece


@pytest.mark.parametrize("size", [1, 80, 119, 121, 255])
def test_a_sketch_of_a_wrong_length_is_refused(size: int) -> None:
    """A record with sketches of a wrong length is neither written nor read."""
    with pytest.raises(FormatError, match=f"has 3 of {size} bytes"):
        records.encode_batch(make_batch(3, size=size))
    body = bytearray(records.encode_batch(make_batch(3, size=120))[6:-4])
    place = 1 + len(make_batch().recipe) + 2
    assert body[place] == 120
    body[place] = size
    with pytest.raises(FormatError, match=f"has sketches of {size} bytes; only 120"):
        records.decode(framed(records.MAGIC, 1, records.KIND_BATCH, bytes(body)))


def test_position_of_a_document() -> None:
    assert str(make_batch().position(0)) == "documents-3@8812"
    assert make_batch().position(1).topic_id == bytes(16)
