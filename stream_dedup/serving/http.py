"""Serve probes and metrics over HTTP in a second thread of the role.

Invariants: requests change nothing (GET and HEAD only); every response but `/metrics` is JSON with
a sentence, and errors are problems of RFC 9457; a 404 lists the existing paths, so that a client
can see that it has reached another role; the port is bound before `start` returns, so that a port
in use ends the role at once instead of leaving it without probes; clients cause at most one log
line a minute, and probes are answered under load (`admission`). Costly responses are shared by
concurrent requests, created outside of the serving thread, and take at most a share of 1 /
`_TIME_DIVISOR` of the time (`CachedAnswer`); a failure is returned to all waiting requests and not
cached.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import structlog
import uvicorn
from anyio import CapacityLimiter, to_thread
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from stream_dedup.domain.errors import ConfigurationError, StreamDedupError
from stream_dedup.domain.problem_details import PROBLEM_TYPE, problem_bytes
from stream_dedup.domain.threads import Outcome, outcome_of, result_of
from stream_dedup.serving.admission import AllowedHosts, Connection, RequestPacer
from stream_dedup.serving.health import Health, RoleState

_TIME_DIVISOR: Final = 20

T = TypeVar("T")


class CachedAnswer(Generic[T]):
    """The result of `make`, cached for at least `seconds`; for use in one event loop."""

    def __init__(self, make: Callable[[], T], seconds: float = 0.0) -> None:
        self._make = make
        self._seconds = seconds
        self._task: asyncio.Task[Outcome[T]] | None = None
        self._until = 0.0

    async def get(self) -> T:
        """Return the cached answer, or wait for a new one."""
        task = self._task
        if task is None or (task.done() and time.monotonic() >= self._until):
            task = self._task = asyncio.create_task(self._make_outcome())
        # A cancelled request must not cancel the others. The list and `del` leave no local variable
        # that would keep an error's traceback alive.
        outcome = [await asyncio.shield(task)]
        del task
        return result_of(outcome.pop())

    async def _make_outcome(self) -> Outcome[T]:
        started = time.monotonic()
        self._until = 0.0
        # A separate limiter: slow routes may occupy all threads of starlette's.
        outcome = await to_thread.run_sync(outcome_of, self._make, limiter=CapacityLimiter(1))
        if outcome[1] is not None:
            self._task = None
            return outcome
        ended = time.monotonic()
        self._until = ended + max(self._seconds, (_TIME_DIVISOR - 1) * (ended - started))
        return outcome


_logger = structlog.get_logger("stream_dedup.http")

_STOP_SECONDS = 5.0
_TROUBLE_SECONDS: Final = 60.0
# Connections that the loop accepts in one step, before it can close others: few, because each is an
# open file. The kernel's queue is longer.
_ACCEPTED_AT_ONCE: Final = 32
_QUEUED: Final = 1024
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class HttpServer:
    """Serves `/livez`, `/readyz`, `/startupz`, `/metrics` and the role's `routes`; the latter only to
    requests that name one of `allowed_hosts` (see `AllowedHosts`). Port 0 uses any free port.
    """

    def __init__(
        self,
        host: str,
        port: int,
        health: Health,
        registry: CollectorRegistry,
        routes: Sequence[BaseRoute] = (),
        allowed_hosts: str = "",
    ) -> None:
        self._host = host
        self._wanted_port = port

        scrape = CachedAnswer(lambda: generate_latest(registry))

        async def metrics(_: Request) -> Response:
            return Response(await scrape.get(), headers={"Content-Type": _METRICS_TYPE})

        probes = {
            "/livez": _probe(health.live_state, "live"),
            "/readyz": _probe(health.ready_state, "ready"),
            "/startupz": _probe(health.startup_state, "started"),
            "/metrics": metrics,
        }
        all_routes = [
            *(Route(path, endpoint, methods=["GET"]) for path, endpoint in probes.items()),
            *routes,
        ]
        paths = list(
            dict.fromkeys(
                route.path
                for route in all_routes
                if isinstance(route, Route) and route.include_in_schema
            )
        )

        async def on_http_error(_: Request, error: Exception) -> Response:
            return _refusal(error, paths)

        app = Starlette(
            routes=all_routes,
            exception_handlers={HTTPException: on_http_error, Exception: _on_error},
        )
        self._pace = RequestPacer(app, frozenset(probes), AllowedHosts(f"{allowed_hosts},{host}"))
        config = uvicorn.Config(
            self._pace,
            http=Connection,
            loop="asyncio",
            backlog=_ACCEPTED_AT_ONCE,
            log_config=None,  # our own logs; its loggers propagate to them
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is bound; 0 before `start`."""
        return int(self._socket.getsockname()[1]) if self._socket else 0

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._server.server_state.connections)

    def start(self) -> None:
        """Bind the port and serve.

        Raises:
            ConfigurationError: the address cannot be bound.
        """
        self._socket = self._bind()
        port = self.port
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="http", daemon=True
        )
        self._thread.start()
        while not self._server.started:  # however long that takes on a busy machine
            if not self._thread.is_alive():
                raise StreamDedupError(
                    f"The HTTP server on {self._host} port {port} did not start; see the log above."
                )
            time.sleep(0.005)
        self._socket.listen(_QUEUED)
        _logger.info("serving probes and metrics", host=self._host, port=port)

    def stop(self) -> None:
        """Stop serving and free the port; does nothing if it was never started."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
            self._thread = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _bind(self) -> socket.socket:
        try:
            addresses = socket.getaddrinfo(
                self._host, self._wanted_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, address = addresses[0][0], addresses[0][4]
            return socket.create_server((str(address[0]), int(address[1])), family=family)
        except (OSError, OverflowError, UnicodeError) as error:
            raise ConfigurationError(
                f"Probes and metrics cannot be served on {self._host} port {self._wanted_port} "
                f"({getattr(error, 'strerror', None) or error}); set STREAM_DEDUP_HTTP_PORT to a "
                "free port (0: any) and STREAM_DEDUP_HTTP_HOST to an address of this machine."
            ) from error


class _Server(uvicorn.Server):
    """Logs errors of its loop, such as a failed accept without free file descriptors, once a
    minute.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._quiet_until = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._log_client_error)
        await super().startup(sockets)

    def _log_client_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _TROUBLE_SECONDS
            cause = context.get("exception")
            _logger.error(
                "The HTTP server could not serve a client; similar errors are not logged for a "
                "minute. If open files run out, raise the limit of open files (ulimit -n).",
                what=str(context.get("message")),
                error="" if cause is None else f"{type(cause).__name__}: {cause}",
            )


