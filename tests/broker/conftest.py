"""A new filter for each test, stopped at its end; a failed test shows the roles' logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.harness import Filter


@pytest.fixture
def make_filter(bootstrap: str, tmp_path: Path) -> Iterator[Callable[..., Filter]]:
    """Make filters whose topics exist; everything they started is stopped at the end."""
    filters: list[Filter] = []

    def make(*, documents_bytes_max: int | None = None, **settings: Any) -> Filter:
        folder = tmp_path / str(len(filters))
        folder.mkdir()
        filters.append(Filter(bootstrap, folder, **settings))
        filters[-1].create_topics(documents_bytes_max=documents_bytes_max)
        return filters[-1]

    yield make
    for crawl in filters:
        crawl.stop()
