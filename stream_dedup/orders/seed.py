"""Positions of seeded documents, and the progress of earlier runs of `seed`.

A document of a topic has its position there. The position of a document of a file has the topic
`seed:NAME`, the partition 0 and its number in the file as the offset. The topic's id is a digest of
the file's name, size and beginning, so that a changed file is another source.

Invariant: seeding is idempotent: documents that are equal or similar to existing ones add nothing.
So progress may be lost; it only saves time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from stream_dedup.domain.document import NO_TOPIC_ID, TOPIC_ID_BYTES
from stream_dedup.log.records import LogRecord, Seed, Source

_NAME_BYTES_MAX = 200
_BEGINNING_BYTES = 1 << 20


@dataclass(slots=True)
class SeedProgress:
    """The progress of seeds in the log: `next` is the next offset by (name, id, partition) of the
    source.
    """

    recipe: str
    next: dict[tuple[str, bytes, int], int] = field(default_factory=dict)

    def fold(self, record: LogRecord | None) -> None:
        """Apply the next record of the log."""
        if not isinstance(record, Seed) or record.batch.recipe != self.recipe:
            return
        batch = record.batch
        for place in range(len(batch)):
            position = batch.position(place)
            key = (position.topic, position.topic_id, position.partition)
            self.next[key] = max(self.next.get(key, 0), position.offset + 1)

    def of(self, source: Source) -> int:
        """Return the first offset of a source that is not in the log yet."""
        return self.next.get((source.topic, source.topic_id, source.partition), 0)


def file_source(name: str, path: Path | None) -> Source:
    """Return the source of a file; `path` None is standard input, which cannot be read again."""
    raw = name.encode("utf-8", "replace")
    if len(raw) > _NAME_BYTES_MAX:
        raw = (
            hashlib.blake2b(raw, digest_size=8).hexdigest().encode() + b"~" + raw[-_NAME_BYTES_MAX:]
        )
    identity = NO_TOPIC_ID
    if path is not None:
        digest = hashlib.blake2b(digest_size=TOPIC_ID_BYTES, person=b"seed file")
        digest.update(b"%d\0%s\0" % (path.stat().st_size, raw))
        with path.open("rb") as file:
            digest.update(file.read(_BEGINNING_BYTES))
        identity = digest.digest()
    return Source("seed:" + raw.decode("utf-8", "ignore"), identity, 0, 0, 0)
