"""Write data through to the disk."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk, so that its contents survive a crash of the machine.

    Raises:
        OSError: the disk failed, or is full.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
