"""Logs: whole lines, harmless values, no secrets in tracebacks."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
import structlog

from stream_dedup.service import logs


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


def test_levels_are_kept_for_both() -> None:
    """Below the level nothing is written, wherever it comes from; other libraries only warn."""
    stream = io.StringIO()
    logs.configure("warning", "json", stream=stream)

    structlog.get_logger("stream_dedup.x").info("no")
    logging.getLogger(logs.KAFKA_LOGGER).info("no")
    logging.getLogger("uvicorn.error").info("no")
    structlog.get_logger("stream_dedup.x").error("yes")
    logging.getLogger("uvicorn.error").warning("yes")

    assert [line["event"] for line in lines(stream)] == ["yes", "yes"]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_value_is_printed_raw(log_format: Any) -> None:
    """Escape sequences, line breaks and bytes in events and values are written out, and a huge value is cut."""
    stream = io.StringIO()
    logs.configure("info", log_format, stream=stream)
    log = structlog.get_logger("stream_dedup.x")

    log.info("a\x1b[2Jb\nforged line", id=b"\x1b]0;title\x07\xff", many={"k\x1b": ["\u202e"]}, huge="x" * 100_000)
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
    """`auto` writes for people on a terminal, and JSON elsewhere; `console` without a terminal has no colours."""
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
