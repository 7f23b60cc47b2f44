"""Look-ups in an index: nothing here changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import LogPlace, Position, Reason
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.hosts import site_of
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.relations import UNKNOWN, Origin, in_words, relation_of
from stream_dedup.domain.sketch import per_cent
from stream_dedup.index.rules.positions import Sources
from stream_dedup.index.rules.reasons import reason_of_state
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.storage.entries import Entries
from stream_dedup.index.storage.tags import crcs_of
from stream_dedup.index.tables.neighbours import Neighbours


@dataclass(frozen=True, slots=True)
class Entry:
    """A live representative in the result of a look-up.

    `print` is the fingerprint as one number, whose low 64 bits are its low limb.
    """

    number: int
    position: Position
    id: bytes
    time_ms: int
    decided: LogPlace
    reason: Reason
    print: int
    text_digest: bytes
    scope: int
    features: int
    sketch: bytes = b""
    origin: Origin = UNKNOWN


@dataclass(frozen=True, slots=True)
class Similar:
    """The result of a look-up with `plan`, after the log records below offset `applied`.

    `found` contains the first (distance in bits, entry) by distance; `total` counts all that were
    found.
    `by_digest_only`: the text has too few features, so only an equal text could be found.
    """

    applied: int
    plan: Plan
    found: tuple[tuple[int, Entry], ...]
    total: int
    by_digest_only: bool


def check_limbs(tables: Neighbours, limbs: Sequence[int]) -> NDArray[np.uint64]:
    """Return the limbs of a print as an array, low limb first.

    Raises:
        ConfigurationError: the prints in the index have another number of limbs.
    """
    limb_array = np.array(limbs, np.uint64)
    if limb_array.shape != (tables.limbs,):
        raise ConfigurationError(
            f"The index contains fingerprints of {tables.limbs * 64} bits, but the request has "
            f"one of {len(limb_array) * 64}. Use the recipe that the log declares."
        )
    return limb_array


def check_sketch(plan: Plan | None, tables: Neighbours, sketch: bytes) -> None:
    """Check that a sketch has the size of those in the index. It may be empty if the plan compares
    none.

    Raises:
        ConfigurationError: it has another size, or is missing.
    """
    if (sketch or (plan is not None and plan.needs_sketch)) and len(sketch) != tables.sketch_bytes:
        raise ConfigurationError(
            f"The index contains sketches of {tables.sketch_bytes} bytes, but the request has one "
            f"of {len(sketch)}. Use the recipe that the log declares."
        )


def describe_entries(
    entries: Entries, sources: Sources, ranked: Sequence[tuple[int, int]]
) -> list[tuple[int, Entry]]:
    """Return (distance in bits, entry) for each (distance in bits, number of an entry)."""
    rows, ids = entries.rows(np.array([number for _, number in ranked], np.int64))
    return [
        (
            distance,
            Entry(
                number=number,
                position=sources.position(int(row["source"]), int(row["offset"])),
                id=document_id,
                time_ms=int(row["time_ms"]),
                decided=LogPlace(int(row["log_offset"]), int(row["place"])),
                reason=reason_of_state(row["state"]),
                print=int.from_bytes(row["print"].tobytes(), "little"),
                text_digest=row["text_digest"].tobytes(),
                scope=int(row["scope"]),
                features=int(row["features"]),
                sketch=row["sketch"].tobytes(),
                origin=Origin(int(row["site"]), int(row["title"]), crc),
            ),
        )
        for (distance, number), row, document_id, crc in zip(
            ranked, rows, ids, crcs_of(ids).tolist(), strict=True
        )
    ]


@dataclass(frozen=True, slots=True)
class Query:
    """A text to compare with results: text digest, sketch, origin and name of its site; empty or 0
    if unknown.
    """

    digest: bytes
    sketch: bytes
    origin: Origin = UNKNOWN
    site: str = ""

    def compare(self, plan: Plan, entry: Entry) -> tuple[bool, str]:
        """Return whether the text would be a copy of an entry, and why.

        The reason is empty if the plan compares no sketches.
        """
        if self.digest == entry.text_digest:
            return True, "The same text."
        relation = relation_of(self.origin, entry.origin)
        threshold = plan.similarities[relation]
        if not threshold or not self.sketch:
            return True, ""
        similarity = per_cent(self.sketch, entry.sketch)
        site = site_of(entry.id)
        has_same_id = bool(self.origin.id) and self.origin.id == entry.origin.id
        sites = (self.site or (site if relation.is_one_site else ""), site)
        return similarity >= threshold, in_words(
            similarity, relation, threshold, sites, has_same_id=has_same_id
        )


def read_ids(state: IndexState, ids: Sequence[bytes] | None) -> list[bytes]:
    """Return the id of each live entry, in log order; with `ids`, only those."""
    if state.entries is None:
        return []
    if ids is not None:
        numbers, _, has_id = state.find_ids(set(ids))
        return list(state.entries.representatives(numbers[has_id]).ids)
    found_ids: list[bytes] = []
    for _, live_ids in state.entries.scan_live():
        found_ids += live_ids
    return found_ids
