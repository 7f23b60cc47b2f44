"""Look-ups in an index, and sizes of its buckets: nothing here changes the index."""

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
from stream_dedup.index.storage.entries import Entries
from stream_dedup.index.storage.tags import crcs_of
from stream_dedup.index.tables.neighbours import Neighbours


@dataclass(frozen=True, slots=True)
class Entry:
    """A live representative in the result of a look-up.

    `print` is a number; its low bits are the print's low limb.
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
    """The result of a look-up under `plan`: (distance in bits, entry) by distance.

    `total` entries were found, as of the log offset `applied`. `by_digest_only`: the text has too
    few features, so only an equal text could be found.
    """

    applied: int
    plan: Plan
    found: tuple[tuple[int, Entry], ...]
    total: int
    by_digest_only: bool


def check_limbs(tables: Neighbours, limbs: Sequence[int]) -> NDArray[np.uint64]:
    """Return the limbs of a print as an array, low limb first.

    Raises:
        ConfigurationError: the prints in the index have another number of limbs.
    """
    given_limbs = np.array(limbs, np.uint64)
    if given_limbs.shape != (tables.limbs,):
        raise ConfigurationError(
            f"The index contains prints of {tables.limbs * 64} bits, and {len(given_limbs) * 64} "
            "were asked for; use the recipe that its log declares."
        )
    return given_limbs


def check_sketch(plan: Plan | None, tables: Neighbours, sketch: bytes) -> None:
    """Check that a sketch has the same size as those in the index, and is there if the plan needs
    it.

    Raises:
        ConfigurationError: it has not, or is missing.
    """
    if (sketch or (plan is not None and plan.needs_sketch)) and len(sketch) != tables.sketch_bytes:
        raise ConfigurationError(
            f"The index contains sketches of {tables.sketch_bytes} bytes, and one of {len(sketch)} was "
            "asked for; send the sketch that the recipe of its log makes of the text."
        )


def describe_entries(
    entries: Entries, sources: Sources, ranked: Sequence[tuple[int, int]]
) -> list[tuple[int, Entry]]:
    """Return (distance in bits, entry) of each (distance, number of an entry)."""
    rows, ids = entries.rows(np.array([number for _, number in ranked], np.int64))
    return [
        (
            distance,
            Entry(
                number=number,
                position=sources.position(int(row["source"]), int(row["offset"])),
                id=document_id,
                time_ms=int(row["time_ms"]),
                decided=LogPlace(int(row["log_offset"]), int(row["place"])),
                reason=reason_of_state(row["state"]),
                print=int.from_bytes(row["print"].tobytes(), "little"),
                text_digest=row["text_digest"].tobytes(),
                scope=int(row["scope"]),
                features=int(row["features"]),
                sketch=row["sketch"].tobytes(),
                origin=Origin(int(row["site"]), int(row["title"]), crc),
            ),
        )
        for (distance, number), row, document_id, crc in zip(
            ranked, rows, ids, crcs_of(ids).tolist(), strict=True
        )
    ]


@dataclass(frozen=True, slots=True)
class Query:
    """A text to compare with results: text digest, sketch, origin and name of its site; empty or 0
    if unknown.
    """

    digest: bytes
    sketch: bytes
    origin: Origin = UNKNOWN
    site: str = ""

    def compare(self, plan: Plan, entry: Entry) -> tuple[bool, str]:
        """Return whether the text would be a copy of an entry, and why.

        The reason is empty if the plan compares no sketches.
        """
        if self.digest == entry.text_digest:
            return True, "The same text."
        relation = relation_of(self.origin, entry.origin)
        threshold = plan.similarities[relation]
        if not threshold or not self.sketch:
            return True, ""
        similarity = per_cent(self.sketch, entry.sketch)
        site = site_of(entry.id)
        has_same_id = bool(self.origin.id) and self.origin.id == entry.origin.id
        sites = (self.site or (site if relation.is_one_site else ""), site)
        return similarity >= threshold, in_words(
            similarity, relation, threshold, sites, has_same_id=has_same_id
        )


def read_ids(entries: Entries, ids: Sequence[bytes] | None) -> list[bytes]:
    """Return the id of each live entry, in log order; with `ids`, only those."""
    if ids is not None:
        numbers, is_live = entries.find_ids(set(ids))
        return list(entries.rows(numbers[is_live])[1])
    found_ids: list[bytes] = []
    for _, sizes, joined in entries.scan_live():
        ends = np.cumsum(sizes).tolist()
        found_ids += [joined[begin:end] for begin, end in itertools.pairwise([0, *ends])]
    return found_ids


@dataclass(frozen=True, slots=True)
class BucketSizes:
    """Sizes of the buckets of some tables.

    `sizes`: (n, the number of buckets with more than n / 2 and up to n entries), n being powers of
    two; `hottest`: (table, bucket, entries) of the largest ones, largest first; a bucket contains
    the entries with equal bits of the hashed key. `full`: the number of blocks with more entries
    than the plan asks of one.
    """

    buckets: int
    used: int
    sizes: tuple[tuple[int, int], ...]
    hottest: tuple[tuple[int, int, int], ...]
    full: int = 0

    @classmethod
    def of(cls, table: int, lengths: NDArray[np.integer[Any]], most: int, full: int = 0) -> Self:
        """Return the sizes of one table from the `lengths` of its buckets, with the `most`
        largest.
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
    def merge(cls, parts: Iterable[BucketSizes], most: int) -> Self:
        """Return the sizes of several tables as one, with the `most` largest of all."""
        parts = list(parts)
        sizes: Counter[int] = Counter()
        for part in parts:
            sizes.update(dict(part.sizes))
        hottest = _longest_first(bucket for part in parts for bucket in part.hottest)[:most]
        buckets, used = sum(part.buckets for part in parts), sum(part.used for part in parts)
        return cls(
            buckets, used, tuple(sorted(sizes.items())), hottest, sum(part.full for part in parts)
        )


def _longest_first(hottest: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    return tuple(sorted(hottest, key=lambda bucket: (-bucket[2], bucket[:2])))
