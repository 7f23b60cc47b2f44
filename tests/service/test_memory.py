"""What a worker frees stays with it, until it is told to give it back."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# A thread, because a worker prepares in one, and what threads free the C library treats otherwise.
FAULTS = """
import resource, sys, threading
from stream_dedup.service.process import keep_memory
if sys.argv[1] == "kept" and not keep_memory():
    sys.exit("the C library cannot keep memory")
def batch():
    values = [b"x" * 1100 for _ in range(8000)]
    joined = b"".join(values)
    return values, joined, joined + b"x", joined + b"xx"
def faults():
    for number in range(25):
        if number == 5:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        batch()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
run = threading.Thread(target=faults)
run.start()
run.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library is told to keep memory")
def test_memory_that_is_freed_is_taken_again_without_a_fault() -> None:
    """Twenty batches of 34 MB each: 8,600 faults a batch if all of it goes back each time."""

    def faults(how: str) -> int:
        asked = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=False)
        assert asked.returncode == 0, asked.stderr
        return int(asked.stdout)

    assert faults("kept") * 10 < faults("given back")


GIVEN_BACK = """
import sys
from stream_dedup.service.process import give_back, keep_memory
if not keep_memory():
    sys.exit("the C library cannot keep memory")
def resident_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
values = [b"x" * size for size in [1100] * 20_000]
values = None
kept = resident_kb()
assert give_back()
print(kept - resident_kb())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library is told to keep memory")
def test_memory_that_is_kept_goes_back_when_it_is_told_to() -> None:
    asked = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=False)

    assert asked.returncode == 0, asked.stderr
    assert int(asked.stdout) > 15_000
