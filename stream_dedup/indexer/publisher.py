"""Writes the topic `representatives`, beside the index's answers: nothing waits for it, and it may
be away for any time.

One index of several writes: the one that has the topic's transactional id. A transaction's last
record says how far the topic is written (`log.representatives.Progress`). What is written, in this
order:

    1  tombstones of what a window has left behind, some thousand at a time, before anything else
    2  what the topic was owed when this index took the id: every row that changed since the progress that it found
    3  from then on what has changed since the last round

The rules that make the topic end as the log says, also where indexes are killed:

- Taking the id ends what another has under way. Only then the progress is read, so nothing older can come after it.
- Nothing is written by an index that has applied less than the one that wrote before it.
- `written_below` moves once a whole round is written. Who comes next begins there.
- A transaction says what is so at one log offset, entries in ascending order: of two with one position the later comes last.

An index that lost the id looks now and then whether the topic still moves, and takes it where it
does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from stream_dedup.ground.document import Position
from stream_dedup.ground.errors import ConfigurationError, FencedError, StreamDedupError
from stream_dedup.ground.failpoints import Failpoints
from stream_dedup.index.index import LogIndex
from stream_dedup.index.rules.outbox import Outbox
from stream_dedup.indexer.dependencies import IndexerDependencies
from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.kafka import Admin, LastRecordReader, Outcome, Output, TransactionalOutput
from stream_dedup.log.representatives import (
    PROGRESS_KEY,
    Progress,
    PublishedValue,
    decode_progress,
    encode_key,
    encode_progress,
    encode_value,
)
from stream_dedup.settings.settings import Settings

_COMMITTED: Final = "committed"


@dataclass
class _Round:
    """What is written until `written_below` can move to `goal`: these `numbers`, or what changed
    since a log offset.
    """

    goal: int
    since: int = 0
    numbers: list[int] | None = None
    next_number: int = 0


@dataclass(frozen=True)
class _Portion:
    """What one transaction writes, and what is so behind it."""

    values: list[tuple[int, Position, PublishedValue | None]]
    progress: Progress
    then: Callable[[], None]


class Publisher:
    """The topic's writer, as one index has it. `turn` is called in every turn of the index's loop
    and never waits.
    """

    def __init__(
        self,
        settings: Settings,
        index: LogIndex,
        log: str,
        admin: Admin,
        client: str,
        metrics: IndexMetrics,
        failpoints: Failpoints,
        around: IndexerDependencies,
    ) -> None:
        self._settings = settings
        self._topic = settings.topic_names.representatives
        self._index = index
        self._log = log
        self._admin = admin
        self._client = client
        self._metrics = metrics
        self._failpoints = failpoints
        self._logger, self._monotonic, self._pace = around.logger, around.monotonic, around.pace
        self._thread = around.make_thread("representatives")
        self._around = around
        self._transactions: TransactionalOutput | None = None
        self._last_reader: LastRecordReader | None = None
        self._then: Callable[[Any], None] | None = (
            None  # what follows on the call that runs in the thread
        )
        self._seen: Progress | None = None
        self._owns = False
        self._round: _Round | None = None
        self._next_turn = self._next_look = self._moved_at = float("-inf")
        self._even_at = 0  # the topic held all that it was owed when the index had applied so much
        self._failure = ""

    @property
    def behind(self) -> int:
        """How many log records were applied since the topic held all that it was owed; 0 while it
        does.
        """
        outbox, seen = self._index.outbox, self._seen or Progress()
        if outbox is None or (
            outbox.rows.changed_below <= seen.written_below
            and outbox.first_standing <= seen.gone_below
        ):
            return 0
        return max(1, self._index.applied - max(self._even_at, seen.written_below))

    def turn(self) -> None:
        """Go on with the next step, if nothing runs; the index has caught up with the log."""
        outbox = self._index.outbox
        if outbox is None or self._is_running():
            return
        if not self.behind:
            self._even_at = self._index.applied
        now = self._monotonic()
        if now < self._next_turn:
            return
        if self._seen is None or now >= self._next_look:
            self._next_look = now + self._pace.look
            self._run(self._look, self._looked)
        elif self._owns and self._transactions is not None:
            self._write_on(outbox, self._seen, self._transactions)
        elif self.behind and now - self._moved_at >= self._pace.patience:
            self._run(self._take, self._taken)

    def close(self) -> None:
        """Let go; what runs is left behind, and ended by the index that takes the id next."""
        if self._then is None:
            _close([self._transactions, self._last_reader])

    # -- what runs beside the loop

    def _run(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._then = then
        self._thread.start(call)

    def _is_running(self) -> bool:
        """Return whether a call runs; of one that has ended, take in how, first."""
        then = self._then
        if then is None:
            return False
        try:
            if not self._thread.ended(0):
                return True
        except FencedError:
            self._then = None
            self._fenced()
        except Exception as error:  # noqa: BLE001 - no error here may hold up an answer
            self._then = None
            self._failed(str(error) if isinstance(error, StreamDedupError) else repr(error))
        else:
            self._then = None
            then(self._thread.take_result())
        return self._then is not None  # what follows may have begun the next call

    def _look(self) -> Progress:
        found = self._admin.topic_ids([self._topic])
        if self._topic not in found:
            raise ConfigurationError(
                f"The topic {self._topic} does not exist; create it with: stream-dedup topics apply"
            )
        topic_id = found[self._topic][0].hex()
        if self._last_reader is None:
            client = f"{self._client}-representatives-reader"
            self._last_reader = self._around.make_last_reader(self._settings, self._topic, client)
        last = self._last_reader.last(PROGRESS_KEY)
        progress = decode_progress(None if last is None else last.value)
        if progress.log not in ("", self._log):
            raise ConfigurationError(
                f"The topic {self._topic} tells of the log {progress.log!r}, and this is "
                f"{self._log!r}: the log was made anew. "
                "Delete the topic and create it again, with: stream-dedup topics apply"
            )
        # Who did not know that the topic was created anew has written on: what came before is
        # missing.
        return progress if progress.topic_id == topic_id else Progress(self._log, topic_id)

    def _take(self) -> Progress:
        if self._transactions is None:
            self._look()  # a topic that is missing is told before Kafka is asked to write to it
            self._transactions = self._around.make_transactions(
                self._settings,
                f"{self._settings.group}-representatives",
                f"{self._client}-representatives",
            )
        return self._look()

    # -- what follows

    def _looked(self, found: Progress) -> None:
        seen, self._seen = self._seen, found
        if not self.behind:
            self._recovered()
        if self._owns:
            if seen is not None and found.topic_id != seen.topic_id:
                self._logger.warning(
                    "the topic was created anew, and is written from the beginning",
                    topic=self._topic,
                )
                self._owns = False
                self._moved_at = float("-inf")
            elif found != seen:
                self._fenced()
            return
        if seen is not None and (found != seen or not self.behind):
            self._moved_at = self._monotonic()
        outbox = self._index.outbox
        if outbox is not None:
            outbox.forget(below=found.gone_below)

    def _taken(self, found: Progress) -> None:
        outbox = self._index.outbox
        if outbox is None:
            return
        self._seen = found
        self._owns = True
        outbox.rows.gather()
        self._round = _Round(self._index.applied, found.written_below)
        outbox.forget(below=found.gone_below)
        self._logger.info(
            "this index writes the topic", topic=self._topic, from_log_offset=found.written_below
        )

    def _recovered(self) -> None:
        if self._failure:
            self._logger.info("the topic can be written again", topic=self._topic)
        self._failure = ""

    def _fenced(self) -> None:
        self._logger.info("another index writes the topic", topic=self._topic)
        self._metrics.representatives_written("fenced", 0)
        self._let_go()
        self._moved_at = self._monotonic()

    def _failed(self, why: str) -> None:
        if why != self._failure:
            self._failure = why
            self._logger.warning(
                "the topic cannot be written; answers do not wait for it",
                topic=self._topic,
                reason=why,
            )
        self._metrics.representatives_written("failed", 0)
        if self._owns:
            self._moved_at = float("-inf")  # nobody need be waited for
        self._let_go()
        self._next_turn = self._monotonic() + self._pace.rest

    def _let_go(self) -> None:
        clients = [self._transactions, self._last_reader]
        self._transactions = self._last_reader = None
        self._owns = False
        self._round = None
        self._run(partial(_close, clients), lambda _: None)
        if (outbox := self._index.outbox) is not None:
            outbox.rows.fresh = None

    # -- writing

    def _write_on(self, outbox: Outbox, seen: Progress, transactions: TransactionalOutput) -> None:
        """Write what is next of what the topic is owed."""
        if self._index.applied < seen.applied:
            return  # the index that wrote before knew more
        if outbox.rows.fresh is None:  # there were too many
            outbox.rows.gather()
            self._round = _Round(self._index.applied, seen.written_below)
        portion = self._left_behind(outbox, seen) or self._next_of_round(outbox, seen)
        if portion is None:
            return
        if not portion.values and portion.progress == seen:
            portion.then()
            return

        def write() -> Any:
            return transactions.run(_outputs(self._topic, portion), (), b"", reached=reached)

        def reached(step: str) -> None:
            self._failpoints.hit(f"representatives.{step}", len(portion.values))

        def written(result: Any) -> None:
            if result.outcome is not Outcome.COMMITTED:
                self._failed(
                    result.why
                )  # whether it is there or not, is read when the id is taken anew
                return
            self._failpoints.hit("representatives.after-commit", len(portion.values))
            self._recovered()
            self._metrics.representatives_written(_COMMITTED, len(portion.values))
            self._seen = portion.progress
            outbox.forget([number for number, _, value in portion.values if value is None])
            portion.then()

        self._run(write, written)

    def _left_behind(self, outbox: Outbox, seen: Progress) -> _Portion | None:
        """Return what windows have left behind.

        Of an entry that an order removed the topic was told then. Its document may have come back
        since, under the same key.
        """
        end = outbox.first_standing
        if end <= seen.gone_below:
            return None
        rows = outbox.rows.scan(seen.gone_below, end, self._pace.rows)
        left = [one.number for one in rows if not one.null_is_written(seen.written_below)]
        below = rows[-1].number + 1 if len(rows) == self._pace.rows else end
        progress = seen._replace(applied=self._index.applied, gone_below=below)
        return _Portion(outbox.values(left), progress, lambda: outbox.forget(below=below))

    def _next_of_round(self, outbox: Outbox, seen: Progress) -> _Portion | None:
        found = self._round
        if found is None:
            if not outbox.rows.fresh:
                return None
            found = self._round = _Round(self._index.applied, numbers=sorted(outbox.rows.fresh))
            outbox.rows.gather()
        if found.numbers is None:
            rows = outbox.rows.scan(found.next_number, None, self._pace.rows)
            numbers = [one.number for one in rows if one.changed_below > found.since]
            is_last, next_number = len(rows) < self._pace.rows, rows[-1].number + 1 if rows else 0
        else:
            numbers = found.numbers[found.next_number : found.next_number + self._pace.rows]
            next_number = found.next_number + len(numbers)
            is_last = next_number == len(found.numbers)

        def then() -> None:
            found.next_number = next_number
            if is_last:
                self._round = None
                self._next_turn = self._monotonic() + self._pace.gap
                if found.numbers is None:
                    outbox.forget(swept_below=found.goal)

        below = max(found.goal, seen.written_below) if is_last else seen.written_below
        values = outbox.values(numbers)
        progress = (
            seen._replace(applied=self._index.applied, written_below=below)
            if values or is_last
            else seen
        )
        return _Portion(values, progress, then)


def _outputs(topic: str, portion: _Portion) -> list[Output]:
    values = [
        (encode_key(position), None if value is None else encode_value(value))
        for _, position, value in portion.values
    ]
    values.append((PROGRESS_KEY, encode_progress(portion.progress)))
    return [Output(topic, 0, key, value, None, []) for key, value in values]


def _close(clients: list[Any]) -> None:
    """Close what is open; it may take a while."""
    while clients:
        client = clients.pop()
        if client is not None:
            client.close()
