"""The scripts of the snapshot's job are run as the pods run them, on a real volume; and the job asks for what is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.index.index import LogIndex
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.settings.environment import child_environment
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
    assert [one.name for one in folder.iterdir()] == ["latest"]
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


def test_the_job_asks_for_what_is_there(rendered: dict[str, list[dict[str, Any]]]) -> None:
    """The pod, its container, the scripts and folders that it mounts; and its account may do just that."""
    manifests = rendered["production"]
    (job,) = rules.of_kind(manifests, "CronJob")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    verb, pod, named, _, shell, script, *folders = container["args"]
    (index,) = (one for one in rules.of_kind(manifests, "StatefulSet") if f"{one['metadata']['name']}-0" == pod)
    (own,) = index["spec"]["template"]["spec"]["containers"]
    (restore,) = index["spec"]["template"]["spec"]["initContainers"]

    assert (verb, named, shell) == ("exec", f"--container={own['name']}", "bash")
    for one in (own, restore):
        mounts = {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
        assert {"/scripts", "/snapshots", "/var/lib/stream-dedup"} <= set(mounts)
    assert restore["command"] == ["bash", script.replace("take", "restore"), *folders]
    assert {one["metadata"]["name"] for one in index["spec"]["volumeClaimTemplates"]} == {"index", "snapshots"}
    scripts = next(one for one in rules.of_kind(manifests, "ConfigMap") if one["metadata"]["name"] == "stream-dedup-snapshots")
    assert scripts["data"] == {name: (SCRIPTS / name).read_text() for name in ("take.sh", "restore.sh")}
    (role,) = rules.of_kind(manifests, "Role")
    assert {name for rule in role["rules"] for name in rule["resourceNames"]} == {pod}
