"""The last text of each id, which distinguishes an unchanged page (`unchanged`) from one that has
an earlier text again (`returned`).

The tables find the latest representative of an id in a scope. Usually its text is also the last text
of the id, and nothing is stored. If a later duplicate with that id had another text, the digest of
that text is stored under the representative's entry; it is deleted once the id has the
representative's text again. So a new document stores nothing, and a duplicate reads the latest
representative of its id.

Invariants: last texts depend on the log alone. Judged documents set the last texts of their ids, in
log order, and so do seeds and releases that become representatives. A stored digest is deleted with
its entry, and moves when the representative is renewed; the renewed one is the latest. If an order
removes the latest representative of an id, the last text becomes the one before this
representative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import Reason
from stream_dedup.domain.lazy_sequences import Ids, Lazy
from stream_dedup.index.storage.columns import Columns, select_rows
from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.entries import Entries, EntryBytes
from stream_dedup.index.storage.layout import last_text_key
from stream_dedup.index.storage.pages import select_ids
from stream_dedup.index.tables.neighbours import Neighbours

ScopedId = tuple[int, bytes]
"""(scope, id)."""
ScopedText = tuple[int, bytes, bytes]
"""(scope, id, text digest)."""
Stores = tuple[Entries, Neighbours]


@dataclass(slots=True)
class IdText:
    """The latest representative of an id, the digest of its text, and the digest of the id's last
    text.
    """

    entry: int
    entry_digest: bytes
    last_digest: bytes


class _ScopedIds(Lazy[ScopedId]):
    """The (scope, id) of documents, built only for the few that are read."""

    def __init__(self, columns: Columns, ids: Sequence[bytes]) -> None:
        self._scopes, self._ids = columns.scopes, ids

    def __len__(self) -> int:
        return len(self._ids)

    def _item(self, place: int) -> ScopedId:
        return int(self._scopes[place]), self._ids[place]


class LastTexts(EntryBytes):
    """The digests of last texts that differ from those of the ids' latest representatives."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, last_text_key)

    def set(self, text: IdText) -> None:
        """Store the last text of an id."""
        self.changed[text.entry] = (
            b"" if text.last_digest == text.entry_digest else text.last_digest
        )


def find_latest(
    last_texts: LastTexts,
    stores: Stores,
    columns: Columns,
    ids: Sequence[bytes],
    added: int = 0,
    known: Mapping[int, ScopedText] = MappingProxyType({}),
) -> dict[ScopedId, IdText]:
    """Return the last text of each document's id, for the ids that have a representative.

    The last `added` entries are ignored. `known` contains texts of entries by number, so that they are
    not read.
    """
    entries, neighbours = stores
    texts, scoped_ids = dict(known), _ScopedIds(columns, ids)

    def is_same(places: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        unread = [number for number in numbers.tolist() if number not in texts]
        if unread:
            texts.update(zip(unread, entries.texts(np.array(unread)), strict=True))
        pairs = zip(places.tolist(), numbers.tolist(), strict=True)
        return np.array(
            [scoped_ids[place] == texts[number][:2] for place, number in pairs], np.bool_
        )

    entries_found = neighbours.find_ids(columns.ids, columns.scopes, is_same, added)
    latest = {
        scoped_ids[place]: int(entries_found[place])
        for place in np.flatnonzero(entries_found >= 0).tolist()
    }
    digests = last_texts.read(list(latest.values()))
    return {
        scoped_id: IdText(entry, texts[entry][2], digests.get(entry, texts[entry][2]))
        for scoped_id, entry in latest.items()
    }


def update_last_texts(
    last_texts: LastTexts,
    stores: Stores,
    columns: Columns,
    ids: Ids,
    named: NDArray[np.int64],
    reasons: NDArray[np.uint8],
) -> None:
    """Update the last texts of ids, document after document. Change the reason `unchanged` to
    `returned` if the id had another text in between.

    `columns`, `ids` and `reasons` are those of all documents of the batch, (n,) each, and `named` the
    entries that duplicates name. The unique documents were added before, as the last entries.
    """
    is_duplicate = reasons >= Reason.EXACT
    duplicates = np.flatnonzero(is_duplicate & (columns.ids != 0))
    if not len(duplicates):
        return
    unique = np.flatnonzero(~is_duplicate)
    first = stores[0].count - len(unique)
    scoped_ids = _ScopedIds(columns, ids)
    # An unchanged document has the id and the text of the entry that it names. That is nearly always
    # the latest entry of the id, so it does not have to be read.
    unchanged = duplicates[reasons[duplicates] == Reason.UNCHANGED].tolist()
    known = {
        int(named[place]): (*scoped_ids[place], columns.digests[place].tobytes())
        for place in unchanged
    }
    latest = find_latest(
        last_texts,
        stores,
        select_rows(columns, duplicates),
        select_ids(ids, duplicates),
        len(unique),
        known,
    )
    unique_rows = np.flatnonzero(np.isin(columns.ids[unique], columns.ids[duplicates]))
    if not latest and not len(unique_rows):
        return
    new_entries = {int(unique[index]): first + int(index) for index in unique_rows}
    changed: dict[int, IdText] = {}
    for place in sorted([*duplicates.tolist(), *new_entries]):
        digest = columns.digests[place].tobytes()
        if place in new_entries:
            latest[scoped_ids[place]] = IdText(new_entries[place], digest, digest)
            continue
        text = latest.get(scoped_ids[place])
        if text is None or text.last_digest == digest:
            continue
        if reasons[place] == Reason.UNCHANGED:
            reasons[place] = Reason.RETURNED
        text.last_digest = digest
        changed[text.entry] = text
    for text in changed.values():
        last_texts.set(text)
