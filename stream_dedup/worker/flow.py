"""What is in flight and what may be committed: the worker's rules as a state machine without Kafka,
clock or thread.

Events go in as method calls, in the order in which the loop meets them; what must be done comes out
as return values.

Invariants:
 1. Batches are committed in the order in which they were read; an abort drops all that are in
 flight, because a later
    one committed after an earlier one was aborted would lose the earlier one's records.
 2. A record is committed only under the group metadata that was read with its batch, or inside a
 later rebalance
    callback through which its partition stayed with us. Metadata read at commit would let a zombie
    commit.
 3. A partition that was revoked or lost takes its records out of every batch; after a lost
 assignment or a generation
    that passed without a callback nothing in flight is committed, and the committed offsets are
    read again.
 4. The (epoch, committed) of a partition is what the broker said or a commit confirmed, never what
 was merely sent. 5. A document may leave without a verdict only as unique (`fail-open`), and only
 once its question is in the log, so that
    later copies find it there.
 6. After a start one log record is sent, and more only once answers come: restarts beside a dead
 index must not fill
    the log. Nothing is appended again because time passed; only because a replica announced that it
    will not answer.
 7. Of what was appended again only the last record's answer counts: it is what the log leads to.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stream_dedup.domain.document import LogPlace, Reason, TopicPartitionKey
from stream_dedup.domain.errors import ConfigurationError, DivergedError, InvariantError
from stream_dedup.log.answers import Announce, Judgement, LogAnswer, Rejected, Verdicts
from stream_dedup.log.records import DOCUMENTS_MAX, Source
from stream_dedup.worker.allowance import Amount
from stream_dedup.worker.prepare import InFlight, Part

BATCHES_IN_FLIGHT = 4
"""Most batches that wait for the index at once: more hide no more of its latency."""

_CHAINS_REMEMBERED = 10_000
_REPRESENTS = np.isin(np.arange(256), [Reason.NEW, Reason.TOO_SHORT])


@dataclass(slots=True)
class Owned:
    """A partition of ours: the epoch and committed offset that the broker has for it."""

    topic_id: bytes
    epoch: int
    committed: int


class Flow:
    """All that one worker has in flight. `is_open`: documents leave without waiting, because the
    index is silent.
    """

    def __init__(
        self,
        batches_max: int,
        batch_documents_max: int,
        nonce: bytes,
        first_documents: int = DOCUMENTS_MAX,
    ) -> None:
        """Until the index has answered once, no more than `first_documents` are taken in, so one
        log record is enough.
        """
        self._batches_max = batches_max
        self._first_documents = first_documents
        self._batch_documents_max = batch_documents_max
        self.nonce = nonce
        self._owned: dict[TopicPartitionKey, Owned] = {}
        self._batches: deque[InFlight] = deque()
        self._parts: dict[int, tuple[InFlight, Part]] = {}
        self._window = 1
        self._has_answer = False
        self._answers_from = 0
        self._chains: OrderedDict[int, bytes] = OrderedDict()
        self._generation: int | None = None
        self._stale: dict[TopicPartitionKey, int] = {}
        self.is_open = False

    # -- partitions

    def owned(self) -> list[TopicPartitionKey]:
        """Return the partitions that are ours now."""
        return list(self._owned)

    def committed_offset(self, key: TopicPartitionKey) -> int:
        """Return the committed offset of a partition of ours."""
        return self._owned[key].committed

    def assigned(self, key: TopicPartitionKey, topic_id: bytes, committed: int, epoch: int) -> None:
        """Take over a partition, or learn anew what the broker has for it."""
        self._owned[key] = Owned(topic_id, epoch, committed)

    def revoked(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Give up partitions: their records leave every batch."""
        for key in keys:
            self._owned.pop(key, None)
            self._drop(key)

    def lost(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Give up partitions that somebody else may own already: nothing in flight may be
        committed.
        """
        self.drop_all()
        for key in keys:
            self._owned.pop(key, None)

    def restamp(self, stamp: bytes, generation: int | None) -> bool:
        """Stamp what survived a rebalance callback with the metadata read inside it.

        Returns whether a generation passed without a callback of ours: then everything was dropped,
        and the committed offsets must be read again.
        """
        missed = (
            self._generation is not None
            and generation is not None
            and generation > self._generation + 1
        )
        joined_again = (
            self._generation is not None
            and generation is not None
            and generation < self._generation
        )
        self._generation = generation
        if (missed or joined_again) and self._batches:
            self.drop_all()
            return True
        for batch in self._batches:
            batch.stamp = stamp
        return False

    # -- taking in

    @property
    def in_flight(self) -> int:
        """How many batches are on their way."""
        return len(self._batches)

    def excuse(self, seconds: float) -> None:
        """Take this time off what everything in flight has waited for its answers."""
        for batch in self._batches:
            batch.taken += seconds

    @property
    def awaits(self) -> bool:
        """Whether a log record has no answer yet."""
        return bool(self._parts)

    @property
    def documents_in_flight(self) -> int:
        """How many records are on their way."""
        return sum(len(batch.messages) for batch in self._batches)

    @property
    def held_bytes(self) -> int:
        """How much memory the records take that are on their way."""
        return sum(batch.messages.held_bytes for batch in self._batches)

    @property
    def unemitted(self) -> int:
        """How many records of ours are representatives by the index's word, and not yet in a
        committed transaction.
        """
        found = ((batch, np.flatnonzero(_REPRESENTS[batch.reasons()])) for batch in self._batches)
        return sum(
            len(places)
            if batch.is_whole
            else int(batch.messages.of_partitions(batch.live)[places].sum())
            for batch, places in found
        )

    @property
    def has_room(self) -> bool:
        """Whether one more batch may come in of what was read already."""
        return len(self._batches) < self._window and not self._stale

    def wants(self, besides: int = 0) -> int:
        """Return how many more records may be taken in when `besides` batches are on their way here
        already; 0 means wait.
        """
        if len(self._batches) + besides >= self._window or self._stale:
            return 0
        return (
            self._batch_documents_max
            if self._has_answer
            else min(self._first_documents, self._batch_documents_max)
        )

    def source(self, key: TopicPartitionKey) -> Source:
        """Return the partition as a log record states it."""
        owned = self._owned[key]
        return Source(key[0], owned.topic_id, key[1], owned.epoch, owned.committed)

    def admit(self, batch: InFlight) -> list[Part]:
        """Take a batch in flight; return its log records, which must be appended in this order."""
        self._batches.append(batch)
        for part in batch.parts:
            self._parts[part.number] = (batch, part)
        return batch.parts

    # -- the log and its answers

    def appended(self, number: int, log_offset: int) -> list[Part]:
        """Learn where a log record lies; return it if no replica will answer there, to be appended
        once more.
        """
        known = self._parts.get(number)
        if known is None:
            return []
        _, part = known
        part.log_offset = log_offset
        if self.is_open:
            self._pass(part)
            return []
        return [part] if log_offset < self._answers_from else []

    def announced(self, announce: Announce) -> list[Part]:
        """Learn that a replica answers nothing older than an offset; return what must be appended
        once more.

        Another replica may answer the older record all the same. That answer no longer counts: by
        the later record the document may be judged anew, because its original was retracted or
        forgotten, or its window passed, in between.
        """
        self._answers_from = max(self._answers_from, announce.answers_from)
        again = []
        for _, part in self._parts.values():
            if (
                not part.answered
                and part.log_offset is not None
                and part.log_offset < self._answers_from
            ):
                part.log_offset = None
                again.append(part)
        return again

    def answered(self, answer: LogAnswer | Rejected) -> Part | None:
        """Take in an answer; return the part that it answers, if it is one of ours.

        Raises:
            DivergedError: two replicas answered differently.
            ConfigurationError: the index cannot judge what this worker sends.
            InvariantError: the answer does not fit the question.
        """
        self._compare(answer)
        if answer.nonce != self.nonce:
            return None
        self.is_open = False
        if answer.log_offset < self._answers_from:
            return None  # what lies there is asked again, or will be once it is acknowledged
        known = self._parts.pop(answer.number, None)
        if known is None:
            return None  # dropped meanwhile, or the second replica's answer
        batch, part = known
        if isinstance(answer, Rejected):
            raise ConfigurationError(
                f"The index rejected log record {answer.log_offset} of this worker: {answer.why} "
                "Nothing was lost; correct the setting and start the worker again."
            )
        if len(answer.judgements) != len(part.places):
            raise InvariantError(
                f"The answer to log record {answer.log_offset} judges {len(answer.judgements)} "
                "documents, and "
                f"{len(part.places)} were asked; stop, and keep the log and the index's folder for "
                "a report."
            )
        part.answered = True
        part.verdicts = Verdicts.of(answer.judgements)
        for place in np.flatnonzero(part.verdicts.reasons == Reason.STALE):
            at = part.places[place]
            key, offset = batch.messages.key(at), int(batch.messages.offsets[at])
            if key in batch.live:
                self._stale[key] = min(offset, self._stale.get(key, offset))
        if batch.is_answered:
            self._has_answer = True
            self._window = self._batches_max
        return part

    # -- failing open

    @property
    def oldest_unanswered(self) -> InFlight | None:
        """The oldest batch that waits for a verdict."""
        return next((batch for batch in self._batches if not batch.is_answered), None)

    @property
    def unanswered_offset(self) -> int | None:
        """The lowest log offset that has no answer yet; None where none is known."""
        return min(
            (part.log_offset for _, part in self._parts.values() if part.log_offset is not None),
            default=None,
        )

    def fail_open(self) -> int:
        """Let what waits leave as unique, and all that follows, until an answer comes; return how
        many records do now.

        The index will judge them all the same, and some as duplicates: they were delivered as
        unique, which only keeps a duplicate. What is not in the log yet goes on waiting.
        """
        self.is_open = True
        return sum(
            self._pass(part)
            for _, part in list(self._parts.values())
            if part.log_offset is not None
        )

    def _pass(self, part: Part) -> int:
        batch, _ = self._parts.pop(part.number)
        part.answered = True
        for place, index in enumerate(part.places):
            batch.decided[index] = Judgement(
                Reason.FAIL_OPEN, LogPlace(part.log_offset or 0, place)
            )
        return len(part.places)

    # -- committing

    def ready(self, allowed: Amount | None = None) -> list[InFlight]:
        """Return the batches to commit in the next transaction: the oldest, all answered, all of
        one stamp.

        One that carries more than is allowed goes alone.
        """
        ready: list[InFlight] = []
        if self._stale:
            return ready
        documents, size = 0, 0
        for batch in self._batches:
            documents += len(batch.messages)
            size += batch.messages.held_bytes
            if not batch.is_answered or (ready and batch.stamp != ready[0].stamp):
                break
            if ready and (
                documents > self._batch_documents_max
                or (allowed and not allowed.holds(documents, size))
            ):
                break
            ready.append(batch)
        return ready

    def offsets(self, batches: Sequence[InFlight]) -> dict[TopicPartitionKey, tuple[int, int]]:
        """Return (offset to commit, epoch) of each partition that these batches move."""
        return {
            key: (offset, batch.epochs[key])
            for batch in batches
            for key, offset in batch.offsets().items()
        }

    def committed(self, batches: Sequence[InFlight]) -> None:
        """Learn that these batches, the oldest ones, are committed.

        Raises:
            InvariantError: they are not the oldest.
        """
        for batch in batches:
            if not self._batches or self._batches[0] is not batch:
                raise InvariantError(
                    "A batch was committed out of order; stop, and compare with: stream-dedup audit"
                )
            self._batches.popleft()
        for key, (offset, epoch) in self.offsets(batches).items():
            owned = self._owned.get(key)
            if owned is not None and owned.epoch == epoch:
                owned.committed = offset

    def drop_all(self) -> list[TopicPartitionKey]:
        """Drop everything in flight; return our partitions, whose committed offsets must be read
        again.
        """
        self._batches.clear()
        self._parts.clear()
        self._stale.clear()
        return list(self._owned)

    # -- stale

    def stale(self) -> dict[TopicPartitionKey, int]:
        """Return the partitions of which a record was answered `stale`, with the lowest such
        offset.
        """
        return dict(self._stale)

    def resolve_stale(self, found: Mapping[TopicPartitionKey, tuple[int, int]]) -> None:
        """Drop the stale partitions' records, given the broker's (committed offset, epoch) of each.

        Raises:
            InvariantError: the index calls stale what is ours, of this epoch and not yet committed.
        """
        for key, (committed, epoch) in found.items():
            offset = self._stale.pop(key, None)
            owned = self._owned.get(key)
            if offset is None or owned is None:
                continue
            if epoch == owned.epoch and offset >= committed:
                raise InvariantError(
                    f"The index calls {key[0]}-{key[1]}@{offset} stale, but the group has "
                    "committed only up to "
                    f"{committed} in epoch {epoch}. Nothing was committed past it. Was an offset "
                    "reset by other means "
                    "than: stream-dedup rewind? Stop the workers and see the handbook on stale "
                    "verdicts."
                )
            self._drop(key)
            owned.committed, owned.epoch = committed, epoch

    # -- inside

    def _drop(self, key: TopicPartitionKey) -> None:
        self._stale.pop(key, None)
        for batch in self._batches:
            batch.live.discard(key)
        gone = [batch for batch in self._batches if not batch.live]
        for batch in gone:
            self._batches.remove(batch)
            for part in batch.parts:
                self._parts.pop(part.number, None)

    def _compare(self, answer: LogAnswer | Rejected) -> None:
        """Compare the running digests of replicas: the first difference is the last answer that may
        be trusted.
        """
        chain = self._chains.setdefault(answer.log_offset, answer.chain)
        if chain != answer.chain:
            raise DivergedError(
                f"Two index replicas gave different answers for log offset {answer.log_offset} or "
                "before it. "
                "Stop the replicas; run `stream-dedup index verify` on each volume, delete the one "
                "that fails, and let "
                "it rebuild from the log."
            )
        while len(self._chains) > _CHAINS_REMEMBERED:
            self._chains.popitem(last=False)
