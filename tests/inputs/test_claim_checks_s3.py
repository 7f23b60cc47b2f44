"""Texts in an S3 store: s3fs reads them over HTTP from moto's server."""

from __future__ import annotations

import contextlib
import gzip
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from moto.server import ThreadedMotoServer

from stream_dedup.domain.addresses import parse_prefixes
from stream_dedup.domain.errors import InputError, TextAwayError
from stream_dedup.inputs import claim_checks
from stream_dedup.inputs.claim_checks import FetchLimits, TextFetcher
from stream_dedup.inputs.sources import find_files, read_documents
from tests.inputs.test_claim_checks import address_of, fetch, fetch_all, letter

LIMITS = FetchLimits(at_once=16, text_bytes=100_000, attempt_seconds=10.0)


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    put(url, "/crawl", b"")
    try:
        yield url
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.setattr(claim_checks, "_RETRY_SECONDS", 0.001)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def put(url: str, path: str, body: bytes) -> None:
    headers = {"Authorization": "AWS key:sign", "Content-Type": "application/octet-stream"}
    urllib.request.urlopen(urllib.request.Request(url + path, body, headers, method="PUT")).close()  # noqa: S310 - our own


def test_many_texts_are_read_in_order(store: str) -> None:
    for number in range(40):
        put(store, f"/crawl/pages/{number}.gz", gzip.compress(b"text %d" % number))
    text_fetcher = TextFetcher(parse_prefixes("s3://crawl/pages"), LIMITS)
    found = fetch_all(text_fetcher, [f"s3://crawl/pages/{number}.gz" for number in range(40)])
    assert found == [b"text %d" % number for number in range(40)]


def test_impossible_missing_large_and_empty_objects_are_distinguished(store: str) -> None:
    put(store, "/crawl/pages/large", bytes(100_001))
    put(store, "/crawl/pages/empty", b"")
    put(store, "/crawl/pages/a%20space%20%C3%BC", b"text")
    text_fetcher = TextFetcher(parse_prefixes("s3://crawl,s3://none,s3://not*a*bucket"), LIMITS)
    assert letter(fetch(text_fetcher, "s3://not*a*bucket/x"))[0] == "Impossible"
    assert letter(fetch(text_fetcher, "s3://crawl/pages/none"))[0] == "NotFound"
    assert letter(fetch(text_fetcher, "s3://none/pages/none"))[0] == "NotFound"
    assert letter(fetch(text_fetcher, "s3://crawl/pages/large"))[0] == "TooLarge"
    assert fetch(text_fetcher, "s3://crawl/pages/empty") == b""
    assert fetch(text_fetcher, "s3://crawl/pages/a space ü") == b"text"


def test_an_unreachable_store_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    text_fetcher = TextFetcher(parse_prefixes("s3://crawl"), LIMITS)
    with pytest.raises(TextAwayError, match="is unavailable"):
        fetch(text_fetcher, "s3://crawl/pages/0.gz")


def test_without_credentials_the_records_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nowhere")
    text_fetcher = TextFetcher(parse_prefixes("s3://crawl"), LIMITS)
    with pytest.raises(TextAwayError, match="redentials"):
        fetch(text_fetcher, "s3://crawl/pages/0.gz")


def test_files_of_documents_are_found_and_read(store: str) -> None:
    """Files are found by a folder, a pattern or one name; a missing file raises with its
    address."""
    put(store, "/crawl/shards/a.jsonl", b'{"text": "one"}\n{"text": "two"}\n')
    put(store, "/crawl/shards/deep/b.jsonl.gz", gzip.compress(b'{"text": "three"}\n'))

    def texts(target: str) -> list[str]:
        return [
            (document.fields or {})["text"]
            for document in read_documents(find_files(target, "auto"))
        ]

    assert texts("s3://crawl/shards/") == ["one", "two", "three"]
    assert texts("s3://crawl/shards/**/*.gz") == ["three"]
    assert texts("s3://crawl/shards/a.jsonl") == ["one", "two"]
    (file, _) = find_files("s3://crawl/shards", "auto")
    put(store, "/crawl/shards/a.jsonl", b'{"text": "another"}\n')
    assert find_files("s3://crawl/shards", "auto")[0].stamp != file.stamp
    with pytest.raises(InputError, match=r"s3://crawl/shards/none\.jsonl cannot be read"):
        find_files("s3://crawl/shards/none.jsonl", "auto")


# -- a store whose answers break

Fault = Literal["cut", "half-closed", "stalled"]
_RESET = struct.pack("ii", 1, 0)


