"""SimHash itself: worked examples on the plain reference, SipHash, weights, and the kernel's
sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from stream_dedup.fingerprinting import hashes, simhash
from stream_dedup.fingerprinting.simhash import COUNT_MAX, WEIGHT_ONE, WEIGHTS, log_count_weight
from tests.fingerprinting import reference
from tests.fingerprinting.texts import dice


@pytest.mark.parametrize(
    ("hashes", "weights", "sums", "made"),
    [
        (
            ("100101", "101011", "100111", "101111", "111011"),
            (5, 2, 3, 1, 4),
            (15, -7, -1, 3, 5, 15),
            "100111",
        ),
        (
            ("01011001", "11001011"),
            (45.11, 32.09),
            (-13.02, 77.2, -77.2, 13.02, 77.2, -77.2, -13.02, 77.2),
            "01011001",
        ),
        (("101", "011", "100", "001", "110"), (1, 2, 0, 3, 0), (-4, -2, 6), "001"),
        (("10", "01", "11"), (3.0, 2.0, 4.0), (5.0, 3.0), "11"),
        (("10", "01"), (2, 2), (0, 0), "00"),
        (("01", "10"), (2, 2), (0, 0), "00"),
        ((), (), (0, 0, 0, 0), "0000"),
        (("1111",), (0,), (0, 0, 0, 0), "0000"),
    ],
    ids=[
        *("five features", "real weights", "counts, two of them zero", "a projection on signs"),
        *("a tie is 0", "in any order", "no features", "none that weighs"),
    ],
)
def test_worked_examples(
    hashes: Sequence[str], weights: Sequence[float], sums: Sequence[float], made: str
) -> None:
    found, print_ = reference.simhash_reference(
        [int(bits, 2) for bits in hashes], weights, len(made)
    )

    assert found == pytest.approx(sums)
    assert f"{print_:0{len(made)}b}" == made


def sip_hash(data: bytes, key_0: int, key_1: int, rounds: int, final_rounds: int) -> int:
    return int(
        hashes.sip_hash(
            np.frombuffer(data, np.uint8), np.uint64(key_0), np.uint64(key_1), rounds, final_rounds
        )
    )


def test_siphash_vectors() -> None:
    """SipHash-2-4 of the paper's appendix, and of its authors' first test vectors (key 00..0f,
    message 00, 01, ...)."""
    key = bytes(range(16))
    key_0, key_1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")

    assert sip_hash(bytes(range(15)), key_0, key_1, 2, 4) == 0xA129CA6149BE45E5
    assert sip_hash(b"", key_0, key_1, 2, 4) == 0x726FDB47DD0E0E31
    assert sip_hash(bytes(range(1)), key_0, key_1, 2, 4) == 0x74F839C593DC67FD
    assert sip_hash(bytes(range(8)), key_0, key_1, 2, 4) == 0x93F5F5799A932462


def test_weights_are_equal_on_every_platform() -> None:
    """No weight lies so near to a half before rounding that the last bits of a logarithm could
    decide it."""
    exact = [WEIGHT_ONE * (1 + math.log(count)) for count in range(1, COUNT_MAX + 1)]

    assert min(abs(value % 1 - 0.5) for value in exact) > 1e-5


def test_weights_grow_with_the_count_up_to_the_greatest() -> None:
    """One occurrence weighs one; the table and the function agree; beyond the greatest count
    nothing grows."""
    assert WEIGHTS.tolist() == [0, *(log_count_weight(count) for count in range(1, COUNT_MAX + 1))]
    assert log_count_weight(1) == WEIGHT_ONE
    assert all(np.diff(WEIGHTS) >= 0)
    assert log_count_weight(10**9) == log_count_weight(COUNT_MAX)


def sums(values: list[int], weights: list[int], width: int) -> int:
    limbs = np.zeros(-(-width // 64), np.uint64)
    simhash.sum_hashes(simhash.in_halves(values), np.array(weights, np.int64), width, limbs)
    return sum(int(word) << (64 * place) for place, word in enumerate(limbs))


@pytest.mark.parametrize("width", [32, 64, 128])
def test_compiled_sums_equal_the_reference(width: int) -> None:
    """Weights of one bit, beyond 32 bits, and so many that 32 bits overflow: the kernel's print is
    the reference's."""
    generator = dice()
    for heaviest in (1, 1000, (1 << 32) - 1, 1 << 40):
        values = [generator.getrandbits(128) for _ in range(60)]
        weights = [generator.randrange(1, heaviest + 1) for _ in values]

        found = sums(values, weights, width)
        assert found == reference.simhash_reference(values, weights, width)[1]
