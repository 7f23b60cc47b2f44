"""What must not change between a source record and the one that left: key, value bytes, timestamp,
foreign headers.

Invariants: our own headers are told from foreign ones by what the worker promises (an incoming
`dedup.*` leaves as `dedup.prior.*`; ours stand behind all others), so that nothing from outside is
taken for ours; a digest here is of an unambiguous form of all four parts.
"""

from __future__ import annotations

import enum
import hashlib
from typing import NamedTuple

from stream_dedup.domain.document import Headers, Message
from stream_dedup.log import headers


class Cut(enum.Enum):
    """What a dead letter lacks of its record, because its topic could not hold it."""

    NOTHING = "nothing"
    VALUE = "a part of its value"
    ENVELOPE = "a part of its key, or headers"


class Content(NamedTuple):
    """Digests (64 bits) of a record as the crawler sent it: without its value, and with it."""

    envelope: int
    whole: int


def of_source(message: Message) -> Content:
    """Return the digests of a source record."""
    return _digests(
        message.key, message.value, message.timestamp_ms, headers.passed_on(message.headers)
    )


def of_output(message: Message) -> Content:
    """Return the digests of what a record of `unique` or `duplicates` was."""
    foreign, _ = split_verdict(message.headers)
    return _digests(message.key, message.value, message.timestamp_ms, foreign)


def of_dead_letter(message: Message) -> Content:
    """Return the digests of what a dead letter was; what they say of one that was cut, `cut_of`
    says.
    """
    foreign, own = split_dead_letter(message.headers)
    stamp = headers.text_of(own, headers.ERROR_TIMESTAMP)
    timestamp_ms = int(stamp) if stamp.isascii() and stamp.isdigit() else None
    return _digests(message.key, message.value, timestamp_ms, foreign)


def cut_of(own: Headers) -> Cut:
    """Return what a dead letter lacks, by our own headers on it: with `VALUE` its first digest
    still stands, and with `ENVELOPE` neither.
    """
    if headers.text_of(own, headers.ERROR_KEY_TRUNCATED) or headers.text_of(
        own, headers.ERROR_HEADERS_DROPPED
    ):
        return Cut.ENVELOPE
    return Cut.VALUE if headers.text_of(own, headers.ERROR_TRUNCATED) else Cut.NOTHING


def split_verdict(found: Headers) -> tuple[Headers, Headers]:
    """Return (foreign headers, ours) of a record of `unique` or `duplicates`."""
    for at, (name, _) in enumerate(found):
        if name.startswith(headers.OWN_PREFIX) and not name.startswith(headers.PRIOR_PREFIX):
            return found[:at], found[at:]
    return found, []


def split_dead_letter(found: Headers) -> tuple[Headers, Headers]:
    """Return (foreign headers, ours) of a dead letter: ours begin with the first
    `__dlq.errors.topic`.
    """
    for at, (name, _) in enumerate(found):
        if name == headers.DLQ_TOPIC:
            return found[:at], found[at:]
    return found, []


def _digests(
    key: bytes | None, value: bytes | None, timestamp_ms: int | None, foreign: Headers
) -> Content:
    digest = hashlib.blake2b(repr((key, timestamp_ms, foreign)).encode(), digest_size=8)
    envelope = int.from_bytes(digest.digest(), "little")
    digest.update(b"\0" if value is None else b"\1" + value)
    return Content(envelope, int.from_bytes(digest.digest(), "little"))
