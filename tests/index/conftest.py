"""Fixtures of the tests of the index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.storage.store import RocksStore


@pytest.fixture(params=["memory", "rocks"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Return a function that opens the same volume at each call."""
    volume: dict[bytes, bytes] = {}
    if request.param == "memory":
        return lambda: MemoryStore(volume)
    return lambda: RocksStore(tmp_path / "deep" / "volume")
