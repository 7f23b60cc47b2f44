"""Logs: whole lines, harmless values, no secrets in tracebacks; of a broker that is away one
sentence, then one a minute."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
import structlog

from stream_dedup.serving import logs
from stream_dedup.serving.logs import (
    ConnectionLineFilter,
    is_about_connection,
    parse_connection_line,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_from_structlog_and_the_standard_library_look_alike() -> None:
    """Our own events and librdkafka's have time, level, logger, role and event on one line."""
    stream = io.StringIO()
    logs.configure("info", "auto", role="worker", stream=stream)

    structlog.get_logger("stream_dedup.worker").info("started", partitions=[1, 2])
    logging.getLogger(logs.KAFKA_LOGGER).warning("FAIL [%s] connection refused", "thrd:main")

    ours, theirs = lines(stream)
    assert (ours["event"], ours["partitions"], ours["level"]) == ("started", [1, 2], "info")
    assert theirs["event"] == "FAIL [thrd:main] connection refused"
    assert ours["role"] == theirs["role"] == "worker"
    assert (ours["logger"], theirs["logger"]) == ("stream_dedup.worker", "stream_dedup.kafka")
    assert ours["timestamp"].endswith("Z")


def test_the_level_applies_to_both_kinds_of_loggers() -> None:
    """Below the level nothing is written, wherever it comes from; other libraries only warn."""
    stream = io.StringIO()
    logs.configure("warning", "json", stream=stream)

    structlog.get_logger("stream_dedup.x").info("no")
    logging.getLogger(logs.KAFKA_LOGGER).info("no")
    logging.getLogger("uvicorn.error").info("no")
    structlog.get_logger("stream_dedup.x").error("yes")
    logging.getLogger("uvicorn.error").warning("yes")

    assert [line["event"] for line in lines(stream)] == ["yes", "yes"]


def test_a_fatal_line_of_a_client_is_a_warning() -> None:
    """librdkafka calls it fatal when another client takes over an id, which is ordinary; what ends
    a role is critical."""
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)

    logging.getLogger(logs.KAFKA_LOGGER).critical(
        "FATAL [%s] [thrd:main]: Fatal error: Local: This instance has been fenced", "w#producer-2"
    )
    structlog.get_logger("stream_dedup.run").critical("the role ends")

    assert [line["level"] for line in lines(stream)] == ["warning", "critical"]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_value_is_printed_raw(log_format: Any) -> None:
    """Escape sequences, line breaks and bytes in events and values are written out, and a huge
    value is cut."""
    stream = io.StringIO()
    logs.configure("info", log_format, stream=stream)
    log = structlog.get_logger("stream_dedup.x")

    log.info(
        "a\x1b[2Jb\nforged line",
        id=b"\x1b]0;title\x07\xff",
        many={"k\x1b": ["\u202e"]},
        huge="x" * 100_000,
    )
    logging.getLogger(logs.KAFKA_LOGGER).error("from the network: \x1b[31m\nforged")

    text = stream.getvalue()
    assert text.count("\n") == 2
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text) < 5000


def test_a_traceback_is_one_json_value_without_local_variables() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)

    def fail() -> None:
        password = "s3cret"  # noqa: S105, F841 - this is the value that must not be shown
        raise RuntimeError("it broke")

    try:
        fail()
    except RuntimeError:
        structlog.get_logger("stream_dedup.x").critical("ends", exc_info=True)

    (line,) = lines(stream)
    assert line["exception"][0]["exc_type"] == "RuntimeError"
    assert line["exception"][0]["exc_value"] == "it broke"
    assert [frame["name"] for frame in line["exception"][0]["frames"]][-1] == "fail"
    assert "s3cret" not in stream.getvalue()


def test_a_terminal_gets_colours_and_a_file_does_not() -> None:
    """`auto` writes for people on a terminal, and JSON elsewhere; `console` without a terminal has
    no colours."""
    terminal, file = Terminal(), io.StringIO()

    logs.configure("info", "auto", stream=terminal)
    structlog.get_logger("stream_dedup.x").info("hello")
    logs.configure("info", "console", stream=file)
    structlog.get_logger("stream_dedup.x").info("hello")

    assert "\x1b[" in terminal.getvalue()
    assert "hello" in file.getvalue()
    assert "\x1b[" not in file.getvalue()
    assert not file.getvalue().startswith("{")


def test_configuring_again_does_not_double_the_lines() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure("info", "json", stream=first)
    logs.configure("info", "json", stream=second)

    structlog.get_logger("stream_dedup.x").info("once")

    assert first.getvalue() == ""
    assert len(lines(second)) == 1


