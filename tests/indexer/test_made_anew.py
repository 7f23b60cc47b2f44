"""A log that is deleted and created again under an index."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.indexer.role import Indexer
from stream_dedup.kafka import TopicLives
from tests.worker.test_loop import AtOnce


@pytest.mark.parametrize(("topic_id", "ends"), [(b"before", False), (b"after", True)])
def test_a_log_created_again_ends_the_index(topic_id: bytes, ends: bool) -> None:
    """Its client would read on in the new log from the offset of the old one, into a volume that is of the old one."""
    now = iter(range(0, 100_000, 20))
    index: Any = Indexer.__new__(Indexer)
    names = (
        "bytes_in_memory",
        "bytes_mapped",
        "representatives_full",
        "hottest_bucket",
        "full_blocks",
        "rejected",
        "rejected_at",
        "tables_unwritten",
    )
    statistics = dict.fromkeys(names, 0)
    fields: dict[str, Any] = {
        "_monotonic": lambda: float(next(now)),
        "_next_gauges": 0.0,
        "_log": "fingerprints",
        "_log_topic_id": b"before",
        "_snapshots": None,
        "_index": SimpleNamespace(
            applied=7, plan=None, declared=None, statistics=lambda: statistics, searches=dict, keep_up=lambda: None
        ),
        "_metrics": mock.Mock(),
        "_health": mock.Mock(),
        "_publisher": None,
        "_decisions": mock.Mock(),
        "_log_reader": mock.Mock(),
        "_memory": 0,
        "_rejected": 0,
        "_catch_up_to": 7,
        "_warned": set(),
    }
    for name, value in fields.items():
        setattr(index, name, value)
    found = {"fingerprints": (topic_id, 1)}
    index._lives = TopicLives(lambda: found, AtOnce("asking"), lambda: float(next(now)), mock.Mock())  # type: ignore[arg-type]

    def look_often() -> None:
        for _ in range(10):
            index._look_around()

    if not ends:
        look_often()
        return
    with pytest.raises(StreamDedupError, match="fingerprints was deleted and created again"):
        look_often()
