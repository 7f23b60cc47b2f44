"""Forgotten ids: which documents the search must not show, as the control records `forget` of the
log say. Pure.

A `forget` covers every document of its id that the log decided before it, by the place in the log
that a record has in `dedup.log`, whenever the search reads either of the two. One that comes under
the id later is shown again, as `forget` is no ban. A record that no log decided is held against it
by time; one without a time is covered, and one whose time lies ahead.

Invariant: ids are kept as digests, so that a forgotten one does not lie in the engine's folder.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import FormatError, OtherFormatError
from stream_dedup.log.frame import unframed
from stream_dedup.log.records import FORMATS, KIND_CONTROL, MAGIC, Control, decode, forgotten_ids


class ForgottenId(NamedTuple):
    """An id that was forgotten: by its digest, by the digest of how it is shown, and by which
    record of the log.
    """

    id_key: str
    shown_key: str
    log_offset: int
    append_ms: int

    def covers(self, log_offset: int, time_ms: int) -> bool:
        """Return whether it holds for what was decided there, or, where no log decided (-1), at
        that time.
        """
        return log_offset < self.log_offset if log_offset >= 0 else time_ms <= self.append_ms


class ForgottenIds:
    """Those that are known: of each id the last. `are_all`: the log was read to where it ended at
    the start.
    """

    def __init__(
        self,
        known: Iterable[ForgottenId] = (),
        *,
        are_all: bool = True,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.are_all = are_all
        self._now_ms = now_ms
        self._by_id: dict[str, ForgottenId] = {}
        self._by_shown: dict[str, ForgottenId] = {}
        for forgotten_id in known:
            self.add_forgotten(forgotten_id)

    def add_forgotten(self, forgotten_id: ForgottenId) -> None:
        """Take one in."""
        for ids, key in (
            (self._by_id, forgotten_id.id_key),
            (self._by_shown, forgotten_id.shown_key),
        ):
            if key not in ids or ids[key].log_offset < forgotten_id.log_offset:
                ids[key] = forgotten_id

    def covers(self, id_key: str, log_offset: int, time_ms: int) -> bool:
        """Return whether a document is not to be shown."""
        return self._covers(self._by_id.get(id_key), log_offset, time_ms)

    def covers_shown(self, identifier: str, log_offset: int, time_ms: int) -> bool:
        """Return whether an id that a record names is not to be shown."""
        forgotten_id = (
            self._by_shown.get(shown_key_of(identifier)) if self._by_shown and identifier else None
        )
        return self._covers(forgotten_id, log_offset, time_ms)

    def _covers(self, forgotten_id: ForgottenId | None, log_offset: int, time_ms: int) -> bool:
        # A time that lies ahead does not say whether the record came before the `forget`.
        return forgotten_id is not None and forgotten_id.covers(
            log_offset, time_ms if time_ms <= self._now_ms() else 0
        )


def forgotten_in(message: Message) -> Iterator[ForgottenId]:
    """Yield what a record of the log takes down; nothing for any other record.

    Raises:
        OtherFormatError: it is of a format that this program does not read.
    """
    where = f"The record {message.position}"
    try:
        frame = unframed(MAGIC, FORMATS, message.value, where)
        record = decode(message.value, where) if frame.kind == KIND_CONTROL else None
    except OtherFormatError:
        raise
    except FormatError:
        return  # as the index passes it over
    if isinstance(record, Control) and record.type == "forget":
        for identifier in forgotten_ids(record.fields):
            shown = identifier.decode("utf-8", "replace")
            yield ForgottenId(
                key_of(identifier), shown_key_of(shown), message.offset, message.timestamp_ms or 0
            )


def key_of(log_id: bytes) -> str:
    """Return the digest of an id as the log holds it; nothing for none."""
    return (
        hashlib.blake2b(log_id, digest_size=16, person=b"search take-down").hexdigest()
        if log_id
        else ""
    )


def shown_key_of(identifier: str) -> str:
    """Return the digest of an id as it is shown, which for one that is no UTF-8 is less than the
    id.
    """
    return key_of(identifier.encode("utf-8", "replace"))
