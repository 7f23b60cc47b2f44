"""The state digest: one hash of the whole state after a prefix of the log.

Two replicas that applied the same prefix have equal digests, regardless of how their volumes are
laid out on disk and of which answers were delivered so far. It is the BLAKE2b-128 of these parts,
each preceded by its length or count:

    head        JSON: log offset, declaration, plan, window and format in force, log time and
                generations, chain of answers, numbers of rejected and ignored records
    sources     the source partitions by number, with their watermarks
    verdicts    the cached verdicts, by source, offset and value digest
    copies      the rows of entries that have copies, then the ids of their best copies, by entry
    last texts  the digest of each id's last text, if its entry has another text, by entry
    entries     the live representatives in log order: rows (`layout.row_type`, but `place` has four
                bytes, and `ids_end` is the id's size), then ids

It does not contain the answered offset, stored answers and the log's name, which differ between
replicas.

It is computed from the stored bytes, so it also detects a volume that was changed by a fault. This
reads the whole volume once, in order.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass

import numpy as np

from stream_dedup.index import contents
from stream_dedup.index.contents import Contents
from stream_dedup.index.rules.positions import Positions, Sources
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.layout import Meta
from stream_dedup.log.schema import COLUMNS

_DIGEST_BYTES = 16
_VERSION = b"state digest 4"
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_COLUMNS = "".join(_UNSIGNED[column.stored.itemsize] for column in COLUMNS)
_VERDICT = struct.Struct(f"<IqQ{_COLUMNS}I")
_REPRESENTATIVE = struct.Struct("<IqqH")
_COUNT = struct.Struct("<Q")
_WIDER = {"place": np.dtype("<u4")}


@dataclass(frozen=True, slots=True)
class StateDigest:
    """The digest (32 hexadecimal digits) of the state after all log records below `log_offset`."""

    log_offset: int
    digest: str


def state_digest(store: Store) -> StateDigest:
    """Return the digest of a store's state.

    Raises:
        StoreError: the volume cannot be read, or is damaged.
        OtherFormatError: it is of a newer version.
    """
    with contents.raise_volume_errors():
        return compute_digest(contents.read(store))


def compute_digest(volume: Contents) -> StateDigest:
    """Return the digest of a volume's contents."""
    state, meta = volume.state, volume.meta
    state_hash = hashlib.blake2b(_VERSION, digest_size=_DIGEST_BYTES)
    for part in (
        _encode_head(state, meta),
        _encode_sources(state.sources, state.positions),
        _encode_verdicts(state.sources, state.positions),
    ):
        state_hash.update(_COUNT.pack(len(part)) + part)
    for prefix in (layout.PREFIX_COPIES, layout.PREFIX_BEST_ID, layout.PREFIX_LAST_TEXT):
        count_stored, stored_digest = 0, hashlib.blake2b()
        for key, value in volume.store.scan(prefix):
            count_stored += 1
            stored_digest.update(key + _COUNT.pack(len(value)) + value)
        state_hash.update(_COUNT.pack(count_stored) + stored_digest.digest())
    rows_digest, ids_digest = hashlib.blake2b(), hashlib.blake2b()
    count = 0
    stored_dtype = layout.row_type(meta.print_limbs, meta.sketch_bytes)
    row_dtype = np.dtype(
        [(name, _WIDER.get(name, stored_dtype[name])) for name in stored_dtype.names or ()]
    )
    for rows, ids in volume.live_entries():
        logical = rows.astype(row_dtype)
        logical["ids_end"] = ids.sizes  # the stored end in a page depends on the layout
        rows_digest.update(logical.tobytes())
        ids_digest.update(ids.joined)
        count += len(rows)
    state_hash.update(_COUNT.pack(count) + rows_digest.digest() + ids_digest.digest())
    return StateDigest(meta.applied, state_hash.hexdigest())


def _encode_head(state: IndexState, meta: Meta) -> bytes:
    fields = {
        "applied": meta.applied,
        "chain": meta.chain.hex(),
        "rejected": meta.rejected,
        "ignored": meta.ignored,
        "declared": None if state.declared is None else state.declared.to_fields(),
        "plan": None if state.plan is None else state.plan.to_fields(),
        "window": None if state.window is None else state.window.to_fields(),
        "better": state.better.label,
        "format": state.format,
        "log_ms": state.generations.log_ms,
        "generations": state.generations.spans,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


def _encode_sources(sources: Sources, positions: Positions) -> bytes:
    return b"".join(
        layout.encode_source(*sources.name(number))
        + layout.encode_watermark(*positions.watermark(number))
        for number in range(len(sources))
    )


def _encode_verdicts(sources: Sources, positions: Positions) -> bytes:
    parts = []
    for (source, offset, value_digest), judgement in positions.verdicts():
        representative, of_bytes = judgement.of, b""
        if representative is not None:
            of_bytes = (
                _REPRESENTATIVE.pack(
                    *sources.source_and_offset(representative.position),
                    representative.time_ms,
                    len(representative.id),
                )
                + representative.id
            )
        parts.append(
            _VERDICT.pack(source, offset, value_digest, *judgement.row(), len(of_bytes)) + of_bytes
        )
    return b"".join(parts)
