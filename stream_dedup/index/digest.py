"""The state digest: one number for all that a log's prefix has led to.

Two replicas that applied the same prefix have equal digests, however their volumes lie on disk,
whatever was compacted, and whatever they answered so far. What goes in, each with its length or
count before it (BLAKE2b-128):

    head        JSON: log offset, declaration, plan, window and format in force, log time and generations, chain of answers,
                records rejected and passed over
    sources     the source partitions by number, with their watermarks
    verdicts    those kept, by source, offset and value digest
    copies      of each entry that has some, by its number: the row, then, the same way, the id of the best copy
    last texts  the same way, of the entries whose id had another text last
    entries     the live representatives in log order: rows (`_row_type`), then ids

Left out: the answered offset, stored answers and the log's name, which are each replica's own.

It is read from what is stored, so it also tells of a volume that no longer holds what was written.
Cost: one pass over the volume, in order.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from stream_dedup.index import contents
from stream_dedup.index.contents import Contents
from stream_dedup.index.rules.positions import Positions, Sources
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.contract import Store
from stream_dedup.index.volume.layout import Meta
from stream_dedup.log.schema import COLUMNS

_DIGEST_BYTES = 16
_VERSION = b"state digest 4"
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_COLUMNS = "".join(_UNSIGNED[column.stored.itemsize] for column in COLUMNS)
_VERDICT = struct.Struct(f"<IqQ{_COLUMNS}I")
_OF = struct.Struct("<IqqH")
_COUNT = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class StateDigest:
    """The digest (32 hexadecimal digits) of the state after all log records below `log_offset`."""

    log_offset: int
    digest: str


def state_digest(store: Store) -> StateDigest:
    """Return the digest of the state that a store holds.

    Raises:
        StoreError: the volume cannot be read, or is damaged.
        OtherFormatError: it was written by a newer version.
    """
    with contents.damage_refuses_the_volume():
        return digest_of(contents.read(store))


def digest_of(found: Contents) -> StateDigest:
    """Return the digest of a volume's contents."""
    state, meta = found.state, found.meta
    whole = hashlib.blake2b(_VERSION, digest_size=_DIGEST_BYTES)
    for part in (
        _head(state, meta),
        _sources(state.sources, state.positions),
        _verdicts(state.sources, state.positions),
    ):
        whole.update(_COUNT.pack(len(part)) + part)
    for prefix in (layout.PREFIX_COPIES, layout.PREFIX_BEST_ID, layout.PREFIX_LAST_TEXT):
        held, held_digest = 0, hashlib.blake2b()
        for key, value in found.store.scan(prefix):
            held += 1
            held_digest.update(key + _COUNT.pack(len(value)) + value)
        whole.update(_COUNT.pack(held) + held_digest.digest())
    rows_digest, ids_digest = hashlib.blake2b(), hashlib.blake2b()
    count = 0
    kind = _row_type(meta.print_limbs, meta.sketch_bytes)
    for rows, sizes, ids in found.live_entries():
        logical = np.zeros(len(rows), kind)
        for name in kind.names or ():
            if name != "id_bytes":
                logical[name] = rows[name]
        logical["id_bytes"] = sizes
        rows_digest.update(logical.tobytes())
        ids_digest.update(ids)
        count += len(rows)
    whole.update(_COUNT.pack(count) + rows_digest.digest() + ids_digest.digest())
    return StateDigest(meta.applied, whole.hexdigest())


@lru_cache
def _row_type(limbs: int, values: int) -> np.dtype[Any]:
    """Return what of an entry goes into the digest; the fields are named as in
    `layout.row_type`.
    """
    return np.dtype(
        [
            ("state", "u1"), ("text_digest", "u1", (16,)), ("print", "<u8", (limbs,)), ("sketch", "u1", (values,)),
            ("site", "<u8"), ("title", "<u8"), ("scope", "<u8"), ("features", "<u4"),
            ("source", "<u4"), ("offset", "<i8"), ("value_digest", "<u8"),
            ("time_ms", "<i8"), ("log_offset", "<u8"), ("place", "<u4"), ("append_ms", "<i8"),
            ("id_bytes", "<u2"),
        ]
    )  # fmt: skip


def _head(state: IndexState, meta: Meta) -> bytes:
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


def _sources(sources: Sources, positions: Positions) -> bytes:
    return b"".join(
        layout.encode_source(*sources.name(number))
        + layout.encode_watermark(*positions.watermark(number))
        for number in range(len(sources))
    )


def _verdicts(sources: Sources, positions: Positions) -> bytes:
    parts = []
    for (source, offset, value_digest), judgement in positions.verdicts():
        of, of_bytes = judgement.of, b""
        if of is not None:
            of_bytes = _OF.pack(*sources.place(of.position), of.time_ms, len(of.id)) + of.id
        parts.append(
            _VERDICT.pack(source, offset, value_digest, *judgement.row(), len(of_bytes)) + of_bytes
        )
    return b"".join(parts)
