"""An HTTP server on a free port and a clock that stands still, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from stream_dedup.serving.health import Health
from stream_dedup.serving.http import HttpServer


class Clock:
    """A clock that stands still."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@contextmanager
def serving(
    routes: Sequence[BaseRoute] = (),
    health: Health | None = None,
    registry: CollectorRegistry | None = None,
    **options: Any,
) -> Iterator[HttpServer]:
    """Yield a started server and stop it when the block ends."""
    server = HttpServer(
        "127.0.0.1", 0, health or Health(), registry or CollectorRegistry(), routes, **options
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
