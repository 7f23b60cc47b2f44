"""Version N beside N+1, and back: the oldest build of this repository that knows today's formats,
beside today's.

The older build is a commit of the repository's own history, run as a child process from its own
files, so the test needs that history: a shallow clone skips it, and says so. It proves that both
read each other's log to the same bytes, and that each goes on with a volume that the other left or
rebuilds its own beside it; it does not prove anything of the worker or of Kafka.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.index.logs import APPEND_MS

ROOT = Path(__file__).parent.parent.parent
GOLDEN = "tests/golden/formats"
RECORDS = 60
NEEDED = (
    "stream_dedup/domain/errors.py",
    "stream_dedup/index/index.py",
    "stream_dedup/index/storage/place.py",
    "stream_dedup/index/storage/store.py",
    "tests/index/logs.py",
)
# Packages that have other names in older builds.
FORMER = {
    "stream_dedup/domain/": "stream_dedup/ground/",
    "stream_dedup/index/storage/": "stream_dedup/index/volume/",
}

# Both builds answer the same two orders: a log, and a log applied to a folder up to an offset, as
# far as it was not yet.
CHILD = """
import json, sys
from pathlib import Path
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.place import volume_in
from stream_dedup.index.storage.store import RocksStore
from tests.index.logs import RandomLog
for line in sys.stdin:
    order = json.loads(line)
    try:
        if order["do"] == "log":
            records = RandomLog(order["seed"], PLANS["classic"]).records(order["count"])
            answer = [None if raw is None else raw.hex() for raw in records]
        else:
            store = RocksStore(volume_in(Path(order["folder"])))
            try:
                index = LogIndex(store)
                index.bind("log")
                values = [None if raw is None else bytes.fromhex(raw) for raw in order["records"]]
                offsets = range(index.applied, len(values))
                found = index.apply([(offset, order["ms"], values[offset]) for offset in offsets])
                answer = [[offset, raw.hex()] for offset, raw in found]
            finally:
                store.close()
    except StreamDedupError as error:
        answer = {"error": str(error), "code": error.exit_code}
    print(json.dumps(answer), flush=True)
"""


def formerly(path: str) -> str:
    """Return a path under its name in older builds."""
    for name, former in FORMER.items():
        path = path.replace(name, former)
    return path


class Build:
    """A build as a child process that takes orders."""

    def __init__(self, folder: Path) -> None:
        child = CHILD
        for name, former in FORMER.items():
            if not (folder / name).is_dir():
                child = child.replace(name.replace("/", "."), former.replace("/", "."))
        self.process = subprocess.Popen(
            [sys.executable, "-c", child],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def order(self, **what: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def log(self, seed: int) -> list[str | None]:
        """Return a random log as this build makes it."""
        return list(self.order(do="log", seed=seed, count=RECORDS))

    def apply(self, folder: Path, log: list[str | None]) -> dict[int, str]:
        """Apply a log to the volume in a folder, as far as it is not applied yet; return the
        answers."""
        return dict(self.order(do="apply", folder=str(folder), ms=APPEND_MS, records=log))


def git(*arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, check=False, timeout=60
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def formats(commit: str) -> dict[str, str]:
    """Return the digest of what is frozen of each format that a commit knows; none if its index
    cannot be run here."""

    def has(path: str) -> bool:
        return git("cat-file", "-e", f"{commit}:{path}") is not None

    if not all(has(path) or has(formerly(path)) for path in NEEDED):
        return {}
    found = git("ls-tree", f"{commit}:{GOLDEN}") or b""
    return {
        name: digest
        for _, _, digest, name in (line.split() for line in found.decode().splitlines())
    }


def oldest() -> str:
    """Return the oldest commit whose formats are all unchanged today."""
    found = git("rev-list", "HEAD", "--", "stream_dedup", GOLDEN)
    commits = [] if found is None else found.decode().split()
    today = formats("HEAD")
    same = [
        commit
        for commit in commits[1:]
        if (then := formats(commit)) and then.items() <= today.items()
    ]
    if not same:
        pytest.skip(
            "no older build: the history that is here (a shallow clone has none) holds none that "
            "knows today's formats"
        )
    return same[-1]


def files_of(commit: str, folder: Path) -> Path:
    """Write a commit's package and tests into a folder, and return it."""
    archive = git("archive", commit, "stream_dedup", "tests", "topics")
    assert archive is not None
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder


@pytest.mark.long
def test_two_builds_read_each_other_s_log_and_volume(tmp_path: Path) -> None:
    """Equal answers, byte by byte, to logs of either; rolled forward in the middle of a log and
    back again, they go on."""
    commit, seed = oldest(), int(os.environ["TEST_SEED"])
    print(f"the older build is {commit}, seed {seed}")
    older, today = builds = Build(files_of(commit, tmp_path / "older")), Build(ROOT)
    for name, log in (("theirs", older.log(seed)), ("ours", today.log(seed + 1))):
        expected = today.apply(tmp_path / f"{name}-today", log)
        assert len(expected) > RECORDS // 2
        assert older.apply(tmp_path / f"{name}-older", log) == expected
        steps = ((older, 30), (today, 40), (older, RECORDS))
        both = [build.apply(tmp_path / f"{name}-both", log[:end]) for build, end in steps]
        assert both[0] | both[1] | both[2] == expected
    for build in builds:
        build.process.kill()
        build.process.wait(30)
