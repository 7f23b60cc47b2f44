"""What of a record a dead letter holds when its topic cannot hold all of it.

The rule, in this order. Of more headers than can be read with ours (`headers.FOREIGN_HEADERS_MAX`) the largest are left out. If
key and headers alone are too large, the key is cut to a quarter of the room, and headers are left out, the largest first, until
key and headers take no more than half of it. The value gets what is left.

Invariants: what fits is what it was; sizes are those of `headers.record_bytes`, uncompressed, so no codec or broker makes
a letter larger; our own headers say what was cut.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from stream_dedup.ground.document import Headers, Message
from stream_dedup.log import headers


class Fitted(NamedTuple):
    """What is left of a record, and our headers that say what is not."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    said: Headers


def fit(message: Message, most: int) -> Fitted:
    """Return what of a record fits into `most` bytes with our headers of a dead letter."""
    key, value = message.key, message.value
    kept = _smallest(message.headers, sys.maxsize)
    said: Headers = []
    if headers.record_bytes(key, None, kept) > most:
        room = max(0, most - headers.record_bytes(None, None, []))
        if key is not None and len(key) > room // 4:
            said.append((headers.ERROR_KEY_TRUNCATED, b"%d" % len(key)))
            key = key[: room // 4]
        kept = _smallest(kept, room // 2 - len(key or b""))
    if len(kept) < len(message.headers):
        said.append((headers.ERROR_HEADERS_DROPPED, b"%d" % (len(message.headers) - len(kept))))
    over = headers.record_bytes(key, value, kept) - most
    if value and over > 0:
        said.append((headers.ERROR_TRUNCATED, b"%d" % len(value)))
        value = value[: max(0, len(value) - over)]
    return Fitted(key, value, kept, said)


def _smallest(given: Headers, room: int) -> Headers:
    """Return the headers that are left, in their order, when the largest are left out until the others fit and can be read."""
    sizes = [headers.header_bytes(*one) for one in given]
    total = sum(sizes)
    left_out: set[int] = set()
    for at in sorted(range(len(given)), key=sizes.__getitem__, reverse=True):
        if total <= room and len(given) - len(left_out) <= headers.FOREIGN_HEADERS_MAX:
            break
        total -= sizes[at]
        left_out.add(at)
    return [one for at, one in enumerate(given) if at not in left_out]
