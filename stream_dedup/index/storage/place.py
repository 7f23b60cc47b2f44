"""Find the volume in an index's folder. A volume of another layout is not changed.

    FOLDER              the first volume
    FOLDER/layout-8     the volume of a program with layout 8, if the first one has another

After an upgrade to a version with another layout, the index rebuilds its volume from the log (or
restores a snapshot) and keeps the old one; after a rollback, it continues with the old one.

Invariant: a volume of another layout is opened for reading only, and not changed.
"""

from __future__ import annotations

from pathlib import Path

from stream_dedup.index.storage import layout
from stream_dedup.index.storage.store import RocksStore

_MARK = "CURRENT"  # RocksDB's file, which every volume has


def volume_in(folder: Path) -> Path:
    """Return the path of the volume with this program's layout in an index's folder; it may not exist
    yet.

    Raises:
        StoreError: the volume in the folder cannot be read.
    """
    versioned = folder / f"layout-{layout.VERSION}"
    if (folder / _MARK).exists():
        return folder if layout_of(folder) in (None, layout.VERSION) else versioned
    return versioned if versioned.is_dir() else folder


def layout_of(volume: Path) -> int | None:
    """Return the number of a volume's layout; None if it is damaged or of another program, which is
    reported when the volume is opened.

    Raises:
        StoreError: it cannot be read.
    """
    store = RocksStore(volume, read_only=True)
    try:
        (value,) = store.get_many([layout.KEY_FORMAT])
    finally:
        store.close()
    return None if value is None else layout.version_of(value)
