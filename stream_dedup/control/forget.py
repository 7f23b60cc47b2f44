"""Take-downs: whether the log knows an id, and whether it was forgotten already.

Invariant: an id is looked for as the log holds it: shortened, or its keyed digest (`log_form`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stream_dedup.document import digest_id, shorten_id
from stream_dedup.log.records import Control, LogRecord


def log_form(identifier: bytes, log_ids: str, key: bytes) -> bytes:
    """Return an id as the log holds it; `log_ids` is what the log was begun with."""
    short = shorten_id(identifier)
    return digest_id(short, key) if log_ids == "digest" else short


@dataclass(slots=True)
class Known:
    """What the log says of one id. `documents` were ever recorded with it, `since` of them after it was last forgotten."""

    id: bytes
    documents: int = 0
    since: int = 0
    forgotten_at: list[int] = field(default_factory=list)

    def fold(self, log_offset: int, record: LogRecord | None) -> None:
        """Take in the next record of the log."""
        if isinstance(record, Control):
            ids = record.fields.get("ids")
            if record.type == "forget" and isinstance(ids, list) and self.id.hex() in ids:
                self.forgotten_at.append(log_offset)
                self.since = 0
        elif record is not None:
            ids_of = record.ids if hasattr(record, "ids") else record.batch.ids
            count = ids_of.count(self.id)
            self.documents += count
            self.since += count
