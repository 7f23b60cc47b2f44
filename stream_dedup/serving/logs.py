"""Logs: one event a line, as JSON for collectors or in colour for people, through structlog and the
standard library.

Of what Kafka's clients log while a broker cannot be reached one sentence is written at once, then
one a minute with what was tried: librdkafka and aiokafka log a line for each attempt of each
client, several thousand a minute in all.

Invariants: logs go to standard error, results to standard output; a value from outside (an id, a
topic, a librdkafka message) never reaches a terminal raw and never breaks a line; a traceback never
shows local variables, because they may hold secrets and documents. Only lines about a connection
are held back, and none at level `debug`; each address that was tried is in the next sentence, the
reason first.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import Counter
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
    handler.addFilter(ConnectionLines())
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
        return [_safe(one) for one in value]
    if isinstance(value, dict):
        return {printable(str(name)): _safe(one) for name, one in value.items()}
    if value is None or isinstance(value, bool | int | float):
        return value
    return printable(str(value), VALUE_CHARACTERS_MAX)


AGAIN_SECONDS = 60.0

# librdkafka: facility, client, thread, broker, what happened. FAIL: a connection; ERROR: a client
# has none left; REQTMOUT: a broker was silent; GETPID: no coordinator for a producer.
_LINE = re.compile(
    r"(?:FAIL|ERROR|REQTMOUT|GETPID) \[[^\]]*\] \[thrd:[^\]]*\]: (?P<what>.*)", re.DOTALL
)
_NOWHERE = re.compile(
    r"brokers are down|transport failure|timed out|no brokers available", re.IGNORECASE
)
_AIOKAFKA = re.compile(
    r"Unable connect to |Unable to request metadata|Unable to update metadata|Failed fetch messages from |Heartbeat failed |"
    r"Heartbeat send request failed|Group Coordinator Request failed|Marking the coordinator dead|Heartbeat session expired|"
    r"OffsetCommit failed|Error sending \w+ to node|Got error produce response|Failed to connect to|Topic .* is not available"
)
_AIOKAFKA_CONNECT = re.compile(
    r"\[Errno \d+\] (?P<why>Connect call failed|.*?) \('(?P<host>[^']+)', (?P<port>\d+)\)"
)
_GONE = re.compile(
    r"NodeNotReady|ConnectionError|RequestTimedOut|CoordinatorNotAvailable|coordinator"
)


def reason_of(line: str) -> tuple[str, str] | None:
    """Return (address, reason) of a line about a connection, empty where it says none; None for any
    other line.
    """
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    address, why = address_and_reason(found["what"])
    if address:
        return address, why
    return ("", "") if _NOWHERE.search(why) else None


def reason_of_aiokafka(line: str) -> tuple[str, str] | None:
    """Return the same for a line of aiokafka."""
    if not _AIOKAFKA.match(line):
        return None
    connect = _AIOKAFKA_CONNECT.search(line)
    if connect is not None:
        return f"{connect['host']}:{connect['port']}", connect["why"]
    return ("", "") if line.startswith("Unable") or _GONE.search(line) else None


class ConnectionLines(logging.Filter):
    """Rewrites the first such line of a minute, and drops the others. What is fatal to a client is a
    warning to the role.
    """

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_seconds = now_seconds
        self._tried: Counter[str] = Counter()
        self._why = ""
        self._said: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is to be written, as it is by then."""
        if record.levelno == logging.CRITICAL and record.name == KAFKA_LOGGER:
            # FATAL of a client, as when another one takes over its id; a role that ends for it
            # says so itself, as critical.
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        is_ours, is_theirs = record.name == KAFKA_LOGGER, record.name.startswith("aiokafka")
        if not (is_ours or is_theirs) or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        found = (
            reason_of(record.getMessage()) if is_ours else reason_of_aiokafka(record.getMessage())
        )
        if found is None:
            return True
        if record.levelno <= logging.INFO:
            # a broker closed a connection, as it may; if it does not come back, the next line says
            # so
            return False
        return self._say(record, *found)

    def _say(self, record: logging.LogRecord, address: str, why: str) -> bool:
        now = self._now_seconds()
        if address:
            self._tried[address] += 1
        if why:
            self._why = why
        elif not self._tried:
            return False  # an echo: the client that tried an address says why
        passed = None if self._said is None else now - self._said
        if passed is not None and passed < AGAIN_SECONDS:
            return False
        if passed is None or passed > 2 * AGAIN_SECONDS:
            where = ", ".join(self._tried)
            text = f"{self._why}: no connection to Kafka at {where}. It is tried until it answers, and said once a minute."
        else:
            tried = " and ".join(
                f"{count:,} times at {one}" for one, count in self._tried.most_common()
            )
            text = f"{self._why}: no connection to Kafka in the last {passed:.0f} s, tried {tried}."
        record.msg, record.args = text, ()
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        self._said = now
        self._tried.clear()
        return True
