"""Fixtures that run commands in this process, without settings of the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stream_dedup.__main__ import main
from tests.cli.running import Ended, Run


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("STREAM_DEDUP_", "KAFKA_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STREAM_DEDUP_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command line and return its exit code and what it printed."""

    def run_command(*arguments: object) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return run_command
