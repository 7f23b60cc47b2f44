"""Dead letters: what one says of itself, and which of them were sent back.

What was sent back stands in the committed offsets of the group `GROUP-redrive`: below a partition's
offset every letter is settled, but those that its metadata names as left behind.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from stream_dedup.ground.document import UNREADABLE, Message, UnreadableHeaders
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.log import headers
from stream_dedup.proof.content import split_dead_letter

_METADATA = re.compile(r"stream-dedup left=([0-9,-]*)\Z")
# What says of a letter that it is not the whole record.
_LACKS: Final = (
    headers.ERROR_TRUNCATED,
    headers.ERROR_KEY_TRUNCATED,
    headers.ERROR_HEADERS_DROPPED,
    headers.ERROR_HEADERS_UNREADABLE,
)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. `size` is the full size of its value; `is_cut` says that the letter lacks a
    part of its record.
    """

    message: Message
    topic: str
    partition: int | None
    offset: int | None
    stage: str
    error_class: str
    why: str
    size: int
    is_cut: bool

    @property
    def source(self) -> str:
        """Where it came from, as text; empty if its headers do not say."""
        return "" if self.partition is None else f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(slots=True)
class RedriveProgress:
    """What is settled in one partition of the dead letters: all below `offset` but what is in
    `left`.
    """

    offset: int = 0
    left: set[int] = field(default_factory=set)

    @classmethod
    def parse(cls, offset: int | None, metadata: str | None) -> RedriveProgress:
        """Return what a committed offset says.

        Raises:
            ConfigurationError: it was not written by `dlq redrive`.
        """
        if offset is None:
            return cls()
        found = _METADATA.match(metadata or "")
        if found is None:
            raise ConfigurationError(
                "A committed offset of the group for sending dead letters back carries metadata "
                "that this program does not "
                f"write: {metadata!r:.100}. Delete that group's offsets if it is nobody else's; "
                "then all letters count as not "
                "sent back."
            )
        left: set[int] = set()
        for run in filter(None, found[1].split(",")):
            first, _, last = run.partition("-")
            left.update(range(int(first), int(last or first) + 1))
        return cls(offset, left)

    @property
    def metadata(self) -> str:
        """The text to commit with the offset: runs of what is left."""
        runs = []
        for _, group in itertools.groupby(
            enumerate(sorted(self.left)), key=lambda pair: pair[1] - pair[0]
        ):
            ones = [one for _, one in group]
            runs.append(str(ones[0]) if len(ones) == 1 else f"{ones[0]}-{ones[-1]}")
        return "stream-dedup left=" + ",".join(runs)

    def is_settled(self, offset: int) -> bool:
        """Return whether a letter was sent back."""
        return offset < self.offset and offset not in self.left

    def after(self, sent: Iterable[int], passed: Iterable[int]) -> RedriveProgress:
        """Return what is settled once some letters are sent back; others that stand before the last
        of them are left.
        """
        gone = set(sent)
        end = max(self.offset, max(gone, default=-1) + 1)
        left = (self.left | {one for one in passed if self.offset <= one < end}) - gone
        return RedriveProgress(end, left)


def letter_of(message: Message) -> Letter:
    """Return what a record of the dead letters says of itself."""
    _, own = split_dead_letter(message.headers)

    def text(name: str) -> str:
        return headers.text_of(own, name)

    def number(name: str) -> int | None:
        found = text(name)
        return int(found) if found.isascii() and found.isdigit() and len(found) < 19 else None

    part, offset, full = (
        number(headers.DLQ_PARTITION),
        number(headers.DLQ_OFFSET),
        number(headers.ERROR_TRUNCATED),
    )
    is_whole = part is not None and offset is not None
    return Letter(
        message,
        text(headers.DLQ_TOPIC),
        part if is_whole else None,
        offset if is_whole else None,
        text(headers.ERROR_STAGE),
        text(headers.ERROR_CLASS),
        text(headers.DLQ_MESSAGE),
        len(message.value or b"") if full is None else full,
        isinstance(message, UnreadableHeaders)
        or text(headers.ERROR_CLASS) == UNREADABLE
        or any(map(text, _LACKS)),
    )


def redrive_group(group: str) -> str:
    """Return the group whose committed offsets say what was sent back."""
    return f"{group}-redrive"
