"""Writes tests/golden/volumes/N.json and tests/golden/snapshots/N.tar.gz: a volume and a snapshot
of this layout.

    python -m tests.index.golden

Run it once for a layout (`layout.VERSION`), before the first release that has it. The snapshot
holds the first half of the log `tests/golden/formats/1/log.json`; whoever restores it must answer
the second half as is written there.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from pathlib import Path

from stream_dedup.index.index import LogIndex
from stream_dedup.index.snapshot import take
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.store import RocksStore

GOLDEN = Path(__file__).parent.parent / "golden"
VOLUME = GOLDEN / "volumes" / f"{layout.VERSION}.json"
SNAPSHOT = GOLDEN / "snapshots" / f"{layout.VERSION}.tar.gz"
NAME = "cluster/topic"


def half_of_the_log() -> tuple[list[tuple[int, int, bytes | None]], dict[int, bytes], int]:
    """Return (log offset, append time, bytes) of a whole recorded log, the answers to it by log
    offset, and its middle."""
    found = json.loads((GOLDEN / "formats" / "1" / "log.json").read_text())
    log = [
        (offset, append_ms, None if raw is None else bytes.fromhex(raw))
        for offset, (append_ms, raw) in enumerate(found["log"])
    ]
    return (
        log,
        {int(offset): bytes.fromhex(raw) for offset, raw in found["answers"].items()},
        len(log) // 2,
    )


def main() -> None:
    """Write the files of this layout."""
    os.environ.setdefault("TEST_SEED", "0")  # the tests' module asks for one; no byte depends on it
    from tests.index.test_layout import example_volume

    VOLUME.parent.mkdir(exist_ok=True)
    SNAPSHOT.parent.mkdir(exist_ok=True)
    VOLUME.write_text(
        json.dumps(
            {key.hex(): value.hex() for key, value in sorted(example_volume().items())}, indent=1
        )
        + "\n"
    )
    log, _, half = half_of_the_log()
    with tempfile.TemporaryDirectory() as folder:
        index = LogIndex(RocksStore(Path(folder) / "index"))
        index.bind(NAME)
        index.apply(log[:half])
        index.checkpoint(Path(folder) / "flushed")
        index.close()
        take(Path(folder) / "flushed", Path(folder) / "snapshot")
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for path in sorted((Path(folder) / "snapshot").rglob("*")):
                if path.is_file():
                    archive.add(path, str(path.relative_to(Path(folder) / "snapshot")))
        SNAPSHOT.write_bytes(raw.getvalue())
    print(f"{VOLUME}\n{SNAPSHOT}, {len(raw.getvalue())} bytes")


if __name__ == "__main__":
    main()
