"""The roles run as the manifests let them: no root, no home, no capabilities, a read-only root file system, SIGTERM."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_dedup.fingerprinting import prints
from stream_dedup.machine.compiled import cache_directory
from stream_dedup.service.ports import free_ports
from tests.broker.conftest import make_filter
from tests.broker.harness import Filter, synthetic, wait_until
from tests.deploy import pod

__all__ = ["make_filter"]

PROGRAM = [sys.executable, "-m", "stream_dedup"]
LOOK = """
import json, os, pathlib, tempfile
def can(path):
    try:
        with open(path, "w"):
            return True
    except OSError:
        return False
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "user": os.getuid(), "groups": os.getgroups(), "home": os.environ.get("HOME"), "capabilities": int(status["CapBnd"], 16),
    "no_new_privileges": int(status["NoNewPrivs"]),
    "written": [path for path in os.environ["TRY"].split() if can(path)],
}))
"""


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    """Skip, with the reason, where such a process cannot be made."""
    if reason := pod.why_not():
        pytest.skip(reason)


def kernels_of_tests() -> Path:
    """Return the folder where kernels are kept that tests have compiled."""
    folder = cache_directory(Path(prints.__file__))
    assert folder is not None
    return folder.parent


def answer(port: int, path: str) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as found:
            text: str = found.read().decode()
            return text
    except (urllib.error.URLError, OSError):
        return None


def test_the_constraints_are_real() -> None:
    """Such a process can write its volume only, is nobody we know, and can gain nothing."""
    looked = pod.start([sys.executable, "-c", LOOK], {"TRY": f"/x /etc/x /var/x /usr/x /tmp/x {pod.ROOT}/x {pod.VOLUME}/x"})
    said, _ = looked.communicate(timeout=60)

    assert json.loads(said.splitlines()[-1]) == {
        "user": pod.USER,
        "groups": [],
        "home": None,
        "capabilities": 0,
        "no_new_privileges": 1,
        "written": ["/mnt/volume/x"],
    }


@pytest.mark.thorough
@pytest.mark.broker
def test_the_roles_work_and_drain(make_filter: Callable[..., Filter], tmp_path: Path) -> None:
    """Worker, index and search become ready, judge and find, and end with code 0 at SIGTERM, with nothing left in flight."""
    crawl = make_filter()
    crawl.produce(synthetic(40, 7, partitions=4))
    ports = dict(zip(("index", "worker", "search"), free_ports(3), strict=True))
    logs = {role: tmp_path / f"{role}.log" for role in ports}
    common = {
        name: value
        for name, value in crawl.environment.items()
        if name.startswith("STREAM_DEDUP_") and not name.endswith("_DIR")
    } | {
        "STREAM_DEDUP_STATE_DIR": str(pod.VOLUME),
        "STREAM_DEDUP_INDEX_DIR": str(pod.VOLUME / "index"),
        "STREAM_DEDUP_SEARCH_DIR": str(pod.VOLUME / "search"),
        "STREAM_DEDUP_CACHE_DIR": str(pod.VOLUME / "cache"),
        "STREAM_DEDUP_WORKER_ID": "stream-dedup-worker-0",
        "STREAM_DEDUP_LOG_FORMAT": "json",
    }
    roles = {
        role: pod.start([*PROGRAM, "run", role], common | {"STREAM_DEDUP_HTTP_PORT": str(port)}, logs[role], kernels_of_tests())
        for role, port in ports.items()
    }
    try:
        for role, port in ports.items():
            wait_until(lambda port=port: answer(port, "/readyz"), f"the {role} is ready", 180)
            assert answer(port, "/livez")
            assert answer(port, "/startupz")
        crawl.wait_until_committed(40)

        def taken() -> bool:
            told = answer(ports["search"], "/metrics") or ""
            return "\nstream_dedup_search_records_total 40.0\n" in told

        wait_until(taken, "the search has what left", 60)
        assert answer(ports["search"], "/groups")
        for role in ("worker", "index", "search"):
            roles[role].terminate()
            assert roles[role].wait(60) == 0
    finally:
        for role, process in roles.items():
            process.kill()
            process.wait()
            print(f"--- {role}\n{logs[role].read_text()[-3000:]}")
    stopped = [json.loads(line) for line in logs["worker"].read_text().splitlines() if "worker stopped" in line]
    assert [one["dropped_in_flight"] for one in stopped] == [0]
