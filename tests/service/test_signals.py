"""Signals become one event; a second one ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from stream_dedup.service.signals import stop_on_signals

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_sets_the_event_and_interrupts_nothing(number: signal.Signals) -> None:
    """A loop sees the event on its next turn; no exception is thrown into it."""
    with stop_on_signals() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()


def test_handlers_are_put_back() -> None:
    """After the role the process handles signals as before."""
    before = [signal.getsignal(number) for number in SIGNALS]
    with stop_on_signals():
        assert [signal.getsignal(number) for number in SIGNALS] != before

    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_ends_the_process(number: signal.Signals) -> None:
    """Whoever does not want to wait for the drain signals twice."""
    code = (
        "import signal\n"
        "from stream_dedup.service.signals import stop_on_signals\n"
        "with stop_on_signals() as stop:\n"
        f"    signal.raise_signal({int(number)})\n"
        "    print('draining', flush=True)\n"
        f"    signal.raise_signal({int(number)})\n"
        "    print('never', flush=True)\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert ended.stdout == "draining\n"
    assert ended.returncode == -number
