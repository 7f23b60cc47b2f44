"""What the topic `begun` says: which partitions of which source topic were begun, and how documents
are read.

Its records are control records in the frame of the log's (`records`), of three types:

    begun   {log, topic, topic_id, partitions}: these partitions were begun, under that log
    opened  {log}: what was begun under that log before this topic was, stands in front of this record
    reading {log, settings, changes}: what decides text, id and scope of a document. Of those of workers the first holds, so
            that of two first workers both follow one; one that `changes` (by `declare`) holds from
            there on

`log` and `topic_id` are the ids, in hex, that Kafka gives a topic at its creation: what a log or a
source topic of the same name had before it was created again says nothing of this one.

Invariant: a record `begun` is appended only when the group has a committed offset for the
partition, and before anything of the partition is read. So a partition that was begun and has no
committed offset has lost it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from stream_dedup.log.records import Control, LogRecord, encode_control


@dataclass(slots=True)
class BegunTopic:
    """What was begun of one source topic under one log; `fold` takes the topic's records in their
    order.

    `reading` is in force, `first_reading` was first.
    """

    log_id: bytes
    topic_id: bytes
    partitions: set[int] = field(default_factory=set)
    is_open: bool = False
    reading: dict[str, str | None] | None = None
    first_reading: dict[str, str | None] | None = None

    def fold_all(self, found: Iterable[tuple[int, LogRecord | None]]) -> Self:
        """Take in (offset, record) of the topic, and return what is known then."""
        for _, record in found:
            self.fold(record)
        return self

    def fold(self, record: LogRecord | None) -> None:
        """Take in the next record; what is not known here, or of another log or topic, is passed
        over.
        """
        if not isinstance(record, Control) or record.fields.get("log") != self.log_id.hex():
            return
        if record.type == "opened":
            self.is_open = True
        elif record.type == "reading":
            settings = record.fields.get("settings")
            if isinstance(settings, dict) and (
                self.reading is None or record.fields.get("changes") is True
            ):
                self.reading = settings
                self.first_reading = self.first_reading or settings
        elif record.type == "begun" and record.fields.get("topic_id") == self.topic_id.hex():
            found = record.fields.get("partitions")
            self.partitions.update(
                one for one in (found if isinstance(found, list) else ()) if isinstance(one, int)
            )


def encode_begun(log_id: bytes, topic: str, topic_id: bytes, partitions: Iterable[int]) -> bytes:
    """Return the bytes of a record that says that partitions were begun."""
    fields = {
        "log": log_id.hex(),
        "topic": topic,
        "topic_id": topic_id.hex(),
        "partitions": sorted(partitions),
    }
    return encode_control(Control("begun", fields))


def encode_opened(log_id: bytes) -> bytes:
    """Return the bytes of the record behind which nothing is missing."""
    return encode_control(Control("opened", {"log": log_id.hex()}))


def encode_reading(log_id: bytes, reading: Mapping[str, str | None], *, changes: bool) -> bytes:
    """Return the bytes of a record that says how documents are read."""
    return encode_control(
        Control("reading", {"log": log_id.hex(), "settings": dict(reading), "changes": changes})
    )
