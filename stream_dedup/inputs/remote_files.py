"""Files at addresses, such as `s3://bucket/shards/*.parquet`: fsspec lists them, and copies each to
this machine while it is read.

Needs the extra `fetch`, and the library of the address: `s3`, `gs` and `abfs` are also extras,
`hf://` needs huggingface_hub. Each library reads credentials and endpoints from the environment.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stream_dedup.domain.addresses import has_credentials, shown
from stream_dedup.domain.errors import InputError, StreamDedupError
from stream_dedup.domain.extras import install_command
from stream_dedup.domain.paths import below
from stream_dedup.domain.printable import printable

_GOOGLE = ("gs", "gcs")
# A path with one of these characters is a pattern.
GLOB = "*?["


class RemoteFile(NamedTuple):
    """A file. `name` is its path below the requested address; `stamp` changes when it is rewritten."""

    address: str
    name: str
    size_bytes: int
    stamp: str


def is_address(target: str) -> bool:
    """Return whether a target is an address and not a path."""
    return "://" in target


def list_files(target: str) -> list[RemoteFile]:
    """Return the files at the address of a file or folder, or at a pattern of `*`, `**` and `?`, in
    the order of their names.

    Raises:
        InputError: there are none, or they cannot be listed; or a package is not installed.
    """
    with raise_as(target):
        system, path = _shared_file_system(target)
        if any(sign in path for sign in GLOB):
            found, root = (
                system.glob(path, detail=True),
                path[: min(path.find(sign) % (len(path) + 1) for sign in GLOB)],
            )
            root = root.rpartition("/")[0]
        elif system.isdir(path):
            found, root = system.find(path, detail=True), path
        else:
            found, root = {path: system.info(path)}, path.rpartition("/")[0]
    files = [
        RemoteFile(
            system.unstrip_protocol(file_path),
            file_path.removeprefix(root).lstrip("/"),
            int(info.get("size") or 0),
            str(
                info.get("ETag")
                or info.get("LastModified")
                or info.get("mtime")
                or info.get("created")
                or ""
            ),
        )
        for file_path, info in found.items()
        if info.get("type") == "file"
    ]
    if not files:
        raise InputError(f"There is no file at {shown(target)}.")
    return sorted(files, key=lambda file: Path(file.name))


@contextlib.contextmanager
def download(address: str, name: str) -> Iterator[Path]:
    """Yield the path of a temporary copy of a file, with the last part of `name`."""
    with tempfile.TemporaryDirectory(prefix="stream-dedup-") as folder:
        copy = below(Path(folder), Path(name).name)
        with raise_as(address):
            system, path = _shared_file_system(address)
            system.get_file(path, str(copy))
        yield copy


def class_of(scheme: str) -> Any:
    """Return fsspec's class for a scheme."""
    import fsspec  # noqa: PLC0415 - an extra

    if scheme in _GOOGLE:
        # gcsfs's default class asks for the type of the bucket before each file, by gRPC and with
        # another permission, and warns if that fails.
        return importlib.import_module("gcsfs.core").GCSFileSystem
    return fsspec.get_filesystem_class(scheme)


def new_file_system(address: str) -> tuple[Any, str]:
    """Return a new file system for an address, without a cache of listings, and the path in it."""
    kind = class_of(address.partition("://")[0])
    return kind(
        skip_instance_cache=True, use_listings_cache=False, **kind._get_kwargs_from_urls(address)
    ), kind._strip_protocol(address)


def _shared_file_system(address: str) -> tuple[Any, str]:
    import fsspec  # noqa: PLC0415 - an extra

    found: tuple[Any, str] = fsspec.core.url_to_fs(address)
    return found


@contextlib.contextmanager
def raise_as(
    address: str, doing: str = "read", kind: type[StreamDedupError] = InputError
) -> Iterator[None]:
    """Raise the errors of fsspec and its libraries as `kind`, with a sentence that names the address.

    `FileNotFoundError` is converted for the kind `InputError` only. An address with a user name or
    a password is refused first, because a library might print it.
    """
    if has_credentials(address):
        raise kind(
            f"The address {shown(address)} contains a user name or a password, which others could "
            "read in the list of processes and in logs; remove them, and set the credentials in the "
            "environment (docs/how-to/object-storage.md)."
        )
    try:
        yield
    except StreamDedupError:
        raise
    except FileNotFoundError as error:
        if kind is not InputError:
            raise
        raise _error_of(address, doing, kind, error) from error
    except ImportError as error:
        extra = {"s3": "s3", "gs": "gs", "abfs": "abfs"}.get(
            address.split("://", maxsplit=1)[0], "fetch"
        )
        hint = " and huggingface_hub" if address.startswith("hf://") else ""
        raise kind(
            f"{shown(address)} needs packages that are not installed: run "
            f"{install_command(extra)}{hint} ({error})."
        ) from error
    except Exception as error:  # each library raises errors of its own classes
        raise _error_of(address, doing, kind, error) from error


def _error_of(
    address: str, doing: str, kind: type[StreamDedupError], error: Exception
) -> StreamDedupError:
    why = printable(str(error)) or type(error).__name__
    return kind(
        f"{shown(address)} cannot be {doing}: {why}. Check the address and the credentials."
    )
