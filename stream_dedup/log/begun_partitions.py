"""The topic `begun`: which partitions of a source topic were begun, and how documents are read.

Its records are control records in the log's frame (`records`), of three types:

    begun   {log, topic, topic_id, partitions}: workers have started to read these partitions, with
            that log
    opened  {log}: from here on the list is complete. The records before this one name the
            partitions that were begun with that log before the topic `begun` existed
    reading {log, settings, changes}: the settings that decide text, id and scope of a document. The
            first one in the topic is in force, so that two workers that start together agree; one
            with `changes` (by `declare`) replaces it

`log` and `topic_id` are the ids, in hex, that Kafka assigns a topic at its creation, so records of a
deleted topic of the same name are ignored.

Invariant: a record `begun` is appended only when the group has a committed offset for the
partition, and before a record of the partition is read. So if a begun partition has no committed
offset, the offset was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from stream_dedup.log.records import Control, LogRecord, encode_control


@dataclass(slots=True)
class BegunPartitions:
    """The begun partitions of a source topic with a log; `fold` applies the records of the topic
    `begun` in order.

    `is_complete`: `opened` was read. `reading` are the settings in force, `first_reading` the first
    ones.
    """

    log_id: bytes
    topic_id: bytes
    partitions: set[int] = field(default_factory=set)
    is_complete: bool = False
    reading: dict[str, str | None] | None = None
    first_reading: dict[str, str | None] | None = None

    def fold_all(self, records: Iterable[tuple[int, LogRecord | None]]) -> Self:
        """Apply all (offset, record) of the topic, and return this object."""
        for _, record in records:
            self.fold(record)
        return self

    def fold(self, record: LogRecord | None) -> None:
        """Apply the next record; ignore unknown records and those of another log or topic."""
        if not isinstance(record, Control) or record.fields.get("log") != self.log_id.hex():
            return
        if record.type == "opened":
            self.is_complete = True
        elif record.type == "reading":
            settings = record.fields.get("settings")
            if isinstance(settings, dict) and (
                self.reading is None or record.fields.get("changes") is True
            ):
                self.reading = settings
                self.first_reading = self.first_reading or settings
        elif record.type == "begun" and record.fields.get("topic_id") == self.topic_id.hex():
            partitions = record.fields.get("partitions")
            self.partitions.update(
                partition
                for partition in (partitions if isinstance(partitions, list) else ())
                if isinstance(partition, int)
            )


def encode_begun(log_id: bytes, topic: str, topic_id: bytes, partitions: Iterable[int]) -> bytes:
    """Encode the record `begun` of these partitions."""
    fields = {
        "log": log_id.hex(),
        "topic": topic,
        "topic_id": topic_id.hex(),
        "partitions": sorted(partitions),
    }
    return encode_control(Control("begun", fields))


def encode_opened(log_id: bytes) -> bytes:
    """Encode the record `opened`."""
    return encode_control(Control("opened", {"log": log_id.hex()}))


def encode_reading(log_id: bytes, reading: Mapping[str, str | None], *, changes: bool) -> bytes:
    """Encode the record `reading`."""
    return encode_control(
        Control("reading", {"log": log_id.hex(), "settings": dict(reading), "changes": changes})
    )
