"""Find an id in the log, and whether it was forgotten already.

Invariants: an id is compared in the form that the log stores, shortened or as a keyed digest
(`id_in_log`). Documents are counted by position, so one counts once even if its worker appended it
repeatedly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stream_dedup.domain.document import Position, digest_id, shorten_id
from stream_dedup.log.records import Batch, Control, LogRecord


def id_in_log(identifier: bytes, log_ids: str, key: bytes) -> bytes:
    """Return an id as the log stores it; `log_ids` is the log's declared setting."""
    short = shorten_id(identifier)
    return digest_id(short, key) if log_ids == "digest" else short


@dataclass(slots=True)
class KnownId:
    """The log's documents with an id: `documents` in total, `since` of them after the last `forget`.

    A document that was appended again after a `forget` counts in `since`, because the log alone does
    not show that the index still has its first verdict.
    """

    id: bytes
    forgotten_at: list[int] = field(default_factory=list)
    _positions: set[Position] = field(default_factory=set)
    _positions_since: set[Position] = field(default_factory=set)

    @property
    def documents(self) -> int:
        """Number of documents with the id."""
        return len(self._positions)

    @property
    def since(self) -> int:
        """Number of documents recorded after the id was last forgotten."""
        return len(self._positions_since)

    def fold(self, log_offset: int, record: LogRecord | None) -> None:
        """Apply the next record of the log."""
        if isinstance(record, Control):
            ids = record.fields.get("ids")
            if record.type == "forget" and isinstance(ids, list) and self.id.hex() in ids:
                self.forgotten_at.append(log_offset)
                self._positions_since.clear()
        elif record is not None:
            batch = record if isinstance(record, Batch) else record.batch
            positions = {
                batch.position(place)
                for place, identifier in enumerate(batch.ids)
                if identifier == self.id
            }
            self._positions |= positions
            self._positions_since |= positions
