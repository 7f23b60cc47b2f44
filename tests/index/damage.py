"""Damage files."""

from __future__ import annotations

import os
from pathlib import Path


def flip(path: Path, position: int | None = None, bits: int = 1) -> None:
    """Flip bits of one byte, by default of the byte in the middle of the file."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 if position is None else position % len(raw)] ^= bits
    path.write_bytes(raw)


def cut(path: Path, share: float) -> None:
    """Truncate a file to a share of its size."""
    os.truncate(path, int(path.stat().st_size * share))
