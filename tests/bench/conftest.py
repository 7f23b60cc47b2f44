"""The benches promise users nothing: `make test` leaves this folder to `make test-all`."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.thorough)
