"""Sequences of which an item is made when it is asked for, because nearly always nobody does.

Invariant: such a sequence makes its items by a method, never by a function that it holds and that holds it: nobody looks for
cycles often, and what it keeps would stay.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

Item = TypeVar("Item")


class Lazy(Sequence[Item]):
    """A sequence by what it makes at each place; it says its own length."""

    __slots__ = ()

    @abstractmethod
    def _item(self, place: int) -> Item:
        """Return what stands at a place, counted from 0."""

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> list[Item]: ...
    def __getitem__(self, at: int | slice) -> Item | list[Item]:
        places = range(len(self))[at]
        return self._item(places) if isinstance(places, int) else [self._item(place) for place in places]

    def __iter__(self) -> Iterator[Item]:
        return map(self._item, range(len(self)))
