"""What tests of inputs ask: a registry of schemas, and pages that lie elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stream_dedup.inputs import claim_checks
from tests.inputs import registry_server, store_server
from tests.inputs.registry_server import SchemaServer
from tests.inputs.store_server import Pages


@pytest.fixture
def stand() -> Iterator[SchemaServer]:
    with registry_server.serving() as stand:
        yield stand


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """Have what does not answer asked again at once."""
    monkeypatch.setattr(claim_checks, "_RETRY_SECONDS", 0.001)
    with store_server.serving() as pages:
        yield pages
