"""A real Apache Kafka, embedded: for the demo, the tests and `stream-dedup broker`, on a machine with nothing but Python.

Invariants: nothing here is needed where a Kafka exists already; only bytes whose SHA-256 is pinned in `jars.lock` are
ever run; this room uses no Kafka client library.

`jars.py` gathers what the broker is made of, `node.py` runs one node of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_dedup.broker.node import LocalBroker

__all__ = ["LocalBroker"]


def __getattr__(name: str) -> Any:
    # On first use, so that `python -m stream_dedup.broker.archive` runs that module once, not as two copies.
    if name == "LocalBroker":
        from stream_dedup.broker.node import LocalBroker  # noqa: PLC0415

        return LocalBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
