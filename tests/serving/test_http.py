"""Probes and metrics, asked over a real socket."""

from __future__ import annotations

import http.client
import importlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from stream_dedup.cli.run import MODULES, Role
from stream_dedup.domain.errors import ConfigurationError, StreamDedupError
from stream_dedup.serving import http as http_module
from stream_dedup.serving.health import Health
from stream_dedup.serving.http import HttpServer
from stream_dedup.serving.ports import free_ports
from stream_dedup.settings.settings import Settings
from tests.serving.serving import Clock, serving


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(clock)


@pytest.fixture
def server(health: Health) -> Iterator[HttpServer]:
    registry = CollectorRegistry()
    Counter("turns", "How often.", registry=registry).inc(3)

    async def answer_own(_: Request) -> JSONResponse:
        return JSONResponse({"own": 1})

    def broken(_: Request) -> JSONResponse:
        raise RuntimeError("secret detail")

    routes = [
        Route("/v1/own", answer_own, methods=["GET"]),
        Route("/v1/broken", broken, methods=["GET"]),
    ]
    with serving(routes, health=health, registry=registry) as http_server:
        yield http_server


def ask(
    server: Any,
    path: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
) -> tuple[int, bytes, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def ask_json(
    server: HttpServer, path: str, method: str = "GET", body: bytes | None = None
) -> tuple[int, Any]:
    status, answer, _ = ask(server, path, method, body=body)
    return status, json.loads(answer)


def test_probes_follow_the_health(server: HttpServer, health: Health, clock: Clock) -> None:
    """Each probe answers 200 or 503 with a sentence, as the role's loop says."""
    expected = (503, {"started": False, "text": "The role is starting.", "progress": 0.0})
    assert ask_json(server, "/startupz") == expected
    assert ask_json(server, "/readyz")[0] == 503
    assert ask_json(server, "/livez")[0] == 200

    health.beat()
    health.set_startup(1.0, "caught up")
    health.set_ready(True, "applied up to log offset 7")
    expected = (200, {"started": True, "text": "caught up", "progress": 1.0})
    assert ask_json(server, "/startupz") == expected
    expected = (200, {"ready": True, "text": "applied up to log offset 7"})
    assert ask_json(server, "/readyz") == expected
    assert ask_json(server, "/livez")[0] == 200

    clock.seconds = 61.0
    status, body = ask_json(server, "/livez")
    assert (status, body["live"]) == (503, False)
    assert "has not run for 61 s" in body["text"]
    assert ask_json(server, "/readyz")[0] == 200


def test_metrics_are_text(server: HttpServer) -> None:
    status, body, headers = ask(server, "/metrics")
    assert status == 200
    assert b"turns_total 3.0" in body
    assert headers["Content-Type"].startswith("text/plain")


def test_head_has_no_body_and_other_methods_are_refused(server: HttpServer) -> None:
    """GET and HEAD only; nothing can be changed through this door."""
    status, body, _ = ask(server, "/livez", "HEAD")
    assert (status, body) == (200, b"")

    for method in ("POST", "PUT", "DELETE", "PATCH"):
        status, body, headers = ask(server, "/livez", method)
        assert status == 405
        assert headers["Content-Type"] == "application/problem+json"
        assert json.loads(body) == {
            "type": "about:blank",
            "title": "Method Not Allowed",
            "status": 405,
            "detail": "Only GET and HEAD are allowed here.",
        }
        assert set(headers["Allow"].split(", ")) == {"GET", "HEAD"}


def test_unknown_paths_and_added_routes(server: HttpServer) -> None:
    """A role's own routes are served beside ours, and an unknown path says what there is."""
    assert ask_json(server, "/v1/own") == (200, {"own": 1})
    status, raw, headers = ask(server, "/nothing")
    body = json.loads(raw)
    found = (status, body["status"], headers["Content-Type"])
    assert found == (404, 404, "application/problem+json")
    assert body["paths"] == ["/livez", "/readyz", "/startupz", "/metrics", "/v1/own", "/v1/broken"]
    assert body["detail"].startswith("This path does not exist")


def test_a_failing_route_hides_its_error_and_keeps_the_server(server: HttpServer) -> None:
    """An error in a route is 500 without its detail, and the server goes on."""
    status, body, headers = ask(server, "/v1/broken")

    assert (status, headers["Content-Type"]) == (500, "application/problem+json")
    assert b"secret detail" not in body
    assert json.loads(body)["detail"] == "The request failed; see the role's log."
    assert ask_json(server, "/livez")[0] == 200


def test_the_port_is_free_after_stop_and_a_used_port_is_reported(health: Health) -> None:
    """A taken port ends the role at start with exit code 78 and the setting to change; stop gives
    the port back."""
    with serving(health=health) as first:
        port = first.port
        second = HttpServer("127.0.0.1", port, health, CollectorRegistry())
        with pytest.raises(ConfigurationError, match="STREAM_DEDUP_HTTP_PORT") as caught:
            second.start()
        assert (caught.value.exit_code, str(port) in str(caught.value)) == (78, True)
        second.stop()

    third = HttpServer("127.0.0.1", port, health, CollectorRegistry())
    third.start()
    assert third.port == port
    third.stop()
    third.stop()


ALLOWED_HOSTS = "pages.example,*.inside.example"


OUR_HOST = os.uname().nodename
OURS = ("localhost", "LOCALHOST:8080", "localhost.", "stream.localhost", "127.0.0.1:8080", "[::1]")
OURS += ("[::1]:8080", "10.1.2.3", f"{OUR_HOST}:80", "pages.example", "one.inside.example:443")
FOREIGN = ("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example")
FOREIGN += (f"{OUR_HOST}.evil.example", "evilpages.example", "inside.example", "")
FOREIGN += ("evil-inside.example", "localhost@evil.example", "evil.example/localhost")


@pytest.mark.parametrize(
    ("host", "is_ours"), [*((name, True) for name in OURS), *((name, False) for name in FOREIGN)]
)
def test_only_allowed_host_names_are_answered(health: Health, host: str, is_ours: bool) -> None:
    """A site whose name leads to this port reads nothing through a browser here; probes and metrics
    have any name."""

    async def answer_own(_: Request) -> JSONResponse:
        return JSONResponse({"own": 1})

    with serving(
        [Route("/v1/own", answer_own)], health=health, allowed_hosts=ALLOWED_HOSTS
    ) as server:
        for path in ("/v1/own", "/nothing"):
            status, body, _ = ask(server, path, headers={"Host": host})
            assert (status == 421) is not is_ours
            assert is_ours or "STREAM_DEDUP_HTTP_ALLOWED_HOSTS" in json.loads(body)["detail"]
        for path in ("/livez", "/readyz", "/startupz", "/metrics"):
            assert ask(server, path, headers={"Host": host})[0] in (200, 503)


def test_a_star_allows_any_host_name(health: Health) -> None:
    with serving(health=health, allowed_hosts="*") as server:
        assert ask(server, "/nothing", headers={"Host": "evil.example"})[0] == 404


@pytest.mark.parametrize("role", ["index", "insights", "search", "console"])
def test_each_role_uses_the_allowed_hosts_setting(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting holds even while the role waits for Kafka."""
    monkeypatch.setattr(os, "nice", lambda _: 0)
    (port,) = free_ports(1)
    settings = Settings(
        kafka_bootstrap_servers="127.0.0.1:1",
        http_port=port,
        http_allowed_hosts="pages.example",
        state_dir=tmp_path,
    )
    stop = threading.Event()
    thread = threading.Thread(
        target=importlib.import_module(MODULES[role]).run, args=(settings, stop)
    )
    thread.start()
    try:
        until = time.monotonic() + 60
        while not (statuses := statuses_at(port)):
            assert time.monotonic() < until, "it does not answer"
            time.sleep(0.02)
        assert (statuses[0] in (200, 404, 503), statuses[1]) == (True, 421)
    finally:
        stop.set()
        thread.join(60)


def statuses_at(port: int) -> list[int]:
    """Return what is answered under a name of the setting, and under another; nothing while nobody
    listens."""
    try:
        return [
            ask(SimpleNamespace(port=port), "/", headers={"Host": host})[0]
            for host in ("pages.example", "evil.example")
        ]
    except ConnectionRefusedError:
        return []


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid", "x" * 300, "a..b"])
def test_an_address_of_another_machine_is_refused(health: Health, host: str) -> None:
    with pytest.raises(ConfigurationError, match="STREAM_DEDUP_HTTP_HOST"):
        HttpServer(host, 0, health, CollectorRegistry()).start()


def test_only_the_configured_address_is_bound(server: HttpServer) -> None:
    assert ask(server, "/livez")[0] == 200
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.2", server.port), 5),
    ):
        pass


def test_a_server_that_starts_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a starved machine an hour may pass until it serves; one whose thread has ended is an
    error."""
    hours = iter(range(0, 3600 * 1000, 3600))
    monkeypatch.setattr(
        http_module,
        "time",
        SimpleNamespace(monotonic=lambda: float(next(hours)), sleep=time.sleep),
    )
    with serving() as server:
        assert ask(server, "/livez")[0] == 200

    def fail(*_: object, **__: object) -> None:
        """End before anything is served."""

    monkeypatch.setattr(http_module._Server, "run", fail)
    with pytest.raises(StreamDedupError, match="did not start"), serving():
        raise AssertionError("it never served")
