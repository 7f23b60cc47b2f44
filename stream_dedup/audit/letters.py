"""Dead letters: what one says of itself, and which group commits how far they were sent back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stream_dedup.audit.content import split_dead_letter
from stream_dedup.domain.document import UNREADABLE, Message, UnreadableHeaders
from stream_dedup.log import headers

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
