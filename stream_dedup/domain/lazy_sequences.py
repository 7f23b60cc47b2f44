"""Sequences that create an item only when it is read, because most items never are.

Invariant: a subclass creates items in a method, never in a stored function that refers back to the
sequence: such a cycle would keep its memory until the garbage collector runs, which is rare.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")


class Lazy(Sequence[Item]):
    """A sequence that creates its items in `_item`; a subclass also defines `__len__`."""

    __slots__ = ()

    @abstractmethod
    def _item(self, place: int) -> Item:
        """Return the item at `place`, counted from 0."""

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        places = range(len(self))[index]
        return (
            self._item(places)
            if isinstance(places, int)
            else [self._item(place) for place in places]
        )

    def __iter__(self) -> Iterator[Item]:
        return map(self._item, range(len(self)))


def sizes_between(stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sizes of adjacent parts, (n,), from the end of each part, (n,); the first part
    begins at 0.

    `np.diff` would take ten times as long.
    """
    sizes = stops.copy()
    sizes[1:] -= stops[:-1]
    return sizes


class Ids(Lazy[bytes]):
    """n ids in one bytes object, as records and pages store them.

    The id of document i is `joined[stops[i - 1] : stops[i]]`; `stops` is (n,).
    """

    __slots__ = ("joined", "stops")

    def __init__(self, joined: bytes, stops: NDArray[np.int64]) -> None:
        self.joined = joined
        self.stops = stops

    @classmethod
    def of(cls, ids: Sequence[bytes]) -> Self:
        """Return an `Ids` of these ids."""
        if isinstance(ids, cls):
            return ids
        return cls(b"".join(ids), np.cumsum(np.fromiter(map(len, ids), np.int64, len(ids))))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Size of each id in bytes, (n,)."""
        return sizes_between(self.stops)

    def __len__(self) -> int:
        return len(self.stops)

    def _item(self, place: int) -> bytes:
        return self.joined[self.stops[place - 1] if place else 0 : self.stops[place]]

    def __iter__(self) -> Iterator[bytes]:
        return iter(
            [
                self.joined[begin:stop]
                for begin, stop in itertools.pairwise([0, *self.stops.tolist()])
            ]
        )
