"""Writes the topic `decisions`, beside the index's answers; nothing waits for it.

Each index writes what it decides, from behind what the topic holds when it begins. What is on its way is kept in the volume, as
answers are, so neither a kill nor an outage leaves a gap. Where the topic is missing, or tells of another log, it says so and
writes nothing: then a rebuild looks up what was decided, as fast as without the topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from stream_dedup.ground.errors import FormatError, OtherFormatError, StreamDedupError
from stream_dedup.index.index import LogIndex
from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.kafka import LogReader, VerdictWriter
from stream_dedup.log import decisions

_LOOKS: Final = 100
_LOOK_SECONDS: Final = 0.1
_FLUSH_SECONDS: Final = 5.0
_ANEW: Final = "Delete the topic, and create it again with: stream-dedup topics apply"


class DecisionTopic:
    """The topic as one index has it. `turn` is called in every turn of the index's loop, and never waits."""

    def __init__(
        self,
        index: LogIndex,
        topic: str,
        make_reader: Callable[[], LogReader],
        make_writer: Callable[[], VerdictWriter],
        metrics: IndexMetrics,
        logger: Any,
        monotonic: Callable[[], float],
        rest: float,
    ) -> None:
        """After a failure it is tried again in `rest` seconds."""
        self._index = index
        self.topic = topic
        self._make_reader = make_reader
        self._make_writer = make_writer
        self._metrics = metrics
        self._logger = logger
        self._monotonic = monotonic
        self._rest = rest
        self._is_begun = False
        self._writer: VerdictWriter | None = None
        self._next_try = float("-inf")
        self._told = ""

    def begin(self, *, exists: bool, log_end: Callable[[], int]) -> None:
        """Look at the topic's end, and write from behind it; `log_end` is asked after that, because replicas write too."""
        if self._is_begun or self._monotonic() < self._next_try:
            return
        self._next_try = self._monotonic() + self._rest
        if not exists:
            self._say("does not exist: what is decided is not written down. Create it with: stream-dedup topics apply")
            return
        try:
            below = self._written_below()
        except StreamDedupError as error:
            self._say(f"cannot be used: {error}")
            return
        if below > (end := log_end()):
            self._say(f"tells of log record {below - 1}, and the log ends at {end}: it is of another log. {_ANEW}")
            return
        self._index.decide(below)
        self._is_begun = True
        self._next_try = float("-inf")

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

    def _written_below(self) -> int:
        """Return the first log offset behind the last record of the topic; damaged ones are passed over."""
        reader = self._make_reader()
        try:
            low, high = reader.watermarks()
            for offset in range(high - 1, low - 1, -1):
                reader.start(offset)
                for _ in range(_LOOKS):
                    if found := reader.take(1, _LOOK_SECONDS):
                        break
                else:
                    raise StreamDedupError(f"its record {offset} does not come.")
                try:
                    return decisions.decode(found[0].value, f"Its record {offset}").log_offset + 1
                except OtherFormatError:
                    raise
                except FormatError:
                    continue
            return 0
        finally:
            reader.close()

    def _say(self, what: str) -> None:
        if what != self._told:
            self._told = what
            self._logger.warning(f"the topic {self.topic} {what}")
