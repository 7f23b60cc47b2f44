"""Parse a record of an output topic for `tap`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stream_dedup.domain.document import OUTCOMES, Message
from stream_dedup.log import headers

_SAME_TEXT = {label for label, reason in OUTCOMES.items() if reason.has_same_text}


@dataclass(frozen=True, slots=True)
class Tapped:
    """A record of an output topic as `--json` prints it; a missing header is None."""

    time: str | None
    topic: str
    partition: int
    offset: int
    verdict: str
    reason: str | None
    distance: str | None
    similarity: str | None
    copies: str | None
    better: str | None
    id: str | None
    of_id: str | None
    of_position: str | None
    position: str | None
    message: str | None
    sibling_id: str | None = None
    sibling_position: str | None = None
    sibling_similarity: str | None = None


def describe(message: Message, dead_letters: str, identifier: bytes | None) -> Tapped:
    """Return the verdict and other headers of a record of an output topic."""
    values = dict(message.headers or [])  # of a repeated name the last value, which is ours
    is_dead = message.topic == dead_letters
    verdict = "dead-letter" if is_dead else _text(values, headers.VERDICT) or "unknown"
    reason = _text(values, headers.ERROR_STAGE if is_dead else headers.REASON)
    return Tapped(
        time=None
        if message.timestamp_ms is None
        else headers.rfc3339(message.timestamp_ms) or None,
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        verdict=verdict,
        reason=reason,
        distance=_text(values, headers.DISTANCE),
        similarity="1.00" if reason in _SAME_TEXT else _text(values, headers.SIMILARITY),
        copies=_text(values, headers.COPIES),
        better=_text(values, headers.BETTER),
        id=None if identifier is None else identifier.decode("utf-8", "replace"),
        of_id=_text(values, headers.OF_ID),
        of_position=_text(values, headers.OF_POSITION),
        position=_text(values, headers.POSITION),
        message=_text(values, headers.DLQ_MESSAGE),
        sibling_id=_text(values, headers.SIBLING_ID),
        sibling_position=_text(values, headers.SIBLING_POSITION),
        sibling_similarity=_text(values, headers.SIBLING_SIMILARITY),
    )


def _text(values: Mapping[str, bytes | None], name: str) -> str | None:
    value = values.get(name)
    return None if value is None else value.decode("utf-8", "replace")
