"""Where in an index's folder its volume lies: one of another layout stays as it is, and this
program's is beside it.

    FOLDER              the volume with which the folder was begun
    FOLDER/layout-8     that of a program with layout 8, where the folder was begun with another

So a version with another layout rebuilds its volume from the log (or takes it from a snapshot)
while the old one keeps; a version that is rolled back finds its own where it left it, and reads on
from there.

Invariant: nothing is changed in a volume of another layout, and it is opened for reading only.
"""

from __future__ import annotations

from pathlib import Path

from stream_dedup.index.volume import layout
from stream_dedup.index.volume.store import RocksStore

_MARK = "CURRENT"  # RocksDB's: without it a folder holds no volume


def volume_in(folder: Path) -> Path:
    """Return where in an index's folder the volume of this program's layout lies, or is to be made.

    Raises:
        StoreError: what lies in the folder cannot be read.
    """
    beside = folder / f"layout-{layout.VERSION}"
    if (folder / _MARK).exists():
        return folder if layout_of(folder) in (None, layout.VERSION) else beside
    return beside if beside.is_dir() else folder


def layout_of(volume: Path) -> int | None:
    """Return the number of a volume's layout; None for one that is damaged or no index's, as
    opening it will tell.

    Raises:
        StoreError: it cannot be read.
    """
    store = RocksStore(volume, read_only=True)
    try:
        (value,) = store.get_many([layout.KEY_FORMAT])
    finally:
        store.close()
    return None if value is None else layout.version_of(value)
