"""Headers of the output topics `unique`, `duplicates` and `dlq.documents`.

Invariants: the headers of the source record come first, in their order, and ours follow. A source
header whose name begins with `dedup.` is renamed to `dedup.prior.*`, one with `__dlq.errors.` to
`__dlq.errors.prior.*`, so that a producer cannot forge a verdict or the origin of a dead letter. All
our values are UTF-8 text. `OWN_BYTES_MAX` is an upper bound of the size of ours; the size check
before judging relies on it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from stream_dedup.domain.better_copy import BETTER_LABELS
from stream_dedup.domain.document import (
    ID_BYTES_MAX,
    DeadLetter,
    Headers,
    LogPlace,
    Position,
    Reason,
)
from stream_dedup.domain.messages import Messages, sizes_of
from stream_dedup.domain.sketch import NOT_COMPARED, as_text
from stream_dedup.log.schema import Judgement

OWN_PREFIX = "dedup."
_DLQ_PREFIX = "__dlq.errors."
_PRIOR = "prior."
PRIOR_PREFIX = OWN_PREFIX + _PRIOR
BYPASS = "dedup.bypass"
VERDICT = "dedup.verdict"
REASON = "dedup.reason"
FINGERPRINT = "dedup.fingerprint"
RECIPE = "dedup.recipe"
DISTANCE = "dedup.distance"
SIMILARITY = "dedup.similarity"
COPIES = "dedup.copies"
BETTER = "dedup.better"
OF_ID = "dedup.of.id"
OF_POSITION = "dedup.of.position"
OF_TIME = "dedup.of.time"
SIBLING_ID = "dedup.sibling.id"
SIBLING_POSITION = "dedup.sibling.position"
SIBLING_SIMILARITY = "dedup.sibling.similarity"
LOG = "dedup.log"
POSITION = "dedup.position"
ERROR_STAGE = "dedup.error.stage"
ERROR_CLASS = "dedup.error.class"
ERROR_TIMESTAMP = "dedup.error.timestamp"
ERROR_TRUNCATED = "dedup.error.truncated"
ERROR_KEY_TRUNCATED = "dedup.error.key.truncated"
ERROR_HEADERS_DROPPED = "dedup.error.headers.dropped"
ERROR_HEADERS_UNREADABLE = "dedup.error.headers.unreadable"
DLQ_TOPIC = "__dlq.errors.topic"
DLQ_PARTITION = "__dlq.errors.partition"
DLQ_OFFSET = "__dlq.errors.offset"
DLQ_GROUP = "__dlq.errors.group"
DLQ_MESSAGE = "__dlq.errors.message"

MESSAGE_BYTES_MAX = 1000
# 1510: the longest names, numbers and topic name.
OWN_BYTES_MAX = 1510 + ID_BYTES_MAX + MESSAGE_BYTES_MAX
# librdkafka cannot read records with more than 100,000 headers, and ours are added.
FOREIGN_HEADERS_MAX = 100_000 - 20
_DAY_MS = 86_400_000
_OFFSET_LIMIT = 1 << 63  # Kafka's offsets are lower
_FIXED_BYTES = 200 + OWN_BYTES_MAX  # of a record without key, value and source headers


OUTCOMES = {
    reason: ((VERDICT, reason.verdict.value.encode()), (REASON, reason.label.encode()))
    for reason in Reason
    if reason.verdict is not None
}


def escape_source_headers(headers: Sequence[tuple[str, bytes | None]]) -> Headers:
    """Return the source record's headers with `prior.` added to each name that has a prefix of
    ours.
    """
    return [
        (
            prefix + _PRIOR + name[len(prefix) :] if (prefix := _reserved_prefix(name)) else name,
            value,
        )
        for name, value in headers
    ]


def unescape_source_headers(headers: Sequence[tuple[str, bytes | None]]) -> Headers:
    """Return the source record's headers from those of an output: the inverse of
    `escape_source_headers`.
    """
    return [
        ((prefix := _reserved_prefix(name)) + name[len(prefix) :].removeprefix(_PRIOR), value)
        for name, value in headers
    ]


def _reserved_prefix(name: str) -> str:
    """Return our prefix with which a header's name begins; "" if it has none."""
    if name.startswith(OWN_PREFIX):
        return OWN_PREFIX
    return _DLQ_PREFIX if name.startswith(_DLQ_PREFIX) else ""


def text_of(headers: Sequence[tuple[str, bytes | None]], name: str) -> str:
    """Return the text of the last header of that name, as Kafka's clients do; "" if there is none."""
    return next(
        (
            (value or b"").decode("utf-8", "replace")
            for header, value in reversed(headers)
            if header == name
        ),
        "",
    )


def parse_log_place(text: str) -> LogPlace | None:
    """Return the log place of a `dedup.log` header (`8812/17`), or None if it is malformed."""
    offset, slash, place = text.partition("/")
    if not slash or not all(
        part.isascii() and part.isdigit() and len(part) <= 19 for part in (offset, place)
    ):
        return None
    return LogPlace(int(offset), int(place)) if int(offset) < _OFFSET_LIMIT else None


