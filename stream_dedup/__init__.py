"""The near-duplicate filter behind a crawler; and its core for programs of their own, without Kafka.

The public names are those of `__all__`; they stay as they are within a major version, and the rest of the package may change.
They are imported when they are first used, so that importing the package itself, and asking a command for help, takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_dedup.api import Answer as Answer
    from stream_dedup.api import Index as Index
    from stream_dedup.api import Match as Match
    from stream_dedup.api import Print as Print
    from stream_dedup.api import fingerprint as fingerprint
    from stream_dedup.errors import StreamDedupError as StreamDedupError
    from stream_dedup.fingerprint.recipe import Recipe as Recipe
    from stream_dedup.index.plan import Plan as Plan

__version__ = "0.1.0"

__all__ = ["Answer", "Index", "Match", "Plan", "Print", "Recipe", "StreamDedupError", "__version__", "fingerprint"]

_HOMES = {
    "Answer": "stream_dedup.api",
    "Index": "stream_dedup.api",
    "Match": "stream_dedup.api",
    "Print": "stream_dedup.api",
    "Plan": "stream_dedup.index.plan",
    "Recipe": "stream_dedup.fingerprint.recipe",
    "StreamDedupError": "stream_dedup.errors",
    # The room of this name, which can be called; see its last lines.
    "fingerprint": "stream_dedup.fingerprint",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only for who asks

    home = import_module(_HOMES[name])
    return home if name == "fingerprint" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
