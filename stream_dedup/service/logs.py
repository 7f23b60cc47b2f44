"""Logs: one event a line, as JSON for collectors or in colour for people, through structlog and the standard library.

Invariants: logs go to standard error, results to standard output; a value from outside (an id, a topic, a librdkafka
message) never reaches a terminal raw and never breaks a line; a traceback never shows local variables, because they may
hold secrets and documents.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

from stream_dedup.ground.printable import printable
from stream_dedup.service.connection_lines import ConnectionLines

KAFKA_LOGGER = "stream_dedup.kafka"
VALUE_CHARACTERS_MAX = 2000
_TRACEBACK = "exception"


def configure(
    level: Literal["debug", "info", "warning", "error"] = "info",
    log_format: Literal["auto", "console", "json"] = "auto",
    *,
    role: str | None = None,
    stream: TextIO | None = None,
) -> None:
    """Set up structlog and the standard library's logging for this process; may be called again.

    `role` is put on every line. `auto` is the console format on a terminal, else JSON.
    """
    stream = stream or sys.stderr
    is_terminal = stream.isatty()
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if role:
        shared.append(_add_role(role))  # not a context variable: other threads would not see it
    renderers: list[Any]
    if log_format == "console" or (log_format == "auto" and is_terminal):
        plain = structlog.dev.plain_traceback
        renderers = [structlog.dev.ConsoleRenderer(colors=is_terminal, exception_formatter=plain)]
    else:
        transformer = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        renderers = [
            structlog.processors.ExceptionRenderer(transformer),
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, neutralise, *renderers],
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(ConnectionLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("stream_dedup").setLevel(level.upper())
    logging.getLogger("jieba").setLevel(logging.WARNING)
    logging.captureWarnings(True)


def kafka_logger() -> logging.Logger:
    """Return the logger to give to librdkafka clients; without one they print a line per reconnect attempt raw."""
    return logging.getLogger(KAFKA_LOGGER)


def neutralise(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Make every value of an event safe to show; a structlog processor."""
    for name, value in event.items():
        if name in ("exc_info", _TRACEBACK):
            continue
        event[name] = _safe(value)
    return event


def _add_role(role: str) -> structlog.typing.Processor:
    def add(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event.setdefault("role", role)
        return event

    return add


def _safe(value: Any) -> Any:
    if isinstance(value, str | bytes):
        return printable(value, VALUE_CHARACTERS_MAX)
    if isinstance(value, list | tuple | set | frozenset):
        return [_safe(one) for one in value]
    if isinstance(value, dict):
        return {printable(str(name)): _safe(one) for name, one in value.items()}
    if value is None or isinstance(value, bool | int | float):
        return value
    return printable(str(value), VALUE_CHARACTERS_MAX)
