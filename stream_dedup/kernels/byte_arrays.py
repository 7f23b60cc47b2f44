"""Copy bytes between arrays in kernels."""

from __future__ import annotations

from typing import Any

from stream_dedup.kernels.compiled import inlined


@inlined
def copy_bytes(source: Any, start: Any, stop: Any, target: Any, end: Any) -> Any:
    """Copy `source[start:stop]` into `target` from `end` on; return the end after it."""
    for place in range(start, stop):
        target[end] = source[place]
        end += 1
    return end
