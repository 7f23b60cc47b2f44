"""Records that no client can read: damaged batches, and any that expands beyond what librdkafka takes.

Invariants: an error on the way here would pass, a damaged batch is as damaged when it is fetched again, so nothing is given
up before the third failure at the same offset; each offset of such a batch comes once, in order, and the partition goes on.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from stream_dedup.ground.document import TopicPartitionKey, Unreadable

CODES: Final = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError.INVALID_MSG})
_AFTER: Final = 3


class Suspects:
    """Where reading failed, and how often."""

    def __init__(self) -> None:
        self._failures: dict[TopicPartitionKey, tuple[int, int]] = {}

    def fail(self, key: TopicPartitionKey, batch_offset: int, position: int, error: KafkaError) -> Unreadable | None:
        """Note a failure; return the record that cannot be read, once that is certain: its reader goes on behind it.

        librdkafka names the batch's first offset, not the `position` asked for, and would fetch it for ever. Where the
        batch ends nobody can say, so each of its offsets is tried; after the first of them one failure is enough.
        """
        offset = max(batch_offset, position)
        before, count = self._failures.get(key, (-1, 0))
        count = count + 1 if before == offset else _AFTER if before == offset - 1 and count == -1 else 1
        if count < _AFTER:
            self._failures[key] = (offset, count)
            return None
        self._failures[key] = (offset, -1)
        unreadable = Unreadable(*key, offset, None, None, None, [])
        unreadable.why = error.str()
        return unreadable
