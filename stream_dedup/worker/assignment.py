"""The worker's partitions and their start offsets: rebalances, committed offsets, stale records.

Invariants: every change of the flow drains first (`drain`), so that no batch is being prepared and
no transaction runs; a partition is read from the offset that the broker has committed, never from
one that was only sent; records that must be read again are read before any others (`seek_to_unread`).
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
    CommittedOffset,
    RebalanceListener,
    SourceConsumer,
    TopicIds,
    TopicIdWatcher,
    is_recreated,
)
from stream_dedup.kafka.source import generation_of
from stream_dedup.log import epochs
from stream_dedup.orders.beginnings import Beginnings
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import startup
from stream_dedup.worker.dependencies import WorkerContext

_ATTEMPTS_MAX = 3

T = TypeVar("T")


class Assignment:
    """The `RebalanceListener` of the worker's `source`.

    `has_joined`: the worker is a member of its group, and has received an assignment since its last
    partitions were revoked or lost.
    """

    def __init__(
        self,
        context: WorkerContext,
        settings: Settings,
        cluster: startup.SourceCluster,
        beginnings: Beginnings,
        make_source: Callable[[RebalanceListener], SourceConsumer],
        make_admin: Callable[[Settings], Admin],
        topic_id_thread: SideThread,
        drain: Callable[[], None],
        reopen_verdicts: Callable[[], None],
    ) -> None:
        self._flow = context.flow
        self._stop = context.stop
        self._beat = context.beat
        self._retry_policy = context.retry_policy
        self._metrics = context.metrics
        self._logger = context.logger
        self._settings = settings
        self._cluster = cluster
        self._beginnings = beginnings
        self._make_admin = make_admin
        self._topic_ids = TopicIdWatcher(
            self._fetch_topic_ids, topic_id_thread, context.clock.monotonic, context.logger
        )
        self._drain = drain
        self._reopen_verdicts = reopen_verdicts
        self._verdicts_id = cluster.verdicts_id
        self._output_partitions = cluster.output_partitions
        self._must_reread = False
        # Offsets to seek to: records from there on were read, but not prepared.
        self._unread: dict[TopicPartitionKey, int] = {}
        # Paused partitions: the outputs have fewer partitions.
        self._unserved: set[TopicPartitionKey] = set()
        self.has_joined = self._has_partitions = False
        self.source = make_source(self)

    # -- records to read again

    def reread_unprepared(self, messages: Messages) -> None:
        """Schedule another read of these records, because they were not prepared."""
        self._unread |= messages.first_offsets()

    def schedule_reread(self) -> None:
        """Read again from the committed offsets, before any other record is read."""
        self._must_reread = True

    def reread(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Continue from the broker's current committed offsets."""
        self._unread.clear()
        self.source.restart_at(self._adopt_committed(self.source.committed(keys)))

    def seek_to_unread(self, messages: Messages) -> bool:
        """Seek to the records that must be read again; return whether there are any. The caller
        then drops `messages`, the records just read, because the others come before them.
        """
        if self._must_reread:
            # A stopping worker leaves these records to the next owner: a request would delay it.
            if not self._stop.is_set():
                self._must_reread = False
                self.reread(self._flow.owned())
            return True
        if self._unread:
            starts, self._unread = messages.first_offsets() | self._unread, {}
            owned = set(self._flow.owned())
            self.source.restart_at({key: offset for key, offset in starts.items() if key in owned})
            return True
        return False

    def resolve_stale(self) -> None:
        """Drop the records of partitions in which the index found stale ones (`Flow.stale`), and
        read them again from the committed offsets.

        Raises:
            InvariantError: a record that is not committed is stale.
        """
        self._drain()
        keys = list(self._flow.stale())
        if not keys:
            return  # an abort during the drain dropped the stale records
        committed = self.source.committed(keys)
        offsets = {
            key: (entry.offset or 0, epochs.from_metadata(entry.metadata) or 0)
            for key, entry in committed.items()
        }
        try:
            self._flow.resolve_stale(offsets)
        except InvariantError:
            # Perhaps the topic was created again: then its new records have positions that the
            # index has seen, and that this group has not committed.
            self.check_topics()
            raise
        self._logger.warning(
            "dropped stale records; reading again from the committed offset",
            partitions=[f"{topic}-{partition}" for topic, partition in keys],
        )
        self.source.restart_at(self._adopt_committed(committed))
        self._forget_unread(committed)

    def _forget_unread(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Cancel the scheduled rereads of partitions that were given up, or that restart at their
        committed offsets.
        """
        for key in keys:
            self._unread.pop(key, None)

    # -- committed offsets

    def _adopt_committed(
        self, committed: Mapping[TopicPartitionKey, CommittedOffset]
    ) -> dict[TopicPartitionKey, int]:
        """Store the broker's offset and epoch of each partition in the flow, and return the offsets
        to read from.

        A partition without a committed offset is begun at its low watermark.
        """
        starts: dict[TopicPartitionKey, int] = {}
        begun: dict[TopicPartitionKey, tuple[int, str]] = {}
        committed = self.refresh_missing(committed)
        for key, entry in committed.items():
            offset, epoch = entry.offset, epochs.from_metadata(entry.metadata)
            if offset is None:
                epoch = self._first_epoch(key)
                offset = self.source.low_watermark(key)
                begun[key] = (offset, epochs.to_metadata(epoch))
            elif epoch is None:
                raise ConfigurationError(
                    f"The committed offset {offset} of group {self._settings.group} for "
                    f"{key[0]}-{key[1]} has no epoch, so another program wrote it. Stop the "
                    f"workers and set it with: stream-dedup rewind {key[0]}-{key[1]}@{offset}"
                )
            self._flow.assigned(key, self._cluster.source_id, offset, epoch)
            starts[key] = offset
        if begun and not self.source.commit_start(begun):
            self._logger.warning(
                "the group rebalanced while partitions were started; their offsets are read again"
            )
            self._must_reread = True
            return starts
        if begun:
            self._logger.info(
                "partitions begun",
                partitions=sorted(f"{topic}-{partition}" for topic, partition in begun),
            )
        self._retry(lambda: self._beginnings.record(partition for _, partition in committed))
        return starts

    def _retry(self, action: Callable[[], T]) -> T:
        """Return the result of `action`. Retry it while Kafka is unavailable; otherwise at most
        `_ATTEMPTS_MAX` times.
        """
        return self._retry_policy.retry(
            _ATTEMPTS_MAX, action, lambda error: isinstance(error, BrokerError)
        )

    def refresh_missing(
        self, committed: Mapping[TopicPartitionKey, CommittedOffset]
    ) -> Mapping[TopicPartitionKey, CommittedOffset]:
        """Return `committed`, with the missing offsets read again: another worker may have
        committed them meanwhile.

        The list of begun partitions is read again first, then the offsets. In the other order, if
        another worker begins a partition between the two requests, its offset would seem deleted.
        """
        missing = [key for key, entry in committed.items() if entry.offset is None]
        if not missing:
            return committed
        self._retry(self._beginnings.refresh)
        return {**committed, **self.source.committed(missing)}

    def _first_epoch(self, key: TopicPartitionKey) -> int:
        try:
            return startup.first_epoch(self._settings, self._cluster, self._beginnings, key)
        except FirstStartError:
            # Kafka deletes the committed offsets of a deleted topic; then `check_topics` raises a
            # clearer error.
            self.check_topics()
            raise

    # -- RebalanceListener

    def assigned(self, keys: Sequence[TopicPartitionKey]) -> Mapping[TopicPartitionKey, int]:
        """Take over partitions at their committed offsets; pause those that the outputs lack."""
        self._drain()
        self._forget_unread(keys)
        self._metrics.count_rebalance()
        if not self._has_partitions:
            # The topic may have been created again since the start or since the last assignment.
            self.check_topics()
        self._has_partitions = True
        starts = self._adopt_committed(self.source.committed(keys))
        unserved = [key for key in keys if key[1] >= self._output_partitions]
        if unserved:
            self._unserved.update(unserved)
            self.source.pause(unserved)
            self._logger.error(
                "the output topics have fewer partitions than the source; these partitions wait: grow "
                "the outputs with `stream-dedup topics apply`",
                partitions=[f"{topic}-{partition}" for topic, partition in unserved],
                output_partitions=self._output_partitions,
            )
        self._logger.info(
            "partitions assigned", partitions=sorted(partition for _, partition in keys)
        )
        return starts

    def revoked(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Give up partitions."""
        self._drain()
        self._metrics.count_rebalance()
        self._flow.revoked(keys)
        self._forget_unread(keys)
        self._unserved.difference_update(keys)
        self._has_partitions = bool(self._flow.owned())
        self._logger.info(
            "partitions revoked", partitions=sorted(partition for _, partition in keys)
        )

    def lost(self, keys: Sequence[TopicPartitionKey]) -> None:
        """Give up partitions that another worker may own already."""
        self._drain()
        self._metrics.count_rebalance()
        self._flow.lost(keys)
        self._forget_unread(keys)
        self._unserved.difference_update(keys)
        self._has_partitions = False
        self._must_reread = bool(self._flow.owned())
        self._logger.warning(
            "partitions lost", partitions=sorted(partition for _, partition in keys)
        )

    def group_metadata_changed(self, group_metadata: bytes) -> None:
        """Give the batches that survived the rebalance the new group metadata."""
        self._drain()
        self.has_joined = self._has_partitions and (generation_of(group_metadata) or 0) >= 0
        if self._flow.renew_group_metadata(group_metadata, generation_of(group_metadata)):
            self._must_reread = True

    # -- the topics

    def served(self) -> list[TopicPartitionKey]:
        """Return the owned partitions that also exist in the outputs."""
        return [key for key in self._flow.owned() if key not in self._unserved]

    def watch_topics(self, *, soon: bool, is_unreadable: bool) -> None:
        """Process the last ids of the topics, and request them again every half minute, or `soon`.

        `is_unreadable`: the topic of the verdicts cannot be read.

        Raises:
            StreamDedupError: the source topic or the log was created again.
        """
        topic_ids = self._topic_ids.poll(soon=soon or bool(self._unserved))
        self._check_topic_ids(topic_ids)
        verdicts = self._cluster.names.verdicts
        if is_recreated(topic_ids, verdicts, self._verdicts_id) or (
            is_unreadable and verdicts in topic_ids
        ):
            self._verdicts_id = topic_ids[verdicts].topic_id
            self._reopen_verdicts()
        output_names = self._cluster.names.outputs
        outputs = [topic_ids[name].partitions for name in output_names if name in topic_ids]
        if len(outputs) == len(output_names):
            self._output_partitions = min(outputs)
            self._resume_served()

    def check_topics(self) -> None:
        """Check now whether a topic was created again.

        Raises:
            StreamDedupError: the source topic or the log was.
        """
        self._check_topic_ids(self._topic_ids.fetch())

    def _fetch_topic_ids(self) -> TopicIds:
        """Return the ids of the topics that the worker uses; {} while Kafka does not answer."""
        if self._retry_policy.is_silent():
            return {}  # the request would only time out
        names = self._cluster.names
        topics = [names.documents, *names.outputs, names.fingerprints, names.verdicts]
        return self._make_admin(self._settings).topic_ids(topics)

    def _check_topic_ids(self, topic_ids: TopicIds) -> None:
        names = self._cluster.names
        for name, known_id in (
            (names.documents, self._cluster.source_id),
            (names.fingerprints, self._cluster.log_id),
        ):
            if is_recreated(topic_ids, name, known_id):
                raise StreamDedupError(
                    f"The topic {name} was deleted and created again; this worker exits so that a "
                    "restart begins with the new topic."
                )

    def _resume_served(self) -> None:
        """Resume the partitions that the outputs have now."""
        served = {key for key in self._unserved if key[1] < self._output_partitions}
        if served:
            self._unserved -= served
            self.source.resume(served)
            self._logger.info(
                "partitions were added to the outputs; reading continues",
                partitions=sorted(partition for _, partition in served),
            )
