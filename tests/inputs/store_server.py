"""A web server with scripted replies, for tests of texts that are stored elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Reply:
    """A page's reply: status, headers and body; or `worse`, a function that breaks the response."""

    def __init__(
        self,
        body: bytes = b"",
        status: int = 200,
        *,
        headers: dict[str, str] | None = None,
        worse: Callable[[BaseHTTPRequestHandler], None] | None = None,
    ) -> None:
        self.body, self.status, self.headers, self.worse = body, status, headers or {}, worse


class Pages:
    """Pages by path. `asked` contains the requested paths in order, `at_once_max` the highest
    number of concurrent requests.

    While `instead` is set, it is the reply to every request.
    """

    def __init__(self) -> None:
        self.by_path: dict[str, Reply | Callable[[], Reply]] = {}
        self.instead: Reply | None = None
        self.delay_seconds = 0.0
        self.asked: list[str] = []
        self.at_once = self.at_once_max = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        pages = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with pages._lock:
                    pages.asked.append(self.path)
                    pages.at_once += 1
                    pages.at_once_max = max(pages.at_once_max, pages.at_once)
                try:
                    pages.stopping.wait(pages.delay_seconds) if pages.delay_seconds else None
                    found = pages.instead or pages.by_path.get(self.path, Reply(status=404))
                    reply = found() if callable(found) else found
                    if reply.worse is not None:
                        reply.worse(self)
                        return
                    self.send_response(reply.status)
                    for name, value in (
                        {"Content-Length": str(len(reply.body))} | reply.headers
                    ).items():
                        if value:
                            self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(reply.body)
                except OSError:
                    self.close_connection = True
                finally:
                    with pages._lock:
                        pages.at_once -= 1

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 200

            def handle_error(self, *_: object) -> None:
                """Ignore clients that disconnect."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def endless(self, handler: BaseHTTPRequestHandler) -> None:
        """Send bytes for ever, without a Content-Length."""
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        while not self.stopping.is_set():
            handler.wfile.write(b"words without end " * 1000)

    def silent(self, handler: BaseHTTPRequestHandler) -> None:
        """Send the beginning, and then nothing."""
        self.half_closed(handler)
        handler.wfile.flush()
        self.stopping.wait(30)

    def half_closed(self, handler: BaseHTTPRequestHandler) -> None:
        """Send the beginning, and close."""
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"it begins well")
        handler.close_connection = True


@contextmanager
def serving() -> Iterator[Pages]:
    """Serve pages until the block ends."""
    pages = Pages()
    try:
        yield pages
    finally:
        pages.stopping.set()
        pages.server.shutdown()
        pages.server.server_close()
