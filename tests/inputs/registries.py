"""The schema registries that tests run against: our stand-in, and a real one where it can be had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.inputs import apicurio, registry_server

KINDS = ["stand-in", pytest.param("apicurio", marks=pytest.mark.long)]


@contextmanager
def running(kind: str) -> Iterator[str]:
    """Yield the address of a registry of one of `KINDS`; skip the test, and say why, where it cannot be had."""
    if kind == "stand-in":
        with registry_server.serving() as stand:
            yield stand.url
        return
    try:
        with apicurio.running() as address:
            yield address
    except apicurio.NoApicurioError as error:
        pytest.skip(f"Apicurio {apicurio.VERSION} does not run here: {error}")
