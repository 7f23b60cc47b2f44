"""The worker's questions to the index, sent through the log, and the answers to them."""

from __future__ import annotations

from collections.abc import Callable

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import BrokerError, FormatError, GoneError
from stream_dedup.kafka import LogAppender, VerdictReader
from stream_dedup.log import answers
from stream_dedup.log.record_frame import FIRST_FORMAT, format_of
from stream_dedup.log.records import Batch, encode_batch
from stream_dedup.serving.process import FreedMemory
from stream_dedup.worker.dependencies import WorkerContext
from stream_dedup.worker.prepare import InFlight, Part

_ANSWERS_MAX = 1000
_LATE_SECONDS = 3.0
# The loop reads answers many times a second. After a longer gap the process was suspended, or waited
# for Kafka.
_SUSPENDED_SECONDS = 5.0


class WrittenFormat:
    """The log format in which batches are written: the declared one, or a later one seen in answers.

    The index answers in the format in force at the record. After an order that raises the format,
    batches keep the former one until the first answer; the index can read both.
    """

    def __init__(self, declared: int = FIRST_FORMAT) -> None:
        self.number = declared

    def raise_to(self, number: int) -> None:
        """Raise the format to `number`, that of an answer. It is never lowered: another replica's
        answers may be late.
        """
        self.number = max(self.number, number)

    def encode(self, batch: Batch) -> bytes:
        """Return the bytes of a batch record in the current format."""
        return encode_batch(batch, self.number)


class Questions:
    """Appends the log records of batches that go in flight, and passes their answers to the flow.

    With `fail_open_seconds` documents are delivered unjudged once the oldest question has waited
    that long. `read_error` is the reason why answers cannot be read, for example because their topic
    was deleted, or "". While it is set or answers are late, the loop checks the topic, and calls
    `reopen` if it was created again.
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
        self.read_error = ""
        self._memory = memory
        self._fail_open_seconds = fail_open_seconds
        self._written = written or WrittenFormat()
        self._last_read = self._clock.monotonic()

    def ask(self, batch: InFlight) -> None:
        """Put a batch in flight, and append its log records."""
        batch.waiting_since = self._clock.monotonic()
        for part in self._flow.admit(batch):
            self._append(part)
        self._appender.poll()
        self._memory.trim_after_batch(int(batch.messages.value_bytes.sum()))
        self._failpoints.hit("worker.appended", self._flow.in_flight)

    @property
    def are_late(self) -> bool:
        """Whether answers take longer than usual, or cannot be read."""
        oldest = self._flow.oldest_unanswered
        return bool(self.read_error) or (
            oldest is not None and self._clock.monotonic() - oldest.waiting_since > _LATE_SECONDS
        )

    def reopen(self) -> bool:
        """Read answers from the end of the new topic of the same name; return whether it can be
        read.

        The answers to earlier questions may be lost with the deleted topic, so the caller must drop
        what is in flight and ask again.
        """
        try:
            verdicts = self._make_verdicts()
        except (BrokerError, GoneError) as error:
            self.read_error = str(error)
            return False
        self._verdicts.close()
        self._verdicts, self.read_error = verdicts, ""
        return True

    def poll(self) -> None:
        """Serve the delivery reports of appended records."""
        self._appender.poll()

    def process_answers(self, wait_seconds: float) -> None:
        """Process the available answers; if there are none, wait at most `wait_seconds`."""
        self._discount_suspension()
        was_failed_open = self._flow.is_failed_open
        for message in self._read_answers(wait_seconds):
            try:
                answer = answers.decode(
                    message.value, f"The record {message.position}", self._flow.nonce
                )
            except FormatError as error:
                if type(error) is not FormatError:
                    raise
                self._logger.error("a record of verdicts was skipped", reason=str(error))  # noqa: TRY400 - a sentence, no traceback
                continue
            self._written.raise_to(format_of(message.value or b""))
            if isinstance(answer, answers.Announce):
                for part in self._flow.announced(answer):
                    self._logger.warning(
                        "requesting again: the index answers only later records",
                        number=part.number,
                    )
                    self._append(part)
            elif self._flow.answered(answer):
                self._failpoints.hit("worker.verdict-in", self._flow.in_flight)
        if was_failed_open and not self._flow.is_failed_open:
            self._logger.warning("the index answers again; documents wait for their verdicts again")
        self._fail_open()

    def _discount_suspension(self) -> None:
        """Do not count a gap in which this worker read no answers, for example while it was
        suspended, as waiting for the index.
        """
        now = self._clock.monotonic()
        if now - self._last_read > _SUSPENDED_SECONDS:
            self._flow.discount_wait(now - self._last_read)
        self._last_read = now

    def _read_answers(self, wait_seconds: float) -> list[Message]:
        if self.read_error:
            self._clock.sleep(wait_seconds)
            return []
        try:
            return self._verdicts.take_messages(_ANSWERS_MAX, wait_seconds)
        except GoneError as error:
            self.read_error = str(error)
            return []

    def close(self) -> None:
        """Close the connection to the verdicts."""
        self._verdicts.close()

    def _append(self, part: Part) -> None:
        def record_offset(log_offset: int) -> None:
            self._failpoints.hit("worker.append-acked", self._flow.in_flight)
            for unanswerable in self._flow.appended(part.number, log_offset):
                self._append(unanswerable)

        self._appender.send(part.raw, None, record_offset)

    def _fail_open(self) -> None:
        """Deliver documents unjudged once a question has waited for `fail_open_seconds`."""
        seconds_max, oldest = self._fail_open_seconds, self._flow.oldest_unanswered
        if (
            seconds_max is None
            or oldest is None
            or self._clock.monotonic() - oldest.waiting_since < seconds_max
        ):
            return
        documents = self._flow.fail_open()
        if documents:
            self._logger.error(
                "the index does not answer; documents are delivered as unique without being judged",
                documents=documents,
                waited_seconds=seconds_max,
            )
