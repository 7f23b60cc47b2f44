"""Forgetting: whether the log knows an id, and whether it was forgotten already.

Invariants: an id is looked for as the log holds it: shortened, or its keyed digest (`log_form`); a document counts once,
however often its worker had to ask for its verdict, because a document is a position and not a row of the log.

What an order does not reach is told by `remains`: records that left, the log itself, and files whose old bytes nobody reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple

from stream_dedup.ground.document import Position, digest_id, shorten_id
from stream_dedup.ground.topics import TopicNames
from stream_dedup.log.records import Batch, Control, LogRecord
from stream_dedup.settings.units import format_duration

# RocksDB rewrites each file that is older (its option `ttl`).
_ROCKSDB_DAYS: Final = 30


def log_form(identifier: bytes, log_ids: str, key: bytes) -> bytes:
    """Return an id as the log holds it; `log_ids` is what the log was begun with."""
    short = shorten_id(identifier)
    return digest_id(short, key) if log_ids == "digest" else short


class Remains(NamedTuple):
    """What stays of a forgotten id: where, what of it, until when."""

    where: str
    what: str
    until: str


def remains(names: TopicNames, config: Mapping[str, Mapping[str, str]], log_ids: str) -> list[Remains]:
    """Return what `forget` does not take; `config` holds the settings of the topics that exist, by name."""
    whole = "its records, whole"
    id_there = "the id" if log_ids == "plain" else "a keyed digest of the id"
    topics = [
        (names.documents, whole),
        *((name, whole) for name in names.outputs),
        (names.fingerprints, f"{id_there}, and fingerprints that tell no word"),
        (names.verdicts, f"{id_there}, where it was the kept document's"),
    ]
    found = [Remains(name, what, _kept_until(config[name])) for name, what in topics if name in config]
    return [
        *found,
        Remains("the index's volume", "old bytes that nobody reads", f"RocksDB drops them within {_ROCKSDB_DAYS} days"),
        Remains(
            "snapshots of the index",
            f"{id_there}, with its fingerprint",
            "they are deleted; one that is taken later has nothing of it",
        ),
        Remains(
            "the search's volume",
            "old bytes that nobody reads",
            "the engine merges the files in which they lie; at once: delete the volume, it is filled anew without them",
        ),
    ]


def _kept_until(config: Mapping[str, str]) -> str:
    if "compact" in config.get("cleanup.policy", ""):
        return "another record of its key replaces it"
    kept_ms, most_bytes = int(config.get("retention.ms", "-1")), int(config.get("retention.bytes", "-1"))
    times = [f"{format_duration(timedelta(milliseconds=kept_ms))} after its time"] if kept_ms >= 0 else []
    sizes = [f"{most_bytes / 1e9:.1f} GB came after it in its partition"] if most_bytes >= 0 else []
    return ", or ".join([*times, *sizes]) or "for ever"


@dataclass(slots=True)
class KnownId:
    """What the log says of one id. `documents` were ever recorded with it, `since` of them after it was last forgotten.

    One that is asked for again behind a `forget` counts in `since`: the log alone does not say that it stays down.
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
