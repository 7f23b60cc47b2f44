"""`doctor` where there is no Kafka: every check ends in a line all the same."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from stream_dedup.kafka import admin


def test_without_kafka_the_rest_is_checked(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster's checks are called not checked, never ok; the silence itself is refused, and the exit code 78."""
    monkeypatch.setattr(admin, "_TIMEOUT_SECONDS", 1.0)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        ended = run("doctor", "--json", "-b", f"127.0.0.1:{held.getsockname()[1]}")

    states = {one["check"]: one["state"] for one in json.loads(ended.out)["checks"]}
    assert ended.code == 78
    assert states["brokers"] == "refused"
    assert {states[check] for check in ("topics", "log", "offsets", "declaration", "clock", "volume")} == {"not checked"}
    assert states["prints"] == states["delivery"] == states["properties"] == "ok"


def test_wrong_properties_are_refused_before_kafka_is_asked(run: Callable[..., Any]) -> None:
    """All at once, in a table that ends with the counts."""
    ended = run("doctor", "--set", "kafka.securty.protocol=ssl", "--set", "kafka.client.rak=a")

    assert ended.code == 78
    assert "did you mean security.protocol?" in ended.out
    assert "did you mean client.rack?" in ended.out
    assert "2 refused" in ended.out.splitlines()[-1]
