"""`version`."""

from __future__ import annotations

import importlib.metadata
import platform

from stream_dedup import __version__
from stream_dedup.ground.terminal import print_json

_LIBRARIES = ("confluent-kafka", "rocksdict", "numba", "jieba")


def versions() -> dict[str, str]:
    """Return our version, Python's, and those of the libraries that decide what happens."""
    libraries = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"stream-dedup": __version__, "python": platform.python_version()} | libraries


def show_version(*, as_json: bool) -> None:
    """Print them."""
    if as_json:
        print_json(versions())
    else:
        print("\n".join(f"{name} {version}" for name, version in versions().items()))
