"""Fixtures and hooks of all tests: the real broker, and what happens without one."""

from __future__ import annotations

import gc
import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

BROKER = "BROKER"
SHARED_BROKER = pytest.StashKey[str]()

# One seed for all processes: test ids contain it, and all must collect the same tests. Set it to
# repeat a run.
os.environ.setdefault("TEST_SEED", str(random.SystemRandom().randrange(2**32)))


def pytest_report_header() -> str:
    """Return the seed with which this run can be repeated."""
    return f"TEST_SEED={os.environ['TEST_SEED']}"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile kernels and start a broker once, which otherwise each process would do."""
    is_controller = not hasattr(session.config, "workerinput")
    if is_controller and getattr(session.config.option, "numprocesses", None):
        halves = ("compile_kernels.use_fingerprints()", "compile_kernels.use_index()")
        children = [
            subprocess.Popen(
                [sys.executable, "-c", f"from stream_dedup.serving import compile_kernels; {half}"]
            )
            for half in halves
        ]
        if BROKER not in os.environ:
            _start_broker(session.config)
            _record_classes(session.config)
        for child in children:
            child.wait()  # a failure is repeated, with its message, in the test that needs it


def _start_broker(config: pytest.Config) -> None:
    from stream_dedup.broker import LocalBroker
    from stream_dedup.domain.errors import LocalBrokerError

    broker = LocalBroker()
    config.add_cleanup(broker.stop)
    try:
        broker.start()
    except LocalBrokerError:
        return  # each process tries again and reports the reason
    config.stash[SHARED_BROKER] = broker.bootstrap


def _record_classes(config: pytest.Config) -> None:
    from tests.broker_package import archive

    archive.use()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.broker_package.archive"],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    config.add_cleanup(lambda: (process.terminate(), process.wait()))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[BROKER] = node.config.stash.get(SHARED_BROKER, None)


WAITING = (
    "broker/",
    "broker_package/",
    "cli/test_with_broker",
    "console/test_demo",
    "bench/",
    "deploy/",
    "model/",
    "test_package",
    "test_readme",
    "test_compiled",
)


@pytest.hookimpl(trylast=True)  # after tests were deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let every process begin with its share of the modules that wait for brokers and programs.

    xdist gives each process an equal run of consecutive tests; an idle process takes tests from the
    end of another's run. Ordered by name, all tests that wait would be in one process's run, while
    the other processes are idle. All processes must order alike, so the order may depend only on
    what all of them know.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    here = Path(__file__).parent
    quick: list[pytest.Item] = []
    waiting: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.path.relative_to(here).as_posix().startswith(WAITING):
            waiting.setdefault(item.path, []).append(item)
        else:
            quick.append(item)
    ordered: list[pytest.Item] = []
    for process in range(processes):
        ordered += [
            item for module in list(waiting.values())[process::processes] for item in module
        ]
        share = len(items) * (process + 1) // processes - len(ordered)
        ordered += quick[:share]
        quick = quick[share:]
    items[:] = ordered + quick


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if "no broker" in str(report.longrepr)
    ]
    if missing:
        terminalreporter.section("NOT RUN: no broker", sep="!", red=True, bold=True)
        terminalreporter.line(
            f"{len(missing)} tests need a real Apache Kafka and were not run; nothing below them "
            "is proved."
        )


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Restore the logging that a command sets up for its process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("stream_dedup", "stream_dedup.kafka"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.captureWarnings(False)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a real Apache Kafka: the one named by BROKER, or a local one."""
    given = os.environ.get(BROKER) or getattr(request.config, "workerinput", {}).get(BROKER)
    if given:
        yield given
        return
    from stream_dedup.broker import LocalBroker
    from stream_dedup.domain.errors import LocalBrokerError

    broker = LocalBroker(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
    except LocalBrokerError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"There is no broker, and CI=true makes that a failure: {error}")
        pytest.skip(f"no broker: {error}")
    try:
        yield broker.bootstrap
    finally:
        broker.stop()


@pytest.fixture
def corpora() -> Path:
    """The folder with real texts and known duplicates, where there is one beside the project."""
    folder = Path(__file__).parent.parent.parent / "shared" / "corpora"
    if not folder.is_dir():
        pytest.skip(f"no corpora: {folder} does not exist")
    return folder


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Disable the cycle collector: a role runs it rarely, so objects in cycles stay in memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