class FaultyProxy:
    """Breaks responses after `after_bytes` bytes, each by the next of `faults`; `struck` contains
    the faults that were used.

    Shorter responses pass
    unbroken, so that other
    requests at this port use
    no fault. `cut`: the connection is reset. `half-closed`: nothing more comes, and
    what the client sends is still taken. `stalled`: nothing more comes, and the connection stays
    open.
    """

    def __init__(self, port: int, after_bytes: int) -> None:
        self._port = port
        self._after_bytes = after_bytes
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.faults: list[Fault] = []
        self.struck: list[Fault] = []
        self._start(self._listen)

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            connections = [self._listener, *self._open]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _start(self, target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                with self._lock:
                    self._open |= {client, server}
                asked = threading.Event()
                self._start(self._requests, client, server, asked)
                self._start(self._answers, client, server, asked)

    def _requests(
        self, client: socket.socket, server: socket.socket, asked: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while part := client.recv(1 << 16):
                asked.set()
                server.sendall(part)
            server.shutdown(socket.SHUT_WR)

    def _answers(
        self, client: socket.socket, server: socket.socket, asked: threading.Event
    ) -> None:
        room = self._after_bytes
        with contextlib.suppress(OSError):
            while part := server.recv(1 << 16):
                if asked.is_set():  # an answer begins
                    asked.clear()
                    room = self._after_bytes
                fault = self._next_fault() if 0 <= room < len(part) else None
                if fault is None:
                    client.sendall(part)
                    room -= len(part)
                    continue
                client.sendall(part[:room])
                self.struck.append(fault)
                if fault == "cut":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    client.shutdown(socket.SHUT_RD)
                    client.close()
                elif fault == "half-closed":
                    client.shutdown(socket.SHUT_WR)
                server.shutdown(socket.SHUT_RDWR)
                return

    def _next_fault(self) -> Fault | None:
        with self._lock:
            return self.faults.pop(0) if self.faults else None


@contextmanager
def breaking(port: int, after_bytes: int) -> Iterator[FaultyProxy]:
    """Run a faulty proxy for a port until the block ends."""
    proxy = FaultyProxy(port, after_bytes)
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.fixture
def proxy(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with breaking(int(store.rsplit(":", 1)[1]), after_bytes=20_000) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def large(number: int) -> bytes:
    return b"%d of the words of a long page, " % number * 3_000


# The limit is short only where it must end an attempt: a busy machine can make any attempt slow.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "seconds", "pattern"),
    [
        ("cut", 20, "is unavailable"),
        ("half-closed", 20, "is unavailable"),
        ("stalled", 3, "within 3 s"),
    ],
)
def test_a_broken_response_is_read_whole_at_the_third_attempt_or_raises(
    store: str, proxy: FaultyProxy, fault: Fault, seconds: float, pattern: str
) -> None:
    put(store, "/crawl/pages/large", large(1))
    text_fetcher = TextFetcher(
        parse_prefixes("s3://crawl"), LIMITS._replace(attempt_seconds=seconds)
    )
    proxy.faults = [fault] * 10  # more than there are attempts
    with pytest.raises(TextAwayError, match=pattern):
        fetch(text_fetcher, "s3://crawl/pages/large")
    assert fault in proxy.struck
    assert text_fetcher._reserved_bytes == 0
    proxy.faults = [fault] * 2
    proxy.struck.clear()
    assert fetch(text_fetcher, "s3://crawl/pages/large") == large(1)
    assert proxy.struck == [fault] * 2


@pytest.mark.thorough
def test_many_texts_are_read_in_order_within_bounds_though_responses_break(
    store: str, proxy: FaultyProxy
) -> None:
    """A failed attempt releases the bytes that it reserved."""
    for number in range(40):
        put(store, f"/crawl/pages/{number}.large", large(number))
    text_fetcher = TextFetcher(parse_prefixes("s3://crawl"), LIMITS._replace(attempt_seconds=0.5))
    addresses = [
        address_of(text_fetcher, f"s3://crawl/pages/{number}.large") for number in range(40)
    ]
    found: list[object] = []
    kinds: list[Fault] = ["cut", "half-closed", "stalled"]
    reserved_bytes_max = 0
    while len(found) < len(addresses):
        if len(proxy.struck) < 12 and not proxy.faults:
            proxy.faults = [kinds[len(proxy.struck) % 3]]
        try:
            found += text_fetcher.fetch(addresses, len(found), 200_000, 400_000)
        except TextAwayError:
            continue
        reserved_bytes_max = max(reserved_bytes_max, text_fetcher._reserved_bytes)
    assert found == [large(number) for number in range(40)]
    assert len(proxy.struck) >= 6
    assert reserved_bytes_max <= 400_000 + LIMITS.text_bytes
    assert text_fetcher._reserved_bytes == 0
