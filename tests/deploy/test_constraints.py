"""The roles run in a process under the constraints that the manifests set for a pod.

The user is not root and has no home, name or capabilities; the root file system is read-only except
for two folders; the environment contains only what a test passes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from stream_dedup.fingerprinting import prints
from stream_dedup.kernels.compiled import cache_directory
from stream_dedup.serving.ports import free_ports
from tests.broker.conftest import make_filter
from tests.broker.harness import MakeFilter, synthetic
from tests.deploy.tools import ROOT
from tests.waiting import wait_until

__all__ = ["make_filter"]

USER = 10001
MOUNT = Path("/mnt")
VOLUME = MOUNT / "volume"
TMP = MOUNT / "tmp"
PROGRAM = [sys.executable, "-m", "stream_dedup"]
SCRIPT = f"""
set -e
mount -t tmpfs -o mode=755 pod {MOUNT}
mkdir -m 700 {VOLUME}
[ -z "$KERNELS" ] || {{ mkdir {VOLUME}/cache; cp -r "$KERNELS" {VOLUME}/cache/kernels; }}
chmod -R go-rwx {VOLUME} && chown -R {USER}:{USER} {VOLUME}
mkdir -m 1777 {TMP}
# Mount Python's folder again if another user cannot enter one of its parents.
if [ -n "$CLOSED" ]; then
  mkdir {MOUNT}/python
  mount --bind "$PYTHON" {MOUNT}/python
  mount -t tmpfs -o mode=755 pod "$CLOSED"
  mkdir -p "$PYTHON"
  mount --bind {MOUNT}/python "$PYTHON"
fi
# The volume is a separate file system, so that it stays writable.
for folder in {VOLUME} {TMP}; do mount --bind $folder $folder; done
while read -r _ where _; do
  case $where in
    /proc*|/sys*|/dev*|{VOLUME}|{TMP}) ;;
    *) mount -o remount,bind,ro "$where" 2> /dev/null || true ;;
  esac
done < /proc/mounts
exec setpriv --reuid {USER} --regid {USER} --clear-groups --bounding-set=-all --inh-caps=-all \
  --no-new-privs -- "$@"
"""
LOOK = """
import json, os, pathlib
def can(path):
    try:
        return bool(open(path, "w"))
    except OSError:
        return False
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
got = os.getuid(), os.getgroups(), os.environ.get("HOME"), int(status["CapBnd"], 16), int(status["NoNewPrivs"])
print(json.dumps([*got, [path for path in os.environ["TRY"].split() if can(path)]]))
"""


def closed_parent(path: Path) -> Path | None:
    """Return the first parent of a path that another user cannot enter."""
    return next(
        (parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None
    )


def start_in_pod(
    command: list[str],
    environment: dict[str, str],
    log: Path | None = None,
    kernels: Path | None = None,
) -> subprocess.Popen[str]:
    """Start a command under the constraints; a signal to the returned process reaches it.

    `kernels` are copied to the volume's folder `cache`, as an earlier start would have left them.
    """
    python = Path(sys.base_prefix).resolve()
    variables = {"PATH": os.environ["PATH"], "TMPDIR": str(TMP), "KERNELS": str(kernels or "")}
    variables |= {"PYTHON": str(python), "CLOSED": str(closed_parent(python) or "")}
    with (log or Path(os.devnull)).open("w") as stream:
        return subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh", *command],
            env=variables | environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stream if log else subprocess.STDOUT,
            text=True,
        )


def why_no_pod() -> str | None:
    if os.geteuid() != 0:
        return "only root may change a user and mount, and this is not root"
    missing = [tool for tool in ("unshare", "setpriv", "mount") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    if closed := closed_parent(ROOT) or closed_parent(Path(sys.prefix)):
        return f"another user may not pass {closed}"
    tried = start_in_pod(["true"], {})
    output, _ = tried.communicate(timeout=30)
    return f"a mount namespace cannot be made: {output.strip()}" if tried.returncode else None


@pytest.fixture(scope="module", autouse=True)
def skip_if_impossible() -> None:
    if reason := why_no_pod():
        pytest.skip(reason)


def kernels_folder() -> Path:
    folder = cache_directory(Path(prints.__file__))
    assert folder is not None
    return folder.parent


def get(port: int, path: str) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as found:
            text: str = found.read().decode()
            return text
    except (urllib.error.URLError, OSError):
        return None


def test_the_constraints_are_real() -> None:
    """The process can write only its volume, has no known user and cannot gain privileges."""
    looked = start_in_pod(
        [sys.executable, "-c", LOOK], {"TRY": f"/x /etc/x /var/x /usr/x /tmp/x {ROOT}/x {VOLUME}/x"}
    )
    output, _ = looked.communicate(timeout=60)

    assert json.loads(output.splitlines()[-1]) == [USER, [], None, 0, 1, ["/mnt/volume/x"]]


@pytest.mark.thorough
@pytest.mark.broker
def test_the_roles_work_and_drain(make_filter: MakeFilter, tmp_path: Path) -> None:
    """Worker, index and search get ready, process documents, and stop at SIGTERM."""
    crawl = make_filter()
    crawl.produce(synthetic(40, 7, partitions=4))
    ports = dict(zip(("index", "worker", "search"), free_ports(3), strict=True))
    logs = {role: tmp_path / f"{role}.log" for role in ports}
    common = {
        name: value
        for name, value in crawl.environment.items()
        if name.startswith("STREAM_DEDUP_") and not name.endswith("_DIR")
    } | {
        "STREAM_DEDUP_STATE_DIR": str(VOLUME),
        "STREAM_DEDUP_CACHE_DIR": str(VOLUME / "cache"),
        "STREAM_DEDUP_WORKER_ID": "stream-dedup-worker-0",
    }
    roles = {
        role: start_in_pod(
            [*PROGRAM, "run", role],
            common | {"STREAM_DEDUP_HTTP_PORT": str(port)},
            logs[role],
            kernels_folder(),
        )
        for role, port in ports.items()
    }
    try:
        for role, port in ports.items():
            wait_until(lambda port=port: get(port, "/readyz"), f"the {role} is ready", 180)
            assert get(port, "/livez")
            assert get(port, "/startupz")
        crawl.wait_until_committed(40)

        def has_all_records() -> bool:
            metrics = get(ports["search"], "/metrics") or ""
            return "\nstream_dedup_search_records_total 40.0\n" in metrics

        wait_until(has_all_records, "the search has what left", 60)
        assert get(ports["search"], "/groups")
        for role in ("worker", "index", "search"):
            roles[role].terminate()
            assert roles[role].wait(60) == 0
    finally:
        for role, process in roles.items():
            process.kill()
            process.wait()
            print(f"--- {role}\n{logs[role].read_text()[-3000:]}")
    stopped = [
        json.loads(line)
        for line in logs["worker"].read_text().splitlines()
        if "worker stopped" in line
    ]
    assert [record["dropped_in_flight"] for record in stopped] == [0]
