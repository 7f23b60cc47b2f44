"""Version N beside N+1, and back: the oldest build of this repository that writes today's formats, beside today's.

The older build is a commit of the repository's own history, run as a child process from its own files, so the test needs that
history: a shallow clone skips it, and says so. It proves that both read each other's log to the same bytes, and that a
volume passes from one to the other or is refused; it does not prove anything of the worker or of Kafka.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.ground.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.log import frame, records
from tests.index.logs import APPEND_MS, RandomLog, control

ROOT = Path(__file__).parent.parent.parent
FORMATS: dict[str, tuple[str, ...]] = {
    "stream_dedup/ground/sketch.py": ("SKETCH_BYTES",),
    "stream_dedup/log/records.py": ("MAGIC = ", "VERSION = "),
    "stream_dedup/log/answers.py": ("MAGIC = ", "VERSION = "),
}
RECORDS = 60
_NAME = b"class LogIndex"

# Both builds answer the same three orders: a log, and records applied to a volume.
CHILD = """
import json, sys
from pathlib import Path
from stream_dedup.ground.errors import StreamDedupError
from stream_dedup.index.index import LogIndex
from stream_dedup.ground.plan import PLANS
from stream_dedup.index.volume.store import RocksStore
from tests.index.logs import RandomLog
for line in sys.stdin:
    order = json.loads(line)
    try:
        if order["do"] == "log":
            records = RandomLog(order["seed"], PLANS["classic"]).records(order["count"])
            answer = [None if one is None else one.hex() for one in records]
        else:
            store = RocksStore(Path(order["volume"]))
            try:
                index = LogIndex(store)
                index.bind("log")
                values = [None if one is None else bytes.fromhex(one) for one in order["records"]]
                found = index.apply([(order["first"] + n, order["ms"], one) for n, one in enumerate(values)])
                answer = [[offset, raw.hex()] for offset, raw in found]
            finally:
                store.close()
    except StreamDedupError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
"""


class Older:
    """An older build as a child process that takes orders."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            cwd=folder,
            env=environment,
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

    def apply(self, volume: Path, first: int, records: Sequence[bytes | None]) -> Any:
        coded = [None if one is None else one.hex() for one in records]
        return self.order(do="apply", volume=str(volume), first=first, ms=APPEND_MS, records=coded)


def git(*arguments: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False, timeout=60)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def formats(commit: str) -> list[str] | None:
    """Return the lines that name the log's formats in a commit, or None if it has no index that these tests can run."""
    lines = []
    for path, names in FORMATS.items():
        text = git("show", f"{commit}:{path}")
        if text is None:
            return None
        lines += [line for line in text.decode().splitlines() if line.startswith(names)]
    # Builds before have other names for what these tests use.
    if _NAME not in (git("show", f"{commit}:stream_dedup/index/index.py") or b""):
        return None
    needed = (
        "stream_dedup/ground/errors.py",
        "stream_dedup/index/index.py",
        "stream_dedup/index/volume/store.py",
        "tests/index/logs.py",
    )
    return None if any(git("cat-file", "-e", f"{commit}:{path}") is None for path in needed) else lines


def oldest() -> str:
    """Return the oldest commit that writes the formats which this one writes."""
    found = git("rev-list", "HEAD", "--", "stream_dedup/index", "stream_dedup/log")
    commits = [] if found is None else found.decode().split()
    today = formats("HEAD")
    same = [commit for commit in commits[1:] if today is not None and formats(commit) == today]
    if not same:
        pytest.skip("no older build: there is no history of this repository here that writes today's formats")
    return same[-1]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Older]:
    commit = oldest()
    print(f"the older build is {commit}")
    archive = git("archive", commit, "stream_dedup", "tests")
    assert archive is not None
    folder = tmp_path_factory.mktemp("older")
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    build = Older(folder)
    yield build
    build.process.kill()
    build.process.wait(30)


def apply(volume: Path, first: int, records: Sequence[bytes | None]) -> Any:
    """Apply records with today's build, as the child does with the older one."""
    store = RocksStore(volume)
    try:
        index = LogIndex(store)
    except StreamDedupError as error:
        store.close()
        return {"error": str(error)}
    try:
        index.bind("log")
        found = index.apply([(first + place, APPEND_MS, one) for place, one in enumerate(records)])
    finally:
        index.close()
    return [[offset, raw.hex()] for offset, raw in found]


@pytest.mark.long
def test_two_builds_read_each_other_s_log_and_volume(older: Older, tmp_path: Path) -> None:
    """Equal answers, byte by byte, to logs of either; a volume goes forth and back, or the older build refuses it and "
    "rebuilds."""
    seed = int(os.environ["TEST_SEED"])
    print(f"seed {seed}")
    theirs = [None if one is None else bytes.fromhex(one) for one in older.order(do="log", seed=seed, count=RECORDS)]
    ours = RandomLog(seed + 1, PLANS["classic"], orders=False).records(RECORDS)

    for name, log in (("theirs", theirs), ("ours", ours)):
        expected = apply(tmp_path / f"{name}-today", 0, log)
        assert len(expected) > RECORDS // 2
        assert older.apply(tmp_path / f"{name}-older", 0, log) == expected

        # Upgrade in the middle of the log, and back: a build takes the volume if it knows its format, else it says so, and
        # rebuilds on an empty one.
        half = RECORDS // 2
        answers = older.apply(tmp_path / f"{name}-both", 0, log[:half])
        answers += on_or_rebuilt(apply, tmp_path / f"{name}-both", log[: half + 10], half)
        answers += on_or_rebuilt(older.apply, tmp_path / f"{name}-both", log, half + 10)
        assert answers == expected


def on_or_rebuilt(build: Callable[..., Any], volume: Path, log: Sequence[bytes | None], first: int) -> list[list[Any]]:
    """Return the answers from log offset `first` on, from a volume that another build brought there, or from an empty one."""
    answers = build(volume, first, log[first:])
    if not isinstance(answers, dict):
        return list(answers)
    assert "format version" in answers["error"]
    assert "rebuil" in answers["error"]
    shutil.rmtree(volume)
    return [one for one in build(volume, 0, log) if one[0] >= first]


@pytest.mark.long
def test_what_a_newer_build_may_write_is_passed_over_or_refused(older: Older, tmp_path: Path) -> None:
    """An unknown control record and unknown fields of a known one change no answer; a newer format stops, and is never "
    "guessed."""
    log = RandomLog(7, PLANS["classic"], orders=False).records(20)
    declared = records.decode(log[0])
    assert isinstance(declared, records.Control)
    first = control(declared.type, **declared.fields, invented_later=[1, 2])
    newer = [first, *log[1:10], control("invented-later", field=1), *log[10:]]
    plain = [log[0], *log[1:10], control("note"), *log[10:]]
    future = frame.framed(records.MAGIC, records.VERSION + 1, records.KIND_BATCH, b"whatever comes")

    assert older.apply(tmp_path / "older", 0, newer) == apply(tmp_path / "today", 0, plain)
    refused = older.apply(tmp_path / "older", len(newer), [future])
    assert "upgrade" in refused["error"]
    with pytest.raises(StreamDedupError, match="upgrade"):
        apply(tmp_path / "today", len(plain), [future])
