"""Source partitions, numbered in the order in which the log names them, so that an entry needs four bytes for one.

Invariants: a number is given once and never again; a partition is known by its topic's name, id and number together,
because the id of a topic that has none (a file) is all zeros.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.document import Position
from stream_dedup.ground.errors import FormatError
from stream_dedup.index.volume.contract import Writes
from stream_dedup.index.volume.layout import decode_source, encode_source, number_of, source_key
from stream_dedup.log.frame import table_of


class Sources:
    """The numbered source partitions."""

    def __init__(self, stored: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._names: list[tuple[str, bytes, int]] = []
        self._numbers: dict[tuple[str, bytes, int], int] = {}
        self._latest: dict[tuple[str, int], int] = {}
        for key, value in stored:
            if number_of(key) != len(self._names):
                raise FormatError("The index volume lacks the name of a source partition; rebuild it.")
            self.number(*decode_source(value))
        self._stored = len(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def number(self, topic: str, topic_id: bytes, partition: int) -> int:
        """Return the partition's number, giving it one if it is new."""
        name = (topic, topic_id, partition)
        number = self._numbers.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
            self._latest[topic, partition] = number
        return number

    def find(self, topic: str, topic_id: bytes, partition: int) -> int | None:
        """Return the partition's number, or None if no batch named it."""
        return self._numbers.get((topic, topic_id, partition))

    def name(self, source: int) -> tuple[str, bytes, int]:
        """Return a numbered partition's topic, topic id and partition."""
        return self._names[source]

    def is_latest(self, source: int) -> bool:
        """Return whether no topic of the same name was created since, whose documents have the same positions."""
        topic, _, partition = self._names[source]
        return self._latest[topic, partition] == source

    def position(self, source: int, offset: int) -> Position:
        """Return a position in a numbered partition."""
        topic, topic_id, partition = self._names[source]
        return Position(topic, topic_id, partition, offset)

    def named(self, sources: NDArray[np.uint32]) -> tuple[list[tuple[str, bytes, int]], NDArray[np.uint16]]:
        """Return the partitions with these numbers (n,) in the order in which they come first, and each one's place there."""
        numbers, places = table_of(sources)
        return [self._names[number] for number in numbers.tolist()], places.astype(np.uint16)

    def place(self, position: Position) -> tuple[int, int]:
        """Return the (source, offset) of a position in a numbered partition."""
        return self._numbers[position.topic, position.topic_id, position.partition], position.offset

    def add_writes(self, writes: Writes) -> None:
        """Add the partitions that were numbered since the last call."""
        for number in range(self._stored, len(self._names)):
            writes.put(source_key(number), encode_source(*self._names[number]))
        self._stored = len(self._names)
