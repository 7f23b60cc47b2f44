"""Which text an id had last, a second time and plainly: what tells `returned` from `unchanged`."""

from __future__ import annotations

from typing import Protocol

Name = tuple[int, bytes]
"""(scope, id)."""


class Standing(Protocol):
    """What is asked of a representative."""

    text: tuple[int, bytes]
    id: bytes


class FoldedTexts:
    """Of each id its representatives, the latest at the end, each with the digest of the text that the id had last under it."""

    def __init__(self) -> None:
        self._standing: dict[Name, dict[Standing, bytes]] = {}

    def stand(self, one: Standing, digest: bytes) -> None:
        """Let a representative be the latest of its id, which had the text of this digest last."""
        if one.id:
            self._standing.setdefault(_name(one), {})[one] = digest

    def fall(self, one: Standing) -> None:
        """Let a representative stand no more."""
        standing = self._standing.get(_name(one), {})
        standing.pop(one, None)
        if not standing:
            self._standing.pop(_name(one), None)

    def last(self, one: Standing) -> bytes:
        """Return the digest of the text that the id of a representative had last; nothing if it has no id."""
        return next(reversed(self._standing.get(_name(one), {}).values()), b"")

    def note(self, name: Name, digest: bytes) -> bool:
        """Take note that an id has the text of this digest now; return whether it had another one last."""
        standing = self._standing.get(name)
        if standing is None:
            return False
        latest = next(reversed(standing))
        had_another = standing[latest] != digest
        standing[latest] = digest
        return had_another


def _name(one: Standing) -> Name:
    return one.text[0], one.id
