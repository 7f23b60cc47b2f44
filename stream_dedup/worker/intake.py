"""Read and prepare batches. One batch at a time is prepared in a second thread, while the next
records are read.

Records pass from `source` to the preparing thread, if necessary after waiting for it, and then to
`take_in`, which puts them in flight. Preparing stops after a slice of time: the prepared records go
in flight, and the remainder is prepared next.

Invariants: records go in flight in the order in which they were read; the preparing thread touches
neither the flow nor a client; the source is polled even while nothing may be read, so that the
worker stays in its group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from stream_dedup.domain.document import TopicPartitionKey, UnreadableHeaders
from stream_dedup.domain.errors import AwayError
from stream_dedup.domain.messages import Messages
from stream_dedup.domain.threads import SideThread
from stream_dedup.log import records
from stream_dedup.worker.allowance import Allowance, Amount
from stream_dedup.worker.assignment import Assignment
from stream_dedup.worker.budget import RecordSizes, WorkerBudget
from stream_dedup.worker.dependencies import IntakePace, WorkerContext
from stream_dedup.worker.prepare import InFlight, Preparer

_WAIT_SECONDS = 0.1
_PREPARED_WAIT_SECONDS = 0.003
_QUICK_BATCH_WAIT_SECONDS = 0.02
_PAUSE_AFTER_SECONDS = 1.0
_RETRY_SECONDS = 2.0


class Unprepared(NamedTuple):
    """Records of one or more reads that are not yet prepared; the group's metadata is that of the
    first read.
    """

    messages: list[Messages]
    sources: dict[TopicPartitionKey, records.Source]
    group_metadata: bytes

    @property
    def amount(self) -> Amount:
        """Number and bytes of the records."""
        return Amount(
            sum(map(len, self.messages)), sum(batch.held_bytes for batch in self.messages)
        )


class Intake:
    """Reads and prepares records. The loop calls `read_and_prepare` and `sleep_until_next_read`.
    Before the flow changes, `finish` or `discard` must be called.
    """

    def __init__(
        self,
        context: WorkerContext,
        assignment: Assignment,
        preparer: Preparer,
        thread: SideThread,
        budget: WorkerBudget,
        allowance: Allowance,
        take_in: Callable[[InFlight], None],
        pace: IntakePace,
        hurry_event: threading.Event,
    ) -> None:
        self._flow = context.flow
        self._stop = context.stop
        self._beat = context.beat
        self._metrics = context.metrics
        self._failpoints = context.failpoints
        self._clock = context.clock
        self._logger = context.logger
        self._assignment = assignment
        self._source = assignment.source
        self._preparer = preparer
        self._thread = thread
        self._budget = budget
        self._allowance = allowance
        self._take_in = take_in
        self._pace = pace
        self._sizes = RecordSizes()
        self._is_preparing = False
        self._prepared_bytes = 0  # of the batch that is being prepared
        self._hurry_event = hurry_event  # once set, preparing ends after the current chunk
        self._remainder: Unprepared | None = None  # records that the last slice did not reach
        self._read_ahead: Unprepared | None = None  # records read while a batch was prepared
        self._read_at = 0.0
        self._waiting_since: float | None = None  # the time since which no record may be read
        self._is_paused = False

    # -- the loop's side

    @property
    def is_preparing(self) -> bool:
        """Whether a batch is being prepared, or is prepared and not yet in flight."""
        return self._is_preparing

    @property
    def prepared_bytes(self) -> int:
        """Memory of the records that are being prepared, in bytes."""
        return self._prepared_bytes if self._is_preparing else 0

    def records_wanted(self) -> int:
        """Return how many more records may be read within the limits of records and memory."""
        records_max = self._flow.records_wanted(
            1 if self._is_preparing or self._read_ahead is not None else 0
        )
        if not records_max:
            return 0
        allowed = self._allowance.current
        remainder_bytes = 0 if self._remainder is None else self._remainder.amount.bytes
        room = self._budget.room(self._flow.held_bytes + self.prepared_bytes + remainder_bytes)
        ahead = Amount(0, 0) if self._read_ahead is None else self._read_ahead.amount
        return self._sizes.records(
            min(records_max, allowed.documents) - ahead.documents,
            min(room, allowed.bytes) - ahead.bytes,
        )

    def read_and_prepare(self, *, reads: bool) -> None:
        """Put the prepared batch in flight, and read as many records as may be read, unless the last
        read was only a moment ago.
        """
        is_idle = self._wait_until_prepared(0.0 if self._flow.in_flight else _PREPARED_WAIT_SECONDS)
        records_max = self.records_wanted() if reads else 0
        if (is_idle or records_max) and not self._seconds_to_gather():
            self._read(records_max)

    def sleep_until_next_read(self) -> None:
        """Sleep until the next read, if nothing is in flight or being prepared."""
        if self._flow.in_flight or self._is_preparing:
            return
        if seconds := self._seconds_to_gather():
            self._clock.sleep(seconds)

    def hurry(self) -> None:
        """Make preparing end after the current chunk."""
        self._hurry_event.set()

    def finish(self) -> None:
        """Wait for the current chunk and put it in flight; the records after it are read again."""
        self._hurry_event.set()
        while self._is_preparing:
            self._beat()
            if self._thread.ended(_WAIT_SECONDS):
                self._take_in_prepared()
        self._hurry_event.clear()
        for unprepared in (self._read_ahead, self._remainder):
            if unprepared is not None:
                self._assignment.reread_unprepared(Messages.joined(unprepared.messages))
        self._remainder = self._read_ahead = None

    def discard(self) -> None:
        """Wait for the current chunk, and discard it and the records after it."""
        self._hurry_event.set()
        while self._is_preparing:
            self._beat()
            self._is_preparing = not self._thread.ended(_WAIT_SECONDS)
        self._thread.take_result()
        self._hurry_event.clear()
        self._remainder = self._read_ahead = None

    def abandon(self) -> None:
        """Discard everything without waiting, because the worker ends."""
        self._is_preparing, self._remainder, self._read_ahead = False, None, None
        self._hurry_event.set()

    # -- reading

    def _seconds_to_gather(self) -> float:
        """Return the seconds until the next read: records gather for a moment after each read."""
        return max(0.0, self._read_at + self._pace.gather_seconds - self._clock.monotonic())

    def _read(self, records_max: int) -> None:
        """Read at most `records_max` records; if that is 0, only poll to stay in the group."""
        if records_max:
            self._waiting_since = None
            if self._is_paused:
                self._is_paused = False
                self._source.resume(self._assignment.served())
            is_busy = self._flow.in_flight or self._is_preparing
            messages = self._source.take_messages(
                records_max, 0.0 if is_busy else self._pace.idle_seconds
            )
        else:
            messages = Messages.of([])
            self._poll_without_reading()
        if self._assignment.seek_to_unread(messages) or not messages:
            return
        for unreadable in messages.unreadable.values():
            if isinstance(unreadable, UnreadableHeaders):
                continue  # as for other dead letters, nothing is logged: there may be many
            self._logger.error(
                "a record cannot be read; it becomes a dead letter",
                position=unreadable.position,
                reason=unreadable.why,
            )
        self._failpoints.hit("worker.consumed", self._flow.in_flight + 1)
        self._read_at = self._clock.monotonic()
        self._sizes.observe(messages)
        sources = {key: self._flow.source(key) for key in messages.last_offsets()}
        self._prepare_or_queue(Unprepared([messages], sources, self._source.group_metadata()))

    def _poll_without_reading(self) -> None:
        """Poll without reading records; after a second, pause the partitions, which drops prefetched
        records and frees their memory.
        """
        now = self._clock.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if not self._is_paused and now - self._waiting_since < _PAUSE_AFTER_SECONDS:
            return
        if not self._is_paused:
            self._is_paused = True
            self._source.pause(self._flow.owned())
        messages = self._source.take_messages(1, 0.0)
        if messages:
            # These records arrived before the pause took effect.
            self._source.restart_at(
                {
                    (message.topic, message.partition): message.offset
                    for message in reversed(messages)
                }
            )

    # -- preparing

    def _prepare_or_queue(self, unprepared: Unprepared) -> None:
        """Start preparing these records, or queue them behind those that wait."""
        if not self._is_preparing and self._remainder is None and self._read_ahead is None:
            self._start(unprepared)
            if unprepared.amount.documents < self._pace.quick_records:
                self._wait_until_prepared(_QUICK_BATCH_WAIT_SECONDS)
        elif self._read_ahead is None:
            self._read_ahead = unprepared
        else:
            self._read_ahead.messages.extend(unprepared.messages)
            self._read_ahead.sources.update(unprepared.sources)

    def _start(self, unprepared: Unprepared) -> None:
        """Start preparing a batch in the second thread."""
        self._is_preparing = True
        self._prepared_bytes = unprepared.amount.bytes
        self._thread.start(lambda: self._prepare(unprepared))

    def _prepare(self, unprepared: Unprepared) -> tuple[InFlight | None, Unprepared | None]:
        """Return a batch, prepared within a slice of time, and the remainder of the records.

        While a service that the records depend on is unavailable, this waits and the loop keeps
        polling. If the caller hurries meanwhile, return no batch and all records as the remainder.
        This runs in the second thread, so it must not touch the flow or a client.
        """
        messages = Messages.joined(unprepared.messages)
        unavailable: set[type[AwayError]] = set()
        try:
            while True:
                deadline = self._clock.monotonic() + self._pace.slice_seconds
                try:
                    with self._metrics.stage("prepare"):
                        batch = self._preparer.prepare(
                            messages,
                            unprepared.sources,
                            unprepared.group_metadata,
                            partial(self._is_over, deadline),
                            self._hurry_event.is_set,
                        )
                except AwayError as error:
                    if self._hurry_event.is_set():
                        return None, remainder_of(unprepared, messages, 0)
                    service = type(error)
                    if service not in unavailable:
                        self._logger.warning(
                            f"{service.away} unavailable; the records wait for it",
                            reason=str(error),
                        )
                    unavailable.add(service)
                    self._metrics.set_away(service, True)
                    if self._hurry_event.wait(_RETRY_SECONDS):
                        return None, remainder_of(unprepared, messages, 0)
                else:
                    for service in unavailable:
                        self._logger.info(f"{service.back} again")
                    return batch, remainder_of(unprepared, messages, len(batch.messages))
        finally:
            for service in unavailable:
                self._metrics.set_away(service, False)

    def _is_over(self, deadline: float) -> bool:
        return self._hurry_event.is_set() or self._clock.monotonic() >= deadline

    def _wait_until_prepared(self, wait_seconds: float) -> bool:
        """Wait at most `wait_seconds` for the prepared batch, put it in flight and start the next;
        return whether no batch is being prepared.
        """
        if self._is_preparing and self._thread.ended(wait_seconds):
            self._take_in_prepared()
        if not self._is_preparing and not self._stop.is_set():
            if self._remainder is not None:
                # Room was reserved for one batch only, and this one was split.
                if self._flow.has_room:
                    remainder, self._remainder = self._remainder, None
                    self._start(remainder)
            elif self._read_ahead is not None:
                ahead, self._read_ahead = self._read_ahead, None
                self._start(ahead)
        return not self._is_preparing

    def _take_in_prepared(self) -> None:
        batch, self._remainder = self._thread.take_result()
        self._is_preparing = False
        if batch is not None:
            self._take_in(batch)


def remainder_of(unprepared: Unprepared, messages: Messages, prepared: int) -> Unprepared | None:
    """Return `messages` without the first `prepared`, or None if none remains."""
    if prepared == len(messages):
        return None
    return unprepared._replace(messages=[messages.part(prepared, len(messages))])
