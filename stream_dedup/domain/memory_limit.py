"""Find how much memory this process may use: the limit of its control group (in Kubernetes, that
of its container), or the memory of the machine.
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_STATM = Path("/proc/self/statm")
# Memory of a worker after loading its dictionary, for systems without /proc.
_UNKNOWN_RESIDENT_BYTES = 250 << 20


def limit_of_group(cgroups: Path = _CGROUPS, own_groups: Path = _OWN_GROUPS) -> int | None:
    """Return the smallest memory limit in bytes of this process's control group and its ancestors;
    None if there is no limit below the machine's memory.

    Versions 1 and 2 are supported. Inside a container the group is usually the root of the
    hierarchy, outside it is at its full path.
    """
    limits_bytes = []
    for line in _lines(own_groups):
        _, _, fields = line.partition(":")
        controllers, _, path = fields.partition(":")
        if not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        limits_bytes += [
            limit
            for folder in (group, *group.parents)
            if folder.is_relative_to(root)
            for limit in _read_limits(folder / name)
        ]
    least = min(limits_bytes, default=None)
    return least if least is not None and least < machine_bytes() else None


def machine_bytes() -> int:
    """Return the memory of the machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def resident_bytes(statm: Path = _STATM) -> int:
    """Return the resident memory of this process in bytes."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return _UNKNOWN_RESIDENT_BYTES


def _read_limits(file: Path) -> list[int]:
    """Return the limit in a file in bytes; an empty list for `max` or a missing file."""
    return [int(line) for line in _lines(file) if line.isdigit()]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split("\n")
    except OSError:
        return []
