"""The plan's predicate, told anew: for one pair in whole numbers, and for many as a plain scan, or
by whole keys.

A plan's fields are those of the log's records (docs/reference/plans.md): of the low `width` bits of
two prints at most `threshold` differ, and of the `key_blocks` blocks that differ least at most
`radius` bits; `by_length` gives shorter texts other thresholds, `ratio` asks that the shorter has
this share, in per cent, of the longer's features. Two texts are found, too, if one of `bands`
blocks of their sketches is equal; at least `similarity` per cent alike must they be. Of those that
share a block, or the key of a choice of blocks, only `asked` living ones are looked at, half of
them the first and half the last. Half a byte is equal by chance once in 16 times, which is taken
out of what the second part of the sketches says.

The similarity that is asked for depends on where two texts are from. Different known sites, or the
same id: `similarity`. One site and equal titles, or a site that is not known: `unsure`. One site,
and a title that is not known: `same_site`; one site and different titles: `other_title`. Each is at
least `similarity`. A text of the same site that reaches `similarity` alone is no copy but a
sibling. From 85 per cent on the bits that differ do not count.

Invariants: `Reach.is_near` is the definition; both scans give the lowest row for which it holds,
for each plan. `KeyedScan` looks only at the rows that share a key, from a dictionary: `PlainScan`,
which looks at every row, names the same.
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
_KEY_BITS_MIN: Final = 16  # shorter keys are shared by too many: it is quicker to look at every row
_DEAD_MAX: Final = (
    64  # this number of dead rows of a key is stepped over; with more they are dropped
)
_KEY_BITS_MAX: Final = 8 * SKETCH_VALUES
_BY_SITE: Final = ("unsure", "same_site", "other_title")
_SURE: Final = 24 * 85
_APART, _SIBLING, _NEAR = range(3)

Seal: TypeAlias = tuple[int, int, int]
"""Where a text is from: the hashes of site and title and the CRC-32 of the id, 0 for what is not
known."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What counts as near under one plan."""

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
        """Return the predicate of a plan as a control record states it.

        Raises:
            FormatError: that is no plan which an index would follow.
        """
        numbers = ("width", "blocks", "radius", "threshold")
        optional = ("key_blocks", "by_length", "ratio", "bands", "similarity", *_BY_SITE, "asked")
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
        flat += [self.bands, self.similarity, self.asked, *self.by_site]
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
            and self.tables <= 128
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
            and all(0 <= one <= 100 for one in self.by_site)
            and 0 <= self.asked < 1 << 16
            and not (self.radius and self.looks_further)
        )
        if not fits:
            raise FormatError(f"No index can follow this plan: {self!r:.200}.")

    @property
    def tables(self) -> int:
        """In how many ways a key's blocks can be chosen: an index keeps a table for each, and has
        at most 128.
        """
        return math.comb(self.blocks, self.key_blocks) if self.blocks else 1

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The (first bit, end bit) of each block of the print."""
        cuts = (
            [self.width * block // self.blocks for block in range(self.blocks + 1)]
            if self.blocks
            else []
        )
        return list(itertools.pairwise(cuts))

    @property
    def looks_further(self) -> bool:
        """Whether sketch blocks find, or who is asked is bounded: then it takes more than a pair to
        say who is near.
        """
        return bool(self.bands or self.asked)

    @property
    def needs_sketch(self) -> bool:
        """Whether sketches are looked at."""
        return bool(self.bands or self.compares)

    @property
    def by_site(self) -> tuple[int, int, int]:
        """The thresholds of pages that may be of one site."""
        return self.unsure, self.same_site, self.other_title

    @property
    def compares(self) -> bool:
        """Whether a similarity is asked for."""
        return any((self.similarity, *self.by_site))

    @property
    def limbs(self) -> int:
        """How many limbs of a print it looks at."""
        return -(-self.width // LIMB_BITS)

    @property
    def mask(self) -> NDArray[np.uint64]:
        """The bits of each limb that it looks at."""
        mask = np.full(self.limbs, 2**64 - 1, np.uint64)
        mask[-1] >>= np.uint64(LIMB_BITS * self.limbs - self.width)
        return mask

    @property
    def threshold_max(self) -> int:
        """The largest threshold of any length."""
        return max([self.threshold, *(bits for _, bits in self.by_length)])

    def distance(self, one: int, other: int) -> int:
        """Return in how many of the low bits two prints differ."""
        return ((one ^ other) & ((1 << self.width) - 1)).bit_count()

    def is_near(
        self,
        one: int,
        other: int,
        features: tuple[int, int],
        sketches: tuple[bytes, bytes],
        seals: tuple[Seal, Seal],
    ) -> bool:
        """Return whether two texts are within reach of each other, no matter which others are asked
        first.
        """
        return (
            any(self.shared(one, other, sketches))
            and self.judged(one, other, features, sketches, seals) == _NEAR
        )

    def shared(self, one: int, other: int, sketches: tuple[bytes, bytes]) -> list[bool]:
        """Return which keys two texts share: those of the print, in the order of their choices of
        blocks, and of the sketch.
        """
        different = one ^ other
        inside = [
            ((different >> first) & ((1 << (end - first)) - 1)).bit_count()
            for first, end in self.bounds
        ]
        if not self.blocks:
            of_print = [] if self.bands else [True]
        elif self.asked:
            of_print = [
                sum(chosen) <= self.radius
                for chosen in itertools.combinations(inside, self.key_blocks)
            ]
        else:
            of_print = [sum(sorted(inside)[: self.key_blocks]) <= self.radius]
        size = SKETCH_VALUES // self.bands if self.bands else 0
        cuts = [slice(size * block, size * (block + 1)) for block in range(self.bands)]
        return of_print + [sketches[0][cut] == sketches[1][cut] for cut in cuts]

    def judged(
        self,
        one: int,
        other: int,
        features: tuple[int, int],
        sketches: tuple[bytes, bytes],
        seals: tuple[Seal, Seal],
    ) -> int:
        """Return whether two texts are near if they are found, or siblings: by length, distance,
        similarity and where they are from.
        """
        bits = np.array([[one >> bit & 1 != other >> bit & 1 for bit in range(self.width)]])
        first, second = (np.frombuffer(sketch, np.uint8) for sketch in sketches)
        rows = np.array([features[0]]), np.array([seals[0]], np.uint64)
        equal = _equal_values(first[None], second)
        return int(_judged(self, rows, features[1], seals[1], bits, equal)[0])


class Rows:
    """What is compared of all that ever were representatives, in the order in which they became
    so.
    """

    def __init__(self, limbs: int, values: int = 0) -> None:
        self.count = 0
        self.sketches = np.zeros((1024, values), np.uint8)
        self.prints = np.zeros((1024, limbs), np.uint64)
        self.features = np.zeros(1024, np.int64)
        self.scopes = np.zeros(1024, np.uint64)
        self.alive = np.zeros(1024, np.bool_)
        self.seals = np.zeros((1024, 3), np.uint64)

    def add_entry(
        self,
        limbs: NDArray[np.uint64],
        features: int,
        scope: int,
        sketch: NDArray[np.uint8],
        seal: Seal,
    ) -> int:
        """Append one; return its row."""
        if self.count == len(self.alive):
            for name in ("prints", "features", "scopes", "alive", "sketches", "seals"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        row = self.count
        self.prints[row], self.features[row], self.scopes[row], self.alive[row] = (
            limbs,
            features,
            scope,
            True,
        )
        self.sketches[row], self.seals[row] = sketch, seal
        self.count += 1
        return row


class AskedTexts(NamedTuple):
    """Texts that are asked about: their prints (n, limbs), features, scopes (n,), sketches (n,
    values) and seals.
    """

    prints: NDArray[np.uint64]
    features: NDArray[np.int64]
    scopes: NDArray[np.uint64]
    sketches: NDArray[np.uint8]
    seals: Sequence[Seal]


class PlainScan:
    """Looks at every row: counts who shares each key in log order, and takes the first that is
    alike.
    """

    def find(
        self, reach: Reach, rows: Rows, first: int, end: int, asked: AskedTexts
    ) -> NDArray[np.int64]:
        """Return for each text (n, 2) the lowest living rows of [first, end) and of its scope that
        are near and that are siblings, or -1.
        """
        prints, features, scopes, sketches, seals = asked
        found = np.full((len(prints), 2), -1, np.int64)
        living = first + np.flatnonzero(rows.alive[first:end])
        last = reach.asked // 2
        for at in range(len(prints)):
            peers = living[rows.scopes[living] == scopes[at]]
            if (
                not reach.looks_further and not reach.compares
            ):  # then what differs in too many bits has no say in who else is near
                different = (
                    rows.prints[peers, : reach.limbs] ^ prints[at, : reach.limbs]
                ) & reach.mask
                peers = peers[np.bitwise_count(different).sum(axis=1) <= reach.threshold_max]
            bits = _differing_bits(reach, rows.prints[peers], prints[at])
            equal = _equal_values(rows.sketches[peers], sketches[at])
            shared = _print_keys(reach, bits)
            if reach.bands:
                blocks = equal[:, :SKETCH_VALUES].reshape(
                    len(peers), reach.bands, SKETCH_VALUES // reach.bands
                )
                shared = np.concatenate([shared, blocks.all(axis=2)], axis=1)
            if reach.asked:
                order = np.cumsum(shared, axis=0)
                shared &= (order <= reach.asked - last) | (order > shared.sum(axis=0) - last)
            some = np.flatnonzero(shared.any(axis=1))
            judged = _judged(
                reach,
                (rows.features[peers[some]], rows.seals[peers[some]]),
                int(features[at]),
                seals[at],
                bits[some],
                equal[some],
            )
            found[at] = _first_of(peers[some], judged)
        return found


class KeyedRows:
    """Which rows have which keys under one plan, for plans that compare whole keys: a dictionary a
    key, from its value to rows.

    A key's value is held with the scope, as one number; its rows ascend, and one alone stands
    without a list.
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
        self._of_key: list[dict[int, int | list[int]]] = [
            {} for _ in range(len(self._chosen) + len(self._cuts))
        ]

    def take_in(self, end: int) -> None:
        """Enter the rows below `end` that are not entered yet."""
        rows = self.rows
        for row in range(self._count, end):
            keys = self._keys(rows.prints[row], int(rows.scopes[row]), rows.sketches[row])
            for of_key, key in zip(self._of_key, keys, strict=True):
                found = of_key.setdefault(key, row)
                if isinstance(found, list):
                    found.append(row)
                elif found != row:
                    of_key[key] = [found, row]
        self._count = max(self._count, end)

    def find(
        self,
        first: int,
        end: int,
        limbs: NDArray[np.uint64],
        features: int,
        scope: int,
        sketch: NDArray[np.uint8],
        seal: Seal,
    ) -> tuple[int, int]:
        """Return the lowest living rows of [first, end) that are near one text and a sibling of it,
        or -1.
        """
        candidates: set[int] = set()
        for of_key, key in zip(self._of_key, self._keys(limbs, scope, sketch), strict=True):
            found = of_key.get(key)
            if found is not None:
                candidates.update(
                    self._asked([found] if isinstance(found, int) else found, first, end)
                )
        if not candidates:
            return -1, -1
        some = np.array(sorted(candidates), np.int64)
        bits = _differing_bits(self.reach, self.rows.prints[some], limbs)
        equal = _equal_values(self.rows.sketches[some], sketch)
        kept = self.rows.features[some], self.rows.seals[some]
        return _first_of(some, _judged(self.reach, kept, features, seal, bits, equal))

    def _asked(self, sharing: list[int], first: int, end: int) -> list[int]:
        """Return the living of [first, end) among the rows of one key who are asked; drop the dead
        if they are many.
        """
        alive, dead, last = self.rows.alive, 0, self.reach.asked // 2
        place, end_place = bisect.bisect_left(sharing, first), bisect.bisect_left(sharing, end)
        from_begin, from_end = list[int](), list[int]()
        while place < end_place and (
            not self.reach.asked or len(from_begin) < self.reach.asked - last
        ):
            from_begin += [sharing[place]] * bool(alive[sharing[place]])
            dead += not alive[sharing[place]]
            place += 1
        while place < end_place and len(from_end) < last:
            end_place -= 1
            from_end += [sharing[end_place]] * bool(alive[sharing[end_place]])
            dead += not alive[sharing[end_place]]
        if dead > _DEAD_MAX:
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
    """The same for large logs: by whole keys, where the plan compares keys whole and they tell rows
    apart.
    """

    def __init__(self) -> None:
        self._keyed: KeyedRows | None = None

    def find(
        self, reach: Reach, rows: Rows, first: int, end: int, asked: AskedTexts
    ) -> NDArray[np.int64]:
        """Return for each text (n, 2) the lowest living rows of [first, end) and of its scope that
        are near and that are siblings, or -1.
        """
        if not reach.looks_further and (
            reach.radius or reach.width * reach.key_blocks < _KEY_BITS_MIN * max(1, reach.blocks)
        ):
            return PlainScan().find(reach, rows, first, end, asked)
        if self._keyed is None or self._keyed.reach != reach or self._keyed.rows is not rows:
            self._keyed = KeyedRows(reach, rows)
        self._keyed.take_in(end)
        columns = zip(
            asked.prints,
            asked.features.tolist(),
            asked.scopes.tolist(),
            asked.sketches,
            asked.seals,
            strict=True,
        )
        found = [self._keyed.find(first, end, *one) for one in columns]
        return np.array(found, np.int64).reshape(-1, 2)


