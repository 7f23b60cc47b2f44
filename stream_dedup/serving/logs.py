"""Logging: one event a line, as JSON for collectors or in colour for people, through structlog and
the standard library.

While a broker is unreachable, librdkafka and aiokafka log a line for each attempt of each client,
several thousand a minute. Instead one line is written at once, and then one a minute.

Invariants: logs go to standard error, results to standard output; an external value (an id, a topic,
a librdkafka message) is escaped before it reaches a terminal and never breaks a line; a traceback
never shows local variables, because they may contain secrets and documents. Only lines about
connections are suppressed, and none at level `debug`.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Literal, TextIO

import structlog

from stream_dedup.domain.connection import address_and_reason
from stream_dedup.domain.printable import printable

KAFKA_LOGGER = "stream_dedup.kafka"
VALUE_CHARACTERS_MAX = 2000
_TRACEBACK = "exception"


def configure(
    level: Literal["debug", "info", "warning", "error"] = "info",
    log_format: str = "auto",
    *,
    role: str | None = None,
    stream: TextIO | None = None,
) -> None:
    """Configure structlog and the standard library's logging for this process; may be repeated.

    Every line contains `role`. `auto` is the console format on a terminal, otherwise JSON.
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
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            neutralise,
            *renderers,
        ],
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
    handler.addFilter(ConnectionLineFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("stream_dedup").setLevel(level.upper())
    logging.getLogger("jieba").setLevel(logging.WARNING)
    logging.captureWarnings(True)


def neutralise(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Make every value of an event safe to show; a structlog processor."""
    for name, value in event.items():
        if name in ("exc_info", _TRACEBACK):
            continue
        event[name] = _safe(value)
    return event


def _add_role(role: str) -> structlog.typing.Processor:
    def add(
        _logger: object, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event.setdefault("role", role)
        return event

    return add


def _safe(value: Any) -> Any:
    if isinstance(value, str | bytes):
        return printable(value, VALUE_CHARACTERS_MAX)
    if isinstance(value, list | tuple | set | frozenset):
        return [_safe(item) for item in value]
    if isinstance(value, dict):
        return {printable(str(name)): _safe(item) for name, item in value.items()}
    if value is None or isinstance(value, bool | int | float):
        return value
    return printable(str(value), VALUE_CHARACTERS_MAX)


REPEAT_SECONDS = 60.0

# librdkafka's lines: facility, client, thread, broker, event. FAIL: a connection failed; ERROR: a
# client has no connection; REQTMOUT: a broker was silent; GETPID: no coordinator for a producer.
_LIBRDKAFKA_LINE = re.compile(
    r"(?:FAIL|ERROR|REQTMOUT|GETPID) \[[^\]]*\] \[thrd:[^\]]*\]: (?P<what>.*)", re.DOTALL
)
_NO_BROKER = re.compile(
    r"brokers are down|transport failure|timed out|no brokers available", re.IGNORECASE
)
_AIOKAFKA_LINE = re.compile(
    r"Unable connect to |Unable to request metadata|Unable to update metadata|Failed fetch messages from |Heartbeat failed |"
    r"Heartbeat send request failed|Group Coordinator Request failed|Marking the coordinator dead|Heartbeat session expired|"
    r"OffsetCommit failed|Error sending \w+ to node|Got error produce response|Failed to connect to|Topic .* is not available"
)
_AIOKAFKA_NO_BROKER = re.compile(
    r"Unable|\[Errno \d+\]|NodeNotReady|ConnectionError|RequestTimedOut|CoordinatorNotAvailable|coordinator"
)


def parse_connection_line(line: str) -> tuple[str, str] | None:
    """Return (address, reason) of a librdkafka line about a connection, "" for unknown parts; None
    for any other line.
    """
    match = _LIBRDKAFKA_LINE.fullmatch(line)
    if match is None:
        return None
    address, reason = address_and_reason(match["what"])
    if address:
        return address, reason
    return ("", "") if _NO_BROKER.search(reason) else None


def is_about_connection(line: str) -> bool:
    """Return whether a line of aiokafka is about a connection; librdkafka reports the same."""
    return _AIOKAFKA_LINE.match(line) is not None and _AIOKAFKA_NO_BROKER.search(line) is not None


class ConnectionLineFilter(logging.Filter):
    """Rewrites the first line about a connection of each minute, and drops the others. A client's
    fatal error is logged as a warning.
    """

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_seconds = now_seconds
        self._quiet_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line; it may have been rewritten."""
        if record.levelno == logging.CRITICAL and record.name == KAFKA_LOGGER:
            # For example, another client uses this client's id. A role that ends because of such an
            # error logs a critical line itself.
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        is_debug = logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        if record.name.startswith("aiokafka"):
            return is_debug or not is_about_connection(record.getMessage())
        if record.name != KAFKA_LOGGER or is_debug:
            return True
        address_and_why = parse_connection_line(record.getMessage())
        if address_and_why is None:
            return True
        address, why = address_and_why
        # A line without an address is a consequence of another one. At INFO a broker closed a
        # connection, which is normal; if it stays unreachable, the next line reports that.
        if not address or record.levelno <= logging.INFO or self._now_seconds() < self._quiet_until:
            return False
        self._quiet_until = self._now_seconds() + REPEAT_SECONDS
        record.args = ()
        record.msg = (
            f"{why}: no connection to Kafka at {address}. Retries continue and are logged once a "
            "minute."
        )
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return logging.getLogger(record.name).isEnabledFor(logging.WARNING)
