"""The plan's predicate, implemented a second time: for one pair as numbers, and for many rows as a
plain scan or by whole keys.

A plan's fields are those of the log's records (docs/reference/plans.md). Of the low `width` bits of
two fingerprints at most `threshold` differ, and at most `radius` bits in the `key_blocks` blocks
that differ least; `by_length` sets other thresholds for shorter texts; with `ratio` the shorter
text has at least this share, in per cent, of the longer one's features. Two texts are candidates
too if one of the `bands` blocks of their sketches is equal; their similarity must be at least
`similarity` per cent. Of the living rows that share a key, only `asked` are compared: half of them
the first, half the last. A value of half a byte is equal by chance once in 16 times; the
similarity of the sketches' second part is corrected for that.

The required similarity depends on the sites of two texts. Different known sites, or the same id:
`similarity`. One site and equal titles, or an unknown site: `unsure`. One site and an unknown
title: `same_site`; one site and different titles: `other_title`. Each is at least `similarity`. A
text of the same site that reaches only `similarity` is a sibling, not a copy. From 85 per cent the
number of differing bits is ignored.

Invariants: `Reach.is_near` is the definition; both scans return the lowest row for which it is
true. `KeyedScan` compares only rows that share a key, from a dictionary, and returns the same rows
as `PlainScan`, which compares all.
"""

from __future__ import annotations

import bisect
import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import FormatError
from stream_dedup.domain.sketch import SKETCH_VALUES
from stream_dedup.log.records import Batch

LIMB_BITS: Final = 64
_KEY_BITS_MIN: Final = 16  # too many rows share a shorter key: a plain scan is quicker
_DEAD_MAX: Final = 64  # with more dead rows under a key, they are removed from its list
_KEY_BITS_MAX: Final = 8 * SKETCH_VALUES
_SITE_THRESHOLDS: Final = ("unsure", "same_site", "other_title")
_SURE_SIMILARITY: Final = 24 * 85
_APART, _SIBLING, _NEAR = range(3)

