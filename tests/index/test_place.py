"""A volume of another layout is left as it is; this program's lies beside it, and a version that goes back finds its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stream_dedup.checks.volume import check_volume
from stream_dedup.ground.errors import OtherFormatError
from stream_dedup.ground.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import restore, take
from stream_dedup.index.volume import layout
from stream_dedup.index.volume.place import layout_of, volume_in
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.settings.settings import Settings
from tests.index.logs import RandomLog, append_time

SEED = int(os.environ["TEST_SEED"])
OTHER = layout.VERSION + 1


def judge(folder: Path, log: list[bytes | None], end: int) -> tuple[int, list[tuple[int, bytes]]]:
    """Apply a log up to an offset as a role does in its folder; return where the volume stood, and the answers."""
    index = LogIndex(RocksStore(volume_in(folder)))
    index.bind("cluster/topic")
    begun = index.applied
    answers = index.apply([(offset, append_time(offset), log[offset]) for offset in range(begun, end)])
    index.answered(end)
    index.flush()
    index.close()
    return begun, answers


def files(folder: Path) -> dict[str, bytes]:
    """Return what the files of a volume hold, but for RocksDB's own account of its openings."""
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.suffix == ".sst" or one.name.startswith("MANIFEST")}


def test_a_volume_of_another_layout_stays_and_serves_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with another layout rebuilds beside it, and goes on there; rolled back, the old one goes on with its own."""
    print("seed", SEED)
    log = RandomLog(SEED, PLANS["classic"]).records(60)
    _, expected = judge(tmp_path / "plain", log, 60)
    folder = tmp_path / "index"
    judge(folder, log, 20)
    before = files(folder)

    with monkeypatch.context() as newer:
        newer.setattr(layout, "VERSION", OTHER)
        begun, answers = judge(folder, log, 40)
        assert (begun, answers) == (0, [one for one in expected if one[0] < 40])
        assert judge(folder, log, 41)[0] == 40
        assert volume_in(folder) == folder / f"layout-{OTHER}"
        assert files(folder) == before

    begun, answers = judge(folder, log, 60)
    assert (begun, answers) == (20, [one for one in expected if one[0] >= 20])
    with monkeypatch.context() as newer:
        newer.setattr(layout, "VERSION", OTHER)
        assert judge(folder, log, 60)[0] == 41


def test_a_folder_is_this_layout_s_own_where_it_began_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder, one of this layout, and one whose first volume was removed once nobody went back to it."""
    log = RandomLog(SEED, PLANS["classic"]).records(8)
    folder = tmp_path / "index"
    assert volume_in(folder) == folder
    judge(folder, log, 8)
    assert volume_in(folder) == folder
    monkeypatch.setattr(layout, "VERSION", OTHER)
    judge(folder, log, 8)
    for one in folder.iterdir():
        if one.is_file():
            one.unlink()

    assert volume_in(folder) == folder / f"layout-{OTHER}"
    assert judge(folder, log, 8)[0] == 8


def test_doctor_names_the_volume_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that removes it, and nothing of the volume in use."""
    log = RandomLog(SEED, PLANS["classic"]).records(8)
    folder = tmp_path / "index"
    judge(folder, log, 8)
    monkeypatch.setattr(layout, "VERSION", OTHER)
    judge(folder, log, 6)
    first, *others = check_volume(Settings(index_dir=folder), None, lambda: 8)

    assert "begun by a version with another layout" in first.sentence
    assert f"find {folder} -maxdepth 1 -type f -delete" in first.sentence
    assert f"{folder / f'layout-{OTHER}'} holds" in others[0].sentence


def test_a_snapshot_of_another_layout_is_refused_before_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older or newer; so an index that finds one begins with the log, once, and never meets it in its volume."""
    log = RandomLog(SEED, PLANS["classic"]).records(8)
    judge(tmp_path / "index", log, 8)
    manifest = take(tmp_path / "index", tmp_path / "snapshot").manifest
    copied: list[int] = []
    for version in (layout.VERSION - 1, layout.VERSION + 1):
        monkeypatch.setattr(layout, "VERSION", version)
        with pytest.raises(OtherFormatError, match=f"version {manifest.volume_format}, and this program reads {version};"):
            restore(tmp_path / "snapshot", tmp_path / "new", advance=copied.append)

    assert copied == []
    assert layout_of(tmp_path / "index") == manifest.volume_format
