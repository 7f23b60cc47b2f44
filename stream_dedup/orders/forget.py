"""Forgetting: whether the log knows an id, and whether it was forgotten already.

Invariants: an id is looked for as the log holds it: shortened, or its keyed digest (`log_form`); a
document counts once, however often its worker had to ask for its verdict, because a document is a
position and not a row of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stream_dedup.domain.document import Position, digest_id, shorten_id
from stream_dedup.log.records import Batch, Control, LogRecord


def log_form(identifier: bytes, log_ids: str, key: bytes) -> bytes:
    """Return an id as the log holds it; `log_ids` is what the log was begun with."""
    short = shorten_id(identifier)
    return digest_id(short, key) if log_ids == "digest" else short


@dataclass(slots=True)
class KnownId:
    """What the log says of one id. `documents` were ever recorded with it, `since` of them after it
    was last forgotten.

    One that is asked for again behind a `forget` counts in `since`: the log alone does not say that
    it stays down.
    """

    id: bytes
    forgotten_at: list[int] = field(default_factory=list)
    _ever: set[Position] = field(default_factory=set)
    _since: set[Position] = field(default_factory=set)

    @property
    def documents(self) -> int:
        """How many documents were ever recorded with the id."""
        return len(self._ever)

    @property
    def since(self) -> int:
        """How many were recorded after it was last forgotten."""
        return len(self._since)

    def fold(self, log_offset: int, record: LogRecord | None) -> None:
        """Take in the next record of the log."""
        if isinstance(record, Control):
            ids = record.fields.get("ids")
            if record.type == "forget" and isinstance(ids, list) and self.id.hex() in ids:
                self.forgotten_at.append(log_offset)
                self._since.clear()
        elif record is not None:
            batch = record if isinstance(record, Batch) else record.batch
            found = {batch.position(place) for place, one in enumerate(batch.ids) if one == self.id}
            self._ever |= found
            self._since |= found
