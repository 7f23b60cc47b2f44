"""Only the user of a command can read the files that it writes, whatever the umask."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_dedup.broker.process import BoundChild
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.search.texts import TextIndex
from stream_dedup.serving import single_role
from stream_dedup.settings.settings import Settings
from tests.index.logs import RandomLog, number


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[Path]:
    made = [folder, *folder.rglob("*")]
    assert any(path.is_file() for path in made)
    return [path for path in made if path.stat().st_mode & 0o077]


def test_files_of_roles_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume, the files beside it, and the words of all texts."""

    def write_files(_role: str, _module: str, _settings: Settings, _stop: threading.Event) -> None:
        index = LogIndex(
            RocksStore(tmp_path / "a" / "index"), table_folder=tmp_path / "a" / "tables"
        )
        index.apply(number(RandomLog(1, PLANS["blocks"]).records(20)))
        index.flush()
        TextIndex(tmp_path / "a" / "search").close()
        assert open_to_others(tmp_path / "a") == []
        index.close()

    monkeypatch.setattr(single_role, "_run", write_files)
    assert single_role.run_alone("index", "", Settings(), log_format="auto") == 0
    assert open_to_others(tmp_path / "a") == []


def test_an_index_of_files_is_private_without_a_role(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "index")
    store.write({b"a": b"1"}, [])
    assert (tmp_path / "index").stat().st_mode & 0o777 == 0o700
    store.close()
    assert open_to_others(tmp_path / "index") == []


def test_files_of_a_broker_are_private(tmp_path: Path) -> None:
    """Java creates files with the rights that the umask leaves."""
    child = BoundChild([str(shutil.which("touch")), "log"], tmp_path, tmp_path / "output")
    child.ended.wait(60)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