def _probe(ask: Callable[[], RoleState], what: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a probe, which answers with the state that `ask` returns."""

    async def answer(_: Request) -> Response:
        state = ask()
        body: dict[str, object] = {what: state.ok, "text": state.sentence}
        if state.progress is not None:
            body["progress"] = round(state.progress, 4)
        status = 200 if state.ok else 503
        return JSONResponse(body, status, headers={"Cache-Control": "no-store"})

    return answer


def _refusal(error: Exception, paths: Sequence[str]) -> Response:
    status, headers = (
        (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    )
    if status == 404:
        body = problem_bytes(
            status,
            "This path does not exist; the field paths lists the paths of this role.",
            paths=paths,
        )
    elif status == 405:
        allowed = " and ".join(sorted((headers or {}).get("Allow", "GET, HEAD").split(", ")))
        body = problem_bytes(status, f"Only {allowed} are allowed here.")
    else:
        body = problem_bytes(status, f"The request failed ({status}).")
    return Response(body, status, headers, PROBLEM_TYPE)


async def _on_error(request: Request, error: Exception) -> Response:
    del request
    _logger.error("a request failed", error=f"{type(error).__name__}: {error}")
    return Response(
        problem_bytes(500, "The request failed; see the role's log."), 500, None, PROBLEM_TYPE
    )
