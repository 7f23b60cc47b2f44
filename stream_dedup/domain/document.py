"""Value types that the packages share. All are immutable.

Invariants: a `Position` identifies one source record for ever, because it contains the topic's id
(a re-created topic reuses offsets); the numbers of `Reason` are stored in topics and on disk, so
they are never reused. Values that are created for every document are named tuples: creating a
frozen dataclass takes three times as long.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast

Headers: TypeAlias = list[tuple[str, bytes | None]]
TopicPartitionKey: TypeAlias = tuple[str, int]

Named = TypeVar("Named", bound=tuple[Any, ...])

TOPIC_ID_BYTES = 16
NONCE_BYTES = 16
DIGEST_BYTES = 16
ID_BYTES_MAX = 512
NO_TOPIC_ID = bytes(TOPIC_ID_BYTES)


def maker_of(kind: type[Named]) -> Callable[[Iterable[Any]], Named]:
    """Return a fast constructor of a named tuple from one iterable of all values, in field order.

    Calling the class takes 1.5 times as long, because its constructor is written in Python, and three
    times as long with `map` and `zip` over columns.
    """
    return cast("Callable[[Iterable[Any]], Named]", partial(tuple.__new__, kind))


class Verdict(enum.StrEnum):
    """The verdict of the filter on a document; the value of the header `dedup.verdict`."""

    UNIQUE = "unique"
    DUPLICATE = "duplicate"


class Mode(enum.IntEnum):
    """The mode in which a log batch was judged. Every batch stores it, because documents judged in
    shadow mode were never delivered.
    """

    ENFORCE = 0
    ANNOTATE = 1
    SHADOW = 2

    @property
    def delivers(self) -> bool:
        """Whether documents are delivered to the output topics."""
        return self is not Mode.SHADOW


class Reason(enum.IntEnum):
    """The reason of a verdict. 1-9: unique; 10-19: duplicate; from 20: for the worker only, never
    in an output.

    `sentence` explains the reason to people. `has_same_id` and `has_same_text` compare a duplicate
    with the kept document. `is_change`: the text differs from the last text of the page.
    """

    sentence: str
    has_same_id: bool
    has_same_text: bool
    is_change: bool

    NEW = 1, "no copy of it was known", "change"
    TOO_SHORT = 2, "too short to be compared, so it was kept", "change"
    EMPTY = 3, "without a text, so it was kept"
    TOMBSTONE = 4, "a null value, so it was kept"
    BYPASS = 5, "its producer requested delivery without a verdict"
    FAIL_OPEN = 6, "the index did not answer in time, so it was kept", "change"
    RELEASED = 7, "an operator released it", "change"
    EXACT = 10, "another id with the same text", "same-text"
    NEAR = 11, "another id with nearly the same text"
    UNCHANGED = 12, "the same id with the same text", "same-id same-text"
    RETURNED = (
        14,
        "the same id with an earlier text again",
        "same-id same-text change",
    )
    REVISED = 13, "the same id with nearly the same text", "same-id change"
    STALE = 20, "another worker has committed it"
    RETRACTED = 21, "it became a dead letter"

    def __new__(cls, number: int, sentence: str = "", traits: str = "") -> Self:
        """Return the member with this number."""
        reason = int.__new__(cls, number)
        reason._value_, reason.sentence = number, sentence
        reason.has_same_id, reason.has_same_text = "same-id" in traits, "same-text" in traits
        reason.is_change = "change" in traits
        return reason

    @property
    def label(self) -> str:
        """Value of the header `dedup.reason`."""
        return _LABELS[self]

    @property
    def verdict(self) -> Verdict | None:
        """Verdict that this reason explains; None for reasons that no output contains."""
        return _VERDICTS[self]


# Looked up for every document, so computed once.
_LABELS = {reason: reason.name.lower().replace("_", "-") for reason in Reason}
_VERDICTS = {
    reason: Verdict.UNIQUE if reason < 10 else Verdict.DUPLICATE if reason < 20 else None
    for reason in Reason
}
OUTCOMES = {reason.label: reason for reason in Reason if reason.verdict is not None}
"""Reasons that occur in outputs, by label, in the order in which charts stack them."""
DUPLICATES = tuple(
    reason.label for reason in OUTCOMES.values() if reason.verdict is Verdict.DUPLICATE
)
SAME_ID = tuple(label for label, reason in OUTCOMES.items() if reason.has_same_id)


class Message(NamedTuple):
    """One source record as read. `headers` are in the order of the record.

    `timestamp_ms` is None if the record has no timestamp; 0 or less also means that it has none.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: Headers

    @property
    def position(self) -> str:
        """Position of the record as text: `documents-3@8812`."""
        return f"{self.topic}-{self.partition}@{self.offset}"


