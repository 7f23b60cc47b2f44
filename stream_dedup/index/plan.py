"""Plans: which prints count as near, as value objects.

A plan looks at the low `width` bits of a print, cut into `blocks` blocks of (nearly) equal length. Two prints are
within its reach if some block of them differs in at most `radius` bits and the whole differs in at most `threshold`
bits. That predicate, `Plan.within_reach`, is the specification: whatever tables an index keeps, its answers equal those
of a plain scan with the predicate. Blocks: Manku, Jain and Das Sarma, "Detecting near-duplicates for web crawling",
WWW 2007. Probing keys within a radius: Norouzi, Punjani and Fleet, "Fast search in Hamming space with multi-index
hashing", CVPR 2012.

Invariants: a plan that exists can be served (its limits are checked when it is made); the text form and the fields
lead back to an equal plan; a plan without blocks has one table with one bucket, which is a plain scan.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stream_dedup.errors import ConfigurationError

WIDTH_MAX: Final = 256
BLOCKS_MAX: Final = 64
RADIUS_MAX: Final = 3
THRESHOLD_MAX: Final = 255
ADDRESS_BITS_MAX: Final = 20
_FORM: Final = "WIDTH:BLOCKS:RADIUS:THRESHOLD, as in 128:8:1:19"


@dataclass(frozen=True, slots=True)
class Plan:
    """The low `width` bits in `blocks` blocks; near is: a block within `radius` bits, the whole within `threshold`.

    Raises:
        ConfigurationError: the numbers do not make a plan that can be served.
    """

    width: int
    blocks: int
    radius: int
    threshold: int

    def __post_init__(self) -> None:
        self._check("width", 1, WIDTH_MAX)
        self._check("blocks", 0, min(BLOCKS_MAX, self.width))
        self._check("radius", 0, RADIUS_MAX)
        self._check("threshold", 0, min(THRESHOLD_MAX, self.width))

    @property
    def id(self) -> str:
        """The plan in numbers, as `parse` reads them: `128:8:1:19`."""
        return f"{self.width}:{self.blocks}:{self.radius}:{self.threshold}"

    @property
    def name(self) -> str:
        """The plan's name, or its numbers if it has none."""
        return next((name for name, plan in PLANS.items() if plan == self), self.id)

    @property
    def words(self) -> int:
        """How many 64-bit words of a print the plan looks at."""
        return -(-self.width // 64)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The (first bit, end bit) of each block; without blocks, one block of no bits, which all prints share."""
        if self.blocks == 0:
            return ((0, 0),)
        return tuple(
            (self.width * block // self.blocks, self.width * (block + 1) // self.blocks) for block in range(self.blocks)
        )

    @property
    def probes(self) -> int:
        """How many keys a look-up visits, over all tables."""
        addresses = (min(end - first, ADDRESS_BITS_MAX) for first, end in self.bounds)
        return sum(math.comb(bits, flips) for bits in addresses for flips in range(min(self.radius, bits) + 1))

    @property
    def distance_guaranteed(self) -> int:
        """The largest distance at which every pair is found: beyond it all blocks may differ in radius + 1 bits."""
        if self.blocks == 0:
            return self.threshold
        return min(self.threshold, self.blocks * (self.radius + 1) - 1)

    def distance(self, one: int, other: int) -> int:
        """Return in how many of the low `width` bits two prints differ."""
        return ((one ^ other) & ((1 << self.width) - 1)).bit_count()

    def within_reach(self, one: int, other: int) -> bool:
        """Return whether two prints are near: some block within the radius, the whole within the threshold."""
        if self.distance(one, other) > self.threshold:
            return False
        difference = one ^ other
        return any(
            ((difference >> first) & ((1 << (end - first)) - 1)).bit_count() <= self.radius for first, end in self.bounds
        )

    def _check(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigurationError(
                f"The plan's {name} must be a whole number from {low} to {high}, not {value!r:.40}; "
                f"write a plan as {_FORM}, or name one of {', '.join(PLANS)}."
            )

    def to_fields(self) -> dict[str, int]:
        """Return the plan as the JSON object that control records carry."""
        return {"width": self.width, "blocks": self.blocks, "radius": self.radius, "threshold": self.threshold}

    @classmethod
    def from_fields(cls, fields: object) -> Plan:
        """Return the plan of such a JSON object.

        Raises:
            ConfigurationError: it is not an object with exactly a plan's four numbers, or they do not make a plan.
        """
        names = ("width", "blocks", "radius", "threshold")
        if not isinstance(fields, Mapping) or set(fields) != set(names):
            raise ConfigurationError(f"A plan's fields are {', '.join(names)}, and these are not: {fields!r:.200}.")
        numbers: Mapping[str, Any] = fields
        return cls(*(numbers[name] for name in names))


PLANS: Final[dict[str, Plan]] = {}
PLANS["wide"] = Plan(width=128, blocks=8, radius=1, threshold=19)
PLANS["classic"] = Plan(width=64, blocks=4, radius=0, threshold=3)


def parse(text: str) -> Plan:
    """Return the plan that an operator wrote: a name, or `WIDTH:BLOCKS:RADIUS:THRESHOLD`.

    Raises:
        ConfigurationError: it is neither; the sentence names the nearest name.
    """
    wanted = text.strip().lower()
    if wanted in PLANS:
        return PLANS[wanted]
    parts = wanted.split(":")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        return Plan(*map(int, parts))
    nearest = difflib.get_close_matches(wanted, PLANS, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise ConfigurationError(f"There is no plan {text.strip()[:60]!r}; {hint}Name one of {', '.join(PLANS)}, or write {_FORM}.")
