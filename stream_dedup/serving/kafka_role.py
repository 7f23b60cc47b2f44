"""Run a role that reads Kafka: first its HTTP port, then the wait for Kafka, then its loop.

serving    `/livez`, `/metrics` and the role's pages answer; not ready
waiting    until a broker answers, with the reason in log and `/readyz`
created    the role is created, with retries while Kafka is unavailable or a topic is missing
running    its loop, until the stop event
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute
from structlog.typing import FilteringBoundLogger

from stream_dedup.domain.failpoints import Failpoints
from stream_dedup.serving.health import Health
from stream_dedup.serving.http import HttpServer
from stream_dedup.serving.process import collect_rarely
from stream_dedup.serving.wait_reports import Waits, Watch
from stream_dedup.settings.settings import Settings


@dataclass(frozen=True)
class RoleFrame:
    """The parameters of a role's services. `topic`: one that it is allowed to describe; `first_status`:
    the first sentence of `/startupz`.
    """

    topic: str
    first_status: str
    registry: CollectorRegistry
    logger: FilteringBoundLogger
    routes: Sequence[BaseRoute] = ()
    failpoint: str | None = None
    make_watch: Callable[[Settings, str, Waits], Watch] = Watch
    make_retention_watch: Callable[[Health], AbstractContextManager[object]] = field(
        default=lambda _: nullcontext()
    )
    """Creates the watch that checks whether Kafka keeps the records that the role needs."""
    on_serving: Callable[[int], None] = field(default=lambda _: None)
    """Called with the port once it is open."""


@dataclass(frozen=True)
class RunningRole:
    """The services of a role when it is created; Kafka has answered once."""

    settings: Settings
    health: Health
    waits: Waits
    watch: Watch
    stop: threading.Event


def run_role(
    settings: Settings,
    stop: threading.Event,
    frame: RoleFrame,
    make: Callable[[RunningRole], Callable[[], None]],
) -> None:
    """Run a role until `stop` is set. `make` creates it and returns its loop.

    Raises:
        ConfigurationError: an operator must change a setting (exit 78).
        StreamDedupError: the role's loop raised it.
    """
    health = Health()
    health.set_startup(0.0, frame.first_status)
    server = HttpServer(
        settings.http_host,
        settings.http_port,
        health,
        frame.registry,
        frame.routes,
        settings.http_allowed_hosts,
    )
    server.start()
    frame.on_serving(server.port)
    waits = Waits(health, frame.logger)
    try:
        Failpoints(frame.failpoint)  # reports an unknown failpoint before the wait for Kafka
        with frame.make_watch(settings, frame.topic, waits) as watch:
            if watch.wait(stop):
                loop = make(RunningRole(settings, health, waits, watch, stop))
                collect_rarely()
                with frame.make_retention_watch(health):
                    loop()
    finally:
        server.stop()
