"""`version`."""

from __future__ import annotations

import importlib.metadata
import platform

from stream_dedup import __version__
from stream_dedup.cli.output import print_json

_LIBRARIES = ("confluent-kafka", "rocksdict", "numba", "jieba")


def show_version(*, as_json: bool) -> None:
    """Print our version, Python's, and those of the libraries that decide what happens."""
    versions = {"stream-dedup": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        versions[name] = importlib.metadata.version(name)
    if as_json:
        print_json(versions)
    else:
        print("\n".join(f"{name} {version}" for name, version in versions.items()))
