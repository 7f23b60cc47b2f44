"""The topic `decisions` as one index has it: read where the index is behind the log, written beside
its answers.

Each index writes what it decides, from behind what the topic holds when it begins. What is on its
way is kept in the volume, as answers are, so neither a kill nor an outage leaves a gap. An index
that is behind the log reads what was decided, and looks nothing up as far as that goes. Where the
topic is missing, ends, lacks a record, or contradicts the log, the index judges, and says so:
nothing waits for the topic, and no verdict depends on it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from stream_dedup.ground.document import Message
from stream_dedup.ground.errors import BrokerError, FormatError, OtherFormatError, StreamDedupError
from stream_dedup.index.index import NO_DECISIONS, LogIndex
from stream_dedup.index.rules.apply import DOCUMENTS_TOGETHER
from stream_dedup.indexer.dependencies import IndexerDependencies
from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.kafka import LogReader, VerdictWriter
from stream_dedup.log import decisions, records
from stream_dedup.log.decisions import LogDecision
from stream_dedup.settings.settings import Settings

_LOOKS: Final = 100
_LOOK_SECONDS: Final = 0.1
_FLUSH_SECONDS: Final = 5.0
_PACE_SECONDS: Final = 60.0
_AT_ONCE: Final = 1000
_AHEAD_BYTES: Final = 64 << 20
_RECORDS_AT_ONCE: Final = 1024
_SORTED_ANEW: Final = (
    3  # tables are sorted once, from nothing, where so large a part of what there is comes new
)
_NEVER: Final = 1 << 63
_ANEW: Final = "Delete the topic, and create it again with: stream-dedup topics apply"


class CatchUpPace:
    """How fast an index catches up: by what it applied in the last minute, because what comes may
    be of another kind.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def seconds_to(self, until: int, applied: int, now: float) -> float | None:
        """Return how long it takes from `applied` to a log offset at this pace; None until that is
        known.
        """
        seen = self._seen
        seen.append((now, applied))
        while now - seen[0][0] > _PACE_SECONDS and len(seen) > 1:
            seen.popleft()
        then, before = seen[0]
        if now - then < _PACE_SECONDS / 10 or applied <= before:
            return None
        return (until - applied) * (now - then) / (applied - before)


