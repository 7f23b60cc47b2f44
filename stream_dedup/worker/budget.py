"""How many bytes a worker may hold at once: of records that are read ahead, prepared, waiting for
verdicts, in a transaction or in a queue of Kafka's client.

The memory that the worker may take, less what it takes before it reads, is divided into parts. One
batch may bring one part. What they are for, when batches of one part each are under way everywhere:

    6   records held: four batches in flight, one being prepared, one read ahead. Where texts lie elsewhere the records are
        small, and two of these parts are for texts that were fetched before their turn
    4   preparing one batch: its text, decoded, normalised and with folded letters, measured as 4.0 times its bytes
    2   a transaction: what Kafka's client holds of it, once as records and once as requests
    3   records that are fetched and not yet read, compressed and not
    5   what the C library keeps of freed memory, and misjudged sizes

Invariants: one record always fits, so a worker goes on for every size; nothing that was read is put
back, because what comes beyond a part is bounded by what Kafka's client holds ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from stream_dedup.domain.memory_limit import limit_of_group, machine_bytes
from stream_dedup.domain.messages import Messages
from stream_dedup.settings.settings import Settings

_PARTS: Final = 20
_HELD_PARTS: Final = 6
_AHEAD_PARTS: Final = 2
_AHEAD_BYTES_MAX: Final = 64 << 20
# A tenth stays free: the limit is where the system kills.
_FREE_SHARE: Final = 10
# Kafka's clients and their threads, kernels that are loaded with the first batch.
_STARTING_BYTES: Final = 64 << 20
_LEAST_PART_BYTES: Final = 1 << 20
_QUEUE_BYTES_MAX: Final = 32 << 20
_FETCH_BYTES_MAX: Final = 8 << 20
# Without a limit of its own a worker is held to what its manifest allows, or less on a small
# machine.
_UNLIMITED_BYTES: Final = 1 << 30
_MACHINE_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class WorkerBudget:
    """The bytes that the process may take; `part_bytes` of records may one batch bring."""

    limit_bytes: int
    part_bytes: int

    @classmethod
    def of(cls, limit_bytes: int, resident_bytes: int) -> WorkerBudget:
        """Divide the memory up to a limit, when `resident_bytes` are taken already."""
        room = limit_bytes - limit_bytes // _FREE_SHARE - resident_bytes - _STARTING_BYTES
        return cls(limit_bytes, max(_LEAST_PART_BYTES, room // _PARTS))

    @property
    def is_tight(self) -> bool:
        """Whether there is no more than the least with which a worker goes on, and so perhaps too
        little.
        """
        return self.part_bytes == _LEAST_PART_BYTES

    @property
    def kept_bytes(self) -> int:
        """How much freed memory the C library may keep for each of its arenas."""
        return self.part_bytes

    @property
    def ahead_bytes(self) -> int:
        """How many bytes of texts that lie elsewhere may be held before their turn."""
        return min(_AHEAD_BYTES_MAX, _AHEAD_PARTS * self.part_bytes)

    def room(self, held_bytes: int) -> int:
        """Return how many bytes another batch may bring beside those that are held; 0: it waits."""
        fits = held_bytes + self.part_bytes <= _HELD_PARTS * self.part_bytes
        return self.part_bytes if fits or not held_bytes else 0

    def queues(self, record_bytes_max: int) -> dict[str, str]:
        """Return the sizes of the queues of Kafka's clients, as librdkafka's properties; one record
        must fit into each.
        """
        queued = min(_QUEUE_BYTES_MAX, self.part_bytes)
        sent = max(2 * self.part_bytes, 2 * record_bytes_max)
        return {
            "queued.max.messages.kbytes": str(queued >> 10),
            "fetch.max.bytes": str(max(_LEAST_PART_BYTES, min(_FETCH_BYTES_MAX, queued // 4))),
            "queue.buffering.max.kbytes": str(sent >> 10),
        }

    def settings_for_clients(self, settings: Settings, record_bytes_max: int) -> Settings:
        """Return the settings with these queues, but for those that the operator set."""
        return settings.model_copy(update={"kafka": self.queues(record_bytes_max) | settings.kafka})


def limit_of(memory: int | None, group_limit: int | None, machine_bytes: int) -> int:
    """Return how many bytes a worker may take: what is set, what its control group allows, or a
    part of the machine.
    """
    return memory or group_limit or min(_UNLIMITED_BYTES, machine_bytes // _MACHINE_SHARE)


def budget_of(settings: Settings, resident_bytes: int, logger: Any) -> WorkerBudget:
    """Return what the worker may hold, from what it takes now that its dictionary is read; the log
    tells it.
    """
    budget = WorkerBudget.of(
        limit_of(settings.memory, limit_of_group(), machine_bytes()), resident_bytes
    )
    sizes = {"limit_mib": budget.limit_bytes >> 20, "batch_mib": budget.part_bytes >> 20}
    if budget.is_tight:
        logger.warning(
            "memory is tight: raise the limit, or set STREAM_DEDUP_MEMORY to what may be taken",
            **sizes,
        )
    else:
        logger.info("memory is divided", **sizes)
    return budget


class RecordSizes:
    """What records take on average, from the last reads: how many of them to ask for where bytes
    are bounded.
    """

    def __init__(self) -> None:
        self._mean_bytes = 4096.0

    def read_messages(self, messages: Messages) -> None:
        """Learn from what was read."""
        if len(messages):
            self._mean_bytes = (self._mean_bytes + messages.held_bytes / len(messages)) / 2

    def records(self, most: int, room_bytes: int) -> int:
        """Return how many records to ask for: `most` at most, one at least; 0 when there is no
        room.
        """
        return (
            min(most, max(1, int(room_bytes / self._mean_bytes)))
            if most > 0 and room_bytes > 0
            else 0
        )
