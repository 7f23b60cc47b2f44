"""The worker's memory budget: records read ahead, being prepared, waiting for verdicts, in a
transaction or in a queue of Kafka's client.

The memory limit, less the memory used before the first read, is divided into 20 equal parts. One
batch may use one part. If every stage processes a batch of that size, the parts are used for:

    6   records: four batches in flight, one being prepared, one read ahead. If the texts are in
        other storage, the records are small, and two of these parts are for prefetched texts
    4   preparing one batch: its text decoded, normalised and case-folded; measured, four times its
        bytes
    2   a transaction: Kafka's client stores it once as records and once as requests
    3   records that are fetched and not yet read, compressed and uncompressed
    5   freed memory that the C library keeps, and errors of estimated sizes

Invariants: one record always fits, of any size, so the worker never stops for lack of memory;
a batch exceeds its part by at most the size of the Kafka client's queues, so no record that was
read has to be read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from structlog.typing import FilteringBoundLogger

from stream_dedup.domain.memory_limit import limit_of_group, machine_bytes
from stream_dedup.domain.messages import Messages
from stream_dedup.settings.settings import Settings

_PARTS: Final = 20
_RECORD_PARTS: Final = 6
_AHEAD_PARTS: Final = 2
_AHEAD_BYTES_MAX: Final = 64 << 20
# A tenth stays free: the system kills the process at the limit.
_FREE_SHARE: Final = 10
# Kafka's clients and their threads, and the kernels that the first batch loads.
_STARTING_BYTES: Final = 64 << 20
_LEAST_PART_BYTES: Final = 1 << 20
_QUEUE_BYTES_MAX: Final = 32 << 20
_FETCH_BYTES_MAX: Final = 8 << 20
# Without a configured limit: as much as the chart gives a worker, less on a small machine.
_UNLIMITED_BYTES: Final = 1 << 30
_MACHINE_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class WorkerBudget:
    """The memory limits of the process, `limit_bytes`, and of one batch's records, `part_bytes`."""

    limit_bytes: int
    part_bytes: int

    @classmethod
    def of(cls, limit_bytes: int, resident_bytes: int) -> WorkerBudget:
        """Divide `limit_bytes`, of which `resident_bytes` are already used, into parts."""
        room = limit_bytes - limit_bytes // _FREE_SHARE - resident_bytes - _STARTING_BYTES
        return cls(limit_bytes, max(_LEAST_PART_BYTES, room // _PARTS))

    @property
    def is_tight(self) -> bool:
        """Whether the part is at its minimum, so that memory may not suffice."""
        return self.part_bytes == _LEAST_PART_BYTES

    @property
    def ahead_bytes(self) -> int:
        """Limit of prefetched texts, in bytes."""
        return min(_AHEAD_BYTES_MAX, _AHEAD_PARTS * self.part_bytes)

    def room(self, held_bytes: int) -> int:
        """Return how many bytes another batch may take besides `held_bytes`; 0 means wait."""
        fits = held_bytes + self.part_bytes <= _RECORD_PARTS * self.part_bytes
        return self.part_bytes if fits or not held_bytes else 0

    def queues(self, record_bytes_max: int) -> dict[str, str]:
        """Return the queue sizes of Kafka's clients as librdkafka properties; each queue can store
        one record of `record_bytes_max`.
        """
        consumer_bytes = min(_QUEUE_BYTES_MAX, self.part_bytes)
        producer_bytes = max(2 * self.part_bytes, 2 * record_bytes_max)
        return {
            "queued.max.messages.kbytes": str(consumer_bytes >> 10),
            "fetch.max.bytes": str(
                max(_LEAST_PART_BYTES, min(_FETCH_BYTES_MAX, consumer_bytes // 4))
            ),
            "queue.buffering.max.kbytes": str(producer_bytes >> 10),
        }

    def settings_for_clients(self, settings: Settings, record_bytes_max: int) -> Settings:
        """Return the settings with these queue sizes; the operator's own properties take
        precedence.
        """
        return settings.model_copy(update={"kafka": self.queues(record_bytes_max) | settings.kafka})


def limit_of(memory: int | None, group_limit: int | None, machine_bytes: int) -> int:
    """Return the memory limit in bytes: the setting, the control group's limit, or a share of the
    machine's memory.
    """
    return memory or group_limit or min(_UNLIMITED_BYTES, machine_bytes // _MACHINE_SHARE)


def budget_of(
    settings: Settings, resident_bytes: int, logger: FilteringBoundLogger
) -> WorkerBudget:
    """Return the budget and log it. `resident_bytes` must include the recipe's dictionary."""
    budget = WorkerBudget.of(
        limit_of(settings.memory, limit_of_group(), machine_bytes()), resident_bytes
    )
    sizes = {"limit_mib": budget.limit_bytes >> 20, "batch_mib": budget.part_bytes >> 20}
    if budget.is_tight:
        logger.warning(
            "the worker has too little memory: raise its limit, or set STREAM_DEDUP_MEMORY to "
            "the memory that it may use",
            **sizes,
        )
    else:
        logger.info("memory is divided", **sizes)
    return budget


class RecordSizes:
    """Converts a limit in bytes into a number of records, by the mean memory of recent records."""

    def __init__(self) -> None:
        self._mean_bytes = 4096.0

    def observe(self, messages: Messages) -> None:
        """Update the mean from the records just read."""
        if len(messages):
            self._mean_bytes = (self._mean_bytes + messages.held_bytes / len(messages)) / 2

    def records(self, records_max: int, room_bytes: int) -> int:
        """Return how many records to request, from 1 to `records_max`; 0 if there is no room."""
        return (
            min(records_max, max(1, int(room_bytes / self._mean_bytes)))
            if records_max > 0 and room_bytes > 0
            else 0
        )
