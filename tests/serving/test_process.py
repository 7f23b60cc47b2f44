"""What a role does with its process: signals, ports, the files that it may open, the memory that it
keeps."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.serving.ports import free_ports
from stream_dedup.serving.process import stop_on_signals

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_sets_the_event_and_interrupts_nothing(number: signal.Signals) -> None:
    """A loop sees the event on its next turn; no exception is thrown into it."""
    with stop_on_signals() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with stop_on_signals():
        assert [signal.getsignal(number) for number in SIGNALS] != before

    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_ends_the_process(number: signal.Signals) -> None:
    """Whoever does not want to wait for the drain signals twice."""
    code = (
        "import signal\n"
        "from stream_dedup.serving.process import stop_on_signals\n"
        "with stop_on_signals() as stop:\n"
        f"    signal.raise_signal({int(number)})\n"
        "    print('draining', flush=True)\n"
        f"    signal.raise_signal({int(number)})\n"
        "    print('never', flush=True)\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.stdout == "draining\n"
    assert ended.returncode == -number


LAST_ASSIGNABLE_PORT = 32_767  # Linux assigns higher ports to connections


def test_free_ports_are_consecutive_and_not_ephemeral() -> None:
    for count in (1, 4):
        ports = free_ports(count)
        assert len(ports) == count
        assert max(ports) <= LAST_ASSIGNABLE_PORT
        with contextlib.ExitStack() as open_sockets:
            for port in ports:
                open_sockets.enter_context(socket.create_server(("127.0.0.1", port)))


def test_a_range_with_a_used_port_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(8)[0]
    offered = iter([first, first + 4])
    monkeypatch.setattr(random, "randrange", lambda *_: next(offered))
    with socket.create_server(("127.0.0.1", first + 3)):
        assert free_ports(4) == range(first + 4, first + 8)


def test_a_missing_free_range_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(2)[0]
    monkeypatch.setattr(random, "randrange", lambda *_: first)
    with (
        socket.create_server(("127.0.0.1", first + 1)),
        pytest.raises(StreamDedupError, match="No 2 consecutive ports are free"),
    ):
        free_ports(2)


PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from stream_dedup.serving import single_role
single_role._run = lambda *_: print(*resource.getrlimit(resource.RLIMIT_NOFILE))
from stream_dedup.settings.settings import Settings
single_role.run_alone("index", "", Settings(), log_format="auto")
"""


@pytest.mark.parametrize(("soft", "hard"), [(256, 300), (300, 300)])
def test_a_role_raises_its_limit_of_open_files(soft: int, hard: int) -> None:
    program = PROGRAM.format(soft=soft, hard=hard)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.split() == [str(hard), str(hard)]


# In a thread, as in a worker: the C library treats memory that threads free differently.
FAULTS = """
import resource, sys, threading
from stream_dedup.serving.process import keep_memory
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


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only the GNU C library is told to keep memory"
)
def test_freed_memory_is_reused_without_page_faults() -> None:
    """Twenty batches of 34 MB each: 8,600 faults a batch if the system gets all of it back."""

    def faults(how: str) -> int:
        ended = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return int(ended.stdout)

    assert faults("kept") * 10 < faults("given back")


GIVEN_BACK = """
import sys
from stream_dedup.serving.process import trim_memory, keep_memory
if not keep_memory():
    sys.exit("the C library cannot keep memory")
def resident_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
values = [b"x" * size for size in [1100] * 20_000]
values = None
kept = resident_kb()
assert trim_memory()
print(kept - resident_kb())
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only the GNU C library is told to keep memory"
)
def test_kept_memory_is_returned_on_request() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 15_000


COMPILES = """
import signal, sys
import numba
from numba.extending import intrinsic
from stream_dedup.domain.compile_interrupts import StoppedError
from stream_dedup.kernels.compiled import kernel
from stream_dedup.serving.process import stop_on_signals

def _ask_to_stop(typing_context, number):
    signal.raise_signal(signal.SIGTERM)
    return numba.types.int64(numba.types.int64), lambda context, builder, signature, values: values[0]

ask_to_stop = intrinsic(_ask_to_stop)

@kernel
def interrupted(number):
    return ask_to_stop(number)

@kernel
def later(number):
    return number + 1

with stop_on_signals() as stop:
    for call in (interrupted, later):
        try:
            call(1)
        except StoppedError:
            print(stop.is_set(), call.__name__, flush=True)
print(later(1))
"""


def test_a_signal_interrupts_the_compiler(tmp_path: Path) -> None:
    """Kernels take a minute to compile, and more on a busy machine: the one that is compiled in the
    main thread is given up, no further one is begun, and afterwards all can be compiled."""
    source = tmp_path / "compiles.py"  # numba reads the source of a kernel
    source.write_text(COMPILES, encoding="utf-8")

    ended = subprocess.run(
        [sys.executable, str(source)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"STREAM_DEDUP_CACHE_DIR": str(tmp_path)},
    )

    assert ended.stdout.splitlines() == ["True interrupted", "True later", "2"], ended.stderr
