"""Run the role console: it reads the newest decisions and serves the pages. It writes nothing.

The role is ready while it can read the outputs. While it cannot, `/readyz` and the pages
report the reason.

Invariants: no verdict depends on this role; it has no durable state, so any number of replicas may
run.
"""

from __future__ import annotations

import threading
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from stream_dedup.console.assembly import pages_of, sources_of
from stream_dedup.console.sources import ConsoleSources
from stream_dedup.serving.health import Health
from stream_dedup.serving.http import HttpServer
from stream_dedup.settings.settings import Settings

_logger = structlog.get_logger("stream_dedup.console")

_CHECK_SECONDS: Final = 1.0


def run(settings: Settings, stop: threading.Event) -> None:
    """Serve the console until `stop` is set.

    Raises:
        ConfigurationError: the port is not available, or the token's file cannot be read.
    """
    health = Health()
    sources = sources_of(settings, stop)
    server = HttpServer(
        settings.http_host,
        settings.http_port,
        health,
        CollectorRegistry(),
        pages_of(settings, sources).routes(),
        settings.http_allowed_hosts,
    )
    server.start()
    try:
        health.set_startup(1.0, "The console serves its pages.")
        _logger.info("console started", address=f"http://{settings.http_host}:{server.port}/")
        _report_health(sources, health, stop)
    finally:
        server.stop()


def _report_health(sources: ConsoleSources, health: Health, stop: threading.Event) -> None:
    """Set the readiness by whether decisions can be read, and log each change, until `stop` is set."""
    last_problem = sources.decisions_problem()  # not empty: nothing has been read yet
    while not stop.wait(_CHECK_SECONDS):
        health.beat()
        problem = sources.decisions_problem()
        health.set_ready(
            not problem,
            f"Decisions cannot be read: {problem}"
            if problem
            else "The console reads the newest decisions.",
        )
        if problem and problem != last_problem:
            _logger.warning("decisions cannot be read", reason=problem)
        elif last_problem and not problem:
            _logger.info("decisions can be read again")
        last_problem = problem
