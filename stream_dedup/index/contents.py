"""Read the contents of a volume: the state after a prefix of the log, without the tables in memory.

Invariants: reading changes nothing; a missing or damaged value raises a `FormatError` and is never
skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.errors import (
    UPGRADE,
    ConfigurationError,
    FormatError,
    OtherFormatError,
    VolumeError,
)
from stream_dedup.domain.lazy_sequences import Ids
from stream_dedup.domain.plan import Plan
from stream_dedup.index.rules.copies import CopyCounts
from stream_dedup.index.rules.last_texts import LastTexts
from stream_dedup.index.rules.positions import Positions, Sources
from stream_dedup.index.rules.state import IndexState
from stream_dedup.index.rules.window import KEY_GENERATIONS, KEY_LOG_TIME, Generations, RulesInForce
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.entries import Entries
from stream_dedup.index.storage.layout import Meta
from stream_dedup.log.controls import Declaration, Window, format_of
from stream_dedup.log.record_frame import FIRST_FORMAT, format_error_message
from stream_dedup.log.records import FORMATS


@dataclass(frozen=True, slots=True)
class Contents:
    """The values of a volume. The `state` has no `entries` and no `neighbours`.

    `log` is None until the volume is bound to one; `unanswered` are the log offsets whose stored
    answer is possibly undelivered. `restored`: the volume is from a snapshot and has not answered
    since.
    """

    store: Store
    meta: Meta
    state: IndexState
    log: str | None
    unanswered: list[int]
    restored: bool

    def live_entries(self) -> Iterator[tuple[NDArray[Any], Ids]]:
        """Yield (rows, ids) of the live representatives in log order."""
        meta = self.meta
        if not meta.print_limbs:
            return
        count = 0
        entries = Entries(self.store, meta.print_limbs, meta.sketch_bytes)
        entries.count = meta.entries
        for rows, ids in entries.scan_live():
            count += len(rows)
            yield rows, ids
        if count != self.meta.live:
            raise FormatError(
                f"The index volume contains {count} live entries instead of {self.meta.live}. "
                "Start the index with an empty volume; it is rebuilt from the log."
            )


def read(store: Store) -> Contents:
    """Read a volume; an empty one contains the state before the first log record.

    Raises:
        OtherFormatError: a newer version wrote it, or its log has a newer format.
        FormatError: it is damaged, or no index wrote it.
        StoreError: it cannot be read.
    """
    keys = [
        layout.KEY_FORMAT,
        layout.KEY_META,
        layout.KEY_DECLARED,
        layout.KEY_LOG,
        layout.KEY_RESTORED,
    ]
    format_value, raw_meta, raw_declared, log, restored = store.get_many(keys)
    _check_is_index(store, format_value, raw_meta)
    meta = Meta() if raw_meta is None else layout.decode_meta(raw_meta)
    sources = Sources(store.scan(layout.PREFIX_SOURCE))
    watermarks = list(store.scan(layout.PREFIX_WATERMARK))
    if [layout.number_of(key) for key, _ in watermarks] != list(range(len(sources))):
        raise FormatError(
            "The index volume does not contain the watermark or the name of a source partition. "
            "Start the index with an empty volume; it is rebuilt from the log."
        )
    positions = Positions(sources, watermarks, store.scan(layout.PREFIX_CACHED))
    unanswered = [layout.number_of(key) for key, _ in store.scan(layout.PREFIX_ANSWER)]
    log_time, generations = store.get_many([KEY_LOG_TIME, KEY_GENERATIONS])
    if meta.applied and log_time is None:
        raise FormatError(
            "The index volume does not contain the log time. Start the index with an empty "
            "volume; it is rebuilt from the log."
        )
    state = IndexState(
        sources=sources,
        positions=positions,
        copies=CopyCounts(store),
        last_texts=LastTexts(store),
        chain=meta.chain,
        generations=Generations((log_time, generations)),
        print_limbs=meta.print_limbs,
        sketch_bytes=meta.sketch_bytes,
        rejected=meta.rejected,
        rejected_at=meta.rejected_at,
        ignored=meta.ignored,
    )
    if raw_declared is not None:
        state.declared, rules, state.past_plans = _decode_declared(raw_declared)
        state.plan, state.window = rules.plan, rules.window
        state.better, state.format = rules.better, rules.format
    log_name = None if log is None else log.decode("utf-8", "replace")
    return Contents(
        store=store,
        meta=meta,
        state=state,
        log=log_name,
        unanswered=unanswered,
        restored=restored is not None,
    )


def _check_is_index(store: Store, format_value: bytes | None, raw_meta: bytes | None) -> None:
    """Check that a volume is empty, or contains the format and the meta value of an index.

    Raises:
        FormatError: it does not.
    """
    if format_value is None:
        if next(iter(store.scan(b"")), None) is not None:
            raise FormatError(
                "The volume contains data that no index wrote. Start the index with an empty "
                "directory."
            )
        return
    layout.check_format(format_value)
    if raw_meta is None:
        raise FormatError(
            "The index volume does not contain its meta value. Start the index with an empty "
            "volume; it is rebuilt from the log."
        )


@contextlib.contextmanager
def raise_volume_errors() -> Iterator[None]:
    """Raise a VolumeError instead of a FormatError in the body, except for values of a newer
    version.
    """
    try:
        yield
    except OtherFormatError:
        raise
    except FormatError as error:
        raise VolumeError(str(error)) from error


def _decode_declared(value: bytes) -> tuple[Declaration, RulesInForce, list[tuple[int, int, str]]]:
    fields = layout.decode_object(value)
    past_plans = [
        (log_offset, time_ms, plan) for log_offset, time_ms, plan in fields.pop("past_plans", [])
    ]
    format_number = fields.pop("format_in_force", FIRST_FORMAT)
    if isinstance(format_number, int) and format_number > max(FORMATS):
        raise OtherFormatError(
            format_error_message("The index volume's declaration", format_number, FORMATS, UPGRADE)
        )
    try:
        plan = Plan.from_fields(fields.pop("plan_in_force", None))
        raw_window = fields.pop("window_in_force", None)
        window = None if raw_window is None else Window.from_fields(raw_window)
        better = BetterRule.named(fields.pop("better_in_force", None))
        in_force = RulesInForce(plan, window, better, format_of(format_number))
        return Declaration.from_fields(fields), in_force, past_plans
    except ConfigurationError as error:
        raise FormatError(
            "The index volume's declaration of recipe and plan is damaged. Start the index with "
            "an empty volume; it is rebuilt from the log."
        ) from error
