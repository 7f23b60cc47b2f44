"""Processes of their own, for work on what strangers wrote: the pages of `html`.

Invariants: a child has none of our environment but what Python needs to start, so that it holds no
password of Kafka's or of a store's; it writes no core file, and the kernel bounds its memory, also
once we are gone. On systems other than Linux nothing but the
environment is bounded.
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
    given = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # Its own session, so that Ctrl-C reaches us alone, and what it works on is finished.
    child = subprocess.Popen(
        command, env=given | {"PYTHONDONTWRITEBYTECODE": "1"}, start_new_session=True, **options
    )
    _limit(child.pid, resource.RLIMIT_AS, memory_bytes)
    _limit(child.pid, resource.RLIMIT_CORE, 0)
    return child


def _limit(process: int, what: int, most: int) -> None:
    """Limit a process that has just started, as far as our own limit allows; in the child itself
    locks may be held.
    """
    if hasattr(resource, "prlimit"):
        _, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            resource.prlimit(process, what, (bound, bound))
