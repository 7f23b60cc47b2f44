"""Start child processes for untrusted input, such as the pages of `html`.

Invariants: a child gets only the environment variables that Python needs to start, so that it has no
password of Kafka or of a store; it writes no core file, and the kernel limits its memory, also after
this process ended. On systems other than Linux only the environment is limited.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Sequence
from typing import Any, Final

_PASSED_ON: Final = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")


def start_child(
    command: Sequence[str], memory_bytes: int, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a process; `options` are those of `Popen`.

    Raises:
        OSError: the system cannot start it now.
    """
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # A new session, so that Ctrl-C reaches this process only, and the child finishes its work.
    child = subprocess.Popen(
        command,
        env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=True,
        **options,
    )
    _limit(child.pid, resource.RLIMIT_AS, memory_bytes)
    _limit(child.pid, resource.RLIMIT_CORE, 0)
    return child


def _limit(process: int, kind: int, limit: int) -> None:
    """Set a limit of a started process, at most the hard limit of this one.

    A function that runs in the child before its program could block on a lock of another thread.
    """
    if hasattr(resource, "prlimit"):
        _, hard = resource.getrlimit(kind)
        bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            resource.prlimit(process, kind, (bound, bound))
