"""Programs that tests start and wait for."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run(
    command: Sequence[str | Path], *, code: int | None = 0, seconds: float = 60, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program, which must exit with `code` unless that is None; return its output."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, **more
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done
