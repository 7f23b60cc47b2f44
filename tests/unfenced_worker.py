"""A worker without its guard against zombies: group metadata that is read with a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stream_dedup.kafka import SourceConsumer
from stream_dedup.worker.dependencies import WorkerDependencies


class _Unguarded:
    def __init__(self, transactions: Any, sources: list[SourceConsumer]) -> None:
        self._inner = transactions
        self._sources = sources

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, outputs: Any, offsets: Any, _stamp: bytes, **more: Any) -> Any:
        return self._inner.run(outputs, offsets, self._sources[-1].group_metadata(), **more)


def unguarded(dependencies: WorkerDependencies) -> WorkerDependencies:
    """Return the dependencies with transactions that ignore the batch's group metadata."""
    sources: list[SourceConsumer] = []

    def make_source(*given: Any) -> SourceConsumer:
        sources.append(dependencies.make_source(*given))
        return sources[-1]

    def make_transactions(*given: Any, **more: Any) -> Any:
        return _Unguarded(dependencies.make_transactions(*given, **more), sources)

    return replace(dependencies, make_source=make_source, make_transactions=make_transactions)
