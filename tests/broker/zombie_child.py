"""A worker that is held before its transaction until a file appears; a test's child, with or without the guard against zombies.

    python -m tests.broker.zombie_child FILE kept|removed

Its first batch has records of two partitions, so whichever moves away, the transaction is of one that was lost.

The guard: the group's metadata is read together with the batch. Removed here, it is read at the commit. This worker's
rebalance callbacks do not wait for its transaction, as if Kafka had lost patience with one that does.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from stream_dedup.ground.messages import Messages
from stream_dedup.service import logs
from stream_dedup.service.signals import stop_on_signals
from stream_dedup.settings.layers import load_settings
from stream_dedup.worker import role


class _Unguarded:
    """A producer that commits with the metadata of now."""

    def __init__(self, producer: Any, source: role.SourceConsumer) -> None:
        self._inner = producer
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send_offsets_to_transaction(self, positions: Any, _stamp: bytes, *rest: Any) -> Any:
        """Send with the group's metadata as it is now, not as it was with the batch."""
        return self._inner.send_offsets_to_transaction(positions, self._source.stamp(), *rest)


def main(file: Path, guard: str) -> None:
    """Run the worker; its first transaction waits until `file` exists."""
    run = role.TransactionalOutput.run
    held = threading.Event()
    sources: list[role.SourceConsumer] = []
    made = role.SourceConsumer.__init__

    def remember(self: role.SourceConsumer, *args: Any) -> None:
        made(self, *args)
        sources.append(self)

    taken = role.SourceConsumer.take
    begun = threading.Event()

    def take(self: role.SourceConsumer, most: int, timeout_seconds: float) -> Messages:
        messages = taken(self, most, timeout_seconds)
        while messages and not begun.is_set() and len(messages.last_offsets()) < 2:
            messages = Messages.joined([messages, taken(self, most - len(messages), timeout_seconds)])
        if messages:
            begun.set()
        return messages

    def slow(self: role.TransactionalOutput, outputs: Any, offsets: Any, stamp: bytes, **more: Any) -> Any:
        if held.is_set():
            return run(self, outputs, offsets, stamp, **more)
        held.set()
        print("held before its transaction", flush=True)
        while not file.exists():
            # The loop goes on: a partition moves away, and the group's metadata of now is that of a good member.
            time.sleep(0.05)
        if guard == "kept":
            return run(self, outputs, offsets, stamp, **more)
        producer = self._producer
        self._producer = _Unguarded(producer, sources[0])  # type: ignore[assignment]
        try:
            return run(self, outputs, offsets, stamp, **more)
        finally:
            self._producer = producer

    role.SourceConsumer.__init__ = remember  # type: ignore[assignment,method-assign]
    role.SourceConsumer.take = take  # type: ignore[method-assign]
    role.TransactionalOutput.run = slow  # type: ignore[method-assign]
    role._Worker._settle = lambda _: None  # type: ignore[method-assign,assignment]
    logs.configure("info", "console", role="worker")
    with stop_on_signals() as stop:
        role.run(load_settings(), stop)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
