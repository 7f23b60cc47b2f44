"""`index checkpoint` and `restore` on a volume, without Kafka."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stream_dedup.index.digest import StateDigest, state_digest
from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import announce_place
from stream_dedup.index.storage.store import RocksStore
from tests.cli.running import Run
from tests.index.logs import APPEND_MS
from tests.index.test_verify import small_log


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    index = LogIndex(RocksStore(tmp_path / "state" / "index"))
    index.bind("cluster/0123")
    index.apply([(offset, APPEND_MS, raw) for offset, raw in enumerate(small_log())])
    index.close()
    return tmp_path / "state" / "index"


def test_a_checkpoint_is_restored_with_an_equal_digest(
    run: Run, volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is taken, restored and looked at has one state digest; a second restore into the same
    place is refused."""
    taken = run("index", "checkpoint", tmp_path / "s", "--json").json
    monkeypatch.setenv("STREAM_DEDUP_SNAPSHOTS", str(tmp_path / "s"))
    table = run(
        "index",
        "restore",
        tmp_path / "s",
        tmp_path / "new",
        "--offline",
        "--snapshot",
        taken["name"],
    )
    again = run("index", "restore", tmp_path / "s", tmp_path / "new", "--offline")
    with closing(RocksStore(tmp_path / "new", read_only=True)) as store:
        digest = state_digest(store)

    assert table.code == 0
    assert taken["state_digest"] in table.out
    assert digest == StateDigest(6, taken["state_digest"])
    assert (again.code, "only be restored to an empty directory" in again.err) == (1, True)
    for _ in range(2):
        assert run("index", "checkpoint").code == 0
    assert len(list((tmp_path / "s").iterdir())) == 2  # KEPT


def test_checkpoint_and_restore_refuse_bad_usage(run: Run, volume: Path, tmp_path: Path) -> None:
    assert run("index", "checkpoint", tmp_path / "s", "--wait", "5").code == 2
    missing = run("index", "checkpoint", tmp_path / "s", "--volume", tmp_path / "none")
    found = (missing.code, "no index volume" in missing.err, (tmp_path / "none").exists())
    assert found == (1, True, False)
    nowhere = run("index", "checkpoint")
    ended = run("index", "restore", volume, tmp_path / "new", "--offline")
    program = f"from stream_dedup.index.storage.store import RocksStore as R; s = R({str(volume)!r}); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        takes_none = run("index", "checkpoint", tmp_path / "s")
        announce_place(volume, tmp_path / "s")
        silent = run("index", "checkpoint", tmp_path / "s", "--wait", "0s")
        child.communicate("\n")

    assert (nowhere.code, "set STREAM_DEDUP_SNAPSHOTS" in nowhere.err) == (78, True)
    assert (ended.code, "no complete snapshot" in ended.err) == (1, True)
    assert (takes_none.code, "takes no snapshots" in takes_none.err) == (78, True)
    assert (silent.code, "See the index's log" in silent.err) == (1, True)
