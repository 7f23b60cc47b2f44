"""Calls of the transactional producer that may never return."""

from __future__ import annotations

import threading

import pytest

from stream_dedup.log.kafka.producer import _Caller


def test_a_call_that_returns_is_waited_for() -> None:
    """Calls are made one after another in the caller's thread, and end before `call` does."""
    done: list[str] = []
    caller = _Caller()
    caller.call(lambda: done.append(threading.current_thread().name), 10)
    caller.call(lambda: done.append("second"), 10)

    assert done == ["transactions", "second"]


def test_what_a_call_raises_is_raised() -> None:
    """An error comes out where the call was made, and the next call is served."""
    caller = _Caller()
    with pytest.raises(ZeroDivisionError):
        caller.call(lambda: 1 / 0, 10)

    caller.call(lambda: None, 10)


def test_a_call_that_never_returns_is_left_behind() -> None:
    """A stuck call costs its time and no more; another caller goes on."""
    stuck = threading.Event()
    with pytest.raises(TimeoutError):
        _Caller().call(stuck.wait, 0.05)
    _Caller().call(lambda: None, 10)

    stuck.set()
