"""A filter of its own for each test, stopped at its end with the roles' logs shown if it failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.harness import Filter


@pytest.fixture
def make_filter(bootstrap: str, tmp_path: Path) -> Iterator[Callable[..., Filter]]:
    """Make filters whose topics exist; whatever they started is stopped at the end."""
    made: list[Filter] = []

    def make(*, documents_bytes_max: int | None = None, **settings: Any) -> Filter:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Filter(bootstrap, folder, **settings))
        made[-1].create_topics(documents_bytes_max=documents_bytes_max)
        return made[-1]

    yield make
    for one in made:
        one.stop()
