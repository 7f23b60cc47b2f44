"""What a transaction writes, and how it ended."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from stream_dedup.ground.document import Headers
from stream_dedup.kafka.bulk import RecordColumns


class Output(NamedTuple):
    """One record to write. With a timestamp of None it is written without one, as it came."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: Headers


class PackedOutputs(Sequence[Output]):
    """Outputs that lie in columns: those that are `packed` are written from there, and the others are asked for by place."""

    @property
    @abstractmethod
    def columns(self) -> RecordColumns:
        """The columns, with a place for each of them."""


class Outcome(enum.Enum):
    """How a transaction ended. UNKNOWN: ask the broker for the committed offsets before anything else."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Result(NamedTuple):
    """How a transaction ended, and which of its outputs (by index) the broker refused for what they are.

    `is_late`: outputs were not written in their time, so fewer of them may be, unless Kafka was away.
    """

    outcome: Outcome
    refused: tuple[int, ...] = ()
    why: str = ""
    is_late: bool = False
