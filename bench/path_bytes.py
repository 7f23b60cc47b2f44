"""Bytes that a measurement left on the broker's disk, and those that went over the loopback interface meanwhile.

Invariants: what cannot be seen is absent, never zero. Sizes are those of Kafka's log segments, without its index files, which
it makes larger than what is in them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

_INTERFACES = Path("/proc/net/dev")
_LOOPBACK = "lo:"


def on_disk(data: Path | None, prefix: str) -> Mapping[str, int]:
    """Return the bytes of each topic whose name begins with `prefix`, by the rest of its name; empty if `data` is None.

    `data` is the broker's folder of partitions. A topic without a byte is left out.
    """
    found: dict[str, int] = {}
    for folder in sorted(data.glob(f"{prefix}*-*")) if data is not None else ():
        name = folder.name.removeprefix(prefix).rpartition("-")[0]
        size = sum(path.stat().st_size for path in folder.glob("*.log"))
        if size:
            found[name] = found.get(name, 0) + size
    return found


def over_loopback(path: Path = _INTERFACES) -> int | None:
    """Return the bytes sent over loopback since the machine started, headers included; None where that cannot be seen.

    `path` is Linux's list of interfaces (proc_net(5)): the ninth number of a line is what was sent.
    """
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if fields and fields[0] == _LOOPBACK:
                return int(fields[9])
    return None
