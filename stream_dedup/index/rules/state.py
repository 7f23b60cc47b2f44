"""The state after a prefix of the log, in one object that `apply`, `judging` and `orders`
change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.errors import InvariantError
from stream_dedup.domain.plan import Plan
from stream_dedup.index.rules.copies import CopyCounts
from stream_dedup.index.rules.last_texts import LastTexts
from stream_dedup.index.rules.positions import Positions, Sources
from stream_dedup.index.rules.window import Generations
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.contract import Writes
from stream_dedup.index.storage.entries import Entries
from stream_dedup.index.storage.tags import crcs_of
from stream_dedup.index.tables.neighbours import Neighbours
from stream_dedup.log.controls import Declaration, Window
from stream_dedup.log.record_frame import FIRST_FORMAT
from stream_dedup.log.records import Batch


@dataclass(slots=True)
class IndexState:
    """The state after a prefix of the log. `entries` and `neighbours` are None before the first
    judged batch.

    `rejected` and `ignored` count log records, and `rejected_at` is the log offset of the last
    rejected one. `past_plans` contains (log offset and log time of the record that ended it, id) of
    each earlier plan.
    """

    sources: Sources
    positions: Positions
    copies: CopyCounts
    last_texts: LastTexts
    chain: bytes
    generations: Generations = field(default_factory=Generations)
    declared: Declaration | None = None
    plan: Plan | None = None
    past_plans: list[tuple[int, int, str]] = field(default_factory=list)
    window: Window | None = None
    better: BetterRule = BetterRule.LONGEST
    format: int = FIRST_FORMAT
    entries: Entries | None = None
    neighbours: Neighbours | None = None
    print_limbs: int = 0
    sketch_bytes: int = 0
    rejected: int = 0
    rejected_at: int = 0
    ignored: int = 0
    declaration_changed: bool = False
    evicted: Counter[str] = field(default_factory=Counter)

    def require_stores(self) -> tuple[Entries, Neighbours]:
        """Return entries and neighbours.

        Raises:
            InvariantError: no batch was judged yet.
        """
        if self.entries is None or self.neighbours is None:
            raise InvariantError(
                "A batch was judged before the entries were loaded; this is an internal error."
            )
        return self.entries, self.neighbours

    def known_width(self) -> int | None:
        """Return the width of prints in bits; None until the declaration or a batch contains it."""
        declared = None if self.declared is None else self.declared.width
        return declared or self.print_limbs * 64 or None

    def known_sketch_bytes(self) -> int | None:
        """Return the size of sketches in bytes; None until the declaration or a batch contains it."""
        if self.print_limbs:
            return self.sketch_bytes
        return None if self.declared is None else self.declared.sketch_bytes

    def expire(self) -> None:
        """Drop the representatives whose window has passed.

        Cached verdicts stay: a redelivered document must not be judged again.
        """
        if self.entries is None or self.neighbours is None:
            return
        first = self.generations.expire(self.window, self.entries.count)
        if first is not None:
            self.copies.drop_below(first)
            self.last_texts.drop_below(first)
            self.drop(self.neighbours.live_below(first), "window")

    def find_ids(
        self, ids: Collection[bytes]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return (entries whose id has the CRC-32 of one of these, mask of the live ones, mask of the
        live ones that really have one of these ids), ascending by entry.
        """
        entries, neighbours = self.require_stores()
        numbers, is_live = neighbours.find_crcs(crcs_of(list(ids)))
        has_id = np.zeros(len(numbers), np.bool_)
        live_ids = entries.representatives(numbers[is_live]).ids
        has_id[is_live] = [identifier in ids for identifier in live_ids]
        return numbers, is_live, has_id

    def drop(self, numbers: NDArray[np.int64], reason: str) -> None:
        """Remove live representatives, given in ascending order, for `reason`."""
        entries, neighbours = self.require_stores()
        if len(numbers):
            neighbours.drop(numbers)
            entries.drop(numbers)
            if reason != "window":
                self.copies.drop(numbers.tolist())
                self.last_texts.drop(numbers.tolist())
            self.evicted[reason] += len(numbers)

    def add_writes(self, writes: Writes, applied: int, answered: int) -> None:
        """Add the changes since the last call; `applied` and `answered` are log offsets, as in
        `Meta`.
        """
        self.sources.add_writes(writes)
        self.positions.add_writes(writes)
        self.generations.add_writes(writes)
        self.copies.add_writes(writes)
        self.last_texts.add_writes(writes)
        if self.entries is not None:
            self.entries.add_writes(writes)
        if self.declaration_changed and self.declared is not None and self.plan is not None:
            in_force: dict[str, Any] = {
                "plan_in_force": self.plan.to_fields(),
                "better_in_force": self.better.label,
            }
            if self.format != FIRST_FORMAT:
                in_force["format_in_force"] = self.format
            if self.past_plans:
                in_force["past_plans"] = self.past_plans
            if self.window is not None:
                in_force["window_in_force"] = self.window.to_fields()
            writes.put(
                layout.KEY_DECLARED, layout.encode_object(self.declared.to_fields() | in_force)
            )
            self.declaration_changed = False
        meta = layout.Meta(
            applied=applied,
            answered=answered,
            chain=self.chain,
            entries=0 if self.entries is None else self.entries.count,
            live=0 if self.neighbours is None else self.neighbours.live,
            rejected=self.rejected,
            rejected_at=self.rejected_at,
            ignored=self.ignored,
            print_limbs=self.print_limbs,
            sketch_bytes=self.sketch_bytes,
        )
        writes.put(layout.KEY_FORMAT, layout.encode_format())
        writes.put(layout.KEY_META, layout.encode_meta(meta))

    def number_sources(self, batch: Batch) -> list[int]:
        """Return the number of each source partition of a batch."""
        return [
            self.sources.number(source.topic, source.topic_id, source.partition)
            for source in batch.sources
        ]
