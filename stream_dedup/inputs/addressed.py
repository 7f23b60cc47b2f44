"""Files at addresses, such as `s3://bucket/shards/*.parquet`: found by fsspec, and copied here while they are read.

Needs `crawl-dedup[fetch]`, and the library of the address: `s3`, `gs` and `abfs` are extras, `hf://` needs huggingface_hub.
Credentials and endpoints are those of the environment, as each library reads them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stream_dedup.ground.addresses import shown
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.printable import printable

GLOB = "*?["
"""What a path that stands for several holds one of."""


class FileAt(NamedTuple):
    """A file: `name` below what was asked for, its size, and `stamp`, which changes when it is written anew."""

    address: str
    name: str
    size_bytes: int
    stamp: str


def is_address(target: str) -> bool:
    """Return whether a target is an address and no path."""
    return "://" in target


def files_at(target: str) -> list[FileAt]:
    """Return the files at an address of a file or folder, or of several by `*`, `**` and `?`, in the order of their names.

    Raises:
        InputError: there are none, or they cannot be listed; or a package is not installed.
    """
    with _sentences(target):
        system, path = _system(target)
        if any(sign in path for sign in GLOB):
            found, root = system.glob(path, detail=True), path[: min(path.find(sign) % (len(path) + 1) for sign in GLOB)]
            root = root.rpartition("/")[0]
        elif system.isdir(path):
            found, root = system.find(path, detail=True), path
        else:
            found, root = {path: system.info(path)}, path.rpartition("/")[0]
    files = [
        FileAt(
            system.unstrip_protocol(one),
            one.removeprefix(root).lstrip("/"),
            int(info.get("size") or 0),
            str(info.get("ETag") or info.get("LastModified") or info.get("mtime") or info.get("created") or ""),
        )
        for one, info in found.items()
        if info.get("type") == "file"
    ]
    if not files:
        raise InputError(f"There is no file at {shown(target)}.")
    return sorted(files, key=lambda file: Path(file.name))


@contextlib.contextmanager
def copied(address: str, name: str) -> Iterator[Path]:
    """Yield a copy of a file, called as `name` ends, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="stream-dedup-") as folder:
        copy = Path(folder) / Path(name).name
        with _sentences(address):
            system, path = _system(address)
            system.get_file(path, str(copy))
        yield copy


def _system(address: str) -> tuple[Any, str]:
    import fsspec  # noqa: PLC0415 - an extra

    found: tuple[Any, str] = fsspec.core.url_to_fs(address)
    return found


@contextlib.contextmanager
def _sentences(address: str) -> Iterator[None]:
    """Turn what fsspec and its libraries raise into sentences that name the address."""
    try:
        yield
    except InputError:
        raise
    except ImportError as error:
        extra = {"s3": "s3", "gs": "gs", "abfs": "abfs"}.get(address.split("://", maxsplit=1)[0], "fetch")
        hint = " and huggingface_hub" if address.startswith("hf://") else ""
        raise InputError(
            f"{shown(address)} needs packages that are not installed: run pip install 'crawl-dedup[{extra}]'{hint} ({error})."
        ) from error
    except Exception as error:  # each library raises what it likes
        told = printable(str(error)) or type(error).__name__
        raise InputError(f"{shown(address)} cannot be read: {told}. See to the address and the credentials.") from error
