"""What a look-up is asked with and what it shows, and how full buckets are: nothing here changes an
index.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import LogPlace, Position, Reason
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.hosts import site_of
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.related import UNKNOWN, Origin, in_words, relation_of
from stream_dedup.domain.sketch import per_cent
from stream_dedup.index.rules.positions import Sources
from stream_dedup.index.rules.reasons import reason_of_state
from stream_dedup.index.tables.neighbours import Neighbours
from stream_dedup.index.tables.tags import crcs_of
from stream_dedup.index.volume.entries import Entries


@dataclass(frozen=True, slots=True)
class Entry:
    """A live representative, as a look-up shows it. `print` is a number, its low bits the print's
    low limb.
    """

    number: int
    position: Position
    id: bytes
    time_ms: int
    decided: LogPlace
    reason: Reason
    print: int
    text_digest: bytes
    scope: int
    features: int
    sketch: bytes = b""
    origin: Origin = UNKNOWN


@dataclass(frozen=True, slots=True)
class Similar:
    """What a look-up by a `plan` found: (distance in bits, entry) by distance, of `total`, as of
    the log offset `applied`.

    `by_digest_only`: the text is below the floor of features, so only an equal text could be found.
    """

    applied: int
    plan: Plan
    found: tuple[tuple[int, Entry], ...]
    total: int
    by_digest_only: bool


def asked_limbs(tables: Neighbours, limbs: Sequence[int]) -> NDArray[np.uint64]:
    """Return the limbs of a print, low limb first; ConfigurationError if those in the index have
    more or fewer.
    """
    asked = np.array(limbs, np.uint64)
    if asked.shape != (tables.limbs,):
        raise ConfigurationError(
            f"The index holds prints of {tables.limbs * 64} bits, and {len(asked) * 64} were asked "
            "for; use the recipe that "
            "its log declares."
        )
    return asked


def check_sketch(plan: Plan | None, tables: Neighbours, sketch: bytes) -> None:
    """Raise ConfigurationError if a sketch has not as many bytes as those in the index, or is
    missing where it counts.
    """
    if (sketch or (plan is not None and plan.needs_sketch)) and len(sketch) != tables.values:
        raise ConfigurationError(
            f"The index holds sketches of {tables.values} bytes, and one of {len(sketch)} was "
            "asked for; send the one that "
            "the recipe makes of the text, which its log declares."
        )


def described(
    entries: Entries, sources: Sources, found: Sequence[tuple[int, int]]
) -> list[tuple[int, Entry]]:
    """Return (distance in bits, entry) of each (distance, number of an entry)."""
    rows, ids = entries.rows(np.array([number for _, number in found], np.int64))
    return [
        (
            distance,
            Entry(
                number,
                sources.position(int(row["source"]), int(row["offset"])),
                identifier,
                int(row["time_ms"]),
                LogPlace(int(row["log_offset"]), int(row["place"])),
                reason_of_state(row["state"]),
                int.from_bytes(row["print"].tobytes(), "little"),
                row["text_digest"].tobytes(),
                int(row["scope"]),
                int(row["features"]),
                row["sketch"].tobytes(),
                Origin(int(row["site"]), int(row["title"]), crc),
            ),
        )
        for (distance, number), row, identifier, crc in zip(
            found, rows, ids, crcs_of(ids).tolist(), strict=True
        )
    ]


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked up, beside its print: text digest, sketch, where it is from, and the name of
    its site; empty or 0 if unknown.
    """

    digest: bytes
    sketch: bytes
    origin: Origin = UNKNOWN
    site: str = ""

    def compared(self, plan: Plan, entry: Entry) -> tuple[bool, str]:
        """Return whether it would be a copy of an entry that a look-up found, and why; no reason
        where the plan compares no sketches.
        """
        if self.digest == entry.text_digest:
            return True, "The same text."
        relation = relation_of(self.origin, entry.origin)
        threshold = plan.similarities[relation]
        if not threshold or not self.sketch:
            return True, ""
        share = per_cent(self.sketch, entry.sketch)
        site = site_of(entry.id)
        has_same_id = bool(self.origin.id) and self.origin.id == entry.origin.id
        sites = (self.site or (site if relation.is_one_site else ""), site)
        return share >= threshold, in_words(
            share, relation, threshold, sites, has_same_id=has_same_id
        )


def ids_of(entries: Entries, ids: Sequence[bytes] | None) -> list[bytes]:
    """Return the id of each live entry, in log order; with `ids` of those that have one of
    these.
    """
    if ids is not None:
        numbers, is_live = entries.find_ids(set(ids))
        return list(entries.rows(numbers[is_live])[1])
    found: list[bytes] = []
    for _, sizes, blob in entries.live():
        ends = np.cumsum(sizes).tolist()
        found += [blob[begin:end] for begin, end in itertools.pairwise([0, *ends])]
    return found


@dataclass(frozen=True, slots=True)
class BucketSizes:
    """How full the buckets of some tables are.

    `sizes`: (n, how many buckets hold more than n / 2 and up to n entries), n being powers of two;
    `hottest`: (table, bucket, entries) of the longest ones, longest first; a bucket holds what some
    bits of the hashed key have in common. `full`: how many blocks more entries share than the plan
    asks of one.
    """

    buckets: int
    used: int
    sizes: tuple[tuple[int, int], ...]
    hottest: tuple[tuple[int, int, int], ...]
    full: int = 0

    @classmethod
    def of(cls, table: int, lengths: NDArray[np.integer[Any]], most: int, full: int = 0) -> Self:
        """Return those of one table by the `lengths` of its buckets, with the `most` longest;
        `full` blocks are full.
        """
        used = lengths[lengths > 0]
        classes = np.bincount(np.frexp(used - 0.5)[1]).tolist() if len(used) else []
        sizes = tuple((1 << power, count) for power, count in enumerate(classes) if count)
        most = min(most, len(lengths))
        longest = (
            np.argpartition(lengths, len(lengths) - most)[len(lengths) - most :].tolist()
            if most
            else []
        )
        hottest = ((table, bucket, int(lengths[bucket])) for bucket in longest if lengths[bucket])
        return cls(len(lengths), len(used), sizes, _longest_first(hottest), full)

    @classmethod
    def together(cls, parts: Iterable[BucketSizes], most: int) -> Self:
        """Return those of several tables as one, with the `most` longest of all."""
        parts = list(parts)
        sizes: Counter[int] = Counter()
        for part in parts:
            sizes.update(dict(part.sizes))
        hottest = _longest_first(one for part in parts for one in part.hottest)[:most]
        buckets, used = sum(part.buckets for part in parts), sum(part.used for part in parts)
        return cls(
            buckets, used, tuple(sorted(sizes.items())), hottest, sum(part.full for part in parts)
        )


def _longest_first(hottest: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple(sorted(hottest, key=lambda one: (-one[2], one[:2])))
