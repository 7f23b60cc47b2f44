"""The window in log time for which a representative stays in the index, and the generations that
expire together.

    log time     the running maximum of the records' LogAppendTime; the log's first record sets it, and
                 each later one moves it by at most one slice
    slice        a sixteenth of the window; without a window, a day
    generation   the entries of one slice: a range of entry numbers. It is dropped as a whole once the
                 window has passed since the end of the slice

So a representative stays for the length of the window at least, and a sixteenth more at most. If
duplicates refresh the window, the representative that a duplicate names is renewed: it moves to the
end of the current generation.

Invariants: nothing here reads a clock; generations ascend in entry numbers and in time, and
together contain all entries that are not dropped, so the lowest numbers are dropped first; a
changed window also applies to existing generations.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.errors import FormatError
from stream_dedup.domain.plan import WIDTH_MAX, Plan
from stream_dedup.domain.sketch import SKETCH_BYTES
from stream_dedup.index.storage.contract import Writes
from stream_dedup.log.controls import Window, format_of
from stream_dedup.log.record_frame import FIRST_FORMAT

SLICES: Final = 16
KEY_LOG_TIME: Final = b"t"
KEY_GENERATIONS: Final = b"g"
_DAY_MS: Final = 86_400_000
_TIME_MAX: Final = (1 << 62) - 1
_TIME: Final = struct.Struct("<q")
_GENERATION: Final = struct.Struct("<Qq")


def slice_ms_of(window: Window | None) -> int:
    """Return the length of a slice in milliseconds of log time."""
    return _DAY_MS if window is None else window.length_ms // SLICES


class RulesInForce(NamedTuple):
    """The rules by which new documents are judged, and the format of their records and answers.

    The log's declaration sets them, and control records change them.
    """

    plan: Plan
    window: Window | None
    better: BetterRule
    format: int = FIRST_FORMAT


def change_rules(
    fields: Mapping[str, Any],
    current: RulesInForce,
    width: int | None,
    sketch_bytes: int | None = None,
) -> RulesInForce | None:
    """Return the rules in force after a `plan` control record; None if the record has no effect.

    Missing fields keep their value, a window of null removes the window, and a format is never
    lowered. `width` is that of the log's prints, `sketch_bytes` the size of its sketches in bytes, None
    if unknown.

    Raises:
        ConfigurationError: a field is not a valid plan, window, rule or format.
    """
    if not fields.keys() & {"plan", "window", "better", "format"}:
        return None
    plan, window, better, format_number = current
    if "plan" in fields:
        plan = Plan.from_fields(fields["plan"])
    if "window" in fields:
        window = None if fields["window"] is None else Window.from_fields(fields["window"])
    if plan.needs_sketch and sketch_bytes not in (None, SKETCH_BYTES):
        return None
    if "better" in fields:
        better = BetterRule.named(fields["better"])
    if "format" in fields:
        format_number = format_of(fields["format"])
    return (
        None
        if plan.width > (width or WIDTH_MAX) or format_number < current.format
        else RulesInForce(plan, window, better, format_number)
    )


class Generations:
    """Log time, and the generations of entries: (first entry, log time at which it ends) of each.

    `stored` are the values of `KEY_LOG_TIME` and `KEY_GENERATIONS`, None in a new volume.

    Raises:
        FormatError: a value is damaged, or only one exists.
    """

    def __init__(self, stored: tuple[bytes | None, bytes | None] = (None, None)) -> None:
        self.log_ms: int | None = None
        self._generations: list[tuple[int, int]] = []
        self._has_changed = False
        time, generations = stored
        if time is None and generations is None:
            return
        if (
            time is None
            or generations is None
            or len(time) != _TIME.size
            or len(generations) % _GENERATION.size
        ):
            raise FormatError(
                "The log time or the generations in the index volume are damaged. Start the "
                "index with an empty volume; it is rebuilt from the log."
            )
        (self.log_ms,) = _TIME.unpack(time)
        self._generations = list(_GENERATION.iter_unpack(generations))

    def __len__(self) -> int:
        return len(self._generations)

    @property
    def now_ms(self) -> int:
        """Log time; 0 before the first record."""
        return self.log_ms or 0

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The generations, oldest first: (first entry, log time at which it ends)."""
        return list(self._generations)

    def first(self, entries: int) -> int:
        """Return the lowest entry that is not dropped; if there is none, `entries`, their number so
        far.
        """
        return self._generations[0][0] if self._generations else entries

    def advance(self, append_ms: int, window: Window | None) -> None:
        """Advance log time for a record that was appended at `append_ms`."""
        append_ms = min(max(append_ms, 0), _TIME_MAX)
        if self.log_ms is None:
            self.log_ms = append_ms
            self._has_changed = True
        else:
            self.log_ms = max(self.log_ms, min(append_ms, self.log_ms + slice_ms_of(window)))

    def open(self, entries: int, window: Window | None) -> None:
        """Start a new generation at entry number `entries`, unless the current one has not
        ended.
        """
        now = self.now_ms
        if not self._generations or now >= self._generations[-1][1]:
            self._generations.append((entries, now + slice_ms_of(window)))
            self._has_changed = True

    def current(self, entries: int) -> int:
        """Return the first entry of the current generation, or `entries` if it is not open yet."""
        is_open = self._generations and self.now_ms < self._generations[-1][1]
        return self._generations[-1][0] if is_open else entries

    def close(self) -> None:
        """End the current generation, because a changed window has other slices."""
        if self._generations:
            first, end = self._generations[-1]
            self._generations[-1] = (first, min(end, self.now_ms + 1))
            self._has_changed = True

    def expire(self, window: Window | None, entries: int) -> int | None:
        """Drop the generations whose window has passed.

        Returns the lowest remaining entry, or None if all remain.
        """
        if window is None:
            return None
        count = 0
        for _, end in self._generations:
            if end + window.length_ms > self.now_ms:
                break
            count += 1
        if not count:
            return None
        del self._generations[:count]
        self._has_changed = True
        return self.first(entries)

    def add_writes(self, writes: Writes) -> None:
        """Add the changes since the last call, and always the log time: nearly every record moves
        it.
        """
        if self.log_ms is None:
            return
        writes.put(KEY_LOG_TIME, _TIME.pack(self.log_ms))
        if self._has_changed:
            writes.put(
                KEY_GENERATIONS,
                b"".join(_GENERATION.pack(*generation) for generation in self._generations),
            )
            self._has_changed = False