def of_verdict(
    position: Position, recipe: str, fingerprint: bytes | None, verdict: Judgement | Reason
) -> Headers:
    """Return our headers of a document; `verdict` is a `Reason` if the log does not decide it.

    `position` is its source position and `fingerprint` is in hex, None if it has none.

    Raises:
        ValueError: the reason is not an outcome.
    """
    reason = verdict if isinstance(verdict, Reason) else verdict.reason
    constant_headers = _constant_headers(recipe).get(reason)
    if constant_headers is None:
        raise ValueError(f"a document with the reason {reason.label} cannot be delivered")
    own_headers: Headers = [*constant_headers, (POSITION, str(position).encode())]
    if fingerprint is not None:
        own_headers.append((FINGERPRINT, fingerprint))
    if isinstance(verdict, Reason):
        return own_headers
    if verdict.sibling is not None:
        own_headers += (
            (SIBLING_SIMILARITY, as_text(verdict.similarity).encode()),
            (SIBLING_ID, verdict.sibling.id),
            (SIBLING_POSITION, str(verdict.sibling.position).encode()),
        )
    elif verdict.of is not None:
        own_headers.append((DISTANCE, b"%d" % verdict.distance))
        if verdict.similarity != NOT_COMPARED:
            own_headers.append((SIMILARITY, as_text(verdict.similarity).encode()))
        if verdict.copies:
            own_headers.append((COPIES, b"%d" % verdict.copies))
        if verdict.better:
            own_headers.append((BETTER, BETTER_LABELS[verdict.better].encode()))
        own_headers += (
            (OF_ID, verdict.of.id),
            (OF_POSITION, str(verdict.of.position).encode()),
            (OF_TIME, rfc3339(verdict.of.time_ms).encode()),
        )
    own_headers.append((LOG, b"%d/%d" % verdict.decided))
    return own_headers


@lru_cache
def _constant_headers(recipe: str) -> dict[int, tuple[tuple[str, bytes], ...]]:
    return {
        int(reason): (*outcome, (RECIPE, recipe.encode())) for reason, outcome in OUTCOMES.items()
    }


def of_dead_letter(
    letter: DeadLetter, position: Position, group: str, timestamp_ms: int | None
) -> Headers:
    """Return our headers of a dead letter: Kafka's names (KIP-1191) and the stage that failed.

    One header contains the source record's timestamp in milliseconds. The timestamp of the dead
    letter itself is LogAppendTime: with an old timestamp, the topic's short retention would delete
    it at once.
    """
    message = (
        letter.message.encode("utf-8", "replace")[:MESSAGE_BYTES_MAX]
        .decode("utf-8", "ignore")
        .encode()
    )
    return [
        (DLQ_TOPIC, position.topic.encode()),
        (DLQ_PARTITION, b"%d" % position.partition),
        (DLQ_OFFSET, b"%d" % position.offset),
        (DLQ_GROUP, group.encode()),
        (DLQ_MESSAGE, message),
        (POSITION, str(position).encode()),
        (ERROR_TIMESTAMP, b"" if timestamp_ms is None else b"%d" % timestamp_ms),
        (ERROR_STAGE, letter.stage.encode()),
        (ERROR_CLASS, letter.error_class.encode()),
    ]


def rfc3339(time_ms: int) -> str:
    """Return a time in milliseconds since 1970 as RFC 3339 in UTC; "" outside of the years that Python
    supports.
    """
    day, day_ms = divmod(time_ms, _DAY_MS)
    date = _date(day)
    if not date:
        return ""
    seconds, milliseconds = divmod(day_ms, 1000)
    minutes, second = divmod(seconds, 60)
    return "%sT%02d:%02d:%02d.%03dZ" % (date, minutes // 60, minutes % 60, second, milliseconds)  # noqa: UP031 - half the time


@lru_cache(4096)
def _date(day: int) -> str:
    try:
        return (dt.date(1970, 1, 1) + dt.timedelta(days=day)).isoformat()
    except OverflowError:
        return ""


def find_too_large(messages: Messages, bytes_max: int) -> list[int]:
    """Return the places of the records whose `record_bytes` exceed `bytes_max`, and of those with
    more headers than librdkafka can read.
    """
    sizes = messages.value_bytes + sizes_of(messages.keys)
    for place, record_headers in messages.headers.items():
        sizes[place] += (
            bytes_max
            if len(record_headers) > FOREIGN_HEADERS_MAX
            else record_bytes(None, None, record_headers) - _FIXED_BYTES
        )
    places: list[int] = np.flatnonzero(sizes + _FIXED_BYTES > bytes_max).tolist()
    return places


def record_bytes(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """Return an upper bound of a record's size on an output topic, uncompressed, with our largest
    headers added.
    """
    size = _FIXED_BYTES + len(key or b"") + len(value or b"")
    for name, header in headers:
        size += header_bytes(name, header)
    return size


def header_bytes(name: str, value: bytes | None) -> int:
    """Return an upper bound of the size of a source record's header in an output, in bytes."""
    size = len(name) if name.isascii() else len(name.encode("utf-8", "replace"))
    return size + len(_PRIOR) + len(value or b"") + 10
