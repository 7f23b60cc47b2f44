"""Find copies under a plan by a plain scan over all rows, in a second implementation of the rules.

The fields of a plan are those in log records (docs/reference/plans.md).

- Two texts are candidates if at most `radius` bits differ in at least one choice of `key_blocks` of
  the `blocks` of their fingerprints, or if one of the `bands` blocks of their sketches is equal.
  With `asked`, only that number of live rows that share a key are compared: half of them the
  earliest, half the latest.
- Candidates are near if at most `threshold` of the low `width` bits differ (`by_length` sets other
  thresholds for shorter texts), the shorter text has at least `ratio` per cent of the longer text's
  features, and their similarity reaches the required one. From a similarity of 85 per cent, the
  differing bits are ignored.
- The required similarity is `similarity` for different known sites and for the same id, `unsure` for
  one site with equal titles and for an unknown site, `same_site` for one site with an unknown title,
  and `other_title` for one site with different titles. Each is at least `similarity`. A text of the
  same site that reaches only `similarity` is a sibling, not a copy.
- Half-byte values of sketches are equal by chance once in 16 times; their similarity is corrected.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.plan import Plan
from stream_dedup.domain.sketch import SKETCH_VALUES
from stream_dedup.log.records import Batch

LIMB_BITS: Final = 64
_FINGERPRINT_BYTES_MAX: Final = 32
_SURE_SIMILARITY: Final = 24 * 85
_APART, _SIBLING, _NEAR = range(3)

TextOrigin: TypeAlias = tuple[int, int, int]
"""(hash of the site, hash of the title, CRC-32 of the id) of a text; 0 for each that is unknown."""


class ComparedText(NamedTuple):
    """What a plan compares: the fingerprint (limbs,), the number of features, the scope, the sketch
    (values,) and the origin.
    """

    limbs: NDArray[np.uint64]
    features: int
    scope: int
    sketch: NDArray[np.uint8]
    origin: TextOrigin

    @classmethod
    def of(cls, batch: Batch, place: int) -> Self:
        """Return the parts of a document that a plan compares. A CRC of 0 becomes 1, because 0 means
        that there is no id.
        """
        identifier = batch.ids[place]
        id_crc = (zlib.crc32(identifier) or 1) if identifier else 0
        return cls(
            limbs=batch.prints[place],
            features=int(batch.features[place]),
            scope=int(batch.scope[place]),
            sketch=batch.sketches[place],
            origin=(int(batch.site[place]), int(batch.title[place]), id_crc),
        )

    @classmethod
    def of_number(
        cls, fingerprint: int, features: int, sketch: bytes, origin: TextOrigin = (0, 0, 0)
    ) -> Self:
        """Return a text of the default scope, whose fingerprint is given as a number."""
        limbs = np.frombuffer(fingerprint.to_bytes(_FINGERPRINT_BYTES_MAX, "little"), "<u8")
        return cls(limbs, features, 0, np.frombuffer(sketch, np.uint8), origin)


@dataclass(frozen=True, slots=True)
class PlanRules:
    """The rules of a plan: which texts are near each other."""

    plan: Plan

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The (first bit, end bit) of each block of the fingerprint."""
        width, blocks = self.plan.width, self.plan.blocks
        return list(
            itertools.pairwise(width * block // max(1, blocks) for block in range(blocks + 1))
        )

    @property
    def has_limit_or_bands(self) -> bool:
        """Whether sketch blocks also find candidates, or the number of candidates is limited."""
        return bool(self.plan.bands or self.plan.asked)

    @property
    def needs_sketch(self) -> bool:
        """Whether the plan reads sketches."""
        return bool(self.plan.bands or self.needs_similarity)

    @property
    def needs_similarity(self) -> bool:
        """Whether the plan requires a similarity."""
        plan = self.plan
        return any((plan.similarity, plan.unsure, plan.same_site, plan.other_title))

    @property
    def limbs(self) -> int:
        """The number of 64-bit limbs of a fingerprint that the plan compares."""
        return -(-self.plan.width // LIMB_BITS)

    @property
    def mask(self) -> NDArray[np.uint64]:
        """The bits of each limb that the plan compares, (limbs,)."""
        mask = np.full(self.limbs, 2**64 - 1, np.uint64)
        mask[-1] >>= np.uint64(LIMB_BITS * self.limbs - self.plan.width)
        return mask

    @property
    def threshold_max(self) -> int:
        """The largest threshold of any length."""
        return max([self.plan.threshold, *(bits for _, bits in self.plan.by_length)])

    def distance(self, first: ComparedText, second: ComparedText) -> int:
        """Return the number of low bits in which two fingerprints differ."""
        return int(_differing_bits(self, first.limbs[np.newaxis], second.limbs).sum())

    def is_near(self, first: ComparedText, second: ComparedText) -> bool:
        """Return whether two texts are near each other, without a limit of candidates."""
        rows = Rows(len(first.limbs), len(first.sketch))
        rows.add_entry(first)
        return bool(PlainScan().find(self, rows, 0, 1, [second])[0, 0] == 0)


class Rows:
    """The columns that plans compare: a row for each representative, also for removed ones, in the order
    in which they were added.
    """

    def __init__(self, limbs: int, values: int = 0) -> None:
        self.count = 0
        self.sketches = np.zeros((1024, values), np.uint8)
        self.prints = np.zeros((1024, limbs), np.uint64)
        self.features = np.zeros(1024, np.int64)
        self.scopes = np.zeros(1024, np.uint64)
        self.alive = np.zeros(1024, np.bool_)
        self.origins = np.zeros((1024, 3), np.uint64)

    def add_entry(self, text: ComparedText) -> int:
        """Append a representative; return its row."""
        if self.count == len(self.alive):
            for name in ("prints", "features", "scopes", "alive", "sketches", "origins"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        row = self.count
        self.prints[row], self.sketches[row] = text.limbs, text.sketch
        self.features[row], self.scopes[row] = text.features, text.scope
        self.origins[row], self.alive[row] = text.origin, True
        self.count += 1
        return row

    def text(self, row: int) -> ComparedText:
        """Return a copy of a row as a text."""
        site, title, id_crc = self.origins[row].tolist()
        return ComparedText(
            limbs=self.prints[row].copy(),
            features=int(self.features[row]),
            scope=int(self.scopes[row]),
            sketch=self.sketches[row].copy(),
            origin=(site, title, id_crc),
        )


class PlainScan:
    """Compares a text with every row, without tables."""

    def find(
        self, rules: PlanRules, rows: Rows, first: int, end: int, texts: Sequence[ComparedText]
    ) -> NDArray[np.int64]:
        """Return for each text (n, 2) the earliest near row and the earliest sibling among the live rows
        of its scope in [first, end); -1 without one.
        """
        found = []
        for text in texts:
            candidates = self._candidates(rules, rows, first, end, text)
            judged = _judge_rows(rules, rows, candidates, text)
            near, siblings = candidates[judged == _NEAR], candidates[judged == _SIBLING]
            found.append([matches[0] if len(matches) else -1 for matches in (near, siblings)])
        return np.array(found, np.int64).reshape(-1, 2)

    def _candidates(
        self, rules: PlanRules, rows: Rows, first: int, end: int, text: ComparedText
    ) -> NDArray[np.int64]:
        """Return the live rows in [first, end) that are compared with a text, ascending."""
        plan, tail_count = rules.plan, rules.plan.asked // 2
        peers = first + np.flatnonzero(
            rows.alive[first:end] & (rows.scopes[first:end] == text.scope)
        )
        if not rules.has_limit_or_bands and not rules.needs_similarity:
            # Rows that differ in too many bits cannot affect the result.
            difference = (
                rows.prints[peers, : rules.limbs] ^ text.limbs[: rules.limbs]
            ) & rules.mask
            peers = peers[np.bitwise_count(difference).sum(axis=1) <= rules.threshold_max]
        shared = _find_shared_keys(rules, _differing_bits(rules, rows.prints[peers], text.limbs))
        if plan.bands:
            equal = _equal_values(rows.sketches[peers], text.sketch)[:, :SKETCH_VALUES]
            blocks = equal.reshape(len(peers), plan.bands, SKETCH_VALUES // plan.bands)
            shared = np.concatenate([shared, blocks.all(axis=2)], axis=1)
        if plan.asked:
            counts = np.cumsum(shared, axis=0)
            shared &= (counts <= plan.asked - tail_count) | (
                counts > shared.sum(axis=0) - tail_count
            )
        return peers[shared.any(axis=1)]


def _differing_bits(
    rules: PlanRules, prints: NDArray[np.uint64], limbs: NDArray[np.uint64]
) -> NDArray[np.uint8]:
    """Return the bits in which fingerprints (n, limbs) differ from `limbs`, (n, width)."""
    difference = (prints[:, : rules.limbs] ^ limbs[: rules.limbs]).astype("<u8").view(np.uint8)
    return np.unpackbits(difference, axis=1, bitorder="little")[:, : rules.plan.width]


def _judge_rows(
    rules: PlanRules, rows: Rows, candidates: NDArray[np.int64], text: ComparedText
) -> NDArray[np.int64]:
    """Return for each candidate row whether it is near a text, its sibling, or neither, (rows,)."""
    plan, features = rules.plan, rows.features[candidates]
    shorter, longer = np.minimum(features, text.features), np.maximum(features, text.features)
    limit = np.full(len(candidates), plan.threshold)
    for below, threshold in reversed(plan.by_length):
        limit[shorter < below] = threshold
    fits = 100 * shorter >= plan.ratio * longer
    bits = _differing_bits(rules, rows.prints[candidates], text.limbs)
    is_close = bits.sum(axis=1) <= limit
    if not rules.needs_similarity:
        return np.where(fits & is_close, _NEAR, _APART)
    similarity = _similarity_in_2400ths(_equal_values(rows.sketches[candidates], text.sketch))
    fits &= (similarity >= 24 * plan.similarity) & (is_close | (similarity >= _SURE_SIMILARITY))
    requirements = [
        _required_similarity(plan, tuple(origin), text.origin)
        for origin in rows.origins[candidates].tolist()
    ]
    required = np.array([needed for needed, _ in requirements], np.int64)
    is_same_site = np.array([is_same for _, is_same in requirements], np.bool_)
    otherwise = np.where(is_same_site, _SIBLING, _APART)
    return np.where(fits, np.where(similarity >= 24 * required, _NEAR, otherwise), _APART)


def _required_similarity(plan: Plan, first: TextOrigin, second: TextOrigin) -> tuple[int, bool]:
    """Return the similarity in per cent that two texts need to be copies, and whether they can be
    siblings because they are on one site.
    """
    (site, title, id_crc), (other_site, other_title, other_id_crc) = first, second
    if id_crc and id_crc == other_id_crc:
        return plan.similarity, False
    if not site or not other_site:
        return max(plan.similarity, plan.unsure), False
    if site != other_site:
        return plan.similarity, False
    if not title or not other_title:
        return max(plan.similarity, plan.same_site), True
    required = plan.unsure if title == other_title else plan.other_title
    return max(plan.similarity, required), True


def _equal_values(sketches: NDArray[np.uint8], sketch: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which values of sketches (.., bytes) equal those of `sketch`. The values are
    `SKETCH_VALUES` bytes, then half bytes.
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
    """Return the similarity in 2,400ths: the mean of the share of equal bytes and the share of equal
    half bytes. The second is corrected for half bytes that are equal by chance, once in 16 times.
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


def _find_shared_keys(rules: PlanRules, bits: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which keys of the fingerprints are shared, (rows, keys). `bits`: the bits that differ,
    (rows, width).
    """
    if not rules.plan.blocks:
        return np.ones((len(bits), 0 if rules.plan.bands else 1), np.bool_)
    bits_by_block = [bits[:, low:high].sum(axis=1) for low, high in rules.bounds]
    keys = [sum(chosen) for chosen in itertools.combinations(bits_by_block, rules.plan.key_blocks)]
    return np.stack(keys, axis=1) <= rules.plan.radius
