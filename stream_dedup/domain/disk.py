"""What has to survive the machine's end."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Let what a file or a folder holds survive the machine's end.

    Raises:
        OSError: the disk failed, or is full.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