REFUSED = (
    "FAIL [stream-dedup-admin#producer-1] [thrd:127.0.0.1:1/bootstrap]: 127.0.0.1:1/bootstrap: "
    "Connect to ipv4#127.0.0.1:1 "
    "failed: Connection refused (after 0ms in state CONNECT, 120 identical error(s) suppressed)"
)
TLS = "sasl_ssl://kafka:9093/bootstrap"


def test_an_unreachable_broker_is_one_log_line() -> None:
    """However many clients try however often: the reason first, then where; other lines of the
    clients stay."""
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)

    for _ in range(385):
        logging.getLogger(logs.KAFKA_LOGGER).error("%s", REFUSED)
        logging.getLogger(logs.KAFKA_LOGGER).error(
            "ERROR [c#producer-1] [thrd:app]: c#producer-1: 1/1 brokers are down"
        )
        logging.getLogger("aiokafka").error(
            "Unable connect to node with id 1: [Errno 111] Connect call failed ('127.0.0.1', 1)"
        )
        logging.getLogger("aiokafka").error("Unable to update metadata from [1]")
    logging.getLogger(logs.KAFKA_LOGGER).warning(
        "MAXPOLL [c#consumer-1] [thrd:main]: Application maximum poll interval exceeded"
    )

    first, other = lines(stream)
    assert first["event"].startswith("Connection refused: no connection to Kafka at 127.0.0.1:1.")
    assert first["level"] == "warning"
    assert other["event"].startswith("MAXPOLL")


def test_an_unreachable_broker_is_not_logged_at_level_error() -> None:
    """It is a warning; a demo whose broker has ended also logs it last."""
    stream = io.StringIO()
    logs.configure("error", "json", stream=stream)

    logging.getLogger(logs.KAFKA_LOGGER).error("%s", REFUSED)

    assert lines(stream) == []


def test_an_unreachable_broker_is_logged_each_minute() -> None:
    now = [0.0]
    line_filter = ConnectionLineFilter(lambda: now[0])

    def filtered_message(message: str) -> str:
        record = logging.LogRecord("stream_dedup.kafka", logging.ERROR, "", 0, message, (), None)
        return record.getMessage() if line_filter.filter(record) else ""

    assert filtered_message(REFUSED).startswith(
        "Connection refused: no connection to Kafka at 127.0.0.1:1."
    )
    now[0] = 59.0
    assert not filtered_message(REFUSED)
    now[0] = 60.0
    assert "at 127.0.0.1:2. Retries" in filtered_message(
        REFUSED.replace("127.0.0.1:1", "127.0.0.1:2")
    )


def test_debug_shows_every_line() -> None:
    """Debugging a network fault needs all of them."""
    stream = io.StringIO()
    logs.configure("debug", "json", stream=stream)

    logging.getLogger(logs.KAFKA_LOGGER).error("%s", REFUSED)
    logging.getLogger(logs.KAFKA_LOGGER).error("%s", REFUSED)

    assert [line["event"] for line in lines(stream)] == [REFUSED] * 2


CONSUMER = "[c#consumer-1] [thrd"
RESOLVE = "Failed to resolve 'kafka:9093': Name or service not known"
RESET = "Connection reset by peer"
TRANSACTIONS = "FAIL [c#p-18] [thrd:TxnCoordinator]: TxnCoordinator: Connect to "
TRANSACTIONS += f"ipv4#127.0.0.1:34719 failed: {RESET} (after 1ms in state CONNECT)"
COORDINATOR = REFUSED.replace("127.0.0.1:1/bootstrap: C", "GroupCoordinator: 127.0.0.1:43787: C")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (REFUSED, ("127.0.0.1:1", "Connection refused")),
        (f"FAIL {CONSUMER}:{TLS}]: {TLS}: {RESOLVE}", ("kafka:9093", RESOLVE)),
        (COORDINATOR, ("127.0.0.1:43787", "Connection refused")),
        (TRANSACTIONS, ("127.0.0.1:34719", RESET)),
        (
            f"FAIL {CONSUMER}:{TLS}]: {TLS}: ApiVersionRequest failed: Local: Timed out: probably due",
            ("kafka:9093", "It accepts connections but does not answer"),
        ),
        (f"SESSTMOUT {CONSUMER}:main]: Consumer group session timed out (in join-state x)", None),
        (f"CONFWARN {CONSUMER}:app]: Configuration property x is a producer property", None),
    ],
)
def test_connection_lines_are_recognised(line: str, found: tuple[str, str] | None) -> None:
    assert parse_connection_line(line) == found


@pytest.mark.parametrize(
    ("line", "is_dropped"),
    [
        (
            "Failed fetch messages from 1: NodeNotReadyError: Attempt to send a request to node",
            True,
        ),
        ("OffsetCommit failed for group g due to group error (IllegalGeneration)", False),
    ],
)
def test_lines_of_aiokafka_about_records_stay(line: str, is_dropped: bool) -> None:
    assert is_about_connection(line) is is_dropped
