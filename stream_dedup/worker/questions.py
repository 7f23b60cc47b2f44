"""What the worker asks the index, through the log, and how it hears the answers."""

from __future__ import annotations

from collections.abc import Callable

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import BrokerError, FormatError, GoneError
from stream_dedup.kafka import LogAppender, VerdictReader
from stream_dedup.log import answers
from stream_dedup.log.frame import FIRST_FORMAT, format_of
from stream_dedup.log.records import Batch, encode_batch
from stream_dedup.serving.process import FreedMemory
from stream_dedup.worker.dependencies import WorkerContext
from stream_dedup.worker.prepare import InFlight, Part

_ANSWERS_MAX = 1000
_LATE_SECONDS = 3.0
# The loop listens many times a second. One that has not for so long was stopped itself, or waited
# for Kafka.
_STOPPED_SECONDS = 5.0


class WrittenFormat:
    """In which format batches are written: the one in force, as the log declared it first, or as
    answers tell since.

    An answer is written in the format in force at its record. Until the first one comes after an
    order to raise it, batches go on in the format before, which the index reads for ever.
    """

    def __init__(self, declared: int = FIRST_FORMAT) -> None:
        self.number = declared

    def heard(self, number: int) -> None:
        """Take note of the format of an answer. Those of another replica may be late: it is never
        lowered.
        """
        self.number = max(self.number, number)

    def encode(self, batch: Batch) -> bytes:
        """Return the bytes of a batch record in that format."""
        return encode_batch(batch, self.number)


class Questions:
    """Appends the log records of what is taken in flight, and gives the flow their answers.

    With `fail_open_seconds` documents leave unjudged once the oldest question has waited for that
    time. `deaf` says why answers cannot be read, as after their topic was deleted; then, and while
    they are late, somebody should `begin_anew` soon.
    """

    def __init__(
        self,
        context: WorkerContext,
        appender: LogAppender,
        make_verdicts: Callable[[], VerdictReader],
        verdicts: VerdictReader,
        memory: FreedMemory,
        fail_open_seconds: float | None,
        written: WrittenFormat | None = None,
    ) -> None:
        self._flow = context.flow
        self._failpoints = context.failpoints
        self._clock = context.clock
        self._logger = context.logger
        self._appender = appender
        self._make_verdicts = make_verdicts
        self._verdicts = verdicts
        self.deaf = ""
        self._memory = memory
        self._fail_open_seconds = fail_open_seconds
        self._written = written or WrittenFormat()
        self._listened = self._clock.monotonic()

    def ask(self, batch: InFlight) -> None:
        """Take a batch in flight, and append its log records."""
        batch.taken = self._clock.monotonic()
        for part in self._flow.admit(batch):
            self._append(part)
        self._appender.poll()
        self._memory.used(int(batch.messages.value_bytes.sum()))
        self._failpoints.hit("worker.appended", self._flow.in_flight)

    @property
    def are_late(self) -> bool:
        """Whether answers take longer than they do as a rule, or cannot be read."""
        oldest = self._flow.oldest_unanswered
        return bool(self.deaf) or (
            oldest is not None and self._clock.monotonic() - oldest.taken > _LATE_SECONDS
        )

    def begin_anew(self) -> bool:
        """Read the answers of another topic of the same name, from its end; return whether that can
        be read already.

        What was asked before may have had its answer in the topic that is gone: it must be dropped,
        and asked anew.
        """
        try:
            verdicts = self._make_verdicts()
        except (BrokerError, GoneError) as error:
            self.deaf = str(error)
            return False
        self._verdicts.close()
        self._verdicts, self.deaf = verdicts, ""
        return True

    def poll(self) -> None:
        """Serve the delivery reports of what was appended."""
        self._appender.poll()

    def hear(self, wait_seconds: float) -> None:
        """Take in the answers that are there, or that come first within the time."""
        self._excuse_the_index()
        was_open = self._flow.is_open
        for message in self._take(wait_seconds):
            try:
                answer = answers.decode(message.value, f"The record {message.at}", self._flow.nonce)
            except FormatError as error:
                if type(error) is not FormatError:
                    raise
                self._logger.error("a record of verdicts was skipped", reason=str(error))  # noqa: TRY400 - a sentence, no traceback
                continue
            self._written.heard(format_of(message.value or b""))
            if isinstance(answer, answers.Announce):
                for part in self._flow.announced(answer):
                    self._logger.warning(
                        "asking again: a replica will not answer an older record",
                        number=part.number,
                    )
                    self._append(part)
            elif self._flow.answered(answer):
                self._failpoints.hit("worker.verdict-in", self._flow.in_flight)
        if was_open and not self._flow.is_open:
            self._logger.warning("the index answers again: documents wait for their verdicts")
        self._fail_open()

    def _excuse_the_index(self) -> None:
        """Count no time as waiting for the index in which this worker did not listen, as while it
        was stopped.
        """
        now = self._clock.monotonic()
        if now - self._listened > _STOPPED_SECONDS:
            self._flow.excuse(now - self._listened)
        self._listened = now

    def _take(self, wait_seconds: float) -> list[Message]:
        if self.deaf:
            self._clock.sleep(wait_seconds)
            return []
        try:
            return self._verdicts.take_messages(_ANSWERS_MAX, wait_seconds)
        except GoneError as error:
            self.deaf = str(error)
            return []

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
                "the index is silent: documents leave as unique, unjudged",
                documents=passed,
                waited_seconds=patience,
            )
