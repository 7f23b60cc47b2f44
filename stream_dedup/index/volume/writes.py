"""The writes of one step, gathered as values; the coordinator carries them out in one atomic write.

Invariant: a key is put or deleted, never both; the last word on a key counts. A range goes before any put takes place.
"""

from __future__ import annotations


class Writes:
    """Puts and deletes that belong together."""

    __slots__ = ("deletes", "puts", "ranges")

    def __init__(self) -> None:
        self.puts: dict[bytes, bytes] = {}
        self.deletes: set[bytes] = set()
        self.ranges: list[tuple[bytes, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self.puts or self.deletes or self.ranges)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key's value."""
        self.deletes.discard(key)
        self.puts[key] = value

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self.puts.pop(key, None)
        self.deletes.add(key)

    def delete_range(self, first: bytes, end: bytes) -> None:
        """Remove every key from `first` up to, not including, `end`."""
        for key in [key for key in self.puts if first <= key < end]:
            del self.puts[key]
        self.ranges.append((first, end))
