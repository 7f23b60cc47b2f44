"""`version`."""

from __future__ import annotations

import importlib.metadata
import platform

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.ground.terminal import print_json
from stream_dedup.ground.version import __version__
from stream_dedup.log.records import FORMATS

_LIBRARIES = ("confluent-kafka", "rocksdict", "numba", "jieba")


@command("version", example="stream-dedup version --json")
def version_command(as_json: JsonOption = False) -> int:
    """Print the version, which formats of the log it reads and writes, and the libraries that matter in a report."""
    if as_json:
        print_json(versions())
    else:
        print("\n".join(f"{name} {version}" for name, version in versions().items()))
    return 0


def versions() -> dict[str, str]:
    """Return our version, its formats, Python's version, and those of the libraries that decide what happens."""
    libraries = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    formats = ", ".join(map(str, sorted(FORMATS)))
    return {"stream-dedup": __version__, "log-formats": formats, "python": platform.python_version()} | libraries
