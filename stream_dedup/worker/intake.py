"""Read and prepare batches. One batch at a time is prepared in a second thread, while the next
records are read.

Records pass from `source` to the preparing thread, or wait for it, and then to `take_in`, which
puts them in flight. Preparing stops after a slice of time: the prepared records go in flight, and
the remainder is prepared next.

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
_PREPARED_SECONDS = 0.003
_SOON_SECONDS = 0.02
_PAUSE_AFTER_SECONDS = 1.0
_ASK_AGAIN_SECONDS = 2.0


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
    """Reads and prepares records. The loop calls `read_and_prepare` and `sleep_until_next_read`; call `finish` or `discard` before
    a change of the flow.
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
        self._hurry_event = hurry_event  # once set, preparing ends after the current stretch
        self._remainder: Unprepared | None = None  # records that the last slice did not reach
        self._later: Unprepared | None = None  # records read after the others
        self._read_at = 0.0
        self._full_since: float | None = None
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

    def wanted(self) -> int:
        """Return how many more records may be read within the limits of records and memory."""
        records_max = self._flow.records_wanted(
            1 if self._is_preparing or self._later is not None else 0
        )
        if not records_max:
            return 0
        allowed = self._allowance.current
        remainder_bytes = 0 if self._remainder is None else self._remainder.amount.bytes
        room = self._budget.room(self._flow.held_bytes + self.prepared_bytes + remainder_bytes)
        ahead = Amount(0, 0) if self._later is None else self._later.amount
        return self._sizes.records(
            min(records_max, allowed.documents) - ahead.documents,
            min(room, allowed.bytes) - ahead.bytes,
        )

    def read_and_prepare(self, *, reads: bool) -> None:
        """Take in the prepared batch, and read as many records as may be read, unless more are
        still being gathered.
        """
        is_idle = self._wait_until_prepared(0.0 if self._flow.in_flight else _PREPARED_SECONDS)
        wanted = self.wanted() if reads else 0
        if (is_idle or wanted) and not self._seconds_to_gather():
            self._read(wanted)

    def sleep_until_next_read(self) -> None:
        """Sleep until the next read, if nothing is in flight or being prepared."""
        if not (self._flow.in_flight or self._is_preparing) and (rest := self._seconds_to_gather()):
            self._clock.sleep(rest)

    def hurry(self) -> None:
        """Make preparing end after the current stretch."""
        self._hurry_event.set()

    def finish(self) -> None:
        """Wait for the current stretch and take it in; have the records after it read again."""
        self._hurry_event.set()
        while self._is_preparing:
            self._beat()
            if self._thread.ended(_WAIT_SECONDS):
                self._take_in_prepared()
        self._hurry_event.clear()
        for read in (self._later, self._remainder):
            if read is not None:
                self._assignment.reread_unprepared(Messages.joined(read.messages))
        self._remainder = self._later = None

    def discard(self) -> None:
        """Wait for the current stretch, and discard it and the records after it."""
        self._hurry_event.set()
        while self._is_preparing:
            self._beat()
            self._is_preparing = not self._thread.ended(_WAIT_SECONDS)
        self._thread.take_result()
        self._hurry_event.clear()
        self._remainder = self._later = None

    def leave(self) -> None:
        """Discard everything without waiting, because the worker ends."""
        self._is_preparing, self._remainder, self._later = False, None, None
        self._hurry_event.set()

    # -- reading

    def _seconds_to_gather(self) -> float:
        """Return the seconds until the next read: records gather for a moment after each read."""
        return max(0.0, self._read_at + self._pace.gather_seconds - self._clock.monotonic())

    def _read(self, wanted: int) -> None:
        """Read `wanted` records; if that is 0, only poll to stay in the group."""
        if wanted:
            self._full_since = None
            if self._is_paused:
                self._is_paused = False
                self._source.resume(self._assignment.served())
            is_busy = self._flow.in_flight or self._is_preparing
            messages = self._source.take_messages(
                wanted, 0.0 if is_busy else self._pace.idle_seconds
            )
        else:
            messages = Messages.of([])
            self._poll_without_reading()
        if self._assignment.seek_to_unread(messages) or not messages:
            return
        for unreadable in messages.unreadable.values():
            if isinstance(unreadable, UnreadableHeaders):
                continue  # not logged, like other dead letters: a crawler may send many
            where = unreadable.position
            self._logger.error(
                "a record cannot be read; it becomes a dead letter",
                position=where,
                reason=unreadable.why,
            )
        self._failpoints.hit("worker.consumed", self._flow.in_flight + 1)
        self._read_at = self._clock.monotonic()
        self._sizes.read_messages(messages)
        sources = {key: self._flow.source(key) for key in messages.last_offsets()}
        self._prepare_or_keep(Unprepared([messages], sources, self._source.group_metadata()))

    def _poll_without_reading(self) -> None:
        """Poll without reading records. Prefetched records are kept for a moment and then dropped by
        a pause.
        """
        now = self._clock.monotonic()
        if self._full_since is None:
            self._full_since = now
        if not self._is_paused and now - self._full_since < _PAUSE_AFTER_SECONDS:
            return
        if not self._is_paused:
            self._is_paused = True
            self._source.pause(self._flow.owned())
        messages = self._source.take_messages(1, 0.0)
        if messages:
            # A record that arrived before the pause took effect is read again later.
            self._source.restart_at(
                {
                    (message.topic, message.partition): message.offset
                    for message in reversed(messages)
                }
            )

    # -- preparing

    def _prepare_or_keep(self, read: Unprepared) -> None:
        """Start preparing the records read, or queue them behind those that wait."""
        if not self._is_preparing and self._remainder is None and self._later is None:
            self._start(read)
            if read.amount.documents < self._pace.quick_records:
                self._wait_until_prepared(_SOON_SECONDS)
        elif self._later is None:
            self._later = read
        else:
            self._later.messages.extend(read.messages)
            self._later.sources.update(read.sources)

    def _start(self, read: Unprepared) -> None:
        """Start preparing a batch in the second thread."""
        self._is_preparing = True
        self._prepared_bytes = read.amount.bytes
        self._thread.start(lambda: self._prepare(read))

    def _prepare(self, read: Unprepared) -> tuple[InFlight | None, Unprepared | None]:
        """Return a batch, prepared within a slice of time, and the remainder of the records.

        While a service that the records depend on is unavailable, they wait here and the loop keeps
        polling; a hurried caller gets them back. This runs in the second thread, so it must not
        touch the flow or a client.
        """
        messages = Messages.joined(read.messages)
        away: set[type[AwayError]] = set()
        try:
            while True:
                until = self._clock.monotonic() + self._pace.slice_seconds
                try:
                    with self._metrics.stage("prepare"):
                        batch = self._preparer.prepare(
                            messages,
                            read.sources,
                            read.group_metadata,
                            partial(self._is_over, until),
                            self._hurry_event.is_set,
                        )
                except AwayError as error:
                    if self._hurry_event.is_set():
                        return None, remainder_of(read, messages, 0)
                    kind = type(error)
                    if kind not in away:
                        self._logger.warning(
                            f"{kind.away} unavailable; the records wait", reason=str(error)
                        )
                    away.add(kind)
                    self._metrics.set_away(kind, True)
                    if self._hurry_event.wait(_ASK_AGAIN_SECONDS):
                        return None, remainder_of(read, messages, 0)
                else:
                    for kind in away:
                        self._logger.info(f"{kind.back} again")
                    return batch, remainder_of(read, messages, len(batch.messages))
        finally:
            for kind in away:
                self._metrics.set_away(kind, False)

    def _is_over(self, until: float) -> bool:
        return self._hurry_event.is_set() or self._clock.monotonic() >= until

    def _wait_until_prepared(self, wait_seconds: float) -> bool:
        """Wait at most `wait_seconds` for the prepared batch, take it in and start the next; return
        whether no batch is being prepared.
        """
        if self._is_preparing and self._thread.ended(wait_seconds):
            self._take_in_prepared()
        if not self._is_preparing and not self._stop.is_set():
            if self._remainder is not None:
                if (
                    self._flow.has_room
                ):  # a batch that was split needs more places in flight than were reserved
                    remainder, self._remainder = self._remainder, None
                    self._start(remainder)
            elif self._later is not None:
                ahead, self._later = self._later, None
                self._start(ahead)
        return not self._is_preparing

    def _take_in_prepared(self) -> None:
        batch, self._remainder = self._thread.take_result()
        self._is_preparing = False
        if batch is not None:
            self._take_in(batch)


def remainder_of(read: Unprepared, messages: Messages, done: int) -> Unprepared | None:
    """Return the remainder of `messages` after the first `done`, or None if there is none."""
    if done == len(messages):
        return None
    return read._replace(messages=[messages.part(done, len(messages))])
