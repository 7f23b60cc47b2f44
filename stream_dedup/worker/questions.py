"""What the worker asks the index, through the log, and how it hears the answers."""

from __future__ import annotations

from stream_dedup.ground.errors import FormatError
from stream_dedup.kafka import LogAppender, VerdictReader
from stream_dedup.log import answers
from stream_dedup.service.memory import FreedMemory
from stream_dedup.worker.prepare import InFlight, Part
from stream_dedup.worker.surroundings import WorkerContext

_ANSWERS_MAX = 1000


class Questions:
    """Appends the log records of what is taken in flight, and gives the flow their answers.

    With `fail_open_seconds` documents leave unjudged once the oldest question has waited for so long.
    """

    def __init__(
        self,
        context: WorkerContext,
        appender: LogAppender,
        verdicts: VerdictReader,
        memory: FreedMemory,
        fail_open_seconds: float | None,
    ) -> None:
        self._flow = context.flow
        self._failpoints = context.failpoints
        self._clock = context.clock
        self._logger = context.logger
        self._appender = appender
        self._verdicts = verdicts
        self._memory = memory
        self._fail_open_seconds = fail_open_seconds

    def ask(self, batch: InFlight) -> None:
        """Take a batch in flight, and append its log records."""
        batch.taken = self._clock.monotonic()
        for part in self._flow.admit(batch):
            self._append(part)
        self._appender.poll()
        self._memory.used(int(batch.messages.value_bytes.sum()))
        self._failpoints.hit("worker.appended", self._flow.in_flight)

    def poll(self) -> None:
        """Serve the delivery reports of what was appended."""
        self._appender.poll()

    def hear(self, wait_seconds: float) -> None:
        """Take in the answers that are there, or that come first within the time."""
        was_open = self._flow.is_open
        for message in self._verdicts.take(_ANSWERS_MAX, wait_seconds):
            try:
                answer = answers.decode(message.value, f"The record {message.topic}-0@{message.offset}")
            except FormatError as error:
                if type(error) is not FormatError:
                    raise
                self._logger.error("a record of verdicts was skipped", reason=str(error))  # noqa: TRY400 - a sentence, no traceback
                continue
            if isinstance(answer, answers.Announce):
                for part in self._flow.announced(answer):
                    self._logger.warning("asking again: a replica will not answer an older record", number=part.number)
                    self._append(part)
            elif self._flow.answered(answer):
                self._failpoints.hit("worker.verdict-in", self._flow.in_flight)
        if was_open and not self._flow.is_open:
            self._logger.warning("the index answers again: documents wait for their verdicts")
        self._fail_open()

    def close(self) -> None:
        """Close the connection to the verdicts."""
        self._verdicts.close()

    def _append(self, part: Part) -> None:
        def delivered(log_offset: int) -> None:
            self._failpoints.hit("worker.append-acked", self._flow.in_flight)
            for again in self._flow.appended(part.number, log_offset):
                self._append(again)

        self._appender.send(part.raw, None, delivered)

    def _fail_open(self) -> None:
        """Stop waiting for an index that has been silent for too long, if the settings say so."""
        patience, oldest = self._fail_open_seconds, self._flow.oldest_unanswered
        if patience is None or oldest is None or self._clock.monotonic() - oldest.taken < patience:
            return
        passed = self._flow.fail_open()
        if passed:
            self._logger.error(
                "the index is silent: documents leave as unique, unjudged", documents=passed, waited_seconds=patience
            )
