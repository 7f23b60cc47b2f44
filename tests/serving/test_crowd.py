"""What many, slow and greedy clients can do to a role's HTTP port: nothing to its probes, and
little to its work."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stream_dedup.domain.plan import PLANS
from stream_dedup.index import report
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.indexer.api import IndexApi
from stream_dedup.serving import admission
from stream_dedup.serving.http import HttpServer
from tests.index.logs import APPEND_MS, Doc, batch, declare
from tests.serving.serving import serving
from tests.serving.test_http import ask, ask_json
from tests.waiting import wait_until

CROWD = 1100
FILES_MAX = 400
WAIT_SECONDS = 30.0
ROUTE_THREADS = 40  # starlette runs routes that are no coroutines in these threads

ROLE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))
from prometheus_client import CollectorRegistry
from stream_dedup.serving import logs
from stream_dedup.serving.health import Health
from stream_dedup.serving.http import HttpServer
logs.configure()
server = HttpServer("127.0.0.1", 0, Health(), CollectorRegistry())
server.start()
print(server.port, flush=True)
sys.stdin.read()
open("/dev/null").close()
server.stop()
print("ended well", flush=True)
"""


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side has closed the connection without sending data."""
    try:
        return connection.recv(65536) == b""
    except ConnectionError:
        return True


def is_cut_off(slow: socket.socket) -> bool:
    """Send one more byte; return whether the other side has closed the connection."""
    slow.settimeout(0.02)
    try:
        slow.sendall(b"a")
        return is_closed(slow)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


@contextmanager
def greedy(server: HttpServer, requests: int) -> Iterator[socket.socket]:
    """Send several requests for a large response and read none of it."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(requests * get("/v1/much"))
        assert client.recv(1, socket.MSG_PEEK)
        yield client


@contextmanager
def run_together(
    count: int, go_on: threading.Event, question: Callable[[int], object]
) -> Iterator[list[object]]:
    """Have so many ask at a time; at the block's end they may go on, and their answers are in the
    list."""
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda number=number: answers.append(question(number)))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        go_on.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sent", [b"", b"GET /livez HTTP/1.1\r\nHost: a\r\n"], ids=["idle", "half a request"]
)
def test_idle_connections_block_neither_probes_nor_files(tmp_path: Path, sent: bytes) -> None:
    """1,100 connections that ask nothing, against a process that may open 400 files: probes, files
    and log are unharmed."""
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", ROLE.format(files=FILES_MAX)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as role,
        ExitStack() as open_connections,
    ):
        try:
            assert role.stdout is not None
            server = SimpleNamespace(port=int(role.stdout.readline()))
            for number in range(CROWD):
                open_connections.enter_context(connect(server.port)).sendall(sent)
                if number % 100 == 99:
                    assert ask(server, "/livez")[0] == 200
            assert [ask(server, path)[0] for path in ("/readyz", "/metrics")] == [503, 200]
            output, _ = role.communicate(timeout=WAIT_SECONDS)
        finally:
            role.kill()
    assert output == "ended well\n"
    assert errors.stat().st_size < 2000, errors.read_text()[:5000]


@pytest.fixture
def big() -> bytes:
    return bytes(32 << 20)


@pytest.fixture
def server(big: bytes) -> Iterator[HttpServer]:
    async def answer_own(_: Request) -> Response:
        return JSONResponse({"own": 1})

    async def answer_much(_: Request) -> Response:
        return Response(big)

    async def answer_size(request: Request) -> Response:
        return JSONResponse({"bytes": len(await request.body())})

    routes = [
        Route("/v1/own", answer_own),
        Route("/v1/much", answer_much),
        Route("/v1/told", answer_size, methods=["POST"]),
    ]
    with serving(routes) as http_server:
        yield http_server


