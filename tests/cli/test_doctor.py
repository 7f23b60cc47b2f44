"""`doctor` where there is no Kafka: every check ends in a line all the same."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stream_dedup.kafka import admin
from stream_dedup.search.api import SearchApi
from stream_dedup.search.finding import FinderPlace
from stream_dedup.service.health import Health
from stream_dedup.service.http import HttpServer
from stream_dedup.service.ports import free_ports


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


def test_a_search_of_this_machine_is_asked_how_it_is(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own sentence is shown, as a warning until it is ready; no other role is taken for one."""
    monkeypatch.setattr(admin, "_TIMEOUT_SECONDS", 0.1)
    health = Health()
    place = FinderPlace()
    first = free_ports(4)[0]
    worker = HttpServer("127.0.0.1", first, Health(), CollectorRegistry())
    search = HttpServer("127.0.0.1", first + 3, health, CollectorRegistry(), SearchApi(place).routes())

    def asked() -> tuple[str, str]:
        shown = run("doctor", "--json", "-b", "127.0.0.1:1", "--set", f"http_port={first}")
        (found,) = (one for one in json.loads(shown.out)["checks"] if one["check"] == "search")
        return found["state"], found["sentence"]

    worker.start()
    try:
        assert asked()[0] == "not checked"
        search.start()
        health.ready(False, "reading what left before: 7 records to go")
        state, sentence = asked()
        assert (state, "7 records to go" in sentence) == ("warning", True)
        health.ready(True, "12 documents and groups can be found")
        assert asked() == ("ok", f"The search at http://127.0.0.1:{first + 3} says: 12 documents and groups can be found")
    finally:
        worker.stop()
        search.stop()
