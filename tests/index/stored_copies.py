"""Read the copies in a volume and in the audit's fold, in one form."""

from __future__ import annotations

from typing import Any

import numpy as np

from stream_dedup.audit.judgements import Fold
from stream_dedup.domain.document import Position
from stream_dedup.index.storage import columns, layout


def read_copies(volume: dict[bytes, bytes]) -> dict[str, tuple[Any, ...]]:
    """Return what the volume holds of copies, by the position and value digest of the
    representative that the entry's row names: a position may be written again with another value."""
    found = {}
    names = {
        key[1:]: layout.decode_source(value)
        for key, value in volume.items()
        if key[:1] == layout.PREFIX_SOURCE
    }

    def position(source: int, offset: int) -> str:
        return describe_position(Position(*names[source.to_bytes(4, "big")], offset))

    meta = layout.decode_meta(volume[layout.KEY_META])
    for key, value in volume.items():
        if key[:1] != layout.PREFIX_COPIES:
            continue
        number = layout.number_of(key)
        page = volume[layout.page_key(number // layout.PAGE_ENTRIES)]
        kind = layout.row_type(meta.print_limbs, meta.sketch_bytes)
        count, raw, _ = layout.split_rows(page, kind.itemsize)
        entry = layout.decode_columns(raw, count, kind)[number % layout.PAGE_ENTRIES]
        assert entry["state"] != columns.REMOVED, (
            f"entry {number} is gone, and its copies are still there"
        )
        row = np.frombuffer(value, layout.COPIES)[0]
        best = position(int(row["source"]), int(row["offset"]))
        identifier = volume.get(layout.best_id_key(number), b"")
        figures = (int(row["features"]), int(row["time_ms"]), int(row["rule"]))
        representative = position(int(entry["source"]), int(entry["offset"]))
        found[f"{representative}, value {int(entry['value_digest']):x}"] = (
            int(row["copies"]),
            best,
            identifier,
            figures,
        )
    ids = [key for key in volume if key[:1] == layout.PREFIX_BEST_ID]
    assert all(layout.copies_key(layout.number_of(key)) in volume for key in ids)
    return found


def read_fold_copies(fold: Fold) -> dict[str, tuple[Any, ...]]:
    """Return a fold's copies in the same form."""
    return {
        f"{describe_position(entry.as_representative().position)}, value {entry.value_digest:x}": (
            entry.copies.count,
            describe_position(entry.copies.best.position),
            entry.copies.best.id if entry.copies.best.rule else b"",
            (entry.copies.best.features, entry.copies.best.time_ms, entry.copies.best.rule),
        )
        for entry in fold._by_position.values()
        if entry.copies.count or entry.copies.best.rule
    }


def describe_position(position: Position) -> str:
    """Return a position with its topic's id: a topic that was created again has the same positions
    once more."""
    return f"{position} of {position.topic_id.hex()}"
