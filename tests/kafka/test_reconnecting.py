"""How often clients try to connect while no broker is there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from stream_dedup.kafka import client
from stream_dedup.settings.settings import Settings


class Port:
    """A port that closes each connection at once, and counts them."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.tried = 0
        self.settings = Settings(
            kafka_bootstrap_servers=f"127.0.0.1:{self._socket.getsockname()[1]}"
        )
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return
            self.tried += 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def ports() -> Iterator[tuple[Port, Port]]:
    both = Port(), Port()
    yield both
    for port in both:
        port.close()


@pytest.mark.thorough
def test_our_clients_reconnect_seldom(ports: tuple[Port, Port]) -> None:
    """Our client tries some five times while librdkafka's default tries a hundred times."""
    usual, ours = ports
    config = client.producer_config(usual.settings, "usual", {}, {"message.timeout.ms": 0})
    producers = [
        client.make_producer(
            {name: value for name, value in config.items() if name not in WAITS}, client._MUTED
        )
    ]
    config = client.producer_config(ours.settings, "ours", {}, {"message.timeout.ms": 0})
    producers.append(client.make_producer(config, client._MUTED))
    for producer in producers:
        producer.produce("topic", b"value")

    until = time.monotonic() + 60
    while usual.tried < 100 and time.monotonic() < until:
        for producer in producers:
            producer.poll(0.02)

    assert usual.tried >= 100
    assert 0 < ours.tried < 20


WAITS = {"reconnect.backoff.ms", "reconnect.backoff.max.ms"}
