"""Records on `insights`: one JSON object (topics/schemas/insights.schema.json), at most
`RECORD_BYTES_MAX` bytes.

Invariants: what is read was checked whole before anything of it is counted; a field that is not
known is passed over, so that an older reader goes on; a newer format is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from stream_dedup.ground.errors import UPGRADE, FormatError, OtherFormatError
from stream_dedup.ground.hosts import HOST_CHARACTERS_MAX
from stream_dedup.insights.counts import NOTHING, ReasonCounts

FORMAT: Final = 1
HOSTS_MAX: Final = 250
PAGES_MAX: Final = 100
ID_CHARACTERS_MAX: Final = 200
RECORD_BYTES_MAX: Final = 900_000
_COUNT_MAX: Final = 1 << 53
_BITS_END: Final = 1 << 256


class ReportedPage(NamedTuple):
    """A kept document that other ids of a host fell on: its id, cut, and the bits of theirs
    (`counts.bit_of`).
    """

    of: str
    bits: int


class HostCounts(NamedTuple):
    """What one host did. `last_change_ms`: when it last had a text that was new, revised or
    returned, by the worker's clock.

    `pages`: by position (`documents-3@8812`) of the kept document.
    """

    counts: ReasonCounts
    last_change_ms: int | None = None
    pages: Mapping[str, ReportedPage] = {}


@dataclass(frozen=True, slots=True)
class InsightsRecord:
    """What one worker committed since its last record; `other`: documents without a host, or of
    hosts beyond all bounds.
    """

    worker: str
    hosts: Mapping[str, HostCounts] = field(default_factory=dict)
    other: ReasonCounts = NOTHING


def reading_group(group: str) -> str:
    """Return the consumer group of the role that reads these records, in the deployment whose
    workers have that group.
    """
    return f"{group}-insights"


def encode(record: InsightsRecord) -> bytes:
    """Return the record's bytes."""
    body = {
        "format": FORMAT,
        "worker": record.worker,
        "hosts": {
            host: one.counts._asdict()
            | {"last_change_ms": one.last_change_ms}
            | (
                {
                    "pages": [
                        {"position": at, "of": page.of, "ids": f"{page.bits:064x}"}
                        for at, page in one.pages.items()
                    ]
                }
                if one.pages
                else {}
            )
            for host, one in record.hosts.items()
        },
        "other": record.other._asdict(),
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def decode(raw: bytes | None) -> InsightsRecord:
    """Return the record that `encode` wrote.

    Raises:
        OtherFormatError: a newer version of this program wrote it.
        FormatError: it is none.
    """
    if raw is None or len(raw) > RECORD_BYTES_MAX:
        raise FormatError("It has no value, or one that is too large.")
    try:
        body = json.loads(raw)
        number = body["format"]
        if isinstance(number, int) and number > FORMAT:
            raise OtherFormatError(
                f"A record of insights is of format {number}, and this program reads up to "
                f"{FORMAT}: {UPGRADE}"
            )
        if number != FORMAT or not 0 < len(body["hosts"]) + 1 <= HOSTS_MAX + 1:
            raise FormatError("It is of no known format, or names too many hosts.")
        hosts = {
            _text(host, HOST_CHARACTERS_MAX): _host(one) for host, one in body["hosts"].items()
        }
        return InsightsRecord(
            _text(body["worker"], ID_CHARACTERS_MAX), hosts, _counts(body["other"])
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"It is not counts of hosts: {type(error).__name__}.") from error


def _host(body: Any) -> HostCounts:
    pages = body.get("pages", [])
    found = {
        _text(one["position"], 400): ReportedPage(
            _text(one["of"], ID_CHARACTERS_MAX), _bits(one["ids"])
        )
        for one in pages
    }
    changed = body["last_change_ms"]
    return HostCounts(_counts(body), None if changed is None else _number(changed), found)


def _counts(body: Any) -> ReasonCounts:
    return ReasonCounts(*(_number(body[name]) for name in ReasonCounts._fields))


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _COUNT_MAX:
        raise ValueError
    return value


def _text(value: Any, characters_max: int) -> str:
    if not isinstance(value, str) or len(value) > characters_max:
        raise ValueError
    return value


def _bits(value: Any) -> int:
    number = int(value, 16)
    if not 0 <= number < _BITS_END:
        raise ValueError
    return number
