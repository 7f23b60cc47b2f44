"""Parse dead letters; name the consumer group whose offsets say which were sent back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from stream_dedup.domain.document import UNREADABLE, Headers, Message, UnreadableHeaders
from stream_dedup.log import headers

# The headers of dead letters that lack a part of their record.
_TRUNCATION_HEADERS: Final = (
    headers.ERROR_TRUNCATED,
    headers.ERROR_KEY_TRUNCATED,
    headers.ERROR_HEADERS_DROPPED,
    headers.ERROR_HEADERS_UNREADABLE,
)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. `size` is the size of the source record's value; `is_cut`: the letter lacks a
    part of that record.
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
        """Return whether `dlq redrive` can send the letter back to `documents`: it is whole, and its
        record was in this topic.
        """
        return not self.is_cut and self.partition is not None and self.topic == documents

    def is_sent_back(self, documents: str, first_unsent: int) -> bool:
        """Return whether `dlq redrive` has sent the letter back; `first_unsent` is the committed
        offset of that command.

        While an earlier letter waits to be sent back, this one counts as not sent, too.
        """
        return self.can_be_sent_to(documents) and self.message.offset < first_unsent

    def to_fields(self, documents: str, first_unsent: int) -> dict[str, Any]:
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
            "sent_back": self.is_sent_back(documents, first_unsent),
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

    partition, offset = number(headers.DLQ_PARTITION), number(headers.DLQ_OFFSET)
    full_size = number(headers.ERROR_TRUNCATED)
    has_position = partition is not None and offset is not None
    return Letter(
        message=message,
        topic=text(headers.DLQ_TOPIC),
        partition=partition if has_position else None,
        offset=offset if has_position else None,
        stage=text(headers.ERROR_STAGE),
        error_class=text(headers.ERROR_CLASS),
        why=text(headers.DLQ_MESSAGE),
        size=len(message.value or b"") if full_size is None else full_size,
        is_cut=isinstance(message, UnreadableHeaders)
        or text(headers.ERROR_CLASS) == UNREADABLE
        or any(map(text, _TRUNCATION_HEADERS)),
    )


def redrive_group(group: str) -> str:
    """Return the consumer group of `dlq redrive`: its committed offset is the first letter that was
    not sent back.
    """
    return f"{group}-redrive"
