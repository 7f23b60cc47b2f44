"""Where compiled kernels are kept: safe places only, and never stale ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stream_dedup
from stream_dedup import compiled

ROOM = Path(stream_dedup.__file__).parent / "fingerprint"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test asks anew, with a home and a temporary directory of its own."""
    for name in ("NUMBA_CACHE_DIR", "STREAM_DEDUP_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    compiled.cache_directory.cache_clear()
    yield
    compiled.cache_directory.cache_clear()


def test_the_users_cache_is_the_ordinary_place(tmp_path: Path) -> None:
    """Without settings kernels are kept below the home directory, closed to others."""
    directory = compiled.cache_directory(ROOM)

    assert directory is not None
    assert directory.is_relative_to(tmp_path / "home")
    assert directory.stat().st_mode & 0o077 == 0


def test_settings_name_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`STREAM_DEDUP_CACHE_DIR` comes before the home directory, `NUMBA_CACHE_DIR` before both."""
    monkeypatch.setenv("STREAM_DEDUP_CACHE_DIR", str(tmp_path / "ours"))
    first = compiled.cache_directory(ROOM)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    compiled.cache_directory.cache_clear()
    second = compiled.cache_directory(ROOM)

    assert first is not None
    assert second is not None
    assert (first.parent, second.parent) == (tmp_path / "ours" / "kernels", tmp_path / "numba")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_directory_open_to_others_is_passed_over(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache files are pickles: a directory that another user may write to is never loaded from."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(shared))
    directory = compiled.cache_directory(ROOM)

    assert directory is not None
    assert not directory.is_relative_to(shared)


def test_a_link_to_elsewhere_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache should be somebody put a link: it is not followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "link"))
    directory = compiled.cache_directory(ROOM)

    assert directory is not None
    assert not directory.is_relative_to(tmp_path / "link")


def test_no_home_falls_back_to_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that cannot hold a directory (a read-only root with a writable /tmp): a private one in /tmp serves."""
    (tmp_path / "home").write_text("a file")
    directory = compiled.cache_directory(ROOM)

    assert directory is not None
    assert directory.parent == tmp_path / f"stream-dedup-kernels-{os.getuid()}"


def test_nowhere_to_write_means_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be written there is no cache directory, and no error."""
    (tmp_path / "home").write_text("a file")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "home"))

    assert compiled.cache_directory(ROOM) is None


def test_changed_sources_get_another_directory(tmp_path: Path) -> None:
    """A kernel kept by another version of any file of the room is not found again: numba would not notice by itself."""
    before = compiled._sources_digest(ROOM)
    for source in ROOM.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    same = compiled._sources_digest(tmp_path)
    with (tmp_path / "tokens.py").open("a") as file:
        file.write("\n")

    assert before == same
    assert before != compiled._sources_digest(tmp_path)


def test_kernels_work_where_nothing_can_be_kept(tmp_path: Path) -> None:
    """With no place for a cache a kernel is compiled for the process alone, and works."""
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    code = (
        f"import numpy, tempfile; tempfile.tempdir = {str(nowhere)!r};"
        "import pathlib; from stream_dedup import compiled; from stream_dedup.fingerprint import simhash;"
        "assert compiled.cache_directory(pathlib.Path(simhash.__file__).parent) is None;"
        "print(int(simhash.sip_hash(numpy.zeros(3, numpy.uint8), numpy.uint64(1), numpy.uint64(2), 1, 3)))"
    )
    environment = {**os.environ, "HOME": str(nowhere), "XDG_CACHE_HOME": str(nowhere)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
