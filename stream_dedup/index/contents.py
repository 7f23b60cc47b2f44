"""What a volume holds, read from its store: the state that a log's prefix led to, without the tables in memory.

Invariants: reading changes nothing; whatever is missing or damaged is a `FormatError`, never a smaller state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.better import BetterRule
from stream_dedup.ground.errors import ConfigurationError, FormatError
from stream_dedup.ground.plan import Plan
from stream_dedup.index.rules.declaration import Declaration
from stream_dedup.index.rules.positions import Positions
from stream_dedup.index.rules.sources import Sources
from stream_dedup.index.rules.window import KEY_GENERATIONS, KEY_LOG_TIME, Generations, Window
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.contract import Store
from stream_dedup.index.volume.entries import Entries
from stream_dedup.index.volume.layout import Meta


@dataclass(frozen=True, slots=True)
class Contents:
    """A volume's state. `log` is None until it was bound to one; `unanswered` are log offsets with a stored answer.

    `restored` tells that the volume came from a snapshot and has not answered since.
    """

    store: Store
    meta: Meta
    log: str | None
    declared: Declaration | None
    plan: Plan | None
    window: Window | None
    better: BetterRule
    generations: Generations
    sources: Sources
    positions: Positions
    unanswered: list[int]
    restored: bool

    def live_entries(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], bytes]]:
        """Yield (rows, the sizes of their ids, the ids one after another) of the live representatives in log order."""
        if not self.meta.print_limbs:
            return
        count = 0
        for rows, sizes, ids in Entries(self.store, self.meta.print_limbs, self.meta.sketch_bytes).live():
            count += len(rows)
            yield rows, sizes, ids
        if count != self.meta.live:
            raise FormatError(
                f"The index volume holds {count} live entries and should hold {self.meta.live}; give the index an empty "
                "volume, and it is rebuilt from the log."
            )


def read(store: Store) -> Contents:
    """Read a volume; an empty one holds the state before the first log record.

    Raises:
        FutureFormatError: it was written by a newer version.
        FormatError: it is damaged, or not an index's.
        StoreError: it cannot be read.
    """
    keys = [layout.KEY_FORMAT, layout.KEY_META, layout.KEY_DECLARED, layout.KEY_LOG, layout.KEY_RESTORED]
    form, raw_meta, raw_declared, log, restored = store.get_many(keys)
    if form is not None:
        layout.check_format(form)
    elif next(iter(store.scan(b"")), None) is not None:
        raise FormatError("The volume holds data that no index wrote; point the index at an empty directory.")
    if form is not None and raw_meta is None:
        raise FormatError("The index volume lacks its meta value; give the index an empty volume to rebuild from the log.")
    meta = Meta() if raw_meta is None else layout.decode_meta(raw_meta)
    sources = Sources(store.scan(layout.PREFIX_SOURCE))
    marks = list(store.scan(layout.PREFIX_MARK))
    if [layout.number_of(key) for key, _ in marks] != list(range(len(sources))):
        raise FormatError("The index volume lacks the mark or name of a source partition; rebuild it from the log.")
    positions = Positions(sources, marks, store.scan(layout.PREFIX_KEPT))
    unanswered = [layout.number_of(key) for key, _ in store.scan(layout.PREFIX_ANSWER)]
    time, generations = store.get_many([KEY_LOG_TIME, KEY_GENERATIONS])
    if meta.applied and time is None:
        raise FormatError("The index volume lacks the log time; give the index an empty volume to rebuild from the log.")
    declared, plan, window, better = _declared(raw_declared)
    return Contents(
        store,
        meta,
        None if log is None else log.decode("utf-8", "replace"),
        declared,
        plan,
        window,
        better,
        Generations((time, generations)),
        sources,
        positions,
        unanswered,
        restored is not None,
    )


def _declared(value: bytes | None) -> tuple[Declaration | None, Plan | None, Window | None, BetterRule]:
    if value is None:
        return None, None, None, BetterRule.LONGEST
    fields = layout.decode_object(value)
    try:
        plan = Plan.from_fields(fields.pop("plan_in_force", None))
        raw_window = fields.pop("window_in_force", None)
        window = None if raw_window is None else Window.from_fields(raw_window)
        better = BetterRule.named(fields.pop("better_in_force", None))
        return Declaration.from_fields(fields), plan, window, better
    except ConfigurationError as error:
        raise FormatError("The volume's declaration of recipe and plan is damaged; rebuild it from the log.") from error
