"""What becomes of files."""

from __future__ import annotations

import os
from pathlib import Path


def flip(path: Path, at: int | None = None, bits: int = 1) -> None:
    """Turn bits of a byte, in the middle of the file where no place is named."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 if at is None else at % len(raw)] ^= bits
    path.write_bytes(raw)


def cut(path: Path, share: float) -> None:
    """Leave this share of a file."""
    os.truncate(path, int(path.stat().st_size * share))
