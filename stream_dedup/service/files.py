"""How many files a role may open: as many as the system lets it.

The limit that a process begins with is often 1,024 while it may raise it itself; an index of a hundred million representatives
has hundreds of files open, beside Kafka's connections and those of the HTTP port.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_ENOUGH: Final = 65_536


def allow_many_files() -> None:
    """Raise the limit of open files to what the system allows, and to no more than a role could ever use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then it stays as it is, as it was until now
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
