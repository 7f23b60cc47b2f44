"""Ports that nobody has, and that nobody is given before their role listens there."""

from __future__ import annotations

import contextlib
import random
import socket

import pytest

from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.service.ports import free_ports

LAST_NOT_HANDED_OUT = 32_767  # Linux takes the next one for any connection


def test_ports_in_a_row_that_no_connection_is_given() -> None:
    for count in (1, 4):
        ports = free_ports(count)
        assert len(ports) == count
        assert max(ports) <= LAST_NOT_HANDED_OUT
        with contextlib.ExitStack() as held:
            for port in ports:
                held.enter_context(socket.create_server(("127.0.0.1", port)))


def test_a_row_with_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(8)[0]
    offered = iter([first, first + 4])
    monkeypatch.setattr(random, "randrange", lambda *_: next(offered))
    with socket.create_server(("127.0.0.1", first + 3)):
        assert free_ports(4) == range(first + 4, first + 8)


def test_where_no_row_is_free_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(2)[0]
    monkeypatch.setattr(random, "randrange", lambda *_: first)
    with socket.create_server(("127.0.0.1", first + 1)), pytest.raises(StreamDedupError, match="No 2 ports in a row are free"):
        free_ports(2)
