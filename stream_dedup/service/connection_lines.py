"""What Kafka's clients log while a broker cannot be reached: one sentence at once, then one a minute with what was tried.

librdkafka and aiokafka log a line for each attempt of each client, several thousand a minute in all. Invariants: only lines
about a connection are held back, and none at level `debug`; each address that was tried is in the next sentence, the reason
first.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable

from stream_dedup.ground.connection import address_and_reason

AGAIN_SECONDS = 60.0

# librdkafka: facility, client, thread, broker, what happened. FAIL: a connection; ERROR: a client has none left; REQTMOUT: a
# broker was silent; GETPID: no coordinator for a producer.
_LINE = re.compile(r"(?:FAIL|ERROR|REQTMOUT|GETPID) \[[^\]]*\] \[thrd:[^\]]*\]: (?P<what>.*)", re.DOTALL)
_NOWHERE = re.compile(r"brokers are down|transport failure|timed out|no brokers available", re.IGNORECASE)
_AIOKAFKA = re.compile(
    r"Unable connect to |Unable to request metadata|Unable to update metadata|Failed fetch messages from |Heartbeat failed |"
    r"Heartbeat send request failed|Group Coordinator Request failed|Marking the coordinator dead|Heartbeat session expired|"
    r"OffsetCommit failed|Error sending \w+ to node|Got error produce response|Failed to connect to|Topic .* is not available"
)
_AIOKAFKA_CONNECT = re.compile(r"\[Errno \d+\] (?P<why>Connect call failed|.*?) \('(?P<host>[^']+)', (?P<port>\d+)\)")
_GONE = re.compile(r"NodeNotReady|ConnectionError|RequestTimedOut|CoordinatorNotAvailable|coordinator")


def reason_of(line: str) -> tuple[str, str] | None:
    """Return (address, reason) of a line about a connection, empty where it says none; None for any other line."""
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
    """Rewrites the first such line of a minute, and drops the others."""

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_seconds = now_seconds
        self._tried: Counter[str] = Counter()
        self._why = ""
        self._said: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is to be written, as it is by then."""
        is_ours, is_theirs = record.name == "stream_dedup.kafka", record.name.startswith("aiokafka")
        if not (is_ours or is_theirs) or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        found = reason_of(record.getMessage()) if is_ours else reason_of_aiokafka(record.getMessage())
        if found is None:
            return True
        if record.levelno <= logging.INFO:
            return False  # a broker closed a connection, as it may; if it does not come back, the next line says so
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
            tried = " and ".join(f"{count:,} times at {one}" for one, count in self._tried.most_common())
            text = f"{self._why}: no connection to Kafka in the last {passed:.0f} s, tried {tried}."
        record.msg, record.args = text, ()
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        self._said = now
        self._tried.clear()
        return True
