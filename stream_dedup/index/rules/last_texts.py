"""Which text an id had last: what tells a page that stayed as it was (`unchanged`) from one that
went back (`returned`).

The latest representative of an id in a scope is found by the id. As long as nothing is written
under it, the id had that one's text last; the digest of another text that a duplicate had since is
written there, and goes when its own text comes again. So a new document writes nothing, and a
duplicate is asked for the latest representative of its id.

Invariants: a function of the log alone: the documents that are judged set what their ids had last,
in log order, and so do the seeds and releases that become representatives; what is written goes
with its entry, and a representative that is renewed takes along what its id had last, because it is
the latest then. Where an order takes the latest one away, the id had last what was known when that
one came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import Reason
from stream_dedup.domain.lazy import Ids, Lazy
from stream_dedup.index.tables.neighbours import Neighbours
from stream_dedup.index.tables.rows import Columns, take_rows
from stream_dedup.index.volume.contract import Store
from stream_dedup.index.volume.entries import Entries, EntryBytes
from stream_dedup.index.volume.layout import last_text_key
from stream_dedup.index.volume.pages import taken

Name = tuple[int, bytes]
"""(scope, id)."""
Text = tuple[int, bytes, bytes]
"""(scope, id, text digest)."""
Rooms = tuple[Entries, Neighbours]


@dataclass(slots=True)
class IdText:
    """Of an id: its latest representative, and the digests of that one's text and of the text that
    the id had last.
    """

    entry: int
    own: bytes
    last: bytes


class _Names(Lazy[Name]):
    """The names of documents, of which few are asked for."""

    def __init__(self, columns: Columns, ids: Sequence[bytes]) -> None:
        self._scopes, self._ids = columns.scopes, ids

    def __len__(self) -> int:
        return len(self._ids)

    def _item(self, place: int) -> Name:
        return int(self._scopes[place]), self._ids[place]


class LastTexts(EntryBytes):
    """The digests of the texts that ids had last, under their latest representatives, where these
    have other texts.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, last_text_key)

    def set(self, one: IdText) -> None:
        """Write down what an id had last."""
        self.changed[one.entry] = b"" if one.last == one.own else one.last


def latest_of(
    last: LastTexts,
    rooms: Rooms,
    columns: Columns,
    ids: Sequence[bytes],
    added: int = 0,
    known: Mapping[int, Text] = MappingProxyType({}),
) -> dict[Name, IdText]:
    """Return what is known of the ids of some documents, where a representative has one.

    The `added` latest entries are passed over; what is `known` of entries need not be read.
    """
    entries, neighbours = rooms
    texts, names = dict(known), _Names(columns, ids)

    def same(asked: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        unread = [number for number in numbers.tolist() if number not in texts]
        if unread:
            texts.update(zip(unread, entries.texts(np.array(unread)), strict=True))
        pairs = zip(asked.tolist(), numbers.tolist(), strict=True)
        return np.array([names[one] == texts[number][:2] for one, number in pairs], np.bool_)

    found = neighbours.find_ids(columns.ids, columns.scopes, same, added)
    latest = {names[place]: int(found[place]) for place in np.flatnonzero(found >= 0).tolist()}
    written = last.of(list(latest.values()))
    return {
        name: IdText(entry, texts[entry][2], written.get(entry, texts[entry][2]))
        for name, entry in latest.items()
    }


def follow(
    last: LastTexts,
    rooms: Rooms,
    columns: Columns,
    ids: Ids,
    named: NDArray[np.int64],
    reasons: NDArray[np.uint8],
) -> None:
    """Note what text each id has, document after document, and call `returned` what is `unchanged`
    and had another meanwhile.

    `columns`, `ids` and `reasons` are of all the documents, (n,) each, and so are the entries that
    duplicates have `named`; those that are unique have become the latest entries.
    """
    is_duplicate = reasons >= Reason.EXACT
    asked = np.flatnonzero(is_duplicate & (columns.ids != 0))
    if not len(asked):
        return
    made = np.flatnonzero(~is_duplicate)
    first = rooms[0].count - len(made)
    names = _Names(columns, ids)
    # What is unchanged has id and text of the entry that it names, which is nearly always the
    # latest of the id.
    stayed = asked[reasons[asked] == Reason.UNCHANGED].tolist()
    known = {
        int(named[place]): (*names[place], columns.digests[place].tobytes()) for place in stayed
    }
    latest = latest_of(last, rooms, take_rows(columns, asked), taken(ids, asked), len(made), known)
    among = np.flatnonzero(np.isin(columns.ids[made], columns.ids[asked]))
    if not latest and not len(among):
        return
    new = {int(made[at]): first + int(at) for at in among}
    changed: dict[int, IdText] = {}
    for place in sorted([*asked.tolist(), *new]):
        digest = columns.digests[place].tobytes()
        if place in new:
            latest[names[place]] = IdText(new[place], digest, digest)
            continue
        one = latest.get(names[place])
        if one is None or one.last == digest:
            continue
        if reasons[place] == Reason.UNCHANGED:
            reasons[place] = Reason.RETURNED
        one.last = digest
        changed[one.entry] = one
    for one in changed.values():
        last.set(one)
