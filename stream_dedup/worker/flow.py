"""The batches in flight and what may be committed: a state machine without Kafka, clock or thread.

The loop reports events by method calls, in the order in which they occur; the return values say
what must be done.

Invariants:
 1. Batches are committed in the order in which they were read. An abort drops all batches in
    flight: committing a later batch after an aborted one would lose the aborted batch's records.
 2. A record is committed only with the group metadata that was read together with its batch, or
    that was read inside a later rebalance callback in which the worker kept the partition. Metadata
    read at commit would let a zombie commit.
 3. The records of a revoked or lost partition are removed from every batch. After a lost
    assignment, or a generation that passed without a callback, nothing in flight is committed and
    the committed offsets are read again.
 4. The (epoch, committed) of a partition comes from the broker or a confirmed commit, never from a
    commit that was only sent.
 5. A document is delivered without a verdict only as unique (`fail-open`), and only once its
    question is in the log, so that the index knows it when later copies arrive.
 6. After a start one log record is sent, and more only once answers arrive: restarts without a live
    index must not fill the log. A record is appended again only because a replica announced that it
    will not answer, never because time passed.
 7. When a record was appended again, only the answer to the last append counts: it is the one that
    a replay of the log produces.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stream_dedup.domain.document import LogPlace, Reason, TopicPartitionKey
from stream_dedup.domain.errors import ConfigurationError, DivergedError, InvariantError
from stream_dedup.log.answers import Announce, LogAnswer, Rejected
from stream_dedup.log.records import DOCUMENTS_MAX, Source
from stream_dedup.log.schema import Judgement, Verdicts
from stream_dedup.worker.allowance import Amount
from stream_dedup.worker.prepare import InFlight, Part

BATCHES_IN_FLIGHT = 4
"""Maximum of batches that wait for the index at once; more would not hide more of its latency."""

_CHAINS_REMEMBERED = 10_000
_IS_REPRESENTATIVE = np.isin(np.arange(256), [Reason.NEW, Reason.TOO_SHORT])


@dataclass(slots=True)
class Owned:
    """An owned partition: the epoch and the committed offset that the broker stores for it."""

    topic_id: bytes
    epoch: int
    committed: int


class Flow:
    """The batches that one worker has in flight.

    While `is_failed_open`, the index does not answer and documents are delivered without verdicts.
    """

    def __init__(
        self,
        batches_max: int,
        batch_documents_max: int,
        nonce: bytes,
        first_documents: int = DOCUMENTS_MAX,
    ) -> None:
        """Until the index has answered once, admit at most `first_documents` (by default, those of
        one log record).
        """
        self._batches_max = batches_max
        self._first_documents = first_documents
        self._batch_documents_max = batch_documents_max
        self.nonce = nonce
        self._owned: dict[TopicPartitionKey, Owned] = {}
        self._batches: deque[InFlight] = deque()
        self._parts: dict[int, tuple[InFlight, Part]] = {}
        self._batches_allowed = 1
        self._has_answer = False
        self._first_answered_offset = 0
        self._chains: OrderedDict[int, bytes] = OrderedDict()
        self._generation: int | None = None
        self._stale: dict[TopicPartitionKey, int] = {}
        self.is_failed_open = False

    # -- partitions

    def owned(self) -> list[TopicPartitionKey]:
        """Return the partitions that this worker owns."""
        return list(self._owned)

    def committed_offset(self, key: TopicPartitionKey) -> int:
        """Return the committed offset of an owned partition."""
        return self._owned[key].committed

    def assigned(self, key: TopicPartitionKey, topic_id: bytes, committed: int, epoch: int) -> None:
        """Record that a partition is owned, or update its committed offset and epoch."""
        self._owned[key] = Owned(topic_id, epoch, committed)

    def revoked(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Give up partitions and drop their records from every batch."""
        for key in keys:
            self._owned.pop(key, None)
            self._drop_partition(key)

    def lost(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Give up partitions that another worker may own already, and drop everything in flight."""
        self.drop_all()
        for key in keys:
            self._owned.pop(key, None)

    def renew_group_metadata(self, group_metadata: bytes, generation: int | None) -> bool:
        """Store the metadata read inside a rebalance callback in the batches that survived it.

        Return whether batches were dropped, because the worker missed a generation or the group
        restarted its generations; then the committed offsets must be read again.
        """
        has_missed_generation = (
            self._generation is not None
            and generation is not None
            and generation > self._generation + 1
        )
        has_restarted = (
            self._generation is not None
            and generation is not None
            and generation < self._generation
        )
        self._generation = generation
        if (has_missed_generation or has_restarted) and self._batches:
            self.drop_all()
            return True
        for batch in self._batches:
            batch.group_metadata = group_metadata
        return False

    # -- admitting batches

    @property
    def in_flight(self) -> int:
        """Number of batches in flight."""
        return len(self._batches)

    def discount_wait(self, seconds: float) -> None:
        """Subtract these seconds from the waiting time of the batches in flight."""
        for batch in self._batches:
            batch.waiting_since += seconds

    @property
    def has_unanswered(self) -> bool:
        """Whether a log record has no answer yet."""
        return bool(self._parts)

    @property
    def documents_in_flight(self) -> int:
        """Number of records in flight."""
        return sum(len(batch.messages) for batch in self._batches)

    @property
    def held_bytes(self) -> int:
        """Memory of the records in flight, in bytes."""
        return sum(batch.messages.held_bytes for batch in self._batches)

    @property
    def unemitted(self) -> int:
        """Number of representatives that no transaction has delivered yet."""
        representatives = (
            (batch, np.flatnonzero(_IS_REPRESENTATIVE[batch.reasons()])) for batch in self._batches
        )
        return sum(
            len(places)
            if batch.is_whole
            else int(batch.messages.are_from(batch.live_partitions)[places].sum())
            for batch, places in representatives
        )

    @property
    def has_room(self) -> bool:
        """Whether one more batch may go in flight."""
        return len(self._batches) < self._batches_allowed and not self._stale

    def records_wanted(self, preparing: int = 0) -> int:
        """Return how many more records may be read, 0 for none yet. `preparing` is the number of
        batches that were read and are not in flight yet.
        """
        if len(self._batches) + preparing >= self._batches_allowed or self._stale:
            return 0
        return (
            self._batch_documents_max
            if self._has_answer
            else min(self._first_documents, self._batch_documents_max)
        )

    def source(self, key: TopicPartitionKey) -> Source:
        """Return a partition's entry in the table of sources of a log record."""
        owned = self._owned[key]
        return Source(key[0], owned.topic_id, key[1], owned.epoch, owned.committed)

    def admit(self, batch: InFlight) -> list[Part]:
        """Add a batch in flight; return its log records, which must be appended in this order."""
        self._batches.append(batch)
        for part in batch.parts:
            self._parts[part.number] = (batch, part)
        return batch.parts

    # -- the log and its answers

    def appended(self, number: int, log_offset: int) -> list[Part]:
        """Record the offset of an appended log record; return the records to append again: this one
        if no replica answers that offset, otherwise none.
        """
        entry = self._parts.get(number)
        if entry is None:
            return []
        _, part = entry
        part.log_offset = log_offset
        if self.is_failed_open:
            self._release_unjudged(part)
            return []
        return [part] if log_offset < self._first_answered_offset else []

    def announced(self, announce: Announce) -> list[Part]:
        """Record the first offset that a new replica answers; return the log records before it,
        which must be appended again.

        Another replica may still answer the older record. That answer is ignored: the new record
        may get another verdict, because a document was retracted or forgotten in between, or a
        window ended.
        """
        self._first_answered_offset = max(
            self._first_answered_offset, announce.first_answered_offset
        )
        unanswerable = []
        for _, part in self._parts.values():
            if (
                not part.is_answered
                and part.log_offset is not None
                and part.log_offset < self._first_answered_offset
            ):
                part.log_offset = None
                unanswerable.append(part)
        return unanswerable

    def answered(self, answer: LogAnswer | Rejected) -> Part | None:
        """Apply an answer; return the part that it answers, or None if no part waits for it.

        Raises:
            DivergedError: two replicas answered differently.
            ConfigurationError: the index cannot judge what this worker sends.
            InvariantError: the answer does not fit the question.
        """
        self._check_chain(answer)
        if answer.nonce != self.nonce:
            return None  # the answer to another worker
        self.is_failed_open = False
        if answer.log_offset < self._first_answered_offset:
            return None  # the record is appended again, and only the new answer counts
        entry = self._parts.pop(answer.number, None)
        if entry is None:
            return None  # the batch was dropped, or another replica answered before
        batch, part = entry
        if isinstance(answer, Rejected):
            raise ConfigurationError(
                f"The index rejected log record {answer.log_offset} of this worker: {answer.why} "
                "Nothing was lost; correct the setting and start the worker again."
            )
        if len(answer.judgements) != len(part.rows):
            raise InvariantError(
                f"The answer to log record {answer.log_offset} judges {len(answer.judgements)} "
                f"documents, but {len(part.rows)} were sent. Stop the filter, keep the log and "
                "the index's folder, and report this bug."
            )
        part.is_answered = True
        part.verdicts = Verdicts.of(answer.judgements)
        for place in np.flatnonzero(part.verdicts.reasons == Reason.STALE):
            row = part.rows[place]
            key, offset = batch.messages.key(row), int(batch.messages.offsets[row])
            if key in batch.live_partitions:
                self._stale[key] = min(offset, self._stale.get(key, offset))
        if batch.is_answered:
            self._has_answer = True
            self._batches_allowed = self._batches_max
        return part

    # -- failing open

    @property
    def oldest_unanswered(self) -> InFlight | None:
        """The oldest batch that waits for a verdict."""
        return next((batch for batch in self._batches if not batch.is_answered), None)

    @property
    def unanswered_offset(self) -> int | None:
        """The lowest log offset without an answer; None if no unanswered record is in the log."""
        return min(
            (part.log_offset for _, part in self._parts.values() if part.log_offset is not None),
            default=None,
        )

    def fail_open(self) -> int:
        """Deliver waiting and later documents as unique until an answer arrives; return the number
        of documents that this releases now.

        The index judges them later; a duplicate among them is delivered as unique. Documents whose
        question is not in the log yet keep waiting.
        """
        self.is_failed_open = True
        return sum(
            self._release_unjudged(part)
            for _, part in list(self._parts.values())
            if part.log_offset is not None
        )

    def _release_unjudged(self, part: Part) -> int:
        """Decide that the documents of a log record are delivered unjudged; return their number."""
        batch, _ = self._parts.pop(part.number)
        part.is_answered = True
        for place, row in enumerate(part.rows):
            batch.local_decisions[row] = Judgement(
                Reason.FAIL_OPEN, LogPlace(part.log_offset or 0, place)
            )
        return len(part.rows)

    # -- committing

    def ready(self, allowed: Amount | None = None) -> list[InFlight]:
        """Return the batches to commit in the next transaction: the oldest answered ones that fit
        into `allowed` and have the same group metadata. A larger batch is returned alone.
        """
        ready: list[InFlight] = []
        if self._stale:
            return ready
        documents, size = 0, 0
        for batch in self._batches:
            documents += len(batch.messages)
            size += batch.messages.held_bytes
            if not batch.is_answered or (ready and batch.group_metadata != ready[0].group_metadata):
                break
            if ready and (
                documents > self._batch_documents_max
                or (allowed and not allowed.fits(documents, size))
            ):
                break
            ready.append(batch)
        return ready

    def offsets(self, batches: Sequence[InFlight]) -> dict[TopicPartitionKey, tuple[int, int]]:
        """Return (offset to commit, epoch) of each partition in these batches."""
        return {
            key: (offset, batch.epochs[key])
            for batch in batches
            for key, offset in batch.offsets().items()
        }

    def committed(self, batches: Sequence[InFlight]) -> None:
        """Remove these batches, which must be the oldest, and store their committed offsets.

        Raises:
            InvariantError: they are not the oldest.
        """
        for batch in batches:
            if not self._batches or self._batches[0] is not batch:
                raise InvariantError(
                    "A batch was committed out of order. Stop the filter, and check the outputs "
                    "with: stream-dedup audit"
                )
            self._batches.popleft()
        for key, (offset, epoch) in self.offsets(batches).items():
            owned = self._owned.get(key)
            if owned is not None and owned.epoch == epoch:
                owned.committed = offset

    def drop_all(self) -> list[TopicPartitionKey]:
        """Drop everything in flight; return the owned partitions, whose committed offsets must be
        read again.
        """
        self._batches.clear()
        self._parts.clear()
        self._stale.clear()
        return list(self._owned)

    # -- stale

    def stale(self) -> dict[TopicPartitionKey, int]:
        """Return the lowest stale offset of each partition that has one. A record is stale if its
        (epoch, offset) is below the committed one that the index knows for its partition.
        """
        return dict(self._stale)

    def resolve_stale(self, offsets: Mapping[TopicPartitionKey, tuple[int, int]]) -> None:
        """Drop the records of stale partitions; `offsets` has the (committed offset, epoch) that
        the broker stores for each.

        Raises:
            InvariantError: a record of the current epoch that is not yet committed is stale.
        """
        for key, (committed, epoch) in offsets.items():
            offset = self._stale.pop(key, None)
            owned = self._owned.get(key)
            if offset is None or owned is None:
                continue
            if epoch == owned.epoch and offset >= committed:
                raise InvariantError(
                    f"The index rejected {key[0]}-{key[1]}@{offset} as stale, but the group has "
                    f"committed only up to {committed} in epoch {epoch}. Nothing was committed "
                    "past it. Was an offset set with another tool than stream-dedup rewind? Stop "
                    'the workers, and set the offset again (handbook, "Read documents again").'
                )
            self._drop_partition(key)
            owned.committed, owned.epoch = committed, epoch

    def _drop_partition(self, key: TopicPartitionKey) -> None:
        self._stale.pop(key, None)
        for batch in self._batches:
            batch.live_partitions.discard(key)
        emptied = [batch for batch in self._batches if not batch.live_partitions]
        for batch in emptied:
            self._batches.remove(batch)
            for part in batch.parts:
                self._parts.pop(part.number, None)

    def _check_chain(self, answer: LogAnswer | Rejected) -> None:
        """Compare the running digest in an answer with that in another replica's answer to the same
        log record.

        Raises:
            DivergedError: they differ.
        """
        first_chain = self._chains.setdefault(answer.log_offset, answer.chain)
        if first_chain != answer.chain:
            raise DivergedError(
                f"Two index replicas gave different answers for log offset {answer.log_offset} or "
                "before it. Stop the replicas; run `stream-dedup index verify` on each volume, "
                "delete the one that fails, and let it rebuild from the log."
            )
        while len(self._chains) > _CHAINS_REMEMBERED:
            self._chains.popitem(last=False)
