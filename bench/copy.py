"""Copy `documents` to `copy` exactly once, and do nothing else: the baseline of `bench path`.

The program uses the worker's clients in the worker's order (consume, produce, send offsets,
commit), so that the difference between both is the cost of the filter, not of Kafka. Unlike the
worker, it writes with one call for each record, as usual with confluent-kafka. Like a worker, it is
a child process.

Invariants: each record is copied at the next offset of its partition, so records of a partition
that moved are left to its new owner; nothing is in flight between two calls, so partitions can move
at any time. If partitions move during a transaction, Kafka aborts it, and its records are read
again; any other abort ends the program, because the measurement would be wrong.
"""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence

import numpy as np

from stream_dedup.domain.document import TopicPartitionKey, maker_of
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.domain.messages import Messages
from stream_dedup.kafka import Admin, Outcome, Output, SourceConsumer, TransactionalOutput
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings

TOPIC = "copy"
_output = maker_of(Output)
_IDLE_SECONDS = 0.1
# How long a transaction that is not full waits for more.
_FILL_SECONDS = 0.02


class _Positions:
    """The next offset of each assigned partition: the committed offset of the group, or 0 if there
    is none.
    """

    def __init__(self, settings: Settings) -> None:
        self._admin = Admin(settings)
        self._group = settings.group
        self.next: dict[TopicPartitionKey, int] = {}
        self.moves = 0

    def assigned(self, keys: Sequence[TopicPartitionKey]) -> Mapping[TopicPartitionKey, int]:
        committed = self._admin.stable_committed(self._group)
        starts = {key: committed[key][0] if key in committed else 0 for key in keys}
        self.next |= starts
        return starts

    def revoked(self, keys: Sequence[TopicPartitionKey]) -> None:
        for key in keys:
            self.next.pop(key, None)

    def lost(self, keys: Sequence[TopicPartitionKey]) -> None:
        self.revoked(keys)

    def copies(self, messages: Messages, target: str) -> list[Output]:
        """Return a copy of each record that is its partition's next, and count it."""
        topic, following, given, copies = messages.topic, self.next, messages.headers, []
        partitions, offsets, times_ms = (
            column.tolist()
            for column in (
                messages.partitions,
                messages.offsets,
                np.maximum(messages.timestamps_ms, 0),
            )
        )
        columns = zip(partitions, offsets, messages.keys, messages.values, times_ms, strict=True)
        for place, (partition, offset, key, value, time_ms) in enumerate(columns):
            if following.get((topic, partition)) == offset:
                following[topic, partition] = offset + 1
                copies.append(
                    _output(
                        (
                            target,
                            partition,
                            key,
                            value,
                            time_ms,
                            given.get(place, []) if given else [],
                        )
                    )
                )
        return copies

    def group_metadata_changed(self, group_metadata: bytes) -> None:  # noqa: ARG002 - the listener's signature
        self.moves += 1


def run(settings: Settings) -> None:
    """Copy until standard input ends.

    Raises:
        StreamDedupError: a transaction did not commit, and not because partitions moved.
    """
    names = settings.topic_names
    target = names.named(TOPIC)
    positions = _Positions(settings)
    name = settings.worker_id or "copy"
    output = TransactionalOutput(settings, f"{settings.group}-{name}", f"{name}-output")
    source = SourceConsumer(settings, names.documents, name, positions)
    aborted = 0
    try:
        while not _input_has_ended():
            taken = _read_batch(source, settings.batch_documents)
            outputs = [
                copied for messages in taken for copied in positions.copies(messages, target)
            ]
            if not outputs:
                continue
            moved = {(names.documents, copied.partition) for copied in outputs}
            offsets = [
                (topic, partition, positions.next[topic, partition], "")
                for topic, partition in moved
            ]
            result = output.run(outputs, offsets, source.group_metadata())
            if result.outcome is Outcome.COMMITTED:
                continue
            aborted += 1
            # Of a move Kafka tells the transaction at once, and us by a callback soon after: one
            # move may be behind.
            if result.outcome is not Outcome.ABORTED or aborted > positions.moves:
                raise StreamDedupError(
                    f"A transaction of the copy ended as {result.outcome.value}: {result.why}"
                )
            positions.next |= {
                key: owned.offset or 0 for key, owned in source.committed(positions.next).items()
            }
            source.restart_at(positions.next)
    finally:
        source.close()
        output.close()


def _read_batch(source: SourceConsumer, most: int) -> list[Messages]:
    taken = [source.take_messages(most, _IDLE_SECONDS)]
    while taken[-1] and (room := most - sum(map(len, taken))):
        taken.append(source.take_messages(room, _FILL_SECONDS))
    return taken


def _input_has_ended() -> bool:
    """Return whether the parent closed our standard input; nothing is ever written to it."""
    return bool(select.select([0], [], [], 0)[0])


if __name__ == "__main__":
    run(load_settings({}))
