"""Asking a cluster that is not there."""

from __future__ import annotations

import socket

import pytest

from stream_dedup.errors import BrokerError
from stream_dedup.log.kafka import Admin, admin
from stream_dedup.settings import Settings


def test_a_silent_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no broker answers, the sentence says at which address, and which setting names it."""
    monkeypatch.setattr(admin, "_TIMEOUT_SECONDS", 1.0)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        address = f"127.0.0.1:{held.getsockname()[1]}"

        with pytest.raises(BrokerError, match=rf"No broker answered at {address} .*STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS"):
            Admin(Settings(kafka_bootstrap_servers=address)).topic_ids(["documents"])