TextOrigin: TypeAlias = tuple[int, int, int]
"""(hash of the site, hash of the title, CRC-32 of the id) of a text, each 0 if it is unknown."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The predicate of a plan: which texts are within reach of each other."""

    width: int
    blocks: int
    radius: int
    threshold: int
    key_blocks: int = 1
    by_length: tuple[tuple[int, int], ...] = ()
    ratio: int = 0
    bands: int = 0
    similarity: int = 0
    asked: int = 0
    unsure: int = 0
    same_site: int = 0
    other_title: int = 0

    @classmethod
    def from_fields(cls, fields: object) -> Self:
        """Return the predicate of a plan, given the fields of a control record.

        Raises:
            FormatError: an index would refuse the plan.
        """
        numbers = ("width", "blocks", "radius", "threshold")
        optional = (
            "key_blocks",
            "by_length",
            "ratio",
            "bands",
            "similarity",
            *_SITE_THRESHOLDS,
            "asked",
        )
        if not isinstance(fields, Mapping) or not set(numbers) <= set(fields) <= {
            *numbers,
            *optional,
        }:
            raise FormatError(f"These are not the fields of a plan: {fields!r:.200}.")
        steps = fields.get("by_length", [])
        if not isinstance(steps, list) or any(
            not isinstance(step, list) or len(step) != 2 for step in steps
        ):
            raise FormatError(f"A plan's by_length is a list of pairs, not {steps!r:.100}.")
        reach = cls(**{**fields, "by_length": tuple((below, bits) for below, bits in steps)})
        reach._check()
        return reach

    def _check(self) -> None:
        flat = [self.width, self.blocks, self.radius, self.threshold, self.key_blocks, self.ratio]
        flat += [self.bands, self.similarity, self.asked, *self.site_thresholds]
        flat += [number for step in self.by_length for number in step]
        if any(isinstance(number, bool) or not isinstance(number, int) for number in flat):
            raise FormatError(
                f"A plan consists of whole numbers, and this one does not: {self!r:.200}."
            )
        lengths = [below for below, _ in self.by_length]
        fits = (
            1 <= self.width <= 256
            and 0 <= self.blocks <= min(64, self.width)
            and 0 <= self.radius <= 3
            and 0 <= self.threshold <= min(255, self.width)
            and 1 <= self.key_blocks <= max(1, self.blocks)
            and self.table_count <= 128
            and len(self.by_length) <= 8
            and all(
                1 <= below < 1 << 32 and 0 <= bits <= min(255, self.width)
                for below, bits in self.by_length
            )
            and lengths == sorted(set(lengths))
            and 0 <= self.ratio <= 100
            and 0 <= self.bands <= SKETCH_VALUES
            and (not self.bands or SKETCH_VALUES % self.bands == 0)
            and 0 <= self.similarity <= 100
            and all(0 <= similarity <= 100 for similarity in self.site_thresholds)
            and 0 <= self.asked < 1 << 16
            and not (self.radius and self.bounds_candidates)
        )
        if not fits:
            raise FormatError(f"No index can follow this plan: {self!r:.200}.")

    @property
    def table_count(self) -> int:
        """The number of ways to choose a key's blocks: an index has a table for each, at most
        128.
        """
        return math.comb(self.blocks, self.key_blocks) if self.blocks else 1

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The (first bit, end bit) of each block of the fingerprint."""
        cuts = (
            [self.width * block // self.blocks for block in range(self.blocks + 1)]
            if self.blocks
            else []
        )
        return list(itertools.pairwise(cuts))

    @property
    def bounds_candidates(self) -> bool:
        """Whether the other rows decide if a pair is compared: sketch blocks find candidates, or
        their number is bounded.
        """
        return bool(self.bands or self.asked)

    @property
    def needs_sketch(self) -> bool:
        """Whether the plan reads sketches."""
        return bool(self.bands or self.compares)

    @property
    def site_thresholds(self) -> tuple[int, int, int]:
        """The thresholds of pages that may be of one site."""
        return self.unsure, self.same_site, self.other_title

    @property
    def compares(self) -> bool:
        """Whether the plan requires a similarity."""
        return any((self.similarity, *self.site_thresholds))

    @property
    def limbs(self) -> int:
        """The number of 64-bit limbs of a fingerprint that the plan compares."""
        return -(-self.width // LIMB_BITS)

    @property
    def mask(self) -> NDArray[np.uint64]:
        """The bits of each limb that the plan compares, (limbs,)."""
        mask = np.full(self.limbs, 2**64 - 1, np.uint64)
        mask[-1] >>= np.uint64(LIMB_BITS * self.limbs - self.width)
        return mask

    @property
    def threshold_max(self) -> int:
        """The largest threshold of any length."""
        return max([self.threshold, *(bits for _, bits in self.by_length)])

    def distance(self, first: int, second: int) -> int:
        """Return the number of low bits in which two fingerprints differ."""
        return ((first ^ second) & ((1 << self.width) - 1)).bit_count()

    def is_near(
        self,
        first: int,
        second: int,
        features: tuple[int, int],
        sketches: tuple[bytes, bytes],
        origins: tuple[TextOrigin, TextOrigin],
    ) -> bool:
        """Return whether two texts are within reach of each other, with no bound on the number of
        candidates.
        """
        return (
            any(self.shared_keys(first, second, sketches))
            and self.judge(first, second, features, sketches, origins) == _NEAR
        )

    def shared_keys(self, first: int, second: int, sketches: tuple[bytes, bytes]) -> list[bool]:
        """Return which keys two texts share: those of the fingerprint, in the order of the choices
        of blocks, then those of the sketch.
        """
        difference = first ^ second
        bits_by_block = [
            ((difference >> low) & ((1 << (high - low)) - 1)).bit_count()
            for low, high in self.bounds
        ]
        if not self.blocks:
            print_keys = [] if self.bands else [True]
        elif self.asked:
            print_keys = [
                sum(chosen) <= self.radius
                for chosen in itertools.combinations(bits_by_block, self.key_blocks)
            ]
        else:
            print_keys = [sum(sorted(bits_by_block)[: self.key_blocks]) <= self.radius]
        cut_size = SKETCH_VALUES // self.bands if self.bands else 0
        sketch_cuts = [
            slice(cut_size * block, cut_size * (block + 1)) for block in range(self.bands)
        ]
        return print_keys + [sketches[0][cut] == sketches[1][cut] for cut in sketch_cuts]

    def judge(
        self,
        first: int,
        second: int,
        features: tuple[int, int],
        sketches: tuple[bytes, bytes],
        origins: tuple[TextOrigin, TextOrigin],
    ) -> int:
        """Return whether two candidates are near, siblings or apart: by length, distance,
        similarity and origin.
        """
        bits = np.array([[first >> bit & 1 != second >> bit & 1 for bit in range(self.width)]])
        first_sketch, second_sketch = (np.frombuffer(sketch, np.uint8) for sketch in sketches)
        rows = np.array([features[0]]), np.array([origins[0]], np.uint64)
        equal = _equal_values(first_sketch[None], second_sketch)
        return int(_judge_rows(self, rows, features[1], origins[1], bits, equal)[0])


class Rows:
    """The compared columns of all representatives, the removed ones included, in the order in which
    they were added.
    """

    def __init__(self, limbs: int, values: int = 0) -> None:
        self.count = 0
        self.sketches = np.zeros((1024, values), np.uint8)
        self.prints = np.zeros((1024, limbs), np.uint64)
        self.features = np.zeros(1024, np.int64)
        self.scopes = np.zeros(1024, np.uint64)
        self.alive = np.zeros(1024, np.bool_)
        self.origins = np.zeros((1024, 3), np.uint64)

    def add_entry(
        self,
        limbs: NDArray[np.uint64],
        features: int,
        scope: int,
        sketch: NDArray[np.uint8],
        origin: TextOrigin,
    ) -> int:
        """Append a representative; return its row."""
        if self.count == len(self.alive):
            for name in ("prints", "features", "scopes", "alive", "sketches", "origins"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        row = self.count
        self.prints[row], self.features[row], self.scopes[row], self.alive[row] = (
            limbs,
            features,
            scope,
            True,
        )
        self.sketches[row], self.origins[row] = sketch, origin
        self.count += 1
        return row


class QueryTexts(NamedTuple):
    """The texts to search for: their fingerprints (n, limbs), feature counts and scopes (n,),
    sketches (n, values) and origins.
    """

    prints: NDArray[np.uint64]
    features: NDArray[np.int64]
    scopes: NDArray[np.uint64]
    sketches: NDArray[np.uint8]
    origins: Sequence[TextOrigin]


class PlainScan:
    """Compare every row: count the rows that share each key in log order, and return the first
    match.
    """

    def find(
        self, reach: Reach, rows: Rows, first: int, end: int, queries: QueryTexts
    ) -> NDArray[np.int64]:
        """Return for each text (n, 2) the lowest living rows of [first, end) and of its scope that
        are near and that are siblings, or -1.
        """
        prints, features, scopes, sketches, origins = queries
        nearest = np.full((len(prints), 2), -1, np.int64)
        living = first + np.flatnonzero(rows.alive[first:end])
        tail_count = reach.asked // 2
        for index in range(len(prints)):
            peers = living[rows.scopes[living] == scopes[index]]
            if not reach.bounds_candidates and not reach.compares:
                # Rows that differ in too many bits cannot affect the result.
                difference = (
                    rows.prints[peers, : reach.limbs] ^ prints[index, : reach.limbs]
                ) & reach.mask
                peers = peers[np.bitwise_count(difference).sum(axis=1) <= reach.threshold_max]
            bits = _differing_bits(reach, rows.prints[peers], prints[index])
            equal = _equal_values(rows.sketches[peers], sketches[index])
            shared = _print_keys(reach, bits)
            if reach.bands:
                blocks = equal[:, :SKETCH_VALUES].reshape(
                    len(peers), reach.bands, SKETCH_VALUES // reach.bands
                )
                shared = np.concatenate([shared, blocks.all(axis=2)], axis=1)
            if reach.asked:
                counts = np.cumsum(shared, axis=0)
                shared &= (counts <= reach.asked - tail_count) | (
                    counts > shared.sum(axis=0) - tail_count
                )
            sharing = np.flatnonzero(shared.any(axis=1))
            judged = _judge_rows(
                reach,
                (rows.features[peers[sharing]], rows.origins[peers[sharing]]),
                int(features[index]),
                origins[index],
                bits[sharing],
                equal[sharing],
            )
            nearest[index] = _first_near_and_sibling(peers[sharing], judged)
        return nearest


class KeyedRows:
    """The rows by key under one plan, for plans that compare whole keys: a dictionary for each key,
    from its value to rows.

    A key's value and the scope form one number; the rows are a list in ascending order, or a number
    if there is only one.
    """

    def __init__(self, reach: Reach, rows: Rows) -> None:
        self.reach = reach
        self.rows = rows
        self._count = 0
        blocks = [(low, (1 << (high - low)) - 1) for low, high in reach.bounds]
        has_print_keys = reach.blocks or not reach.bands
        self._chosen = (
            list(itertools.combinations(blocks, min(reach.key_blocks, len(blocks))))
            if has_print_keys
            else []
        )
        size = SKETCH_VALUES // reach.bands if reach.bands else 0
        self._cuts = [slice(size * block, size * (block + 1)) for block in range(reach.bands)]
        self._rows_by_key: list[dict[int, int | list[int]]] = [
            {} for _ in range(len(self._chosen) + len(self._cuts))
        ]

    def enter_rows(self, end: int) -> None:
        """Enter the rows below `end` that were not entered before."""
        rows = self.rows
        for row in range(self._count, end):
            keys = self._keys(rows.prints[row], int(rows.scopes[row]), rows.sketches[row])
            for rows_by_key, key in zip(self._rows_by_key, keys, strict=True):
                stored = rows_by_key.setdefault(key, row)
                if isinstance(stored, list):
                    stored.append(row)
                elif stored != row:
                    rows_by_key[key] = [stored, row]
        self._count = max(self._count, end)

    def find(
        self,
        first: int,
        end: int,
        limbs: NDArray[np.uint64],
        features: int,
        scope: int,
        sketch: NDArray[np.uint8],
        origin: TextOrigin,
    ) -> tuple[int, int]:
        """Return the lowest living rows of [first, end) that are near a text, and a sibling of it;
        -1 for none.
        """
        candidates: set[int] = set()
        for rows_by_key, key in zip(
            self._rows_by_key, self._keys(limbs, scope, sketch), strict=True
        ):
            stored = rows_by_key.get(key)
            if stored is not None:
                candidates.update(
                    self._pick_candidates(
                        [stored] if isinstance(stored, int) else stored, first, end
                    )
                )
        if not candidates:
            return -1, -1
        candidate_rows = np.array(sorted(candidates), np.int64)
        bits = _differing_bits(self.reach, self.rows.prints[candidate_rows], limbs)
        equal = _equal_values(self.rows.sketches[candidate_rows], sketch)
        stored_values = self.rows.features[candidate_rows], self.rows.origins[candidate_rows]
        return _first_near_and_sibling(
            candidate_rows, _judge_rows(self.reach, stored_values, features, origin, bits, equal)
        )

    def _pick_candidates(self, sharing: list[int], first: int, end: int) -> list[int]:
        """Return the living rows of [first, end) under a key that are compared: the first and the
        last ones. Remove dead rows from the list if there are more than `_DEAD_MAX`.
        """
        alive, dead_count, tail_count = self.rows.alive, 0, self.reach.asked // 2
        low, high = bisect.bisect_left(sharing, first), bisect.bisect_left(sharing, end)
        from_begin, from_end = list[int](), list[int]()
        while low < high and (
            not self.reach.asked or len(from_begin) < self.reach.asked - tail_count
        ):
            from_begin += [sharing[low]] * bool(alive[sharing[low]])
            dead_count += not alive[sharing[low]]
            low += 1
        while low < high and len(from_end) < tail_count:
            high -= 1
            from_end += [sharing[high]] * bool(alive[sharing[high]])
            dead_count += not alive[sharing[high]]
        if dead_count > _DEAD_MAX:
            sharing[:] = [row for row in sharing if alive[row]]
        return from_begin + from_end

    def _keys(self, limbs: NDArray[np.uint64], scope: int, sketch: NDArray[np.uint8]) -> list[int]:
        number, raw, above = as_number(limbs), sketch.tobytes(), scope << _KEY_BITS_MAX
        keys = []
        for chosen in self._chosen:
            key = 0
            for low, mask in chosen:
                key = key << mask.bit_length() | number >> low & mask
            keys.append(above | key)
        return keys + [above | int.from_bytes(raw[cut], "little") for cut in self._cuts]


class KeyedScan:
    """A scan for large logs: by whole keys, if the plan compares whole keys and they are long
    enough; else a plain scan.
    """

    def __init__(self) -> None:
        self._keyed: KeyedRows | None = None

    def find(
        self, reach: Reach, rows: Rows, first: int, end: int, queries: QueryTexts
    ) -> NDArray[np.int64]:
        """Return for each text (n, 2) the lowest living rows of [first, end) and of its scope that
        are near and that are siblings, or -1.
        """
        if not reach.bounds_candidates and (
            reach.radius or reach.width * reach.key_blocks < _KEY_BITS_MIN * max(1, reach.blocks)
        ):
            return PlainScan().find(reach, rows, first, end, queries)
        if self._keyed is None or self._keyed.reach != reach or self._keyed.rows is not rows:
            self._keyed = KeyedRows(reach, rows)
        self._keyed.enter_rows(end)
        columns = zip(
            queries.prints,
            queries.features.tolist(),
            queries.scopes.tolist(),
            queries.sketches,
            queries.origins,
            strict=True,
        )
        nearest = [self._keyed.find(first, end, *text) for text in columns]
        return np.array(nearest, np.int64).reshape(-1, 2)


Scan: TypeAlias = PlainScan | KeyedScan


def _differing_bits(
    reach: Reach, prints: NDArray[np.uint64], limbs: NDArray[np.uint64]
) -> NDArray[np.uint8]:
    """Return the bits in which fingerprints (n, limbs) differ from `limbs`, (n, width)."""
    difference = (prints[:, : reach.limbs] ^ limbs[: reach.limbs]).astype("<u8").view(np.uint8)
    return np.unpackbits(difference, axis=1, bitorder="little")[:, : reach.width]


def _judge_rows(
    reach: Reach,
    stored_values: tuple[NDArray[np.int64], NDArray[np.uint64]],
    features: int,
    origin: TextOrigin,
    bits: NDArray[np.uint8],
    equal: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return for each candidate row whether it is near a text, its sibling or apart.

    `stored_values` are the rows' feature counts and origins, `bits` (rows, width) their differing
    bits, `equal` their equal sketch values.
    """
    stored_features, origins = stored_values
    shorter, longer = np.minimum(stored_features, features), np.maximum(stored_features, features)
    limit = np.full(len(stored_features), reach.threshold)
    for below, threshold in reversed(reach.by_length):
        limit[shorter < below] = threshold
    fits = 100 * shorter >= reach.ratio * longer
    is_close = bits.sum(axis=1) <= limit
    if not reach.compares:
        return np.where(fits & is_close, _NEAR, _APART)
    share = _similarity_in_2400ths(equal)
    fits &= (share >= 24 * reach.similarity) & (is_close | (share >= _SURE_SIMILARITY))
    requirements = [
        _required_similarity(reach, tuple(stored_origin), origin)
        for stored_origin in origins.tolist()
    ]
    required = np.array([per_cent for per_cent, _ in requirements], np.int64)
    is_same_site = np.array([is_same for _, is_same in requirements], np.bool_)
    unlike = np.where(is_same_site, _SIBLING, _APART)
    return np.where(fits, np.where(share >= 24 * required, _NEAR, unlike), _APART)


