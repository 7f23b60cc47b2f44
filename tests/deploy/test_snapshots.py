"""The scripts of the snapshot's job are run as the pods run them, on a real volume; and the job asks for what is there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.index import snapshot
from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.settings.environment import child_environment
from tests.broker_room.test_node import wait_until
from tests.deploy import rules, tools

SCRIPTS = tools.ROOT / "deploy" / "components" / "snapshots"


def run(script: str, *arguments: Path) -> str:
    """Run a script with the program on its path; return what it says, or fail with it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = child_environment({}) | {"PATH": path}
    done = subprocess.run(
        ["bash", str(SCRIPTS / script), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume that is bound to a log."""
    found = tmp_path / "index"
    store = RocksStore(found)
    LogIndex(store).bind("cluster/log")
    store.close()
    return found


@pytest.mark.thorough
def test_a_lost_volume_begins_with_the_snapshot(volume: Path, tmp_path: Path) -> None:
    """Taken twice, so that one is put in the place of another; a volume that is there is left alone."""
    folder = tmp_path / "snapshots"
    for _ in range(2):
        run("take.sh", folder, volume)
    assert sorted(one.name for one in folder.iterdir()) == ["latest", "lock"]
    assert "nothing is restored" in run("restore.sh", folder, volume)

    shutil.rmtree(volume)
    run("restore.sh", folder, volume)

    store = RocksStore(volume)
    try:
        LogIndex(store).bind("cluster/log")  # it would refuse another log's
    finally:
        store.close()


@pytest.mark.thorough
def test_a_job_that_was_killed_leaves_one_to_restore(volume: Path, tmp_path: Path) -> None:
    """Between the two moves there is no `latest`; the new one is whole by then."""
    folder = tmp_path / "snapshots"
    run("take.sh", folder, volume)
    (folder / "latest").rename(folder / "new")
    shutil.rmtree(volume)

    run("restore.sh", folder, volume)

    assert (volume / "CURRENT").exists()


@pytest.mark.thorough
def test_without_a_good_snapshot_the_index_reads_the_log(volume: Path, tmp_path: Path) -> None:
    """Neither none nor a damaged one keeps the index from starting; of a damaged one nothing stays."""
    folder = tmp_path / "snapshots"
    shutil.copytree(volume, tmp_path / "kept")
    shutil.rmtree(volume)
    assert "There is no snapshot" in run("restore.sh", folder, volume)

    run("take.sh", folder, tmp_path / "kept")
    damaged = next(iter((folder / "latest").rglob("*MANIFEST-*")))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")

    assert "is not used" in run("restore.sh", folder, volume)
    assert not (volume / "CURRENT").exists()


def test_a_snapshot_of_another_layout_is_not_used(volume: Path, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    run("take.sh", folder, volume)
    manifest = folder / "latest" / snapshot.MANIFEST
    fields = {**json.loads(manifest.read_text()), "volume_format": layout.VERSION + 1}
    del fields["checksum"]
    manifest.write_text(json.dumps({**fields, "checksum": snapshot._checksum(fields)}))
    (volume / "layout-99").mkdir()
    for one in volume.iterdir():
        if one.is_file():
            one.rename(volume / "layout-99" / one.name)

    assert "nothing is restored" in run("restore.sh", folder, volume)
    shutil.rmtree(volume)
    said = run("restore.sh", folder, volume)
    assert f"of format version {layout.VERSION + 1}, and this program reads {layout.VERSION}" in " ".join(said.split())
    assert "is not used; the index reads the log" in said
    assert not volume.exists() or not list(volume.iterdir())


def test_the_container_keeps_a_snapshot_young(volume: Path, tmp_path: Path) -> None:
    """The first at once, the next when that is old, another try where one failed; it ends when it is told to."""
    folder = tmp_path / "snapshots"
    folder.mkdir()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "stream-dedup"
    program.write_text(
        "#!/bin/sh\necho taken >> $HOME/taken\n[ $(wc -l < $HOME/taken) = 1 ] && exit 1\nmkdir $3 && touch $3/snapshot.json\n"
    )
    program.chmod(0o755)
    environment = child_environment({}) | {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    command = ["bash", str(SCRIPTS / "keep.sh"), str(folder), str(volume), "3600", "0.01"]
    manifest = folder / "latest" / "snapshot.json"
    keeper = subprocess.Popen(command, env=environment)
    try:
        wait_until(manifest.exists, "a snapshot")
        assert len((tmp_path / "taken").read_text().split()) == 2
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(20) == 0
        os.utime(manifest, (0, 0))
        keeper = subprocess.Popen(command, env=environment)
        wait_until(lambda: manifest.exists() and manifest.stat().st_mtime > 0, "the next snapshot")
    finally:
        keeper.terminate()
        assert keeper.wait(20) == 0


def test_two_at_once_do_not_spoil_each_other(volume: Path, tmp_path: Path) -> None:
    """The second is refused and leaves what the first has written."""
    folder = tmp_path / "snapshots"
    run("take.sh", folder, volume)
    (folder / "new").mkdir()
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AssertionError, match="Another snapshot is being taken"):
            run("take.sh", folder, volume)
    assert (folder / "new").exists()


def test_each_replica_has_what_the_scripts_ask_for(rendered: dict[str, list[dict[str, Any]]]) -> None:
    manifests = rendered["production"]
    (index,) = (one for one in rules.of_kind(manifests, "StatefulSet") if one["metadata"]["name"] == "stream-dedup-index")
    keeper = next(one for one in index["spec"]["template"]["spec"]["containers"] if one["name"] == "snapshots")
    (restore,) = index["spec"]["template"]["spec"]["initContainers"]
    shell, script, *folders = keeper["command"]

    assert (shell, Path(script).name) == ("bash", "keep.sh")
    assert restore["command"] == ["bash", script.replace("keep", "restore"), *folders[:2]]
    for one in (keeper, restore):
        mounts = {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
        assert {"/scripts", "/snapshots", "/var/lib/stream-dedup"} <= set(mounts)
    claims = {one["metadata"]["name"]: one["spec"]["resources"]["requests"] for one in index["spec"]["volumeClaimTemplates"]}
    size = {name: int(one["storage"].removesuffix("Gi")) for name, one in claims.items()}
    assert size["snapshots"] == 2 * size["index"]
    scripts = next(one for one in rules.of_kind(manifests, "ConfigMap") if one["metadata"]["name"] == "stream-dedup-snapshots")
    assert scripts["data"] == {name: (SCRIPTS / name).read_text() for name in ("take.sh", "keep.sh", "restore.sh")}
    assert not list(rules.of_kind(manifests, "CronJob", "Role"))
