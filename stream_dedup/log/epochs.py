"""The epoch of a source partition, stored in the metadata of its committed offset.

Both change in one step, because Kafka stores an offset and its metadata together (also through a
transaction). Only `stream-dedup rewind` raises an epoch. Invariant: every commit of the worker
writes the epoch of its batch; a committed offset without an epoch was written by another program
and is refused.
"""

from __future__ import annotations

import re

_FORM = re.compile(r"stream-dedup epoch=(\d{1,19})\Z")


def to_metadata(epoch: int) -> str:
    """Return the metadata text to commit with an offset."""
    return f"stream-dedup epoch={epoch}"


def from_metadata(metadata: str | None) -> int | None:
    """Return the epoch in a committed offset's metadata, or None if it was not written by
    stream_dedup.
    """
    match = _FORM.match(metadata or "")
    return int(match.group(1)) if match else None
