"""How a role that reads Kafka runs: its port first, then the wait for Kafka, then its loop. The
roles differ in what they make.

serving    `/livez`, `/metrics` and the role's own pages answer; not ready
waiting    until a broker answers, with the reason in log and `/readyz`
made       the role is made, again and again where Kafka goes away meanwhile or a topic is missing
running    its loop, until it is told to stop
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from stream_dedup.domain.failpoints import Failpoints
from stream_dedup.serving.health import Health
from stream_dedup.serving.http import HttpServer
from stream_dedup.serving.process import collect_rarely
from stream_dedup.serving.waits import Waits, Watch
from stream_dedup.settings.settings import Settings


@dataclass(frozen=True)
class RoleFrame:
    """What a role shows while it runs. `topic` is one that it may describe, `opening` the first
    sentence of `/startupz`.
    """

    topic: str
    opening: str
    registry: CollectorRegistry
    logger: Any
    routes: Sequence[BaseRoute] = ()
    failpoint: str | None = None
    make_watch: Callable[[Settings, str, Waits], Watch] = Watch
    make_kept: Callable[[Health], AbstractContextManager[object]] = field(
        default=lambda _: nullcontext()
    )
    """What looks beside the loop whether Kafka keeps what the role needs."""
    serving: Callable[[int], None] = field(default=lambda _: None)
    """Called with the port once it is open."""


@dataclass(frozen=True)
class RunningRole:
    """What a role finds when it is made: Kafka has answered once."""

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
    """Run a role until `stop` is set. `make` makes it and returns its loop.

    Raises:
        ConfigurationError: something must be changed by an operator (exit 78).
        StreamDedupError: as the role's loop.
    """
    health = Health()
    health.startup(0.0, frame.opening)
    server = HttpServer(
        settings.http_host,
        settings.http_port,
        health,
        frame.registry,
        frame.routes,
        settings.http_allowed_hosts,
    )
    server.start()
    frame.serving(server.port)
    waits = Waits(health, frame.logger)
    try:
        Failpoints(
            frame.failpoint
        )  # one that is none is told at once, also where Kafka is waited for
        with frame.make_watch(settings, frame.topic, waits) as watch:
            if watch.wait(stop):
                loop = make(RunningRole(settings, health, waits, watch, stop))
                collect_rarely()
                with frame.make_kept(health):
                    loop()
    finally:
        server.stop()
