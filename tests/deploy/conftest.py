"""Rendered manifests and tools; a tool that is missing skips with its reason, and with CI=true
fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import tools

OVERLAYS = tools.ROOT / "deploy" / "overlays"


def _or_skip(find: Callable[[], Path]) -> Path:
    try:
        return find()
    except tools.MissingToolError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI=true, and {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kustomize() -> Path:
    """The real kustomize."""
    return _or_skip(tools.kustomize)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The real promtool."""
    return _or_skip(tools.promtool)


@pytest.fixture(scope="session")
def rendered(kustomize: Path) -> dict[str, list[dict[str, Any]]]:
    """The manifests of the base and of each overlay, by its name."""
    del kustomize
    folders = {"base": OVERLAYS.parent / "base"} | {
        path.name: path for path in sorted(OVERLAYS.iterdir())
    }
    return {
        name: list(yaml.safe_load_all(tools.render(folder))) for name, folder in folders.items()
    }
