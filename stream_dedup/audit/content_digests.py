"""Compute digests of the parts that a source record and its output share: key, value, timestamp and
the headers that the filter did not add (foreign headers).

Invariants: a foreign header is never mistaken for one of the filter, because a worker renames an
incoming `dedup.*` header to `dedup.prior.*` and appends its headers after all others; a digest covers
an unambiguous form of all parts.
"""

from __future__ import annotations

import enum
import hashlib
from typing import NamedTuple

from stream_dedup.domain.document import Headers, Message
from stream_dedup.log import headers
from stream_dedup.log.dead_letters import split_dead_letter


class Cut(enum.Enum):
    """The parts that were cut from a dead letter, which would have been too large."""

    NOTHING = "nothing"
    VALUE = "a part of its value"
    ENVELOPE = "a part of its key, or headers"


class Content(NamedTuple):
    """Two 64-bit digests of a record as the crawler sent it. `envelope`: of the key, the timestamp and
    the foreign headers; `full`: of these and the value.
    """

    envelope: int
    full: int


def digest_source(message: Message) -> Content:
    """Return the digests of a source record."""
    return _digests(
        message.key,
        message.value,
        message.timestamp_ms,
        headers.escape_source_headers(message.headers),
    )


def digest_output(message: Message) -> Content:
    """Return the digests of the source record, computed from its record in `unique` or
    `duplicates`.
    """
    foreign, _ = split_verdict(message.headers)
    return _digests(message.key, message.value, message.timestamp_ms, foreign)


def digest_dead_letter(message: Message) -> Content:
    """Return the digests of the source record, computed from its dead letter. Compare only those
    that `cut_of` allows.
    """
    foreign, error_headers = split_dead_letter(message.headers)
    timestamp = headers.text_of(error_headers, headers.ERROR_TIMESTAMP)
    timestamp_ms = int(timestamp) if timestamp.isascii() and timestamp.isdigit() else None
    return _digests(message.key, message.value, timestamp_ms, foreign)


def cut_of(error_headers: Headers) -> Cut:
    """Return which parts are missing in a dead letter, by its error headers. With `VALUE` only the
    digest `envelope` can be compared, with `ENVELOPE` none.
    """
    if headers.text_of(error_headers, headers.ERROR_KEY_TRUNCATED) or headers.text_of(
        error_headers, headers.ERROR_HEADERS_DROPPED
    ):
        return Cut.ENVELOPE
    return Cut.VALUE if headers.text_of(error_headers, headers.ERROR_TRUNCATED) else Cut.NOTHING


def split_verdict(all_headers: Headers) -> tuple[Headers, Headers]:
    """Split the headers of a record in `unique` or `duplicates` into (foreign, `dedup.*`)."""
    for index, (name, _) in enumerate(all_headers):
        if name.startswith(headers.OWN_PREFIX) and not name.startswith(headers.PRIOR_PREFIX):
            return all_headers[:index], all_headers[index:]
    return all_headers, []


def _digests(
    key: bytes | None, value: bytes | None, timestamp_ms: int | None, foreign: Headers
) -> Content:
    digest = hashlib.blake2b(repr((key, timestamp_ms, foreign)).encode(), digest_size=8)
    envelope = int.from_bytes(digest.digest(), "little")
    digest.update(b"\0" if value is None else b"\1" + value)
    return Content(envelope, int.from_bytes(digest.digest(), "little"))
