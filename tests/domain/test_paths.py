"""Names from data lead below their folder or nowhere; files are opened without following links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.domain.errors import InputError
from stream_dedup.domain.paths import below, create_file, make_folder, open_file, open_or_replace

BAD_NAMES = (
    "",
    ".",
    "..",
    "/etc/passwd",
    "a/../../b",
    "a//b",
    "a/",
    "..\\b",
    "a\0b",
    "a\nb",
    "\x7f",
)


@pytest.mark.parametrize("name", [*BAD_NAMES, "\ud800", "x" * 256, "ü" * 128, f"a/{'x' * 300}"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be the name of a file"):
        below(tmp_path, name)


@given(st.text(max_size=300))
def test_a_returned_path_is_below_the_folder(name: str) -> None:
    """This holds for any name, and every part of the path can be the name of a file."""
    folder = Path("/folder")
    try:
        path = below(folder, name)
    except InputError:
        return
    assert Path(os.path.normpath(path)) == path
    assert path.is_relative_to(folder)
    assert path != folder
    assert all(len(os.fsencode(part)) <= 255 for part in path.parts)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """Links, pipes, folders and devices are refused, and private files with a second hard link."""
    file = tmp_path / "file"
    file.write_bytes(b"data")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(file)
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match=r"regular file|symbolic link"):
            os.close(open_file(path))
    os.close(open_file(file, is_private=True))
    (tmp_path / "second").hardlink_to(file)
    os.close(open_file(file))
    with pytest.raises(OSError, match="second hard link"):
        open_file(file, is_private=True)


def test_a_foreign_file_is_replaced_and_stays_as_it_is(tmp_path: Path) -> None:
    """The file that a link leads to keeps its bytes; a folder or a pipe raises an error."""
    foreign, link, second = (tmp_path / name for name in ("foreign", "link", "second"))
    foreign.write_bytes(b"foreign")
    link.symlink_to(foreign)
    second.hardlink_to(foreign)
    for path in (link, second, tmp_path / "new"):
        for text in (b"once", b"again"):
            number = open_or_replace(path)
            os.write(number, text)
            os.close(number)
        assert path.read_bytes() == b"again"
        assert not path.is_symlink()
    assert foreign.read_bytes() == b"foreign"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(FileExistsError, match="not a regular file"):
            open_or_replace(tmp_path / name)


def test_created_files_and_folders_are_private_under_every_umask(tmp_path: Path) -> None:
    """Files, folders, and the folders above them; nothing is created through a link."""
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for mask in (0, 0o022, 0o777):
        before = os.umask(mask)
        try:
            make_folder(tmp_path / f"{mask}" / "b")
            os.close(create_file(tmp_path / f"{mask}" / "b" / "file"))
            with pytest.raises(FileExistsError):
                create_file(tmp_path / "link")
        finally:
            os.umask(before)
        created = [tmp_path / f"{mask}", *(tmp_path / f"{mask}").rglob("*")]
        assert [path.stat().st_mode & 0o777 for path in created] == [0o700, 0o700, 0o600]
    assert not (tmp_path / "target").exists()
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "0" / "b" / "file")
