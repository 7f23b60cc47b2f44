"""What several tests of this room use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.storage.store import RocksStore


@pytest.fixture(params=["memory", "rocks"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Opens one and the same volume, again and again."""
    volume: dict[bytes, bytes] = {}
    if request.param == "memory":
        return lambda: MemoryStore(volume)
    return lambda: RocksStore(tmp_path / "deep" / "volume")
