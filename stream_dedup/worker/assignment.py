"""Which partitions are this worker's, and from where each is read: rebalances, committed offsets,
stale records.

Invariants: what changes the flow drains first (`drain`), so that no batch is being prepared and no
transaction runs; a partition is read from what the broker has committed for it, never from what was
merely sent; before anything is read on, what must be read again is read again (`go_back`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from stream_dedup.domain.document import TopicPartitionKey
from stream_dedup.domain.errors import (
    BrokerError,
    ConfigurationError,
    FirstStartError,
    InvariantError,
    StreamDedupError,
)
from stream_dedup.domain.messages import Messages
from stream_dedup.domain.threads import SideThread
from stream_dedup.kafka import (
    Admin,
    Lives,
    OwnedOffset,
    RebalanceListener,
    SourceConsumer,
    TopicLives,
    is_another,
)
from stream_dedup.kafka.source import generation
from stream_dedup.log import epochs
from stream_dedup.orders.beginnings import Beginnings
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import startup
from stream_dedup.worker.dependencies import WorkerContext

_QUESTIONS = 3

T = TypeVar("T")


class Assignment:
    """The `RebalanceListener` of the worker's `source`.

    `has_joined`: it is a member of its group, and has been told what it reads since it last gave
    anything up.
    """

    def __init__(
        self,
        context: WorkerContext,
        settings: Settings,
        cluster: startup.SourceCluster,
        beginnings: Beginnings,
        make_source: Callable[[RebalanceListener], SourceConsumer],
        make_admin: Callable[[Settings], Admin],
        asking: SideThread,
        drain: Callable[[], None],
        hear_anew: Callable[[], None],
    ) -> None:
        self._flow = context.flow
        self._stop = context.stop
        self._beat = context.beat
        self._patience = context.patience
        self._metrics = context.metrics
        self._logger = context.logger
        self._settings = settings
        self._cluster = cluster
        self._beginnings = beginnings
        self._make_admin = make_admin
        self._lives = TopicLives(self._topics, asking, context.clock.monotonic, context.logger)
        self._drain = drain
        self._hear_anew = hear_anew
        self._answers_id = cluster.answers_id
        self._output_partitions = cluster.output_partitions
        self._must_reread = False
        self._unread: dict[
            TopicPartitionKey, int
        ] = {}  # from where what was given back is read again
        self._unserved: set[TopicPartitionKey] = set()  # the outputs have no such partitions
        self.has_joined = self._has_partitions = False
        self.source = make_source(self)

    # -- what is read again

    def give_back(self, read: Messages) -> None:
        """Have these records read again: they were read and not prepared."""
        self._unread |= read.first_offsets()

    def reread_later(self) -> None:
        """Read again from the committed offsets, before anything more is taken in."""
        self._must_reread = True

    def reread(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Go back to the committed offsets, as the broker has them now."""
        self._unread.clear()
        self.source.restart_at(self._learn(self.source.committed(keys)))

    def go_back(self, read: Messages) -> bool:
        """Go back to what must be read again; return whether anything must. What was just `read` is
        then to be dropped.
        """
        if self._must_reread:  # what was just read lies behind records that were dropped
            if (
                not self._stop.is_set()
            ):  # else the next owner reads them again; asking Kafka only delays the end
                self._must_reread = False
                self.reread(self._flow.owned())
            return True
        if self._unread:  # what was just read may lie behind it
            starts, self._unread = read.first_offsets() | self._unread, {}
            owned = set(self._flow.owned())
            self.source.restart_at({key: offset for key, offset in starts.items() if key in owned})
            return True
        return False

    def resolve_stale(self) -> None:
        """Drop the partitions whose records the index calls stale, and read them again from their
        committed offsets.

        Raises:
            InvariantError: the index calls stale what nobody has committed.
        """
        self._drain()
        keys = list(self._flow.stale())
        if not keys:
            return  # what the transaction left behind is read again as a whole
        found = self.source.committed(keys)
        known = {
            key: (owned.offset or 0, epochs.from_metadata(owned.metadata) or 0)
            for key, owned in found.items()
        }
        try:
            self._flow.resolve_stale(known)
        except InvariantError:
            # of a topic that was created again the index knows positions that nobody has committed
            self.check_topics()
            raise
        self._logger.warning(
            "stale records dropped; reading again from the committed offset",
            partitions=[f"{topic}-{part}" for topic, part in keys],
        )
        self.source.restart_at(self._learn(found))
        self._no_longer_unread(found)

    def _no_longer_unread(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Forget where these partitions were to be read again: they are gone, or begin at their
        committed offsets.
        """
        for key in keys:
            self._unread.pop(key, None)

    # -- committed offsets

    def _learn(
        self, found: Mapping[TopicPartitionKey, OwnedOffset]
    ) -> dict[TopicPartitionKey, int]:
        """Take over what the broker has for each partition; a partition without a commit is
        begun.
        """
        starts: dict[TopicPartitionKey, int] = {}
        begun: dict[TopicPartitionKey, tuple[int, str]] = {}
        found = self.look_for_the_missing(found)
        for key, owned in found.items():
            offset, epoch = owned.offset, epochs.from_metadata(owned.metadata)
            if offset is None:
                epoch = self._first_epoch(key)
                offset = self.source.low_watermark(key)
                begun[key] = (offset, epochs.to_metadata(epoch))
            elif epoch is None:
                raise ConfigurationError(
                    f"The committed offset {offset} of group {self._settings.group} for "
                    f"{key[0]}-{key[1]} carries no "
                    "epoch, so it was not written by stream_dedup. Stop the workers and set it "
                    "with: "
                    f"stream-dedup rewind {key[0]}-{key[1]}@{offset}"
                )
            self._flow.assigned(key, self._cluster.source_id, offset, epoch)
            starts[key] = offset
        if begun and not self.source.commit_start(begun):
            self._logger.warning(
                "the group has gone on while partitions were begun; they are asked for anew"
            )
            self._must_reread = True  # before anything of them is read
            return starts
        if begun:
            self._logger.info(
                "partitions begun", partitions=sorted(f"{topic}-{part}" for topic, part in begun)
            )
        self._insist(lambda: self._beginnings.note(part for _, part in found))
        return starts

    def _insist(self, do: Callable[[], T]) -> T:
        """Return what `do` gives, which may be done again; it is, for as long as Kafka is away, and
        some times besides.
        """
        return self._patience.insist(_QUESTIONS, do, lambda error: isinstance(error, BrokerError))

    def look_for_the_missing(
        self, found: Mapping[TopicPartitionKey, OwnedOffset]
    ) -> Mapping[TopicPartitionKey, OwnedOffset]:
        """Ask anew what was begun, which this worker may have known months ago, and then once more
        for the missing offsets.

        Asked in the other order, a partition that another worker begins in between looks as if its
        offset had vanished.
        """
        lacking = [key for key, owned in found.items() if owned.offset is None]
        if not lacking:
            return found
        self._insist(self._beginnings.look)
        return {**found, **self.source.committed(lacking)}

    def _first_epoch(self, key: TopicPartitionKey) -> int:
        try:
            return startup.first_epoch(self._settings, self._cluster, self._beginnings, key)
        except FirstStartError:
            # the offsets of a topic that was created again went with the old one
            self.check_topics()
            raise

    # -- RebalanceListener

    def assigned(self, keys: Sequence[TopicPartitionKey]) -> Mapping[TopicPartitionKey, int]:
        """Take over partitions at their committed offsets; pause those that the outputs lack."""
        self._drain()
        self._no_longer_unread(keys)
        self._metrics.rebalanced()
        if not self._has_partitions:
            # the topic may have been created again since this worker began, or while it owned
            # nothing
            self.check_topics()
        self._has_partitions = True
        starts = self._learn(self.source.committed(keys))
        lacking = [key for key in keys if key[1] >= self._output_partitions]
        if lacking:
            self._unserved.update(lacking)
            self.source.pause(lacking)
            self._logger.error(
                "the output topics have fewer partitions than the source; these wait: grow the "
                "outputs with "
                "`stream-dedup topics apply`",
                partitions=[f"{topic}-{part}" for topic, part in lacking],
                output_partitions=self._output_partitions,
            )
        self._logger.info("partitions assigned", partitions=sorted(part for _, part in keys))
        return starts

    def revoked(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Give up partitions."""
        self._drain()
        self._metrics.rebalanced()
        self._flow.revoked(keys)
        self._no_longer_unread(keys)
        self._unserved.difference_update(keys)
        self._has_partitions = bool(
            self._flow.owned()
        )  # without any, the next assignment says whether it is a member
        self._logger.info("partitions revoked", partitions=sorted(part for _, part in keys))

    def lost(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Give up partitions that somebody else may own already."""
        self._drain()
        self._metrics.rebalanced()
        self._flow.lost(keys)
        self._no_longer_unread(keys)
        self._unserved.difference_update(keys)
        self._has_partitions = False
        self._must_reread = bool(self._flow.owned())
        self._logger.warning("partitions lost", partitions=sorted(part for _, part in keys))

    def restamped(self, stamp: bytes) -> None:
        """Stamp what survived."""
        self._drain()
        self.has_joined = self._has_partitions and (generation(stamp) or 0) >= 0
        if self._flow.restamp(stamp, generation(stamp)):
            self._must_reread = True

    # -- the topics

    def served(self) -> list[TopicPartitionKey]:
        """Return our partitions, but for those that the outputs lack."""
        return [key for key in self._flow.owned() if key not in self._unserved]

    def look_at_topics(self, *, soon: bool, is_deaf: bool) -> None:
        """Check the topics every half minute, or `soon` or where outputs lack partitions, without
        waiting for the answer.

        `is_deaf`: answers cannot be read.

        Raises:
            StreamDedupError: the source topic or the log was created again.
        """
        found = self._lives.look(soon=soon or bool(self._unserved))
        self._hold(found)
        answers = self._cluster.names.verdicts
        if is_another(found, answers, self._answers_id) or (is_deaf and answers in found):
            self._answers_id = found[answers][0]
            self._hear_anew()
        outputs = [found[name][1] for name in self._cluster.names.outputs if name in found]
        if len(outputs) == len(self._cluster.names.outputs):
            self._output_partitions = min(outputs)
            self._serve()

    def check_topics(self) -> None:
        """Notice a topic that was created again, at once.

        Raises:
            StreamDedupError: it is the source topic or the log.
        """
        self._hold(self._lives.now())

    def _topics(self) -> Lives:
        """Return the id and the number of partitions of the topics; nothing while Kafka is away."""
        if self._patience.is_silent():
            return {}  # asked in vain, it would only be waited for
        names = self._cluster.names
        asked = [names.documents, *names.outputs, names.fingerprints, names.verdicts]
        return self._make_admin(self._settings).topic_ids(asked)

    def _hold(self, found: Lives) -> None:
        names = self._cluster.names
        for name, known in (
            (names.documents, self._cluster.source_id),
            (names.fingerprints, self._cluster.log_id),
        ):
            if is_another(found, name, known):
                raise StreamDedupError(
                    f"The topic {name} was deleted and created again; this worker ends so that a "
                    "restart begins with what the "
                    "new topic holds."
                )

    def _serve(self) -> None:
        """Read on what the outputs have partitions for by now."""
        served = {key for key in self._unserved if key[1] < self._output_partitions}
        if served:
            self._unserved -= served
            self.source.resume(served)
            self._logger.info(
                "the outputs have grown; reading on", partitions=sorted(part for _, part in served)
            )
