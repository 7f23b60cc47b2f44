"""Describe the environment of a measurement of `bench path`: the machine, bytes on disk and
loopback, a log that already contains documents.

Figures also depend on cores, memory, libraries and the load of the machine before. Entries that are
in the index before the measured documents are those of `bench index`: random fingerprints of a
topic that nobody reads, with ids as long as those of web pages. Every look-up reads them, but no
measured document is near one.

Invariants: a value that cannot be measured is absent, never zero; sizes are those of Kafka's log
segments, without the preallocated index files. A log begins with the declaration that a worker
would have written.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from bench.log_stream import PrintStream
from stream_dedup.domain.version import __version__
from stream_dedup.kafka import LogAppender
from stream_dedup.log.records import Control, encode_control
from stream_dedup.orders.declaration import fields_of
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.recipe import recipe_of

_INTERFACES = Path("/proc/net/dev")
_LOOPBACK = "lo:"


def topic_bytes(data: Path | None, prefix: str) -> Mapping[str, int]:
    """Return the bytes of each topic whose name begins with `prefix`, by the rest of its name;
    empty if `data` is None.

    `data` is the broker's folder of partitions. A topic without a byte is left out.
    """
    found: dict[str, int] = {}
    for folder in sorted(data.glob(f"{prefix}*-*")) if data is not None else ():
        name = folder.name.removeprefix(prefix).rpartition("-")[0]
        size = sum(path.stat().st_size for path in folder.glob("*.log"))
        if size:
            found[name] = found.get(name, 0) + size
    return found


def loopback_bytes_sent(path: Path = _INTERFACES) -> int | None:
    """Return the bytes sent over loopback since the machine started, headers included; None where
    that cannot be seen.

    `path` is Linux's list of interfaces (proc_net(5)): the ninth number of a line is what was sent.
    """
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if fields and fields[0] == _LOOPBACK:
                return int(fields[9])
    return None


def fill_log(variables: Mapping[str, str], entries: int) -> None:
    """Begin the log of roles that get the settings `own`, with so many representatives.

    Raises:
        BrokerError: they could not be written.
    """
    settings = load_settings(variables, environ={})
    recipe, names = recipe_of(settings), settings.topic_names
    appender = LogAppender(settings, names.fingerprints, "fill")
    appender.send(
        encode_control(Control("declare", fields_of(settings, recipe))), None, lambda _: None
    )
    for record in PrintStream(settings.judging_plan, entries, 0.0, 0, recipe=recipe.id).records():
        appender.send(record.raw, None, lambda _: None)
    appender.flush()


_LIBRARIES = ("confluent-kafka", "numba", "numpy", "rocksdict", "jieba")


def machine(broker: str = "none") -> Mapping[str, object]:
    """Return the properties of the machine for the report; `broker` describes the Kafka."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cores": usable,
        "processor": _processor_name(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load_before": None if load is None else round(load, 2),
        "libraries": {"stream-dedup": __version__}
        | {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "broker": broker,
    }


def _processor_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
