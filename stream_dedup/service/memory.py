"""What becomes of memory that a process has freed: a worker keeps some.

Each batch takes and frees some ten megabytes several times over: values, texts, columns. The C library gives that back to the
system each time, and each page then comes back by a fault, which on a virtual machine can take microseconds. Kept is about as
much as a usual batch needs, and after a large one all of it goes back: the largest that can come, of records that expand
beyond measure, is not to meet memory that nobody uses.

An index is not to do this: its tables grow in place because they are pieces of their own (`neighbours`).
"""

from __future__ import annotations

import ctypes
from typing import Any

# malloc.h of the GNU C library: mallopt(3), malloc_trim(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 << 20
_OWN_PIECE_BYTES = 16 << 20


def keep_memory() -> bool:
    """Have this process keep what it frees, up to 32 MB an arena, in pieces of less than 16 MB; return whether it can."""
    mallopt = _of_the_c_library("mallopt")
    return mallopt is not None and all(
        mallopt(option, size) for option, size in ((_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_MMAP_THRESHOLD, _OWN_PIECE_BYTES))
    )


def give_back() -> bool:
    """Give back to the system what is kept, which takes some milliseconds; return whether it can."""
    malloc_trim = _of_the_c_library("malloc_trim")
    if malloc_trim is None:
        return False
    malloc_trim(ctypes.c_size_t(0))
    return True


def _of_the_c_library(name: str) -> Any:
    """Return a function of the C library, or None where it has none of that name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
