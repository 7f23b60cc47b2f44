"""A filter rolled forward and back on a real Apache Kafka, documents flowing: an older build of
this repository, and today's.

The older build is the oldest commit of the history that knows today's formats
(`tests/index/test_two_builds.py`), run from its own files; a shallow clone skips this, and says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stream_dedup.settings.properties import child_environment
from tests.broker.harness import MakeFilter, Outcome, Role, synthetic
from tests.index.test_two_builds import files_of, oldest

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]

DOCUMENTS = 240
COMPILE_SECONDS = 480  # the older build's kernels are in no cache


class OlderRole(Role):
    """A role of the build in `folder`."""

    def __init__(
        self, name: str, environment: dict[str, str], log_path: Path, folder: Path
    ) -> None:
        self.name = name
        self.log_path = log_path
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stream_dedup", "run", name],
                cwd=folder,
                env=child_environment({}) | environment | {"PYTHONPATH": str(folder)},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )


def test_a_filter_is_upgraded_and_rolled_back(make_filter: MakeFilter, tmp_path: Path) -> None:
    """The index is upgraded first, then the worker; back in the other order."""
    commit = oldest()
    print(f"the older build is {commit}")
    folder = files_of(commit, tmp_path / "older")
    crawl = make_filter(partitions=2)

    def start_older(name: str) -> Role:
        role = OlderRole(
            name, crawl.environment, crawl.folder / f"older-{name}-{len(crawl.roles)}.log", folder
        )
        crawl.roles.append(role)
        return role

    documents = synthetic(DOCUMENTS, int(os.environ["TEST_SEED"]), partitions=2)
    index, worker = start_older("index"), start_older("worker")
    produced = 0
    for step in ("old", "new index", "new worker", "old worker", "old index"):
        if step.endswith("index"):
            assert index.stop() == 0
            index = crawl.start("index") if step.startswith("new") else start_older("index")
        elif step.endswith("worker"):
            assert worker.stop() == 0
            worker = crawl.start("worker") if step.startswith("new") else start_older("worker")
        produced += crawl.produce(documents[produced : produced + DOCUMENTS // 5])
        crawl.wait_until_committed(produced, COMPILE_SECONDS)

    outcome = Outcome(crawl)
    outcome.check()
    assert produced == DOCUMENTS
    assert outcome.duplicates
