"""What the worker reads, and how fast; batches are prepared aside, one at a time, while what lies
behind is read.

A read goes this way: `source` -> being prepared, or read ahead of that -> `take_in`, which puts it
in flight. Preparing is cut off after a slice of time: what is prepared goes on its way, and what is
left comes next.

Invariants: records go in flight in the order in which they were read; the thread that prepares
touches neither the flow nor a client; while nothing may be read the source is polled all the same,
so that the worker stays in its group.
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
    """What was read, in one or more reads, and is not yet prepared; the stamp is that of the first."""

    messages: list[Messages]
    sources: dict[TopicPartitionKey, records.Source]
    stamp: bytes

    @property
    def amount(self) -> Amount:
        """How much was read."""
        return Amount(sum(map(len, self.messages)), sum(one.held_bytes for one in self.messages))


class Intake:
    """Reads and prepares. The loop calls `turn` and `rest`; what changes the flow calls `finish` or
    `forget` first.
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
        hurries: threading.Event,
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
        self._hurries = hurries  # what prepares ends after the stretch in work
        self._left: Unprepared | None = None  # what preparing has not come to
        self._ahead: Unprepared | None = (
            None  # what was read behind that, and behind what is being prepared
        )
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
        """How much memory the records take that are being prepared."""
        return self._prepared_bytes if self._is_preparing else 0

    def wanted(self) -> int:
        """Return how many records there is room for, beside what is being prepared and what was
        read ahead of it.
        """
        most = self._flow.wants(1 if self._is_preparing or self._ahead is not None else 0)
        if not most:
            return 0
        allowed = self._allowance.now
        left = 0 if self._left is None else self._left.amount.bytes
        room = self._budget.room(self._flow.held_bytes + self.prepared_bytes + left)
        ahead = Amount(0, 0) if self._ahead is None else self._ahead.amount
        return self._sizes.records(
            min(most, allowed.documents) - ahead.documents, min(room, allowed.bytes) - ahead.bytes
        )

    def turn(self, *, reads: bool) -> None:
        """Take in what is prepared, and read what there is room for, unless what comes is still
        gathered.
        """
        none_prepares = self._wait_until_prepared(
            0.0 if self._flow.in_flight else _PREPARED_SECONDS
        )
        wanted = self.wanted() if reads else 0
        if (none_prepares or wanted) and not self._seconds_to_gather():
            self._read(wanted)

    def rest(self) -> None:
        """Sleep until the next read, if nothing is on its way."""
        if not (self._flow.in_flight or self._is_preparing) and (rest := self._seconds_to_gather()):
            self._clock.sleep(rest)

    def hurry(self) -> None:
        """End preparing after the stretch in work, from now on."""
        self._hurries.set()

    def finish(self) -> None:
        """Take in what is prepared once the stretch in work is done; have what was read behind it
        read again.
        """
        self._hurries.set()
        while self._is_preparing:
            self._beat()
            if self._thread.ended(_WAIT_SECONDS):
                self._take_in_prepared()
        self._hurries.clear()
        for read in (self._ahead, self._left):
            if read is not None:
                self._assignment.give_back(Messages.joined(read.messages))
        self._left = self._ahead = None

    def forget(self) -> None:
        """Wait until no batch is being prepared, and forget the one that was, and what was read
        behind it.
        """
        self._hurries.set()
        while self._is_preparing:
            self._beat()
            self._is_preparing = not self._thread.ended(_WAIT_SECONDS)
        self._thread.take_result()
        self._hurries.clear()
        self._left = self._ahead = None

    def leave(self) -> None:
        """Forget everything without waiting: the worker ends."""
        self._is_preparing, self._left, self._ahead = False, None, None
        self._hurries.set()

    # -- reading

    def _seconds_to_gather(self) -> float:
        """Return how long what comes is still left to gather, because a batch was read a moment
        ago.
        """
        return max(0.0, self._read_at + self._pace.gather_seconds - self._clock.monotonic())

    def _read(self, wanted: int) -> None:
        """Read what there is room for; when there is none, stay in the group without reading."""
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
        if self._assignment.go_back(messages) or not messages:
            return
        for unreadable in messages.unreadable.values():
            if isinstance(unreadable, UnreadableHeaders):
                continue  # like any other dead letter: a crawler may send many
            where = unreadable.at
            self._logger.error(
                "a record cannot be read; it becomes a dead letter",
                position=where,
                reason=unreadable.why,
            )
        self._failpoints.hit("worker.consumed", self._flow.in_flight + 1)
        self._read_at = self._clock.monotonic()
        self._sizes.read_messages(messages)
        sources = {key: self._flow.source(key) for key in messages.last_offsets()}
        self._prepare_or_keep(Unprepared([messages], sources, self._source.stamp()))

    def _poll_without_reading(self) -> None:
        """Poll without taking records in. What was fetched ahead is kept for a moment, then given
        up by a pause.
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
            # Read between our pause and its effect: it comes again.
            self._source.restart_at(
                {(one.topic, one.partition): one.offset for one in reversed(messages)}
            )

    # -- preparing

    def _prepare_or_keep(self, read: Unprepared) -> None:
        """Begin to prepare what was read, or keep it behind what waits, which it must not overtake.

        What waits is not begun while the flow has no room, or once the worker is to stop.
        """
        if not self._is_preparing and self._left is None and self._ahead is None:
            self._start(read)
            if read.amount.documents < self._pace.aside_records:
                self._wait_until_prepared(_SOON_SECONDS)
        elif self._ahead is None:
            self._ahead = read
        else:
            self._ahead.messages.extend(read.messages)
            self._ahead.sources.update(read.sources)

    def _start(self, read: Unprepared) -> None:
        """Make a batch of what was read, in a thread of its own."""
        self._is_preparing = True
        self._prepared_bytes = read.amount.bytes
        self._thread.start(lambda: self._prepare(read))

    def _prepare(self, read: Unprepared) -> tuple[InFlight | None, Unprepared | None]:
        """Make a batch, and return what is left of the records once a slice of time is over.

        While what they cannot be read without is away the records wait here, and the loop polls on;
        a hurried caller gets them back. Nothing of the flow or a client may be touched in here.
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
                            read.stamp,
                            partial(self._is_over, until),
                            self._hurries.is_set,
                        )
                except AwayError as error:
                    if self._hurries.is_set():
                        return None, left_of(read, messages, 0)
                    kind = type(error)
                    if kind not in away:
                        self._logger.warning(
                            f"{kind.away} away; the records wait", reason=str(error)
                        )
                    away.add(kind)
                    self._metrics.away(kind, True)
                    if self._hurries.wait(_ASK_AGAIN_SECONDS):
                        return None, left_of(read, messages, 0)
                else:
                    for kind in away:
                        self._logger.info(f"{kind.back} again")
                    return batch, left_of(read, messages, len(batch.messages))
        finally:
            for kind in away:
                self._metrics.away(kind, False)

    def _is_over(self, until: float) -> bool:
        return self._hurries.is_set() or self._clock.monotonic() >= until

    def _wait_until_prepared(self, wait_seconds: float) -> bool:
        """Return whether no batch is being prepared, after at most `wait_seconds`; one that is done
        is taken in, and what was left of it and read ahead comes next.
        """
        if self._is_preparing and self._thread.ended(wait_seconds):
            self._take_in_prepared()
        if not self._is_preparing and not self._stop.is_set():
            if self._left is not None:
                if (
                    self._flow.has_room
                ):  # what was read ahead has its room, and a batch that came in parts needs more
                    left, self._left = self._left, None
                    self._start(left)
            elif self._ahead is not None:
                ahead, self._ahead = self._ahead, None
                self._start(ahead)
        return not self._is_preparing

    def _take_in_prepared(self) -> None:
        batch, self._left = self._thread.take_result()
        self._is_preparing = False
        if batch is not None:
            self._take_in(batch)


def left_of(read: Unprepared, messages: Messages, done: int) -> Unprepared | None:
    """Return what is left of the `messages` that were `read`, once `done` of them are prepared."""
    if done == len(messages):
        return None
    return read._replace(messages=[messages.part(done, len(messages))])
