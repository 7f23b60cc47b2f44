"""The bytes on the topic `representatives`: what became of a kept document that has copies, and how
far the topic is written.

key         documents-3@8812: where the kept document lies
value       JSON object (topics/schemas/representatives.schema.json); null once nobody is judged a duplicate of it any more
            copies, first, last     only where the log counts copies: how many, and the earliest and latest time of any
            best                    position, id and why: `first` where that is the kept document itself, else the rule by
                                    which it beat what was best before
key         dedup.progress, once in each transaction, behind what it is about: a key without an @ is no kept document
value       log                     the log that the topic follows
            written_below           all that changed below this log offset is written
            applied                 the log offset up to which that was told: nothing older may be written any more
            gone_below              the tombstones of all entries below this number are written
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from stream_dedup.ground.better import BetterRule
from stream_dedup.ground.document import Position
from stream_dedup.ground.errors import FormatError
from stream_dedup.log.headers import rfc3339

PROGRESS_KEY: Final = b"dedup.progress"
FIRST: Final = "first"


class PublishedValue(NamedTuple):
    """What became of a kept document. `copies` is 0 where they are not counted; `rule` is 0 where
    itself is the best.
    """

    copies: int
    first_ms: int
    last_ms: int
    best: Position
    id: bytes
    rule: int


class Progress(NamedTuple):
    """How far the topic is written; see above. The default is that of an empty topic."""

    log: str = ""
    topic_id: str = ""
    written_below: int = 0
    applied: int = 0
    gone_below: int = 0


def encode_key(position: Position) -> bytes:
    """Return the key of a kept document."""
    return str(position).encode()


def encode_value(found: PublishedValue) -> bytes:
    """Return the value of a kept document."""
    why = BetterRule(found.rule).label if found.rule else FIRST
    fields: dict[str, object] = {}
    if found.copies:
        fields = {
            "copies": found.copies,
            "first": rfc3339(found.first_ms),
            "last": rfc3339(found.last_ms),
        }
    fields["best"] = {
        "position": str(found.best),
        "id": found.id.decode("utf-8", "replace"),
        "why": why,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def encode_progress(progress: Progress) -> bytes:
    """Return the value that says how far the topic is written."""
    return json.dumps(progress._asdict(), separators=(",", ":")).encode("ascii")


def decode_progress(value: bytes | None) -> Progress:
    """Return how far the topic is written; without a value it is empty.

    Raises:
        FormatError: it is not what `encode_progress` wrote.
    """
    if value is None:
        return Progress()
    try:
        fields = json.loads(value)
        found = Progress(**{name: fields[name] for name in Progress._fields})
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(
            f"The value of {PROGRESS_KEY.decode()} is {value!r:.200}, which no index wrote."
        ) from error
    if not all(isinstance(one, str) for one in found[:2]) or not all(
        type(one) is int and one >= 0 for one in found[2:]
    ):
        raise FormatError(
            f"The value of {PROGRESS_KEY.decode()} is {value!r:.200}, which no index wrote."
        )
    return found
