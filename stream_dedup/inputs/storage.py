"""A folder, or an address such as `s3://bucket/folder`, in which files are put, looked at, taken
back and removed.

An address needs the extra of its scheme (`s3`, `gs`, `abfs`); credentials and endpoint are those of
the environment, as for texts (docs/how-to/object-storage.md). Names are parts joined by `/`, below
what was opened.

Invariants: `write` is seen whole or not at all; what any method has written survives the machine's
end, as far as the store promises it; every error is a `StoreError` that names the place, but a file
that is not there: `FileNotFoundError`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from stream_dedup.domain.addresses import shown
from stream_dedup.domain.disk import sync
from stream_dedup.domain.errors import StoreError
from stream_dedup.domain.paths import create_file, make_folder, open_file
from stream_dedup.inputs.addressed import is_address, sentences, system_of

_PART_BYTES: Final = 8 << 20


class Storage(Protocol):
    """Where files are kept. From any thread."""

    where: str

    def folders(self) -> list[str]:
        """Return the names of the folders that lie directly in it."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of the regular files of a folder, by their names in it."""

    def parts(self, name: str, size: int) -> Iterator[bytes]:
        """Yield `size` bytes of a file, which has as many, part by part."""

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, or put it in the place of the one that is there."""

    def put(self, source: Path, name: str) -> None:
        """Copy a file of this machine there."""

    def copy(self, source: str, target: str) -> None:
        """Let a file that is there, and that nobody changes, have a second name, without bringing
        it there again.
        """

    def remove(self, folder: str) -> None:
        """Remove a folder and all that it holds."""


def storage_at(where: str | Path) -> Storage:
    """Return what keeps files in a folder or at an address; nothing is asked or made yet.

    Raises:
        StoreError: a package is not installed, or cannot be used as the environment says.
    """
    return _Addressed(str(where)) if is_address(str(where)) else _Folder(Path(where))


class _Folder:
    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path

    def folders(self) -> list[str]:
        with self._sentences("read"):
            return (
                [one.name for one in self._path.iterdir() if one.is_dir()]
                if self._path.exists()
                else []
            )

    def sizes(self, folder: str) -> dict[str, int]:
        root = self._path / folder
        with self._sentences("read"):
            return (
                {
                    one.name: one.stat().st_size
                    for one in root.iterdir()
                    if one.is_file() and not one.is_symlink()
                }
                if root.exists()
                else {}
            )

    def parts(self, name: str, size: int) -> Iterator[bytes]:
        with self._sentences("read"), os.fdopen(open_file(self._path / name), "rb") as file:
            for first in range(0, size, _PART_BYTES):
                yield file.read(min(_PART_BYTES, size - first))

    def write(self, name: str, data: bytes) -> None:
        path = self._path / name
        with self._sentences("written to"):
            make_folder(path.parent)
            partial = path.with_name(f"{path.name}.partial")
            partial.unlink(missing_ok=True)
            with os.fdopen(create_file(partial), "wb") as file:
                file.write(data)
            sync(partial)
            partial.replace(path)
            for one in (path.parent, *path.parents[1 : 1 + name.count("/")], self._path.parent):
                sync(one)

    def put(self, source: Path, name: str) -> None:
        with self._sentences("written to"):
            _copy(source, self._path / name)

    def copy(self, source: str, target: str) -> None:
        with self._sentences("written to"):
            make_folder((self._path / target).parent)
            os.close(open_file(self._path / source))  # no link leads to what it shares
            try:
                (self._path / target).hardlink_to(self._path / source)
            except OSError:  # not every file system has them
                _copy(self._path / source, self._path / target)

    def remove(self, folder: str) -> None:
        with self._sentences("written to"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._path / folder)

    @contextlib.contextmanager
    def _sentences(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            why = error.strerror or str(error)
            raise StoreError(
                f"{error.filename or self.where} cannot be {doing}: {why}. Make room there, or "
                "correct its rights."
            ) from error


class _Addressed:
    def __init__(self, address: str) -> None:
        self.where = shown(address)
        self._address = address
        with self._sentences("used"):
            self._system, path = system_of(address)
            self._root = path.rstrip("/")

    def folders(self) -> list[str]:
        with self._sentences("read"):
            try:
                found = self._system.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
            return [
                one["name"].rstrip("/").rpartition("/")[2]
                for one in found
                if one["type"] == "directory"
            ]

    def sizes(self, folder: str) -> dict[str, int]:
        root = self._at(folder)
        with self._sentences("read"):
            try:
                found = self._system.ls(root, detail=True)
            except FileNotFoundError:
                return {}
            return {
                info["name"].rpartition("/")[2]: int(info["size"] or 0)
                for info in found
                if info["type"] == "file"
            }

    def parts(self, name: str, size: int) -> Iterator[bytes]:
        path = self._at(name)
        with self._sentences("read"):
            for first in range(0, size, _PART_BYTES):
                end = min(first + _PART_BYTES, size)
                yield bytes(self._system.cat_file(path, start=first, end=end))[: end - first]

    def write(self, name: str, data: bytes) -> None:
        with self._sentences("written to"):
            self._system.pipe_file(self._at(name), data)

    def put(self, source: Path, name: str) -> None:
        with self._sentences("written to"):
            self._system.put_file(str(source), self._at(name))

    def copy(self, source: str, target: str) -> None:
        with self._sentences("written to"):
            self._system.cp_file(self._at(source), self._at(target))

    def remove(self, folder: str) -> None:
        with self._sentences("written to"), contextlib.suppress(FileNotFoundError):
            self._system.rm(self._at(folder), recursive=True)

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _sentences(self, doing: str) -> Any:
        return sentences(self._address, doing, StoreError)


def _copy(source: Path, target: Path) -> None:
    make_folder(target.parent)
    with (
        os.fdopen(open_file(source), "rb") as reader,
        os.fdopen(create_file(target), "wb") as writer,
    ):
        shutil.copyfileobj(reader, writer, _PART_BYTES)
    sync(target)
