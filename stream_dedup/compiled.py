"""How the inner loops of `fingerprint` and `index` become machine code, and where that is kept.

Invariants: a kernel runs without the GIL and without fast-math, so it gives the same integers on every machine; kept
machine code is never older than the sources it was made from; nothing is ever loaded from a directory that another
user could have written to, because numba's cache files are pickles, and loading one runs it.

numba compiles each kernel at its first call, which takes seconds, and keeps the result for the next process in the
first of these that is safe and can be written to:

1. `NUMBA_CACHE_DIR`, if that is set;
2. `kernels` under `STREAM_DEDUP_CACHE_DIR`, if that is set;
3. `kernels` under the user's cache directory (`platformdirs`);
4. `stream-dedup-kernels-USERID` in the directory for temporary files.

Below it the directory is named by a digest of the sources of the kernel's room (its folder): numba itself looks only at
the file a kernel stands in, not at the files of the kernels it calls. If there is none (a read-only root), every process
compiles for itself; `cache_directory` then returns None.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import platformdirs

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def _sources_digest(room: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted((*room.glob("*.py"), Path(__file__)), key=lambda path: path.name):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def _is_private(directory: Path) -> bool:
    """Whether only this user (or root) can have put files there."""
    if not hasattr(os, "getuid"):  # Windows: user directories are private by their access lists
        return True
    status = directory.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid in {0, os.getuid()}
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _candidates() -> Iterator[Path]:
    asked = os.environ.get("NUMBA_CACHE_DIR")
    if asked:
        yield Path(asked)
    own = os.environ.get("STREAM_DEDUP_CACHE_DIR")
    if own:
        yield Path(own) / "kernels"
    with contextlib.suppress(RuntimeError):  # no home directory can be found
        yield platformdirs.user_cache_path("stream-dedup") / "kernels"
    if hasattr(os, "getuid"):
        yield Path(tempfile.gettempdir()) / f"stream-dedup-kernels-{os.getuid()}"


@cache
def cache_directory(room: Path) -> Path | None:
    """Return the directory that keeps a room's compiled kernels, made if need be; None if there is no safe, writable one."""
    name = f"{room.name}-{_sources_digest(room)}"
    for base in _candidates():
        directory = base / name
        try:
            base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            base.mkdir(mode=0o700, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            # Whoever may write to the parent may put another directory in this one's place.
            if _is_private(base) and _is_private(directory):
                with tempfile.TemporaryFile(dir=directory):
                    return directory
        except OSError:
            continue
    return None


def kernel(function: Kernel) -> Kernel:
    """Compile a function with numba at its first call, and keep the machine code where that is safe."""
    directory = cache_directory(Path(cast("Any", function).__code__.co_filename).parent)
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = "" if directory is None else str(directory)
    try:
        compiled: Any = numba.njit(nogil=True, error_model="numpy", cache=directory is not None)(function)
    finally:
        settings.CACHE_DIR = before
    return cast("Kernel", compiled)


def inlined(function: Kernel) -> Kernel:
    """Compile a function as part of the kernels that call it: it is kept with them, not by itself."""
    compiled: Any = numba.njit(nogil=True, error_model="numpy")(function)
    return cast("Kernel", compiled)
