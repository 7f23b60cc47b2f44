"""How much memory this process may take: what its control group allows (a pod's limit is one), or
what the machine has.
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_STATM = Path("/proc/self/statm")
_UNKNOWN_RESIDENT_BYTES = (
    250 << 20
)  # of a worker that has read its dictionary, where the system does not tell


def limit_of_group(cgroups: Path = _CGROUPS, own_groups: Path = _OWN_GROUPS) -> int | None:
    """Return the least limit of this process's control group and of those above it; None where
    there is none.

    Both versions are read. In a container the group is mostly shown as the root, outside under the
    path that it has.
    """
    found = []
    for line in _lines(own_groups):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        found += [
            limit
            for folder in (group, *group.parents)
            if folder.is_relative_to(root)
            for limit in _limits(folder / name)
        ]
    least = min(found, default=None)
    return least if least is not None and least < machine_bytes() else None


def machine_bytes() -> int:
    """Return how much memory the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def resident_bytes(statm: Path = _STATM) -> int:
    """Return how much memory this process takes now."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return _UNKNOWN_RESIDENT_BYTES


def _limits(file: Path) -> list[int]:
    """Return the limit that a file states; `max` is none."""
    return [int(line) for line in _lines(file) if line.isdigit()]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split("\n")
    except OSError:
        return []
