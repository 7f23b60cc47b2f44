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
    """Where nobody speaks Kafka: each connection is closed at once, and counted."""

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
    for one in both:
        one.close()


@pytest.mark.thorough
def test_our_clients_try_seldom(ports: tuple[Port, Port]) -> None:
    """Of the hundred times that librdkafka tries by itself, a client of ours tries some five."""
    usual, ours = ports
    config = client.producer_config(usual.settings, "usual", {}, {"message.timeout.ms": 0})
    kept = [
        client.make_producer(
            {name: value for name, value in config.items() if name not in WAITS}, client._MUTED
        )
    ]
    config = client.producer_config(ours.settings, "ours", {}, {"message.timeout.ms": 0})
    kept.append(client.make_producer(config, client._MUTED))
    for one in kept:
        one.produce("topic", b"value")

    until = time.monotonic() + 60
    while usual.tried < 100 and time.monotonic() < until:
        for one in kept:
            one.poll(0.02)

    assert usual.tried >= 100
    assert 0 < ours.tried < 20


WAITS = {"reconnect.backoff.ms", "reconnect.backoff.max.ms"}
