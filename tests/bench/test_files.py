"""What `bench files` measures of a program."""

from __future__ import annotations

import sys
import tempfile

import numpy as np

from bench.files import run_measured


def test_the_memory_of_a_program_excludes_that_of_the_bench() -> None:
    ballast = np.ones(200_000_000, np.uint8)

    with tempfile.TemporaryFile() as out:
        small = run_measured([sys.executable, "-I", "-S", "-c", "print('x')"], out)
        large = run_measured([sys.executable, "-I", "-S", "-c", "b'x' * 60_000_000"], out)
        failed = run_measured([sys.executable, "-c", "raise SystemExit(3)"], out)
        out.seek(0)
        assert out.read() == b"x\n"

    assert ballast.all()
    assert small[0] == large[0] == 0
    assert small[2] < 40
    assert small[2] + 50 < large[2] < 120
    assert failed[0] == 3
