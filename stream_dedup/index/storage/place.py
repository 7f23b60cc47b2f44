"""The volume's place in an index's folder: a volume of another layout is left as it is.

    FOLDER              the first volume
    FOLDER/layout-8     the volume of a program with layout 8, if the first one has another

So a version with another layout rebuilds its volume from the log (or restores a snapshot) while the
old one remains; a version that is rolled back continues with its own volume.

Invariant: a volume of another layout is opened for reading only, and not changed.
"""

from __future__ import annotations

from pathlib import Path

from stream_dedup.index.storage import layout
from stream_dedup.index.storage.store import RocksStore

_MARK = "CURRENT"  # RocksDB's file, which every volume has


def volume_in(folder: Path) -> Path:
    """Return the path, in an index's folder, of the volume of this program's layout, which may be
    missing.

    Raises:
        StoreError: the volume in the folder cannot be read.
    """
    versioned = folder / f"layout-{layout.VERSION}"
    if (folder / _MARK).exists():
        return folder if layout_of(folder) in (None, layout.VERSION) else versioned
    return versioned if versioned.is_dir() else folder


def layout_of(volume: Path) -> int | None:
    """Return the number of a volume's layout; None for a damaged or foreign one, which opening
    reports.

    Raises:
        StoreError: it cannot be read.
    """
    store = RocksStore(volume, read_only=True)
    try:
        (value,) = store.get_many([layout.KEY_FORMAT])
    finally:
        store.close()
    return None if value is None else layout.version_of(value)
