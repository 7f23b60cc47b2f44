"""Fixtures of the input tests: a schema registry, and a web server for texts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stream_dedup.inputs import claim_checks
from tests.inputs import registry_server, store_server
from tests.inputs.registry_server import SchemaServer
from tests.inputs.store_server import Pages


@pytest.fixture
def schema_server() -> Iterator[SchemaServer]:
    with registry_server.serving() as schema_server:
        yield schema_server


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """Serve pages, and retry failed reads without a delay."""
    monkeypatch.setattr(claim_checks, "_RETRY_SECONDS", 0.001)
    with store_server.serving() as pages:
        yield pages
