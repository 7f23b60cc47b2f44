"""What a volume holds, read from its store: the state that a log's prefix led to, without the
tables in memory.

Invariants: reading changes nothing; what is missing or damaged is a `FormatError`, never a smaller
state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.better import BetterRule
from stream_dedup.domain.errors import (
    UPGRADE,
    ConfigurationError,
    FormatError,
    OtherFormatError,
    VolumeError,
)
from stream_dedup.domain.plan import Plan
from stream_dedup.index.rules.copies import CopyCounts
from stream_dedup.index.rules.declaration import Declaration
from stream_dedup.index.rules.last_texts import LastTexts
from stream_dedup.index.rules.positions import Positions, Sources
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.rules.window import (
    KEY_GENERATIONS,
    KEY_LOG_TIME,
    Generations,
    RulesInForce,
    Window,
    format_of,
)
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.contract import Store
from stream_dedup.index.volume.entries import Entries
from stream_dedup.index.volume.layout import Meta
from stream_dedup.log.frame import FIRST_FORMAT, other_format
from stream_dedup.log.records import FORMATS


@dataclass(frozen=True, slots=True)
class Contents:
    """A volume's state, without `entries` and `neighbours`, and what else lies there.

    `log` is None until the volume was bound to one; `unanswered` are log offsets with a stored
    answer. `restored` tells that the volume came from a
    snapshot and has not answered since.
    """

    store: Store
    meta: Meta
    state: IndexState
    log: str | None
    unanswered: list[int]
    restored: bool

    def live_entries(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], bytes]]:
        """Yield (rows, the sizes of their ids, the ids one after another) of the live
        representatives in log order.
        """
        if not self.meta.print_limbs:
            return
        count = 0
        for rows, sizes, ids in Entries(
            self.store, self.meta.print_limbs, self.meta.sketch_bytes
        ).live():
            count += len(rows)
            yield rows, sizes, ids
        if count != self.meta.live:
            raise FormatError(
                f"The index volume holds {count} live entries and should hold {self.meta.live}; "
                "give the index an empty "
                "volume, and it is rebuilt."
            )


def read(store: Store) -> Contents:
    """Read a volume; an empty one holds the state before the first log record.

    Raises:
        OtherFormatError: it was written by a newer version, or of a log in a newer format.
        FormatError: it is damaged, or not an index's.
        StoreError: it cannot be read.
    """
    keys = [
        layout.KEY_FORMAT,
        layout.KEY_META,
        layout.KEY_DECLARED,
        layout.KEY_LOG,
        layout.KEY_RESTORED,
    ]
    form, raw_meta, raw_declared, log, restored = store.get_many(keys)
    if form is not None:
        layout.check_format(form)
    elif next(iter(store.scan(b"")), None) is not None:
        raise FormatError(
            "The volume holds data that no index wrote; point the index at an empty directory."
        )
    if form is not None and raw_meta is None:
        raise FormatError(
            "The index volume lacks its meta value; give the index an empty volume to rebuild it."
        )
    meta = Meta() if raw_meta is None else layout.decode_meta(raw_meta)
    sources = Sources(store.scan(layout.PREFIX_SOURCE))
    watermarks = list(store.scan(layout.PREFIX_WATERMARK))
    if [layout.number_of(key) for key, _ in watermarks] != list(range(len(sources))):
        raise FormatError(
            "The index volume lacks the watermark or name of a source partition; rebuild it."
        )
    positions = Positions(sources, watermarks, store.scan(layout.PREFIX_KEPT))
    unanswered = [layout.number_of(key) for key, _ in store.scan(layout.PREFIX_ANSWER)]
    time, generations = store.get_many([KEY_LOG_TIME, KEY_GENERATIONS])
    if meta.applied and time is None:
        raise FormatError(
            "The index volume lacks the log time; give the index an empty volume to rebuild it."
        )
    state = IndexState(
        *(
            sources,
            positions,
            CopyCounts(store),
            LastTexts(store),
            meta.chain,
            Generations((time, generations)),
        ),
        print_limbs=meta.print_limbs,
        sketch_bytes=meta.sketch_bytes,
        rejected=meta.rejected,
        rejected_at=meta.rejected_at,
        ignored=meta.ignored,
    )
    if raw_declared is not None:
        state.declared, in_force, state.past_plans = _declared(raw_declared)
        state.plan, state.window, state.better, state.format = in_force
    named = None if log is None else log.decode("utf-8", "replace")
    return Contents(store, meta, state, named, unanswered, restored is not None)


@contextlib.contextmanager
def damage_refuses_the_volume() -> Iterator[None]:
    """Raise VolumeError for a FormatError within, but for what a newer version wrote."""
    try:
        yield
    except OtherFormatError:
        raise
    except FormatError as error:
        raise VolumeError(str(error)) from error


def _declared(value: bytes) -> tuple[Declaration, RulesInForce, list[tuple[int, int, str]]]:
    fields = layout.decode_object(value)
    past_plans = [(at, ms, plan) for at, ms, plan in fields.pop("past_plans", [])]
    form = fields.pop("format_in_force", FIRST_FORMAT)
    if isinstance(form, int) and form > max(FORMATS):
        raise OtherFormatError(
            other_format("What the index volume was written of", form, FORMATS, UPGRADE)
        )
    try:
        plan = Plan.from_fields(fields.pop("plan_in_force", None))
        raw_window = fields.pop("window_in_force", None)
        window = None if raw_window is None else Window.from_fields(raw_window)
        better = BetterRule.named(fields.pop("better_in_force", None))
        in_force = RulesInForce(plan, window, better, format_of(form))
        return Declaration.from_fields(fields), in_force, past_plans
    except ConfigurationError as error:
        raise FormatError(
            "The volume's declaration of recipe and plan is damaged; rebuild it."
        ) from error
