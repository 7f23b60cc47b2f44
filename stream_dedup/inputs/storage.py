"""Read, write and remove files in a folder or at an address such as `s3://bucket/folder`.

An address needs the extra of its scheme (`s3`, `gs`, `abfs`); credentials and endpoint are read from
the environment (docs/how-to/object-storage.md). Names are relative, with `/` between their parts.

Invariants: readers see a `write` completely or not at all; written files survive a crash of the
machine, as far as the store guarantees it; every error is a `StoreError` that names the place,
except `FileNotFoundError` for a missing file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from stream_dedup.domain.addresses import shown
from stream_dedup.domain.disk import sync
from stream_dedup.domain.errors import StoreError
from stream_dedup.domain.paths import create_file, make_folder, open_file
from stream_dedup.inputs.remote_files import is_address, new_file_system, raise_as

_PART_BYTES: Final = 8 << 20


def storage_at(where: str | Path) -> Storage:
    """Return the storage in a folder or at an address, without connecting or creating anything.

    Raises:
        StoreError: a package is not installed, or its environment is invalid.
    """
    return _Addressed(str(where)) if is_address(str(where)) else _Folder(Path(where))


class _Folder:
    """Files in a folder; safe for all threads."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path

    def folders(self) -> list[str]:
        """Return the names of the folders directly in it."""
        with self._raise_store_errors("read"):
            return (
                [path.name for path in self._path.iterdir() if path.is_dir()]
                if self._path.exists()
                else []
            )

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of the regular files of a folder, by their names in it."""
        root = self._path / folder
        with self._raise_store_errors("read"):
            return (
                {
                    path.name: path.stat().st_size
                    for path in root.iterdir()
                    if path.is_file() and not path.is_symlink()
                }
                if root.exists()
                else {}
            )

    def parts(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the bytes of a file of `size` bytes in parts."""
        with (
            self._raise_store_errors("read"),
            os.fdopen(open_file(self._path / name), "rb") as file,
        ):
            for first in range(0, size, _PART_BYTES):
                yield file.read(min(_PART_BYTES, size - first))

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, or replace it."""
        path = self._path / name
        with self._raise_store_errors("written to"):
            make_folder(path.parent)
            partial = path.with_name(f"{path.name}.partial")
            partial.unlink(missing_ok=True)
            with os.fdopen(create_file(partial), "wb") as file:
                file.write(data)
            sync(partial)
            partial.replace(path)
            for folder in (path.parent, *path.parents[1 : 1 + name.count("/")], self._path.parent):
                sync(folder)

    def put(self, source: Path, name: str) -> None:
        """Upload a file of this machine."""
        with self._raise_store_errors("written to"):
            _copy(source, self._path / name)

    def copy(self, source: str, target: str) -> None:
        """Give a stored file, which must not change, a second name without uploading it again."""
        with self._raise_store_errors("written to"):
            make_folder((self._path / target).parent)
            os.close(open_file(self._path / source))  # raises if the source is a symbolic link
            try:
                (self._path / target).hardlink_to(self._path / source)
            except OSError:  # not every file system has hard links
                _copy(self._path / source, self._path / target)

    def remove(self, folder: str) -> None:
        """Remove a folder and its contents."""
        with self._raise_store_errors("written to"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._path / folder)

    @contextlib.contextmanager
    def _raise_store_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            why = error.strerror or str(error)
            raise StoreError(
                f"{error.filename or self.where} cannot be {doing}: {why}. Free space there, or "
                "correct its permissions."
            ) from error


class _Addressed:
    """Files at an address, with the methods of `_Folder`; safe for all threads."""

    def __init__(self, address: str) -> None:
        self.where = shown(address)
        self._address = address
        with self._raise_store_errors("used"):
            self._system, path = new_file_system(address)
            self._root = path.rstrip("/")

    def folders(self) -> list[str]:
        with self._raise_store_errors("read"):
            try:
                found = self._system.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
            return [
                entry["name"].rstrip("/").rpartition("/")[2]
                for entry in found
                if entry["type"] == "directory"
            ]

    def sizes(self, folder: str) -> dict[str, int]:
        root = self._full_name(folder)
        with self._raise_store_errors("read"):
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
        path = self._full_name(name)
        with self._raise_store_errors("read"):
            for first in range(0, size, _PART_BYTES):
                end = min(first + _PART_BYTES, size)
                yield bytes(self._system.cat_file(path, start=first, end=end))[: end - first]

    def write(self, name: str, data: bytes) -> None:
        with self._raise_store_errors("written to"):
            self._system.pipe_file(self._full_name(name), data)

    def put(self, source: Path, name: str) -> None:
        with self._raise_store_errors("written to"):
            self._system.put_file(str(source), self._full_name(name))

    def copy(self, source: str, target: str) -> None:
        with self._raise_store_errors("written to"):
            self._system.cp_file(self._full_name(source), self._full_name(target))

    def remove(self, folder: str) -> None:
        with self._raise_store_errors("written to"), contextlib.suppress(FileNotFoundError):
            self._system.rm(self._full_name(folder), recursive=True)

    def _full_name(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _raise_store_errors(self, doing: str) -> Any:
        return raise_as(self._address, doing, StoreError)


Storage: TypeAlias = _Folder | _Addressed


def _copy(source: Path, target: Path) -> None:
    make_folder(target.parent)
    with (
        os.fdopen(open_file(source), "rb") as reader,
        os.fdopen(create_file(target), "wb") as writer,
    ):
        shutil.copyfileobj(reader, writer, _PART_BYTES)
    sync(target)