UNREADABLE = "Unreadable"
"""Error class of a dead letter without key, value and headers of its record."""


class Unreadable(Message):
    """A record that the broker stores and librdkafka cannot read: its batch has a wrong checksum, or
    is too large when it is decompressed.

    Only the position is known; `why` is the client's message.
    """

    why: str = ""


class UnreadableHeaders(Unreadable):
    """A record of which the client cannot read the headers, because the name of one is not UTF-8.
    All other fields are present.

    `why` is the client's message; `name` is the name of one such header, written as a Python bytes
    literal in ASCII.
    """

    name: str = ""


class Position(NamedTuple):
    """The position of one source record, written `documents-3@8812` for people. The topic id makes
    it unique.
    """

    topic: str
    topic_id: bytes
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


class LogPlace(NamedTuple):
    """A document's place in the log: the offset of the log record, and the place within that
    record. Written `8812/17`.
    """

    offset: int
    place: int

    def __str__(self) -> str:
        return f"{self.offset}/{self.place}"


class Representative(NamedTuple):
    """The kept document that the verdict of a duplicate names."""

    position: Position
    id: bytes
    time_ms: int


Stage = Literal["decode", "field", "size", "fetch", "fingerprint"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The reason why a record cannot be judged. It depends only on the record and the input
    settings, unless it `can_vary`.

    `stage` is the stage that failed; `message` is a sentence for the operator. `can_vary`: an
    earlier attempt may have succeeded, because the failure depends on a limit of time or memory, or
    on a text stored elsewhere; the record is retracted in the log before the dead letter is
    delivered. `count`: the number of records that are lost together, such as those of a damaged
    part of a file.
    """

    stage: Stage
    error_class: str
    message: str
    can_vary: bool = False
    count: int = 1


def digest_id(identifier: bytes, key: bytes) -> bytes:
    """Return the id's digest, for logs that must not contain ids: a tilde and a keyed 128-bit
    BLAKE2b in hex; empty for an empty id.
    """
    if not identifier:
        return b""
    import hashlib  # noqa: PLC0415 - most installations never call this

    return (
        b"~"
        + hashlib.blake2b(identifier, digest_size=16, key=key, person=b"document id")
        .hexdigest()
        .encode()
    )


def is_shortened(identifier: str) -> bool:
    """Return whether an id is the prefix and hash of a longer one, and so not an address."""
    is_long = len(identifier.encode("utf-8", "replace")) >= ID_BYTES_MAX
    return is_long and re.search(r"~[0-9a-f]{32}\Z", identifier) is not None


def shorten_id(identifier: bytes) -> bytes:
    """Return the id if it has at most `ID_BYTES_MAX` bytes, else its prefix, a tilde and a 128-bit
    hash in hex.
    """
    if len(identifier) <= ID_BYTES_MAX:
        return identifier
    import hashlib  # noqa: PLC0415 - nearly every id is short

    digest = hashlib.blake2b(identifier, digest_size=16).hexdigest().encode()
    return identifier[: ID_BYTES_MAX - len(digest) - 1] + b"~" + digest
