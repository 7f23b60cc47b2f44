"""Plans: which prints count as near, as value objects.

A plan looks at the low `width` bits of a print, cut into `blocks` blocks of (nearly) equal length. A key is made of
`key_blocks` of them, one if nothing else is said; there is a table for each way of choosing them. Two prints are within
its reach if some key of them differs in at most `radius` bits (over the whole key) and the whole differs in at most
`threshold` bits. Two optional parts look at how many features the two texts have:

    by_length   steps (below, threshold), ascending: if the smaller of the two counts is below a step's, the first such
                step's threshold holds instead of the plan's
    ratio       in per cent: the smaller of the two counts is at least so much of the larger

That predicate, `Plan.within_reach`, is the specification: whatever tables an index keeps, its answers equal those of a
plain scan with the predicate. Blocks and tables by several blocks: Manku, Jain and Das Sarma, "Detecting near-duplicates
for web crawling", WWW 2007, section 3. Probing keys within a radius: Norouzi, Punjani and Fleet, "Fast search in Hamming
space with multi-index hashing", CVPR 2012.

Invariants: a plan that exists can be served (its limits are checked when it is made); the text form and the fields
lead back to an equal plan; what is optional and not used appears in neither, so plans written by older versions keep
their text and their fields; a plan without blocks has one table with one bucket, which is a plain scan; all numbers are
whole, so that every machine decides alike.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stream_dedup.ground.errors import ConfigurationError, InvariantError

WIDTH_MAX: Final = 256
BLOCKS_MAX: Final = 64
TABLES_MAX: Final = 128
RADIUS_MAX: Final = 3
THRESHOLD_MAX: Final = 255
STEPS_MAX: Final = 8
FEATURES_MAX: Final = (1 << 32) - 1
ADDRESS_BITS_MAX: Final = 20
_FORM: Final = "WIDTH:BLOCKS:RADIUS:THRESHOLD, as in 128:8:1:21"
_NUMBERS: Final = ("width", "blocks", "radius", "threshold")
_OPTIONAL: Final = ("key_blocks", "by_length", "ratio")


@dataclass(frozen=True, slots=True)
class Plan:
    """The low `width` bits in `blocks` blocks; near is: a key within `radius` bits, the whole within `threshold`.

    A key is `key_blocks` blocks; `by_length` and `ratio` are the parts that look at feature counts (see the module).

    Raises:
        ConfigurationError: the numbers do not make a plan that can be served.
    """

    width: int
    blocks: int
    radius: int
    threshold: int
    key_blocks: int = 1
    by_length: tuple[tuple[int, int], ...] = ()
    ratio: int = 0

    def __post_init__(self) -> None:
        self._check("width", self.width, 1, WIDTH_MAX)
        self._check("blocks", self.blocks, 0, min(BLOCKS_MAX, self.width))
        self._check("radius", self.radius, 0, RADIUS_MAX)
        self._check("threshold", self.threshold, 0, min(THRESHOLD_MAX, self.width))
        self._check("key_blocks", self.key_blocks, 1, max(1, self.blocks))
        if self.tables > TABLES_MAX:
            raise ConfigurationError(
                f"Keys of {self.key_blocks} out of {self.blocks} blocks make {self.tables} tables, and a plan has at most "
                f"{TABLES_MAX}; take fewer blocks, or another number of them for a key."
            )
        if len(self.by_length) > STEPS_MAX:
            raise ConfigurationError(f"A plan has at most {STEPS_MAX} thresholds by length, not {len(self.by_length)}.")
        for below, threshold in self.by_length:
            self._check("feature count of a threshold by length", below, 1, FEATURES_MAX)
            self._check("threshold by length", threshold, 0, min(THRESHOLD_MAX, self.width))
        if any(one >= other for (one, _), (other, _) in itertools.pairwise(self.by_length)):
            raise ConfigurationError("A plan's thresholds by length stand in the order of their feature counts, each once.")
        self._check("ratio", self.ratio, 0, 100)

    @property
    def id(self) -> str:
        """The plan in numbers, as `parse` reads them: `128:8:1:19`, `64:6/3:0:3`, `128:8:1:24@20,19:50%`."""
        key = "" if self.key_blocks == 1 else f"/{self.key_blocks}"
        steps = "".join(f"{threshold}@{below}," for below, threshold in self.by_length)
        ratio = f":{self.ratio}%" if self.ratio else ""
        return f"{self.width}:{self.blocks}{key}:{self.radius}:{steps}{self.threshold}{ratio}"

    @property
    def name(self) -> str:
        """The plan's name, or its numbers if it has none."""
        return next((name for name, plan in PLANS.items() if plan == self), self.id)

    @property
    def words(self) -> int:
        """How many 64-bit words of a print the plan looks at."""
        return -(-self.width // 64)

    @property
    def tables(self) -> int:
        """How many tables serve it: one for each way of choosing a key's blocks."""
        return math.comb(self.blocks, self.key_blocks) if self.blocks else 1

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The (first bit, end bit) of each block; without blocks, one block of no bits, which all prints share."""
        if self.blocks == 0:
            return ((0, 0),)
        return tuple(
            (self.width * block // self.blocks, self.width * (block + 1) // self.blocks) for block in range(self.blocks)
        )

    @property
    def keys(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The blocks, as (first bit, end bit), that make the key of each table."""
        return tuple(itertools.combinations(self.bounds, self.key_blocks))

    @property
    def key_bits(self) -> tuple[int, ...]:
        """How many bits the key of each table has."""
        return tuple(sum(end - first for first, end in key) for key in self.keys)

    @property
    def probes(self) -> int:
        """How many buckets a look-up visits, over all tables."""
        addresses = (min(bits, ADDRESS_BITS_MAX) for bits in self.key_bits)
        return sum(math.comb(bits, flips) for bits in addresses for flips in range(min(self.radius, bits) + 1))

    @property
    def judges_length(self) -> bool:
        """Whether the predicate looks at feature counts."""
        return bool(self.by_length or self.ratio)

    @property
    def threshold_max(self) -> int:
        """The largest threshold that holds for any length."""
        return max(self.threshold, *(threshold for _, threshold in self.by_length), 0)

    @property
    def distance_guaranteed(self) -> int:
        """The largest distance at which every pair is found, whatever its lengths (within `ratio`).

        Every key misses only if each differs in radius + 1 bits or more. The cheapest way to spread so many over the
        blocks: the `key_blocks` that differ least share radius + 1 evenly, and each of the others has as many as the
        fullest of those. (Blocks too short to hold so many differ less; then more is found than is said here.)
        """
        lowest = min(self.threshold, *(threshold for _, threshold in self.by_length), THRESHOLD_MAX)
        if self.blocks == 0:
            return lowest
        fullest = -(-(self.radius + 1) // self.key_blocks)
        return min(lowest, self.radius + (self.blocks - self.key_blocks) * fullest)

    def distance(self, one: int, other: int) -> int:
        """Return in how many of the low `width` bits two prints differ."""
        return ((one ^ other) & ((1 << self.width) - 1)).bit_count()

    def threshold_of(self, features: int) -> int:
        """Return the threshold for two texts of which the shorter has so many features."""
        return next((threshold for below, threshold in self.by_length if features < below), self.threshold)

    def within_reach(self, one: int, other: int, features: tuple[int, int] | None = None) -> bool:
        """Return whether two prints are near; `features` are the two texts' counts, needed where the plan judges lengths.

        Raises:
            InvariantError: the plan judges lengths, and they are not given.
        """
        threshold = self.threshold
        if self.judges_length:
            if features is None:
                raise InvariantError(f"The plan {self.id} judges lengths, and two prints were compared without theirs.")
            smaller, larger = sorted(features)
            threshold = self.threshold_of(smaller)
            if 100 * smaller < self.ratio * larger:
                return False
        if self.distance(one, other) > threshold:
            return False
        difference = one ^ other
        inside = sorted(((difference >> first) & ((1 << (end - first)) - 1)).bit_count() for first, end in self.bounds)
        return sum(inside[: self.key_blocks]) <= self.radius  # the blocks that differ least make the best key

    def to_fields(self) -> dict[str, Any]:
        """Return the plan as the JSON object that control records carry; optional parts only where they are used."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in _NUMBERS}
        if self.key_blocks != 1:
            fields["key_blocks"] = self.key_blocks
        if self.by_length:
            fields["by_length"] = [list(step) for step in self.by_length]
        if self.ratio:
            fields["ratio"] = self.ratio
        return fields

    @classmethod
    def from_fields(cls, fields: object) -> Plan:
        """Return the plan of such a JSON object.

        Raises:
            ConfigurationError: it is not an object with a plan's numbers and nothing else, or they do not make a plan.
        """
        if not isinstance(fields, Mapping) or not set(_NUMBERS) <= set(fields) <= {*_NUMBERS, *_OPTIONAL}:
            raise ConfigurationError(
                f"A plan's fields are {', '.join(_NUMBERS)}, and where they are used {', '.join(_OPTIONAL)}; "
                f"these are not: {fields!r:.200}."
            )
        numbers: dict[str, Any] = dict(fields)
        steps = numbers.get("by_length", [])
        if not isinstance(steps, list) or any(not isinstance(step, list) or len(step) != 2 for step in steps):
            raise ConfigurationError(f"A plan's by_length is a list of pairs [below, threshold], not {steps!r:.100}.")
        return cls(**{**numbers, "by_length": tuple((below, threshold) for below, threshold in steps)})

    @staticmethod
    def _check(name: str, value: object, low: int, high: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigurationError(
                f"The plan's {name} must be a whole number from {low} to {high}, not {value!r:.40}; "
                f"write a plan as {_FORM}, or name one of {', '.join(PLANS)}."
            )


PLANS: Final[dict[str, Plan]] = {}
PLANS["wide"] = Plan(width=128, blocks=8, radius=1, threshold=21, ratio=75)
PLANS["classic"] = Plan(width=64, blocks=4, radius=0, threshold=3)


def parse(text: str) -> Plan:
    """Return the plan that an operator wrote: a name, or numbers.

    The whole form is `WIDTH:BLOCKS/KEY_BLOCKS:RADIUS:THRESHOLD@BELOW,..,THRESHOLD:RATIO%`; `/KEY_BLOCKS`, the thresholds
    by length and the ratio may be left out.

    Raises:
        ConfigurationError: it is neither; the sentence names the nearest name.
    """
    wanted = text.strip().lower()
    if wanted in PLANS:
        return PLANS[wanted]
    numbers = _parse_numbers(wanted)
    if numbers is not None:
        return Plan(**numbers)
    nearest = difflib.get_close_matches(wanted, PLANS, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise ConfigurationError(f"There is no plan {text.strip()[:60]!r}; {hint}Name one of {', '.join(PLANS)}, or write {_FORM}.")


def _parse_numbers(text: str) -> dict[str, Any] | None:
    """Return the parts of a plan written in numbers, or None if it is not written so."""
    parts = text.split(":")
    ratio = "0"
    if len(parts) == 5 and parts[4].endswith("%"):
        ratio = parts.pop()[:-1]
    if len(parts) != 4:
        return None
    width, cut, radius, thresholds = parts
    blocks, slash, key_blocks = cut.partition("/")
    *steps, threshold = thresholds.split(",")
    pairs = [step.split("@") for step in steps]
    if any(len(pair) != 2 for pair in pairs):
        return None
    flat = [width, blocks, radius, threshold, key_blocks if slash else "1", ratio, *itertools.chain.from_iterable(pairs)]
    if not all(part.isascii() and part.isdigit() and len(part) <= 10 for part in flat):
        return None
    return {
        "width": int(width),
        "blocks": int(blocks),
        "radius": int(radius),
        "threshold": int(threshold),
        "key_blocks": int(key_blocks) if slash else 1,
        "by_length": tuple((int(below), int(bits)) for bits, below in pairs),
        "ratio": int(ratio),
    }
