"""How far a `load` came, on disk, so that the same command goes on where it stopped.

Lines of JSON are only ever appended, one a file: how many of its documents Kafka has acknowledged, and whether that was all.
Invariants: a line is written only after everything that it counts was acknowledged, and is on the disk before more is sent
than the next one counts; so after a kill nothing is missing, and what is sent again is what came after the last line. A file
that changed since (size or time of writing) counts as another one. A line cut off by a kill is no line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from stream_dedup.ground.errors import InputError
from stream_dedup.inputs.sources import SourceFile, whole_name


class Reached(NamedTuple):
    """How many documents of a file were acknowledged or are `lost` for good, and whether these are all."""

    documents: int = 0
    is_done: bool = False
    lost: int = 0


class Journal:
    """The journal of one command: of its files, its topic and how it reads them, named by `identity`."""

    def __init__(self, folder: Path, identity: Sequence[str], *, again: bool) -> None:
        """Open it, or begin one; `again` forgets what a former run did.

        Raises:
            InputError: the same command is running.
            OSError: the folder cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.blake2b("\0".join(identity).encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
        self._path = folder / f"{name}.jsonl"
        self._lock = FileLock(folder / f"{name}.lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise InputError("The same files are being loaded into this topic; wait for that to end.") from error
        if again:
            self._path.unlink(missing_ok=True)
        self._reached = self._read()
        self._stream = self._path.open("ab")
        # A line that a kill cut off must not swallow the next one.
        self._stream.write(b"\n")

    @property
    def documents(self) -> int:
        """How many documents former runs have sent of files as they were then."""
        return sum(reached.documents - reached.lost for reached in self._reached.values())

    def of(self, file: SourceFile) -> Reached:
        """Return how far a file is."""
        return self._reached.get(_key(file), Reached())

    def write(self, lines: Sequence[tuple[SourceFile, Reached]]) -> None:
        """Add how far files are, durable when it returns."""
        for file, reached in lines:
            name, size, time = _key(file)
            fields = {
                "file": name,
                "bytes": size,
                "mtime_ns": time,
                "documents": reached.documents,
                "done": reached.is_done,
                "lost": reached.lost,
            }
            self._stream.write(json.dumps(fields).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self, *, is_complete: bool) -> None:
        """Close it; when all is done it goes, and the same command loads everything once more."""
        self._stream.close()
        if is_complete:
            self._path.unlink(missing_ok=True)
        self._lock.release()

    def _read(self) -> dict[tuple[str, int, str], Reached]:
        found: dict[tuple[str, int, str], Reached] = {}
        if not self._path.exists():
            return found
        for line in self._path.read_bytes().splitlines():
            try:
                fields = json.loads(line)
                key = (str(fields["file"]), int(fields["bytes"]), str(fields["mtime_ns"]))
                found[key] = Reached(int(fields["documents"]), bool(fields["done"]), int(fields.get("lost", 0)))
            except (ValueError, KeyError, TypeError):
                continue
        return found


def _key(file: SourceFile) -> tuple[str, int, str]:
    name = whole_name(file).name if file.path is None or file.elsewhere is not None else str(file.path.resolve())
    return name, file.size_bytes, str(file.stamp)
