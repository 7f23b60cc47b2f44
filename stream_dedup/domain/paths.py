"""Build paths from untrusted names, and create files and folders that only this user can read.

A name from a manifest, an object store or a file of documents becomes a path only through `below`.

Invariants: `below` never returns a path outside its folder; `create_file` and `open_file` open no
symbolic link, pipe or device; only this user can read the files and folders created here,
with any umask.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from stream_dedup.domain.errors import InputError
from stream_dedup.domain.printable import printable

_COMPONENT_BYTES_MAX: Final = 255
_PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700


def below(folder: Path, name: str) -> Path:
    """Return the path of `name` in `folder`; `/` separates components.

    Raises:
        InputError: on some system the name would lead out of the folder, or is not a valid file name.
    """
    for part in name.split("/"):
        problem = _find_name_problem(part)
        if problem:
            raise InputError(
                f"{printable(name)!r} cannot be the name of a file in {folder}: {problem}. Rename it."
            )
    return folder / name


def _find_name_problem(part: str) -> str:
    if part in ("", ".", ".."):
        return f"its part {part!r} leads to another folder"
    if any(char < " " or char in "\\\x7f" for char in part):
        return "it contains a backslash or a control character"
    try:
        size = len(os.fsencode(part))
    except UnicodeEncodeError:
        return "it is not valid text"
    if size > _COMPONENT_BYTES_MAX:
        return f"a part of it has {size} bytes, more than {_COMPONENT_BYTES_MAX}"
    return ""


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents; an existing folder keeps its permissions.

    Raises:
        OSError: the folder cannot be created, or its name is that of a file.
    """
    for path in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            path.mkdir(_PRIVATE_FOLDER)
            path.chmod(_PRIVATE_FOLDER)  # the umask may remove the owner's permissions
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is not a directory", str(folder))


def create_file(path: Path) -> int:
    """Create a file for reading and writing; return its descriptor.

    Raises:
        OSError: the file cannot be created, or its name exists, even as a symbolic link.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, _PRIVATE_FILE)
    os.fchmod(descriptor, _PRIVATE_FILE)
    return descriptor


def open_or_replace(path: Path) -> int:
    """Open or create a file of this user for reading and writing; return its descriptor.

    A symbolic link, a file of another user, or a file with a second hard link is unlinked and
    replaced; its target stays unchanged.

    Raises:
        OSError: a folder, a pipe or a device has the name (`EEXIST`), or the file cannot be opened.
    """
    try:
        return open_file(path, os.O_RDWR, is_private=True)
    except FileNotFoundError:
        return create_file(path)
    except OSError:
        kind = stat.S_IFMT(path.lstat().st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFLNK):
            raise FileExistsError(errno.EEXIST, "it is not a regular file", str(path)) from None
        if kind == stat.S_IFREG and _is_private(path.lstat()):
            raise
    path.unlink()
    return create_file(path)


def open_file(path: Path, flags: int = os.O_RDONLY, *, is_private: bool = False) -> int:
    """Open an existing regular file; return its descriptor.

    With `is_private` it must also belong to this user and have no second hard link.

    Raises:
        OSError: the file is of another kind, or cannot be opened.
    """
    # Without O_NONBLOCK, opening a pipe waits for its other end.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "it is not a regular file"
    elif is_private and not _is_private(status):
        problem = "it belongs to another user, or has a second hard link"
    if problem:
        os.close(descriptor)
        raise OSError(errno.EINVAL, problem, str(path))
    return descriptor


def _is_private(status: os.stat_result) -> bool:
    return (status.st_uid, status.st_nlink) == (os.geteuid(), 1)
