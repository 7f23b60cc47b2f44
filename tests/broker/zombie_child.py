"""A worker that is held before its transaction until a file appears; a test's child, with or
without the guard against zombies.

    python -m tests.broker.zombie_child FILE kept|removed

Its first batch has records of two partitions, so whichever moves away, the transaction contains
a lost one.

The guard: the group's metadata is read together with the batch. Removed here, it is read at the
commit. This worker's rebalance callbacks do not wait for its transaction, as if Kafka had lost
patience with one that does.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from stream_dedup.domain.messages import Messages
from stream_dedup.kafka import SourceConsumer
from stream_dedup.serving import logs
from stream_dedup.serving.process import stop_on_signals
from stream_dedup.settings.layers import load_settings
from stream_dedup.worker import role
from stream_dedup.worker.dependencies import WorkerDependencies
from tests.unfenced_worker import unguarded


class TwoPartitionsFirst(SourceConsumer):
    """A source whose first records are of two partitions at least."""

    has_begun = False

    def take_messages(self, most: int, timeout_seconds: float) -> Messages:
        """Take more, until the first messages are of two partitions."""
        messages = super().take_messages(most, timeout_seconds)
        while messages and not self.has_begun and len(messages.last_offsets()) < 2:
            messages = Messages.joined(
                [messages, super().take_messages(most - len(messages), timeout_seconds)]
            )
        self.has_begun = self.has_begun or bool(messages)
        return messages


class DelayedTransactions:
    """Transactions, the first of which waits until a file appears."""

    def __init__(self, transactions: Any, file: Path) -> None:
        self._inner = transactions
        self._file = file
        self._was_held = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, outputs: Any, offsets: Any, group_metadata: bytes, **more: Any) -> Any:
        """Run a transaction, the first one once the file is there."""
        if not self._was_held.is_set():
            self._was_held.set()
            print("held before its transaction", flush=True)
            while not self._file.exists():
                # The loop goes on: a partition moves away, and the group's metadata of now is that
                # of a good member.
                time.sleep(0.05)
        return self._inner.run(outputs, offsets, group_metadata, **more)


def main(file: Path, guard: str) -> None:
    """Run the worker; its first transaction waits until `file` exists."""
    dependencies = WorkerDependencies.of_process(make_source=TwoPartitionsFirst)
    chosen = dependencies if guard == "kept" else unguarded(dependencies)

    def make_transactions(*given: Any, **more: Any) -> Any:
        return DelayedTransactions(chosen.make_transactions(*given, **more), file)

    # Its rebalance callbacks do not wait for its transaction.
    logs.configure("info", "console", role="worker")
    with mock.patch.object(role.Worker, "drain"), stop_on_signals() as stop:
        role.run(load_settings(), stop, replace(chosen, make_transactions=make_transactions))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
