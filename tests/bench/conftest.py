"""Users do not depend on the benches: only `make test-all` runs the tests of this folder."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.thorough)
