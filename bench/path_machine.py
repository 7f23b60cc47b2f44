"""What figures depend on besides the program: cores, memory, libraries, and how busy the machine was before."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from stream_dedup.ground.version import __version__

_LIBRARIES = ("confluent-kafka", "numba", "numpy", "rocksdict", "jieba")


def machine(broker: str = "none") -> Mapping[str, object]:
    """Return it; `broker` says which Kafka."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cores": usable,
        "processor": _processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load_before": None if load is None else round(load, 2),
        "libraries": {"stream-dedup": __version__} | {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "broker": broker,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
