"""The epoch of a source partition, stored in the metadata of its committed offset.

The epoch counts the rewinds of the partition; only `stream-dedup rewind` raises it. Kafka stores an
offset and its metadata together, also in a transaction, so both change in one step. Invariant: every
commit of the worker writes the epoch of its batch; a committed offset without an epoch was written
by another program and is refused.
"""

from __future__ import annotations

import re

_METADATA = re.compile(r"stream-dedup epoch=(\d{1,19})\Z")


def to_metadata(epoch: int) -> str:
    """Return the metadata text to commit with an offset."""
    return f"stream-dedup epoch={epoch}"


def from_metadata(metadata: str | None) -> int | None:
    """Return the epoch in a committed offset's metadata, or None if it was not written by
    stream_dedup.
    """
    match = _METADATA.match(metadata or "")
    return int(match.group(1)) if match else None
