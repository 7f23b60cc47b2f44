"""Manifests and tools; a missing tool skips a test with the reason, or fails it if CI=true."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.deploy import tools
from tests.deploy.rules import Manifest


def _find_or_skip(find: Callable[[], Path]) -> Path:
    try:
        return find()
    except tools.MissingToolError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI=true, and {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def helm() -> Path:
    """The real helm; only tests marked `thorough` ask for it, because building it takes minutes."""
    return _find_or_skip(tools.helm)


@pytest.fixture(scope="session")
def promtool() -> Path:
    return _find_or_skip(tools.promtool)


@pytest.fixture(scope="session")
def manifests() -> list[Manifest]:
    return list(yaml.safe_load_all(tools.MANIFESTS.read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def production(helm: Path) -> list[Manifest]:
    """The chart with the values of `deploy/values/production.yaml`: Strimzi, KEDA, monitoring."""
    del helm
    done = tools.template("--values", str(tools.ROOT / "deploy" / "values" / "production.yaml"))
    assert done.returncode == 0, done.stderr
    return [
        manifest
        for manifest in yaml.safe_load_all(done.stdout)
        if manifest and manifest["kind"] != "Pod"
    ]