def _required_similarity(reach: Reach, first: TextOrigin, second: TextOrigin) -> tuple[int, bool]:
    """Return the similarity that two origins require, in per cent, and whether the texts can be
    siblings: of one site.
    """
    (site, title, id_crc), (other_site, other_title, other_id_crc) = first, second
    if id_crc and id_crc == other_id_crc:
        return reach.similarity, False
    if not site or not other_site:
        return max(reach.similarity, reach.unsure), False
    if site != other_site:
        return reach.similarity, False
    if not title or not other_title:
        return max(reach.similarity, reach.same_site), True
    required = reach.unsure if title == other_title else reach.other_title
    return max(reach.similarity, required), True


def _first_near_and_sibling(rows: NDArray[np.int64], judged: NDArray[np.int64]) -> tuple[int, int]:
    """Return the first row that is near, and the first that is a sibling; -1 for none."""
    near, siblings = rows[judged == _NEAR], rows[judged == _SIBLING]
    return int(near[0]) if len(near) else -1, int(siblings[0]) if len(siblings) else -1


def _equal_values(sketches: NDArray[np.uint8], sketch: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which values of sketches (.., bytes) equal those of `sketch`: `SKETCH_VALUES` bytes,
    then half bytes.
    """
    differing = sketches ^ sketch
    if not differing.shape[-1]:
        return np.empty(differing.shape, np.bool_)
    equal = np.empty((*differing.shape[:-1], 2 * differing.shape[-1] - SKETCH_VALUES), np.bool_)
    equal[..., :SKETCH_VALUES] = differing[..., :SKETCH_VALUES] == 0
    equal[..., SKETCH_VALUES::2] = differing[..., SKETCH_VALUES:] & 15 == 0
    equal[..., SKETCH_VALUES + 1 :: 2] = differing[..., SKETCH_VALUES:] >> 4 == 0
    return equal


def _similarity_in_2400ths(equal: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the similarity in 2,400ths: the mean of the shares of equal values in both parts; the
    second is corrected for equality by chance, once in 16 times.
    """
    similarity: NDArray[np.int64] = (
        15 * equal[..., :SKETCH_VALUES].sum(axis=-1)
        + 16 * equal[..., SKETCH_VALUES:].sum(axis=-1)
        - SKETCH_VALUES
    )
    return similarity


def per_cent(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> int:
    """Return the similarity of two sketches in per cent, rounded down."""
    return max(0, int(_similarity_in_2400ths(_equal_values(first, second))) // 24)


def _print_keys(reach: Reach, bits: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which keys of the fingerprint are shared, (rows, keys), from the differing bits (rows,
    width).
    """
    if not reach.blocks:
        return np.ones((len(bits), 0 if reach.bands else 1), np.bool_)
    bits_by_block = [bits[:, low:high].sum(axis=1) for low, high in reach.bounds]
    keys = [sum(chosen) for chosen in itertools.combinations(bits_by_block, reach.key_blocks)]
    return np.stack(keys, axis=1) <= reach.radius


def as_number(limbs: NDArray[np.uint64]) -> int:
    """Return a fingerprint, low limb first, as a number."""
    number = 0
    for limb in reversed(limbs.tolist()):
        number = number << LIMB_BITS | limb
    return number


def origin_of(batch: Batch, place: int) -> TextOrigin:
    """Return the origin of a document; a CRC of 0 becomes 1, because 0 means that there is no
    id.
    """
    identifier = batch.ids[place]
    id_crc = (zlib.crc32(identifier) or 1) if identifier else 0
    return int(batch.site[place]), int(batch.title[place]), id_crc
