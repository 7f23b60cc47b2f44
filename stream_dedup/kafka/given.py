"""The headers of records as Kafka's client gives them: the one place that asks for them.

A header's name is bytes to Kafka and a `str` to the client, which fails at a name that is not UTF-8: it gives back a result and
an error at once. Python makes a SystemError of that, behind which the UnicodeDecodeError stands, one more SystemError for each
further such name.

Invariants: `headers` is called through `map`, which looks at both; Python's own code for a call of a method, once it has seen
the call a few times, takes the result and raises the error somewhere later. A record that failed is never asked again: what the
client then gives holds tuples with nothing in the place of the name, and Python crashes when it looks there
(confluent_kafka.c, `c_headers_to_py`, 2.16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message as RawMessage

from stream_dedup.ground.document import Headers

_NAME_BYTES_MAX = 60


def headers_of(raws: Sequence[RawMessage]) -> tuple[list[Headers | None], dict[int, UnicodeDecodeError]]:
    """Return the headers of each record, None if it has none, and by place why those of some cannot be read."""
    given: list[Headers | None] = []
    failed: dict[int, UnicodeDecodeError] = {}
    asked: Any = map(type(raws[0]).headers, raws)
    for _ in raws:
        try:
            given.append(next(asked))
        except SystemError as error:
            why = _behind(error)
            if why is None:
                raise
            failed[len(given)] = why
            given.append(None)
    return given, failed


def _behind(error: BaseException) -> UnicodeDecodeError | None:
    """Return the error in a name that an error of the client comes from; None if it comes from something else."""
    cause: BaseException | None = error
    while isinstance(cause, SystemError):
        cause = cause.__cause__
    return cause if isinstance(cause, UnicodeDecodeError) else None


def shown_name(error: UnicodeDecodeError) -> str:
    r"""Return the name at which the client failed as ASCII, as Python writes bytes: `r\xe9f\xe9rent`; a long one is cut."""
    name = ascii(bytes(error.object[:_NAME_BYTES_MAX]))[2:-1]
    return name if len(error.object) <= _NAME_BYTES_MAX else name + "..."
