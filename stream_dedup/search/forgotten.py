"""Decide which documents the search must not show, by the control records `forget` in the log. Pure.

A `forget` covers every document of its id that the log decided before it. The position in the log
(`dedup.log`) is compared, so the search may read the document and its `forget` in any order. A
later document of the id is shown, because `forget` does not ban an id. For a record without a
position in the log, the times are compared; a record without a time, or with a time in the future,
is covered.

Invariant: only digests of forgotten ids are stored, so that the engine's folder contains no forgotten
id.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import FormatError, OtherFormatError
from stream_dedup.log.record_frame import unframed
from stream_dedup.log.records import FORMATS, KIND_CONTROL, MAGIC, Control, decode, forgotten_ids


class ForgottenId(NamedTuple):
    """A forgotten id. `id_key`: the digest of the id in the log's form; `shown_key`: the digest of
    the id as pages show it; `log_offset`, `append_ms`: offset and time of the `forget` in the log.
    """

    id_key: str
    shown_key: str
    log_offset: int
    append_ms: int

    def covers(self, log_offset: int, time_ms: int) -> bool:
        """Return whether the `forget` covers a document that the log decided at `log_offset`; if this
        is -1, the times are compared.
        """
        return log_offset < self.log_offset if log_offset >= 0 else time_ms <= self.append_ms


class ForgottenIds:
    """The last `forget` of each id. `is_complete`: the log was read to the end that it had at the
    start.
    """

    def __init__(
        self,
        known: Iterable[ForgottenId] = (),
        *,
        is_complete: bool = True,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.is_complete = is_complete
        self._now_ms = now_ms
        self._by_id: dict[str, ForgottenId] = {}
        self._by_shown: dict[str, ForgottenId] = {}
        for forgotten_id in known:
            self.add_forgotten(forgotten_id)

    def add_forgotten(self, forgotten_id: ForgottenId) -> None:
        """Add a forgotten id; the last `forget` of an id counts."""
        for ids, key in (
            (self._by_id, forgotten_id.id_key),
            (self._by_shown, forgotten_id.shown_key),
        ):
            if key not in ids or ids[key].log_offset < forgotten_id.log_offset:
                ids[key] = forgotten_id

    def covers(self, id_key: str, log_offset: int, time_ms: int) -> bool:
        """Return whether a document must not be shown, by the digest of its id in the log's form."""
        return self._covers(self._by_id.get(id_key), log_offset, time_ms)

    def hides_displayed_id(self, identifier: str, log_offset: int, time_ms: int) -> bool:
        """Return whether an id in a record must not be shown, by the id as pages show it."""
        forgotten_id = (
            self._by_shown.get(shown_key_of(identifier)) if self._by_shown and identifier else None
        )
        return self._covers(forgotten_id, log_offset, time_ms)

    def _covers(self, forgotten_id: ForgottenId | None, log_offset: int, time_ms: int) -> bool:
        # A time in the future is wrong, so the record may be older than the `forget`: cover it.
        return forgotten_id is not None and forgotten_id.covers(
            log_offset, time_ms if time_ms <= self._now_ms() else 0
        )


def forgotten_in(message: Message) -> Iterator[ForgottenId]:
    """Yield the ids that a log record forgets; other records yield nothing.

    Raises:
        OtherFormatError: the record has a format that this version does not read.
    """
    record_name = f"The record {message.position}"
    try:
        frame = unframed(MAGIC, FORMATS, message.value, record_name)
        record = decode(message.value, record_name) if frame.kind == KIND_CONTROL else None
    except OtherFormatError:
        raise
    except FormatError:
        return  # the index skips such a record too
    if isinstance(record, Control) and record.type == "forget":
        for identifier in forgotten_ids(record.fields):
            shown = identifier.decode("utf-8", "replace")
            yield ForgottenId(
                key_of(identifier), shown_key_of(shown), message.offset, message.timestamp_ms or 0
            )


def key_of(log_id: bytes) -> str:
    """Return the digest of an id in the log's form; empty for an empty id."""
    return (
        hashlib.blake2b(log_id, digest_size=16, person=b"search take-down").hexdigest()
        if log_id
        else ""
    )


def shown_key_of(identifier: str) -> str:
    """Return the digest of an id as pages show it: bytes that are not UTF-8 are replaced."""
    return key_of(identifier.encode("utf-8", "replace"))
