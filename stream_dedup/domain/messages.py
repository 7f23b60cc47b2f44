"""Source records as columns: one sequence for each field.

Invariants: all records are of one topic, in the order in which they were read; the columns never
change. A `Message` is created only when it is read: creating one for every record would cost the
worker as much as writing the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import Headers, Message, TopicPartitionKey, Unreadable
from stream_dedup.domain.lazy_sequences import Lazy

# Kafka's number for a record without a timestamp. Readers treat 0 and other negative numbers alike:
# librdkafka cannot write 0, and Apache Kafka's clients cannot write negative numbers.
NO_TIMESTAMP = -1
# Memory of a record besides its bytes: Python objects, columns, id, fingerprint, verdict, headers
# of its output.
_RECORD_BYTES = 700
# Memory of a header besides its bytes: a tuple, a str and a bytes object. A record of 300 kB can
# contain 100,000 headers.
_HEADER_BYTES = 140


@dataclass(eq=False, repr=False, slots=True)
class Messages(Lazy[Message]):
    """Records of one topic; each column is (n,).

    `headers` contains, by place, the headers of the records that have any; `unreadable`, by place,
    the records that the client could not read completely. `timestamps_ms` is `NO_TIMESTAMP` for a
    record without a timestamp.
    """

    topic: str
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: NDArray[np.int64]
    headers: Mapping[int, Headers]
    unreadable: Mapping[int, Unreadable]
    _value_bytes: NDArray[np.int64] | None = field(default=None, init=False)
    _held_bytes: int | None = field(default=None, init=False)

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Messages:
        """Return records as columns.

        Raises:
            ValueError: the records are of more than one topic.
        """
        if isinstance(messages, Messages):
            return messages
        topics = {message.topic for message in messages}
        if len(topics) > 1:
            raise ValueError(f"expected records of one topic, not of {sorted(topics)}")
        count = len(messages)
        times = (
            NO_TIMESTAMP if message.timestamp_ms is None else message.timestamp_ms
            for message in messages
        )
        return cls(
            next(iter(topics), ""),
            np.fromiter((message.partition for message in messages), np.int32, count),
            np.fromiter((message.offset for message in messages), np.int64, count),
            [message.key for message in messages],
            [message.value for message in messages],
            np.fromiter(times, np.int64, count),
            {place: message.headers for place, message in enumerate(messages) if message.headers},
            {
                place: message
                for place, message in enumerate(messages)
                if isinstance(message, Unreadable)
            },
        )

    @classmethod
    def joined(cls, parts: Sequence[Messages]) -> Messages:
        """Concatenate the records of several reads of one topic."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.of([])
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        headers: dict[int, Headers] = {}
        unreadable: dict[int, Unreadable] = {}
        for part in parts:
            before = len(keys)
            keys += part.keys
            values += part.values
            headers |= {before + place: pairs for place, pairs in part.headers.items()}
            unreadable |= {before + place: record for place, record in part.unreadable.items()}
        return cls(
            next((part.topic for part in parts if len(part)), ""),
            np.concatenate([part.partitions for part in parts]),
            np.concatenate([part.offsets for part in parts]),
            keys,
            values,
            np.concatenate([part.timestamps_ms for part in parts]),
            headers,
            unreadable,
        )

    def part(self, start: int, stop: int) -> Messages:
        """Return the records at the places `start` to `stop` - 1."""
        if start == 0 and stop == len(self):
            return self
        return Messages(
            self.topic,
            self.partitions[start:stop],
            self.offsets[start:stop],
            self.keys[start:stop],
            self.values[start:stop],
            self.timestamps_ms[start:stop],
            {
                place - start: pairs
                for place, pairs in self.headers.items()
                if start <= place < stop
            },
            {
                place - start: record
                for place, record in self.unreadable.items()
                if start <= place < stop
            },
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def _item(self, place: int) -> Message:
        if place in self.unreadable:
            return self.unreadable[place]
        time_ms = int(self.timestamps_ms[place])
        return Message(
            self.topic,
            int(self.partitions[place]),
            int(self.offsets[place]),
            self.keys[place],
            self.values[place],
            None if time_ms == NO_TIMESTAMP else time_ms,
            self.headers.get(place, []),
        )

    @property
    def value_bytes(self) -> NDArray[np.int64]:
        """Size of each value in bytes, (n,)."""
        if self._value_bytes is None:
            self._value_bytes = sizes_of(self.values)
        return self._value_bytes

    @property
    def held_bytes(self) -> int:
        """Approximate memory in bytes of the records and of the values computed from them."""
        if self._held_bytes is None:
            in_headers = sum(
                len(name) + len(value or b"") + _HEADER_BYTES
                for pairs in self.headers.values()
                for name, value in pairs
            )
            in_keys = int(sizes_of(self.keys).sum())
            self._held_bytes = (
                int(self.value_bytes.sum()) + in_keys + in_headers + _RECORD_BYTES * len(self)
            )
        return self._held_bytes

    def key(self, place: int) -> TopicPartitionKey:
        """Return topic and partition of the record at `place`."""
        return self.topic, int(self.partitions[place])

    def last_offsets(self) -> dict[TopicPartitionKey, int]:
        """Return the offset of the last record of each partition."""
        partitions, places_from_end = np.unique(self.partitions[::-1], return_index=True)
        offsets = self.offsets[len(self) - 1 - places_from_end].tolist()
        return {
            (self.topic, partition): offset
            for partition, offset in zip(partitions.tolist(), offsets, strict=True)
        }

    def first_offsets(self) -> dict[TopicPartitionKey, int]:
        """Return the offset of the first record of each partition."""
        partitions, places = np.unique(self.partitions, return_index=True)
        return {
            (self.topic, partition): int(self.offsets[place])
            for partition, place in zip(partitions.tolist(), places, strict=True)
        }

    def are_from(self, keys: set[TopicPartitionKey]) -> NDArray[np.bool_]:
        """Return the mask of the records from these partitions, (n,)."""
        partitions = [partition for topic, partition in keys if topic == self.topic]
        return np.isin(self.partitions, partitions)


def sizes_of(parts: Sequence[bytes | None]) -> NDArray[np.int64]:
    """Return the size of each part in bytes, (n,); 0 for None."""
    try:
        return np.fromiter(map(len, parts), np.int64, len(parts))  # type: ignore[arg-type]
    except TypeError:  # there is a None; a check before would double the time
        return np.fromiter((len(part or b"") for part in parts), np.int64, len(parts))
