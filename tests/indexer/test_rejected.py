"""What an index says of records that it rejected: at `/readyz`, and once in its log."""

from __future__ import annotations

from typing import Any
from unittest import mock

from stream_dedup.ground.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.memory import MemoryStore
from stream_dedup.indexer.role import Indexer
from tests.index.logs import APPEND_MS, Doc, batch, declare


def told(log: list[bytes | None]) -> tuple[list[tuple[bool, str]], mock.Mock]:
    """Return whether an index is ready, and why, after a log, after a second look, and opened again; and what it logged."""
    volume: dict[bytes, bytes] = {}
    index = LogIndex(MemoryStore(volume))
    index.apply([(offset, APPEND_MS, raw) for offset, raw in enumerate(log)])
    logger, found = mock.Mock(), []
    for one in (index, LogIndex(MemoryStore(volume))):
        role: Any = Indexer.__new__(Indexer)
        for name, value in {"_index": one, "_log": "fingerprints", "_logger": logger, "_rejected": 0}.items():
            setattr(role, name, value)
        found += [role._readiness(one.applied, one.statistics()) for _ in range(2)]
    return found, logger


def test_what_was_rejected_is_named_and_survives_a_restart() -> None:
    """How many, and the last one's log offset; a line in the log each time that it grew, not at each look."""
    one = batch([Doc(0, 0, 0, bytes(16), 0)])
    found, logger = told([declare(PLANS["classic"]), one[:-1], one, b"another program", one])

    assert set(found) == {(True, "applied up to log offset 5; rejected were 2 records of the log, the last at log offset 3")}
    assert [call.kwargs for call in logger.warning.call_args_list] == [{"rejected": 2, "last_log_offset": 3}] * 2


def test_an_index_of_a_sound_log_says_nothing_of_it() -> None:
    found, logger = told([declare(PLANS["classic"]), batch([Doc(0, 0, 0, bytes(16), 0)])])

    assert set(found) == {(True, "applied up to log offset 2")}
    assert not logger.warning.called


def test_an_index_of_a_foreign_log_is_not_ready() -> None:
    """It holds nothing, and answers nothing but that it cannot read."""
    found, _ = told([b"another program's record"] * 59)

    assert {ready for ready, _ in found} == {False}
    assert "no record of fingerprints declares a recipe; rejected were 59 records of the log, the last at" in found[0][1]