Scan: TypeAlias = PlainScan | KeyedScan


def _differing_bits(
    reach: Reach, prints: NDArray[np.uint64], limbs: NDArray[np.uint64]
) -> NDArray[np.uint8]:
    """Return the bits in which prints (n, limbs) differ from one, (n, width)."""
    different = (prints[:, : reach.limbs] ^ limbs[: reach.limbs]).astype("<u8").view(np.uint8)
    return np.unpackbits(different, axis=1, bitorder="little")[:, : reach.width]


def _judged(
    reach: Reach,
    kept: tuple[NDArray[np.int64], NDArray[np.uint64]],
    features: int,
    seal: Seal,
    bits: NDArray[np.uint8],
    equal: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return which rows are near a text if they are found, and which are siblings, by feature
    counts and seals (`kept`), differing bits and equal values of each.
    """
    stored, seals = kept
    shorter, longer = np.minimum(stored, features), np.maximum(stored, features)
    limit = np.full(len(stored), reach.threshold)
    for below, threshold in reversed(reach.by_length):
        limit[shorter < below] = threshold
    fits = 100 * shorter >= reach.ratio * longer
    is_close = bits.sum(axis=1) <= limit
    if not reach.compares:
        return np.where(fits & is_close, _NEAR, _APART)
    share = _of_2400(equal)
    fits &= (share >= 24 * reach.similarity) & (is_close | (share >= _SURE))
    of_site = [_asked_of(reach, tuple(one), seal) for one in seals.tolist()]
    asked = np.array([per_cent for per_cent, _ in of_site], np.int64)
    is_site = np.array([is_one for _, is_one in of_site], np.bool_)
    unlike = np.where(is_site, _SIBLING, _APART)
    return np.where(fits, np.where(share >= 24 * asked, _NEAR, unlike), _APART)


def _asked_of(reach: Reach, one: Seal, other: Seal) -> tuple[int, bool]:
    """Return how alike two texts must be, in per cent, by where they are from, and whether that is
    one site.
    """
    (site, title, name), (other_site, other_title, other_name) = one, other
    if name and name == other_name:
        return reach.similarity, False
    if not site or not other_site:
        return max(reach.similarity, reach.unsure), False
    if site != other_site:
        return reach.similarity, False
    if not title or not other_title:
        return max(reach.similarity, reach.same_site), True
    asked = reach.unsure if title == other_title else reach.other_title
    return max(reach.similarity, asked), True


def _first_of(rows: NDArray[np.int64], judged: NDArray[np.int64]) -> tuple[int, int]:
    """Return the first of ascending rows that is near, and the first that is a sibling; -1 for
    none.
    """
    near, siblings = rows[judged == _NEAR], rows[judged == _SIBLING]
    return int(near[0]) if len(near) else -1, int(siblings[0]) if len(siblings) else -1


def _equal_values(sketches: NDArray[np.uint8], sketch: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which values of sketches (.., bytes) and of one are equal: a byte each, and behind
    `SKETCH_VALUES` half of one.
    """
    differing = sketches ^ sketch
    if not differing.shape[-1]:
        return np.empty(differing.shape, np.bool_)
    equal = np.empty((*differing.shape[:-1], 2 * differing.shape[-1] - SKETCH_VALUES), np.bool_)
    equal[..., :SKETCH_VALUES] = differing[..., :SKETCH_VALUES] == 0
    equal[..., SKETCH_VALUES::2] = differing[..., SKETCH_VALUES:] & 15 == 0
    equal[..., SKETCH_VALUES + 1 :: 2] = differing[..., SKETCH_VALUES:] >> 4 == 0
    return equal


def _of_2400(equal: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the similarity in 2,400ths: the mean of both parts' shares, of the second that beyond
    one in 16 by chance.
    """
    found: NDArray[np.int64] = (
        15 * equal[..., :SKETCH_VALUES].sum(axis=-1)
        + 16 * equal[..., SKETCH_VALUES:].sum(axis=-1)
        - SKETCH_VALUES
    )
    return found


def per_cent(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    """Return how similar two sketches are in per cent, rounded down."""
    return max(0, int(_of_2400(_equal_values(one, other))) // 24)


def _print_keys(reach: Reach, bits: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which keys of the print are shared, (rows, keys), of the differing bits (rows,
    width).
    """
    if not reach.blocks:
        return np.ones((len(bits), 0 if reach.bands else 1), np.bool_)
    inside = [bits[:, low:high].sum(axis=1) for low, high in reach.bounds]
    keys = [sum(chosen) for chosen in itertools.combinations(inside, reach.key_blocks)]
    return np.stack(keys, axis=1) <= reach.radius


def as_number(limbs: NDArray[np.uint64]) -> int:
    """Return a print, low limb first, as one number."""
    number = 0
    for limb in reversed(limbs.tolist()):
        number = number << LIMB_BITS | limb
    return number


def seal_of(batch: Batch, place: int) -> Seal:
    """Return where a document is from; a CRC of 0 is written as 1, so that it is that of an id."""
    name = batch.ids[place]
    return int(batch.site[place]), int(batch.title[place]), (zlib.crc32(name) or 1) if name else 0