@pytest.mark.parametrize(
    "first",
    [b"", b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"],
    ids=["first request", "second request"],
)
def test_a_slow_request_head_times_out(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """Single bytes do not keep a connection open, even after a valid request."""
    monkeypatch.setattr(admission, "PATIENCE_SECONDS", 0.3)
    with connect(server.port) as slow:
        if first:
            slow.sendall(first)
            assert slow.recv(65536).startswith(b"HTTP/1.1 200")
        slow.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        wait_until(lambda: is_cut_off(slow), "the connection is still open")
    assert ask(server, "/livez")[0] == 200


HEAD_WITHOUT_BODY = b"POST /v1/told HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\nq"


def test_clients_without_bodies_do_not_block_others(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as places: while all of them stay, what others ask is answered; a probe too, of the
    same kind."""
    monkeypatch.setattr(admission, "PATIENCE_SECONDS", 10 * WAIT_SECONDS)
    with ExitStack() as open_connections:
        for _ in range(admission.REQUESTS_MAX):
            open_connections.enter_context(connect(server.port)).sendall(HEAD_WITHOUT_BODY)
        wait_until(lambda: server.connections == admission.REQUESTS_MAX, "not all of them came")
        assert ask(server, "/v1/own")[0] == 200
        assert ask_json(server, "/v1/told", "POST", body=b"a whole body") == (200, {"bytes": 12})
        assert server.connections >= admission.REQUESTS_MAX, "none of them was cut"


def test_a_missing_request_body_times_out(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is cut off, even if it sends single bytes or sent a valid request before."""
    monkeypatch.setattr(admission, "PATIENCE_SECONDS", 0.3)
    with connect(server.port) as silent, connect(server.port) as slow:
        slow.sendall(get("/v1/own"))
        assert slow.recv(65536).startswith(b"HTTP/1.1 200")
        silent.sendall(HEAD_WITHOUT_BODY)
        slow.sendall(HEAD_WITHOUT_BODY)
        wait_until(lambda: is_cut_off(slow), "the slow one is still served")
        wait_until(lambda: is_closed(silent), "the silent one is still served")
    wait_until(lambda: server.connections == 0, "a connection is left")


def test_an_oversized_body_is_refused(server: HttpServer) -> None:
    """It is refused with a sentence, and the connection goes on behind it."""
    with connect(server.port) as client:
        size = admission.BODY_BYTES_MAX + 1
        client.sendall(
            b"POST /v1/told HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
            + bytes(size)
        )
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert (answer.status, "bytes" in json.loads(answer.read())["detail"]) == (413, True)
        client.sendall(get("/v1/own"))
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_expect_100_continue_is_answered(server: HttpServer) -> None:
    """curl sends `Expect: 100-continue` before a larger body."""
    with connect(server.port) as polite:
        polite.sendall(
            b"POST /v1/told HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        )
        assert polite.recv(65536).startswith(b"HTTP/1.1 100")
        polite.sendall(b"abc")
        answer = http.client.HTTPResponse(polite)
        answer.begin()
        assert json.loads(answer.read()) == {"bytes": 3}


@pytest.mark.parametrize("requests", [1, 2])
def test_unread_responses_do_not_block_and_are_dropped(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, big: bytes, requests: int
) -> None:
    """The second of two requests waits for the client, not for ever; who reads nothing is cut off,
    who reads gets all."""
    monkeypatch.setattr(admission, "PATIENCE_SECONDS", 10 * WAIT_SECONDS)
    with greedy(server, requests):
        assert ask(server, "/v1/own")[0] == 200  # so that the second has had its turn
        wait_until(lambda: server._pace.waiting == 0, "the second holds a place")

    monkeypatch.setattr(admission, "PATIENCE_SECONDS", 0.3)
    with greedy(server, requests) as client:
        wait_until(lambda: server.connections == 0, "the connection is still open")
        wait_until(lambda: is_closed(client), "no end")
    assert ask(server, "/v1/much")[1] == big


def test_invalid_http_is_not_logged_each_time(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a client could fill the disk with log lines."""
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            with connect(server.port) as rude:
                rude.sendall(b"\x16\x03\x01 rubbish\r\n\r\n")
                wait_until(lambda rude=rude: is_closed(rude), "no end")  # type: ignore[misc]

    assert len(caplog.records) <= 1, caplog.text


def test_requests_other_than_probes_are_paced(server: HttpServer) -> None:
    """Many clients that ask without a pause get so many answers a second, all of them; probes are
    not held up."""
    begun = time.monotonic()
    with run_together(
        10, threading.Event(), lambda _: [ask(server, "/v1/own")[0] for _ in range(5)]
    ) as answers:
        pass

    assert answers == [[200] * 5] * 10
    assert time.monotonic() - begun >= 49 * admission.PACE_SECONDS


def test_excess_requests_are_refused_and_probes_are_not() -> None:
    """While as many as may be wait for a slow route, the next is told to come again, and a probe is
    answered."""
    inside, go_on = threading.Semaphore(0), threading.Event()

    def slow(_: Request) -> Response:
        inside.release()
        go_on.wait(WAIT_SECONDS)
        return JSONResponse({})

    with (
        serving([Route("/v1/slow", slow)]) as server,
        run_together(
            admission.REQUESTS_MAX, go_on, lambda _: ask(server, "/v1/slow")[0]
        ) as statuses,
    ):
        wait_until(lambda: server._pace.waiting == admission.REQUESTS_MAX, "not all of them came")
        for _ in range(ROUTE_THREADS):  # no more of them run at the same time
            assert inside.acquire(timeout=WAIT_SECONDS)
        status, body, headers = ask(server, "/v1/slow")
        found = (status, headers["Retry-After"], headers["Content-Type"])
        assert found == (503, "1", "application/problem+json")
        assert "try again" in json.loads(body)["detail"]
        assert [ask(server, path)[0] for path in ("/livez", "/metrics")] == [200, 200]
    assert statuses == [200] * admission.REQUESTS_MAX


def test_concurrent_scrapes_share_one_collection() -> None:
    """A scrape that is running answers all requests that arrive meanwhile."""
    entered, go_on, made = threading.Event(), threading.Event(), []

    class Slow(Collector):
        def collect(self) -> Iterator[object]:  # type: ignore[override]
            made.append(threading.current_thread().name)
            entered.set()
            go_on.wait(WAIT_SECONDS)
            return iter(())

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Slow())
    made.clear()
    entered.clear()
    with (
        serving(registry=registry) as server,
        run_together(20, go_on, lambda _: ask(server, "/metrics")[0]) as statuses,
    ):
        assert entered.wait(WAIT_SECONDS)
        wait_until(lambda: server.connections >= 20, "not all of them came")
        assert ask(server, "/livez")[0] == 200

    assert statuses == [200] * 20
    assert len(made) == 1
    assert made != ["http"]


def test_concurrent_stats_requests_share_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 clients ask at the same time: one pass over the buckets, and no probe waits."""
    index = LogIndex(RocksStore(tmp_path / "volume"))
    index.bind("cluster/0123")
    index.apply(
        [
            (0, APPEND_MS, declare(PLANS["blocks"])),
            (1, APPEND_MS, batch([Doc(0, 0, 1, b"a" * 16, 3**70)])),
        ]
    )
    entered, go_on, made = threading.Event(), threading.Event(), []
    original = report.stats

    def slow(*given: object) -> object:
        made.append(threading.current_thread().name)
        entered.set()
        go_on.wait(WAIT_SECONDS)
        return original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(report, "stats", slow)
    api = IndexApi()
    api.serve(index)

    def entries(_number: int) -> tuple[int, int]:
        status, found = ask_json(server, "/v1/stats")
        return status, found["entries"]["live"]

    with serving(api.routes()) as server, run_together(40, go_on, entries) as answers:
        assert entered.wait(WAIT_SECONDS)
        wait_until(lambda: server._pace.waiting == 40, "not all of them came")
        assert ask(server, "/livez")[0] == 200
    index.close()

    assert Counter(answers) == {(200, 1): 40}
    assert len(made) == 1
    assert made != ["http"]
