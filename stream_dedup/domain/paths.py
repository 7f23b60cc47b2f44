"""Paths made of names that data brings, and files and folders of this user alone.

A name from a manifest, an object store or a file of documents leads to a path by `below` only.

Invariants: `below` never returns a path outside its folder; `create_file` and `open_file` open no
link, no pipe and no device; what is made here is readable for this user alone, whatever the umask.
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
    """Return the path of `name` in `folder`; several components have `/` between them.

    Raises:
        InputError: the name leads elsewhere, on some system, or no file can have it.
    """
    for part in name.split("/"):
        why = _why_not_plain(part)
        if why:
            raise InputError(
                f"{printable(name)!r} cannot be the name of a file in {folder}: {why}. Rename it."
            )
    return folder / name


def _why_not_plain(part: str) -> str:
    if part in ("", ".", ".."):
        return f"its part {part!r} leads to another folder"
    if any(char < " " or char in "\\\x7f" for char in part):
        return "it holds a backslash or a control character"
    try:
        size = len(os.fsencode(part))
    except UnicodeEncodeError:
        return "it is no text"
    if size > _COMPONENT_BYTES_MAX:
        return f"a part of it has {size} bytes, and {_COMPONENT_BYTES_MAX} is the most"
    return ""


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing; one that is there keeps its rights.

    Raises:
        OSError: it cannot be made, or something else has its name.
    """
    for path in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            path.mkdir(_PRIVATE_FOLDER)
            path.chmod(_PRIVATE_FOLDER)  # against an umask that takes the owner's rights, too
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is not a directory", str(folder))


def create_file(path: Path) -> int:
    """Create a file to be written and read; return its descriptor.

    Raises:
        OSError: it cannot be made, or something has its name, a link for instance.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(path, flags, _PRIVATE_FILE)
    os.fchmod(number, _PRIVATE_FILE)
    return number


def open_or_replace(path: Path) -> int:
    """Open a file of this user alone to be written and read, made where there is none; return its
    descriptor.

    A link, or a file that is another's or has a second name, loses this name: what it leads to
    stays as it is.

    Raises:
        OSError: a folder, a pipe or a device has the name (`EEXIST`), or the file cannot be opened.
    """
    try:
        return open_file(path, os.O_RDWR, own=True)
    except FileNotFoundError:
        return create_file(path)
    except OSError:
        kind = stat.S_IFMT(path.lstat().st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFLNK):
            raise FileExistsError(errno.EEXIST, "it is not a regular file", str(path)) from None
        if kind == stat.S_IFREG and _is_own(path.lstat()):
            raise
    path.unlink()
    return create_file(path)


def open_file(path: Path, flags: int = os.O_RDONLY, *, own: bool = False) -> int:
    """Open a regular file that is there; return its descriptor.

    With `own` it must also belong to this user and have no second name.

    Raises:
        OSError: it is none such, or cannot be opened.
    """
    # Without O_NONBLOCK the opening of a pipe waits for its other end.
    number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(number)
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = "it is not a regular file"
    elif own and not _is_own(found):
        why = "it belongs to another user, or has a second name"
    if why:
        os.close(number)
        raise OSError(errno.EINVAL, why, str(path))
    return number


def _is_own(found: os.stat_result) -> bool:
    return (found.st_uid, found.st_nlink) == (os.geteuid(), 1)
