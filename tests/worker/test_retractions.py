"""What a worker tells the log of dead letters that may represent others: many documents in one record, before they leave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stream_dedup.ground.document import Message
from stream_dedup.log import records
from stream_dedup.proof.controls import retracted
from stream_dedup.worker.delivery import Delivery
from stream_dedup.worker.prepare import value_digest


def test_the_dead_letters_of_a_batch_are_retracted_together() -> None:
    """As many positions in a record as a batch may have; the log is flushed once, behind the last."""
    said: list[Any] = []
    appender = SimpleNamespace(
        send=lambda raw, key, done: said.append(records.decode(raw)), flush=lambda *, patience: said.append(patience)
    )
    sources = {("documents", part): SimpleNamespace(topic="documents", topic_id=b"t" * 16, partition=part) for part in range(2)}
    worker: Any = SimpleNamespace(_flow=SimpleNamespace(source=sources.__getitem__), _appender=appender, _patience="patience")
    gone = [Message("documents", n % 2, n, None, b"%d" % n, 0, []) for n in range(2500)]

    Delivery._send_retractions(worker, gone)

    *orders, flushed = said
    assert flushed == "patience"
    assert [len(one.fields["positions"]) for one in orders] == [1000, 1000, 500]
    found = [position for one in orders for position in retracted(one.fields)]
    assert found == [(("documents", b"t" * 16, one.partition), one.offset, value_digest(one.value)) for one in gone]
