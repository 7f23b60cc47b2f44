"""Records that had ended every worker, for torture to load among the others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from stream_dedup.domain.document import Headers
from tests.broker.latin1 import Latin1

# Just more than an output or a dead letter holds; torture reads all of them back into memory.
_TOO_MUCH = 1_300_000


class Strange(NamedTuple):
    """What is strange about a record, and how it is written."""

    headers: Headers = []  # noqa: RUF012 - nobody changes it
    key: bytes | None = None
    timestamp_ms: int = 0
    codec: str = "none"


SMALL = (
    Strange([(Latin1("référent"), b"x")]),
    Strange([("a", b"1"), *[(Latin1("é"), b"")] * 20]),
    Strange([("", b""), ("a", None)]),
    Strange(timestamp_ms=-1),
    Strange(timestamp_ms=-5),
)
LARGE = (
    Strange([("a", b"1"), ("b", b"x" * _TOO_MUCH)], codec="zstd"),
    Strange(key=b"k" * _TOO_MUCH, codec="gzip"),
    Strange([(Latin1("é"), b"x" * _TOO_MUCH)], codec="zstd"),
)


def send_strange(produce: Callable[..., int], dice: random.Random, partitions: int) -> int:
    """Write one of the small ones, and seldom a large one, each with a text of its own; return how
    many."""
    chosen = [dice.choice(SMALL)] + ([dice.choice(LARGE)] if dice.random() < 0.1 else [])
    sent = 0
    for one in chosen:
        text = " ".join(f"{dice.getrandbits(40):x}" for _ in range(40)).encode()
        more = {} if one.codec == "none" else {"compression.type": one.codec}
        sent += produce(
            [(dice.randrange(partitions), one.key, text, one.headers)], one.timestamp_ms, **more
        )
    return sent
