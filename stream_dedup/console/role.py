"""The role console: serves the pages, reads the newest decisions, and writes nothing.

    reading     the outputs are read; ready
    in trouble  Kafka or the outputs cannot be read; not ready, with the sentence that the pages show too

Invariants: no verdict depends on it; it keeps no state, so any number of replicas may run.
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

_LOOK_SECONDS: Final = 1.0


def run(settings: Settings, stop: threading.Event) -> None:
    """Serve the console until `stop` is set.

    Raises:
        ConfigurationError: the port cannot be taken, or the token's file cannot be read.
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
        _report(sources, health, stop)
    finally:
        server.stop()


def _report(sources: ConsoleSources, health: Health, stop: threading.Event) -> None:
    """Report whether decisions arrive until `stop` is set, and log each change."""
    last_trouble = sources.trouble()  # nothing has been read yet
    while not stop.wait(_LOOK_SECONDS):
        health.beat()
        trouble = sources.trouble()
        health.set_ready(
            not trouble,
            f"Decisions cannot be read: {trouble}" if trouble else "The newest decisions are read.",
        )
        if trouble and trouble != last_trouble:
            _logger.warning("decisions cannot be read", why=trouble)
        elif last_trouble and not trouble:
            _logger.info("decisions are read")
        last_trouble = trouble