class DecisionReader:
    """Finds the decisions on log records that are asked for in log order.

    The topic is nearly in that order: replicas write side by side, and one that is rebuilt beside
    another writes what lies far before. So what lies ahead is held, up to 64 MB; what has not come
    by then is missing.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._at, self._high = reader.watermarks()
        self._ahead: dict[int, bytes] = {}
        self._bytes = 0

    def start(self, log_offset: int) -> None:
        """Read from the first record on that is of this log offset or a later one."""
        low, high = self._at, self._high
        while log_offset and low < high:
            middle = (low + high) // 2
            self._reader.start(middle)
            found = _log_offset_of(self._take(1)[0])
            low, high = (middle + 1, high) if found is None or found < log_offset else (low, middle)
        self._at = low
        self._reader.start(low)

    def of(self, wanted: Sequence[int]) -> dict[int, LogDecision]:
        """Return the decisions on log records, by their offsets, ascending; later calls ask for
        later ones.

        Raises:
            BrokerError: the topic cannot be read.
            OtherFormatError: a newer version wrote it.
        """
        for log_offset in [one for one in self._ahead if one < wanted[0]]:
            self._bytes -= len(self._ahead.pop(log_offset))
        missing = {one for one in wanted if one not in self._ahead}
        while missing and self._at < self._high and self._bytes < _AHEAD_BYTES:
            for message in self._take(_AT_ONCE):
                self._at = message.offset + 1
                found, raw = _log_offset_of(message), message.value or b""
                if found is not None and found >= wanted[0] and found not in self._ahead:
                    self._ahead[found] = raw
                    self._bytes += len(raw)
                    missing.discard(found)
        there = [one for one in wanted if one in self._ahead]
        return {
            one: decisions.decode(self._ahead[one], f"The decision on log record {one}")
            for one in there
        }

    def end(self) -> int:
        """Return the first log offset behind the last record; damaged ones are passed over. Before
        `start`.
        """
        for offset in range(self._high - 1, self._at - 1, -1):
            self._reader.start(offset)
            found = _log_offset_of(self._take(1)[0])
            if found is not None:
                return found + 1
        return 0

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def _take(self, most: int) -> list[Message]:
        for _ in range(_LOOKS):
            if found := self._reader.take_messages(most, _LOOK_SECONDS):
                return found
        raise BrokerError("Its records do not come.")


def _log_offset_of(message: Message) -> int | None:
    """Return of which log record a record tells; None for one that is damaged."""
    try:
        return decisions.log_offset_of(message.value, f"Its record {message.offset}")
    except OtherFormatError:
        raise
    except FormatError:
        return None


class DecisionTopic:
    """The topic as one index has it; `turn` is called in every turn of the index's loop, and
    `known` while it is behind.

    `at_once` says how many log records are best applied together.
    """

    def __init__(
        self,
        settings: Settings,
        index: LogIndex,
        client: str,
        metrics: IndexMetrics,
        around: IndexerDependencies,
    ) -> None:
        self._index = index
        self.topic = topic = settings.topic_names.decisions
        self._make_reader = partial(around.make_log_reader, settings, topic, client)
        self._make_writer = partial(around.make_verdict_writer, settings, topic, client)
        self._metrics = metrics
        self._logger, self._monotonic, self._rest = (
            around.logger,
            around.monotonic,
            around.pace.rest,
        )
        self._is_begun = False
        self._writer: VerdictWriter | None = None
        self._reader: DecisionReader | None = None
        self._lacks = False
        self._below = 0  # the log offset up to which there is something to read
        self.at_once = 0
        self._next_try = float("-inf")
        self._told = ""

    def begin(self, exists: Callable[[], bool], log_end: Callable[[], int]) -> None:
        """Look at the topic's end, and write from behind it; `log_end` is asked after that, because
        replicas write too.
        """
        if self._is_begun or self._monotonic() < self._next_try:
            return
        self._next_try = self._monotonic() + self._rest
        try:
            if not exists():
                self._say(
                    "does not exist: what is decided is not written down. Create it with: "
                    "stream-dedup topics apply"
                )
                return
            reader, below = self._opened()
        except StreamDedupError as error:
            self._say(f"cannot be used: {error}")
            return
        if below > (end := log_end()):
            reader.close()
            self._say(
                f"tells of log record {below - 1}, and the log ends at {end}: it is of another "
                f"log. {_ANEW}"
            )
            return
        self._index.decide(below)
        self._is_begun = True
        self._next_try = float("-inf")
        self._begin_reading(reader, below)

    def known(self, messages: Sequence[Message]) -> Mapping[int, LogDecision]:
        """Return what is known of the decisions on records of the log, by their offsets."""
        reader = self._reader
        if reader is None:
            return NO_DECISIONS
        wanted = [
            one.offset
            for one in messages
            if records.has_documents(one.value) and one.offset < self._below
        ]
        try:
            found = reader.of(wanted) if wanted else {}
        except StreamDedupError as error:
            self._say(f"cannot be read; the index judges: {error}")
            found = {}
            self._end_reading()
        self._metrics.decisions_applied.inc(len(found))
        lacks = len(found) < len(wanted)
        if lacks and not self._lacks:
            self._say(
                f"lacks decisions from log record {min(set(wanted) - found.keys())} on: the index "
                "judges what it lacks"
            )
        self._lacks = lacks
        documents = sum(map(len, found.values()))
        self.at_once = (
            min(_RECORDS_AT_ONCE, len(found) * DOCUMENTS_TOGETHER // documents) if documents else 0
        )
        return found

    def applied(self) -> None:
        """Look at what was applied since `known`: whether it was right, and whether there is
        more.
        """
        if self._index.contradiction:
            self._say(
                f"contradicts the log, which the index judges instead: {self._index.contradiction} "
                f"{_ANEW}"
            )
            self._index.contradiction = ""
            self._is_begun, self._writer, self._next_try = False, None, float("inf")
            self._index.decide(_NEVER)
            self._end_reading()
        elif self._reader is not None and self._index.applied >= self._below:
            self._logger.info(
                "all that was decided is applied", topic=self.topic, applied=self._index.applied
            )
            self._end_reading()

    @property
    def reads_until(self) -> int:
        """The log offset up to which decisions are read; 0 while none are."""
        return 0 if self._reader is None else self._below

    def _begin_reading(self, reader: DecisionReader, below: int) -> None:
        applied = self._index.applied
        if applied >= below:
            reader.close()
            return
        self._reader, self._below = reader, below
        try:
            self._reader.start(applied)
        except StreamDedupError as error:
            self._say(f"cannot be read; the index judges: {error}")
            self._end_reading()
            return
        self._logger.info(
            "what was decided is read",
            topic=self.topic,
            from_log_offset=applied,
            to_log_offset=below,
        )
        if below - applied > applied // _SORTED_ANEW:
            self._index.suspend()

    def _end_reading(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader, self.at_once = None, 0
        self._index.resume()

    def turn(self) -> None:
        """Send what was decided since the last turn; what failed is sent again after a rest."""
        decided = self._index.take_decisions()
        if not self._is_begun:
            return
        try:
            if self._writer is None and self._monotonic() >= self._next_try:
                self._writer = self._make_writer()
                decided = list(self._index.unwritten_decisions())
            if self._writer is not None:
                for log_offset, raw in decided:
                    self._send(self._writer, log_offset, raw)
                self._writer.poll()
        except StreamDedupError as error:
            self._writer, self._next_try = None, self._monotonic() + self._rest
            self._say(f"cannot be written; answers do not wait for it: {error}")

    def flush(self) -> None:
        """Wait a little until all is written; what is not, is kept in the volume."""
        self.turn()
        if self._writer is not None:
            with contextlib.suppress(StreamDedupError):
                self._writer.flush(_FLUSH_SECONDS)

    @property
    def behind(self) -> int:
        """How many decisions are not yet written."""
        return self._index.decisions_waiting

    def _send(self, writer: VerdictWriter, log_offset: int, raw: bytes) -> None:
        # One producer, one partition: what was sent before is written before.
        writer.send(raw, None, lambda _: self._index.decisions_written(log_offset + 1))

    def _opened(self) -> tuple[DecisionReader, int]:
        """Return a reader, and the first log offset behind the last record of the topic."""
        found = self._make_reader()
        try:
            reader = DecisionReader(found)
            return reader, reader.end()
        except BaseException:
            found.close()
            raise

    def _say(self, what: str) -> None:
        if what != self._told:
            self._told = what
            self._logger.warning(f"the topic {self.topic} {what}")
