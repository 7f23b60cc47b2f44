"""The nouns that travel between the rooms, as frozen values.

Invariants: a value here never changes after it is made; a `Position` names one source record for
ever, because it carries the topic's id (a re-created topic reuses offsets); `Reason` numbers are
stored on topics and on disk and are never reused. Values that are made for every document are named
tuples: a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

import enum
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
    """Return what makes a named tuple of all its fields' values, in their order.

    Its own constructor is Python's code, and takes half as long again; with `map` and `zip` over
    columns, three times as long.
    """
    return cast("Callable[[Iterable[Any]], Named]", partial(tuple.__new__, kind))


class Verdict(enum.StrEnum):
    """The verdict of the filter on a document; the value of the header `dedup.verdict`."""

    UNIQUE = "unique"
    DUPLICATE = "duplicate"


class Mode(enum.IntEnum):
    """What a log batch is for; a field of every batch, because what was judged in shadow was never
    delivered.
    """

    ENFORCE = 0
    ANNOTATE = 1
    SHADOW = 2

    @property
    def delivers(self) -> bool:
        """Whether documents leave at all."""
        return self is not Mode.SHADOW


class Reason(enum.IntEnum):
    """Why a verdict is what it is. 1-9: unique; 10-19: duplicate; 20-: no outcome for a reader,
    only for the worker.

    `sentence` explains the reason to people. Of a duplicate, `has_same_id` and `has_same_text`
    compare it with the kept document. `is_change`: its text was not the page's last one.
    """

    sentence: str
    has_same_id: bool
    has_same_text: bool
    is_change: bool

    NEW = 1, "no copy of it was known", "change"
    TOO_SHORT = 2, "too short to be compared, so it was kept", "change"
    EMPTY = 3, "without a text, so it was kept"
    TOMBSTONE = 4, "a null value, so it was kept"
    BYPASS = 5, "its producer asked for no judgement"
    FAIL_OPEN = 6, "the index did not answer in time, so it was kept", "change"
    RELEASED = 7, "an operator released it", "change"
    EXACT = 10, "another id with the same text", "same-text"
    NEAR = 11, "another id with nearly the same text"
    UNCHANGED = 12, "the same id with the same text", "same-id same-text"
    RETURNED = (
        14,
        "the same id with a text that it had before, and another in between",
        "same-id same-text change",
    )
    REVISED = 13, "the same id with a text a little changed", "same-id change"
    STALE = 20, "another worker has committed it"
    RETRACTED = 21, "it became a dead letter"

    def __new__(cls, number: int, sentence: str = "", traits: str = "") -> Self:
        """Return the member of a number."""
        found = int.__new__(cls, number)
        found._value_, found.sentence = number, sentence
        found.has_same_id, found.has_same_text = "same-id" in traits, "same-text" in traits
        found.is_change = "change" in traits
        return found

    @property
    def label(self) -> str:
        """The value of the header `dedup.reason`."""
        return _LABELS[self]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that this reason explains; None for reasons that are no outcome."""
        return _VERDICTS[self]


# Asked for every document, so looked up rather than worked out.
_LABELS = {reason: reason.name.lower().replace("_", "-") for reason in Reason}
_VERDICTS = {
    reason: Verdict.UNIQUE if reason < 10 else Verdict.DUPLICATE if reason < 20 else None
    for reason in Reason
}
OUTCOMES = {reason.label: reason for reason in Reason if reason.verdict is not None}
"""The reasons that readers of the outputs see, by their labels, in the order in which pictures
stack them."""
DUPLICATES = tuple(
    reason.label for reason in OUTCOMES.values() if reason.verdict is Verdict.DUPLICATE
)
SAME_ID = tuple(label for label, reason in OUTCOMES.items() if reason.has_same_id)


class Message(NamedTuple):
    """One record as read. `headers` in the order in which they came.

    A timestamp of None means that it has none, which is what one of 0 or below says too.
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
        """The position of the record as text: `documents-3@8812`."""
        return f"{self.topic}-{self.partition}@{self.offset}"


UNREADABLE = "Unreadable"
"""The error class of a dead letter that has nothing of its record."""


class Unreadable(Message):
    """A record that the broker has and no client can read: a batch with a wrong checksum, or one
    that expands too far.

    It has a place and nothing else; `why` is the client's own sentence.
    """

    why: str = ""


class UnreadableHeaders(Unreadable):
    """A record whose headers the client cannot give, because the name of one is not UTF-8; all else
    is there, as it came.

    `why` is the client's own sentence; `name` is the name of one such header, in ASCII, as Python
    writes bytes.
    """

    name: str = ""


class Position(NamedTuple):
    """Where one source record lies. Written `documents-3@8812` for people; the topic id is what
    makes it unique.
    """

    topic: str
    topic_id: bytes
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


class LogPlace(NamedTuple):
    """A document's place in the log: the log record's offset, and the place within that record.
    Written `8812/17`.
    """

    offset: int
    place: int

    def __str__(self) -> str:
        return f"{self.offset}/{self.place}"


class Representative(NamedTuple):
    """The kept document that a duplicate names."""

    position: Position
    id: bytes
    time_ms: int


Stage = Literal["decode", "field", "size", "fetch", "fingerprint"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why a record cannot be judged; a pure function of the record and the input settings, unless
    `is_timed`.

    `stage` could not go on; `message` is a sentence for the operator. `is_timed`: a limit of time
    or memory decided, or what lay elsewhere by then, so that another worker may have judged the
    record; it is retracted before it leaves.
    """

    stage: Stage
    error_class: str
    message: str
    is_timed: bool = False


def digest_id(identifier: bytes, key: bytes) -> bytes:
    """Return an id as a log holds it that must hold no ids: a tilde and a keyed 128-bit BLAKE2b in
    hex; nothing for none.
    """
    if not identifier:
        return b""
    import hashlib  # noqa: PLC0415 - few need it

    return (
        b"~"
        + hashlib.blake2b(identifier, digest_size=16, key=key, person=b"document id")
        .hexdigest()
        .encode()
    )


def shorten_id(identifier: bytes) -> bytes:
    """Return an id of at most `ID_BYTES_MAX` bytes: a longer one becomes its prefix, a tilde and a
    128-bit hash.
    """
    if len(identifier) <= ID_BYTES_MAX:
        return identifier
    import hashlib  # noqa: PLC0415 - nearly every id is short

    digest = hashlib.blake2b(identifier, digest_size=16).hexdigest().encode()
    return identifier[: ID_BYTES_MAX - len(digest) - 1] + b"~" + digest
