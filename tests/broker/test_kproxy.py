"""The proxy itself, before a broker that only echoes: what it does to a frame is what the tests rely on."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
import threading
import warnings
from collections.abc import Iterator

import pytest

from tests.broker import kproxy
from tests.broker.harness import wait_until
from tests.broker.kproxy import HOST, KafkaProxy


class Echo:
    """A broker that answers each request with its correlation id and its own address, and remembers the API keys."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            while head := stream.read(4):
                frame = stream.read(int.from_bytes(head, "big"))
                api_key, _, correlation = struct.unpack_from(">hhi", frame)
                self.heard.append(api_key)
                answer = struct.pack(">i", correlation) + HOST.encode() + self.port.to_bytes(4, "big")
                connection.sendall(len(answer).to_bytes(4, "big") + answer)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    one = Echo()
    yield one
    one.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[KafkaProxy]:
    with KafkaProxy(echo.port) as one:
        yield one


def port_of(proxy: KafkaProxy) -> int:
    return int(proxy.bootstrap.rpartition(":")[2])


def ask(proxy: KafkaProxy, api_key: int, seconds: float = 5.0) -> tuple[int, int] | None:
    """Return (correlation id, port that the answer names), or None if the connection ends or nothing comes."""
    with socket.create_connection((HOST, port_of(proxy)), seconds) as connection, connection.makefile("rb") as stream:
        connection.sendall(struct.pack(">ihhi", 8, api_key, 1, 77))
        try:
            answer = stream.read(4 + 4 + len(HOST) + 4)
        except OSError:
            return None
    return (int.from_bytes(answer[4:8], "big"), int.from_bytes(answer[-4:], "big")) if answer else None


def test_frames_pass_and_addresses_are_written_over(echo: Echo, proxy: KafkaProxy) -> None:
    """Only answers that tell where brokers are name the proxy's port."""
    assert ask(proxy, kproxy.PRODUCE) == (77, echo.port)
    assert ask(proxy, kproxy.METADATA) == (77, port_of(proxy))
    assert ask(proxy, kproxy.FIND_COORDINATOR) == (77, port_of(proxy))
    assert echo.heard == [kproxy.PRODUCE, kproxy.METADATA, kproxy.FIND_COORDINATOR]


def test_a_held_request_arrives_after_its_client_has_gone(echo: Echo, proxy: KafkaProxy) -> None:
    """The client gives up and asks again, which is answered; the first request arrives when it is released."""
    rule = proxy.add(kproxy.END_TXN, "hold")
    assert ask(proxy, kproxy.END_TXN, 0.2) is None
    assert rule.struck.is_set()
    assert ask(proxy, kproxy.END_TXN) == (77, echo.port)
    assert len(echo.heard) == 1

    proxy.release(rule)
    assert rule.delivered.wait(5)
    assert echo.heard == [kproxy.END_TXN] * 2


def test_answers_are_lost_and_requests_are_cut(echo: Echo, proxy: KafkaProxy) -> None:
    """`lose-answer` lets the broker do it and says nothing; `cut` keeps it from the broker; both strike once."""
    proxy.add(kproxy.PRODUCE, "lose-answer")
    proxy.add(kproxy.END_TXN, "cut")
    assert ask(proxy, kproxy.PRODUCE) is None
    assert ask(proxy, kproxy.END_TXN) is None
    wait_until(lambda: echo.heard == [kproxy.PRODUCE], "only one of them was heard", 5)
    assert ask(proxy, kproxy.PRODUCE) == ask(proxy, kproxy.END_TXN) == (77, echo.port)


def test_delay_darkness_and_broken_connections(echo: Echo, proxy: KafkaProxy) -> None:
    """A delayed request is answered later, in the dark nothing passes, and a broken connection can be made anew."""
    rule = proxy.add(kproxy.PRODUCE, "delay", seconds=0.3)
    assert ask(proxy, kproxy.PRODUCE, 0.1) is None
    assert ask(proxy, kproxy.PRODUCE) == (77, echo.port)
    assert rule.struck.is_set()
    with proxy.dark():
        assert ask(proxy, kproxy.METADATA, 0.2) is None
    with socket.create_connection((HOST, port_of(proxy)), 5) as connection:
        connection.sendall(struct.pack(">ihhi", 8, kproxy.METADATA, 1, 1))
        assert connection.recv(1)
        proxy.cut_all()
        while connection.recv(100):
            pass
    assert ask(proxy, kproxy.METADATA) == (77, port_of(proxy))


@pytest.mark.thorough
def test_a_connection_that_comes_at_the_end_leaves_nothing_behind(echo: Echo) -> None:
    """Clients connect again and again while a test ends; what was not served yet is ended with the rest."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(20):
            with contextlib.ExitStack() as connections:
                with KafkaProxy(echo.port) as proxy:
                    port = int(proxy.bootstrap.rpartition(":")[2])
                    for _ in range(20):
                        connections.enter_context(socket.create_connection((HOST, port)))
                gc.collect()

    assert [str(one.message) for one in told if "never awaited" in str(one.message)] == []
