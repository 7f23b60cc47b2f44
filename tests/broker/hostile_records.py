"""Records that had ended every worker, for torture to load among the others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from stream_dedup.domain.document import Headers
from tests.broker.latin1 import Latin1

# Slightly more than an output or a dead letter may contain, because torture reads all of them back.
_OVERSIZED_BYTES = 1_300_000


class HostileRecord(NamedTuple):
    """An unusual record: its parts, and how it is written."""

    headers: Headers = []  # noqa: RUF012 - nobody changes it
    key: bytes | None = None
    timestamp_ms: int = 0
    codec: str = "none"


SMALL = (
    HostileRecord([(Latin1("référent"), b"x")]),
    HostileRecord([("a", b"1"), *[(Latin1("é"), b"")] * 20]),
    HostileRecord([("", b""), ("a", None)]),
    HostileRecord(timestamp_ms=-1),
    HostileRecord(timestamp_ms=-5),
)
LARGE = (
    HostileRecord([("a", b"1"), ("b", b"x" * _OVERSIZED_BYTES)], codec="zstd"),
    HostileRecord(key=b"k" * _OVERSIZED_BYTES, codec="gzip"),
    HostileRecord([(Latin1("é"), b"x" * _OVERSIZED_BYTES)], codec="zstd"),
)


def send_hostile_records(produce: Callable[..., int], dice: random.Random, partitions: int) -> int:
    """Write a small record and seldom a large one, with different texts; return how many."""
    records = [dice.choice(SMALL)] + ([dice.choice(LARGE)] if dice.random() < 0.1 else [])
    sent = 0
    for record in records:
        text = " ".join(f"{dice.getrandbits(40):x}" for _ in range(40)).encode()
        properties = {} if record.codec == "none" else {"compression.type": record.codec}
        sent += produce(
            [(dice.randrange(partitions), record.key, text, record.headers)],
            record.timestamp_ms,
            **properties,
        )
    return sent
