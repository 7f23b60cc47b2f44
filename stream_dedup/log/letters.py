"""Parse dead letters, and name the group that commits which of them were sent back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

from stream_dedup.domain.document import UNREADABLE, Headers, Message, UnreadableHeaders
from stream_dedup.log import headers

# A header of these says that the letter lacks a part of its record.
_LACKS: Final = (
    headers.ERROR_TRUNCATED,
    headers.ERROR_KEY_TRUNCATED,
    headers.ERROR_HEADERS_DROPPED,
    headers.ERROR_HEADERS_UNREADABLE,
)

_RANGE: Final = re.compile(r"\b([0-9]{1,18})-([0-9]{1,18})\b", re.ASCII)
_METADATA_MAX: Final = 4_000  # offset.metadata.max.bytes of a broker is 4,096 by default


@dataclass(frozen=True, slots=True)
class SentLetters:
    """The letters of a partition that were sent back: all below `start`, except those that cannot be,
    and later ones in `ranges` of (first, last offset).

    The group `GROUP-redrive` commits `start` as its offset, and `ranges` as the metadata of that.
    """

    start: int = 0
    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of_commit(cls, offset: int, metadata: str | None) -> Self:
        """Return what a commit says; nothing of metadata that another program wrote."""
        found = _RANGE.findall(metadata or "")
        return cls(offset, tuple((int(first), int(last)) for first, last in found))

    @classmethod
    def after(cls, start: int, sent: Iterable[int], waiting: Iterable[int]) -> Self:
        """Return the record of the offsets `sent`, of which none below `start` is written down; a
        range spans other offsets, but none of those `waiting`.
        """
        ranges: list[tuple[int, int]] = []
        is_in_range = False
        offsets = {offset: True for offset in sent if offset >= start} | dict.fromkeys(
            waiting, False
        )
        for offset in sorted(offsets):
            if offsets[offset] and is_in_range:
                ranges[-1] = (ranges[-1][0], offset)
            elif offsets[offset]:
                ranges.append((offset, offset))
            is_in_range = offsets[offset]
        return cls(start, tuple(ranges))

    @property
    def metadata(self) -> str:
        """The ranges as text, such as `17-19 25-25`; Kafka limits its size, so the last may lack."""
        text = " ".join(f"{first}-{last}" for first, last in self.ranges)
        return text if len(text) <= _METADATA_MAX else text[:_METADATA_MAX].rpartition(" ")[0]

    def includes(self, offset: int) -> bool:
        """Return whether the letter at `offset` was sent back, if it can be."""
        return offset < self.start or any(first <= offset <= last for first, last in self.ranges)


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
        """The position of its source record as text; empty if the headers do not name it."""
        return "" if self.partition is None else f"{self.topic}-{self.partition}@{self.offset}"

    def can_be_sent_to(self, documents: str) -> bool:
        """Return whether `dlq redrive` can send the letter back: it is whole, and of this topic."""
        return not self.is_cut and self.partition is not None and self.topic == documents

    def to_fields(self, documents: str, sent: SentLetters) -> dict[str, Any]:
        """Return the letter as an object of the command's JSON."""
        message = self.message
        time = "" if message.timestamp_ms is None else headers.rfc3339(message.timestamp_ms)
        return {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "time": time or None,
            "source": self.source or None,
            "stage": self.stage,
            "class": self.error_class,
            "message": self.why,
            "key": None if message.key is None else message.key.decode("utf-8", "replace"),
            "bytes": self.size,
            "cut": self.is_cut,
            "can_be_sent_back": self.can_be_sent_to(documents),
            "sent_back": self.can_be_sent_to(documents) and sent.includes(message.offset),
        }


def split_dead_letter(all_headers: Headers) -> tuple[Headers, Headers]:
    """Split the headers of a dead letter into (foreign, error headers): the error headers begin
    with the first `__dlq.errors.topic`.
    """
    for index, (name, _) in enumerate(all_headers):
        if name == headers.DLQ_TOPIC:
            return all_headers[:index], all_headers[index:]
    return all_headers, []


def letter_of(message: Message) -> Letter:
    """Parse a record of the dead letter topic."""
    _, error_headers = split_dead_letter(message.headers)

    def text(name: str) -> str:
        return headers.text_of(error_headers, name)

    def number(name: str) -> int | None:
        digits = text(name)
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None

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
    """Return the consumer group whose committed offsets say which letters were sent back."""
    return f"{group}-redrive"
