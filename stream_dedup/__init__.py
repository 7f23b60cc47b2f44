"""The near-duplicate filter behind a crawler; and its core for other programs, without
Kafka.

The public names are those of `__all__`; they stay as they are within a major version, and the rest
of the package may change. They are imported when they are first used, so that importing the package
itself, and asking a command for help, takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stream_dedup.domain.version import __version__ as __version__

if TYPE_CHECKING:
    from stream_dedup.domain.errors import StreamDedupError as StreamDedupError
    from stream_dedup.domain.plan import Plan as Plan
    from stream_dedup.files.api import Answer as Answer
    from stream_dedup.files.api import Index as Index
    from stream_dedup.files.api import Match as Match
    from stream_dedup.files.api import Print as Print
    from stream_dedup.files.api import fingerprint as fingerprint
    from stream_dedup.files.api import page_text as page_text
    from stream_dedup.files.datasets import dedup as dedup
    from stream_dedup.files.datasets import judge as judge
    from stream_dedup.files.datasets import prints as prints
    from stream_dedup.fingerprinting.recipe import Recipe as Recipe

__all__ = [
    "Answer",
    "Index",
    "Match",
    "Plan",
    "Print",
    "Recipe",
    "StreamDedupError",
    "__version__",
    "dedup",
    "fingerprint",
    "judge",
    "page_text",
    "prints",
]

_HOMES = {
    "Answer": "stream_dedup.files.api",
    "Index": "stream_dedup.files.api",
    "Match": "stream_dedup.files.api",
    "Print": "stream_dedup.files.api",
    "Plan": "stream_dedup.domain.plan",
    "Recipe": "stream_dedup.fingerprinting.recipe",
    "StreamDedupError": "stream_dedup.domain.errors",
    "dedup": "stream_dedup.files.datasets",
    "fingerprint": "stream_dedup.files.api",
    "judge": "stream_dedup.files.datasets",
    "page_text": "stream_dedup.files.api",
    "prints": "stream_dedup.files.datasets",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only for who asks

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
