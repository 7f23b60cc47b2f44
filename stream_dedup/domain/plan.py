"""Plans: how representatives are found and which of them count as near, as value objects.

A plan looks at the low `width` bits of a print, cut into `blocks` blocks of (nearly) equal length.
A key is made of `key_blocks` of them, one if nothing else is said; there is a table for each way of
choosing them. Two prints are within its reach if some key of them differs in at most `radius` bits
(over the whole key) and the whole differs in at most `threshold` bits. Two optional parts look at
how many features the two texts have:

    by_length   steps (below, threshold), ascending: if the smaller of the two counts is below a step's, the first such
                step's threshold holds instead of the plan's
    ratio       in per cent: the smaller of the two counts is at least this share of the larger

Four more look at the sketches of the two texts, or bound what is looked at:

    bands       the first part of the sketch, of `SKETCH_VALUES` values, is cut into this number of equal blocks; two
                texts are within reach too if some block of their sketches is equal
    similarity  in per cent: the sketches are at least this much alike, and where two documents may be of one site at least
                `unsure` (one site and equal titles, or the site of one unknown), `same_site` (the title of one unknown) or
                `other_title` (different titles); a number below `similarity`, such as 0, is as that one
    asked       of each block (of each table's key) at most this number of live representatives are candidates, half of them
                the first in log order (one more, if the number is odd), and half the last; 0 is all

From `SURE` per cent alike on the sketches decide alone: the bits that differ, which repetition moves
at will, have no say.

That predicate, `Plan.within_reach`, and with the cap `Plan.scan`, is the specification: an index
keeps any tables, and its answers equal those of a plain scan with it.
Blocks and tables by several blocks: Manku, Jain and Das Sarma, "Detecting near-duplicates for web
crawling", WWW 2007, section 3. The same of sketches (there called bands): Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", section 3.4. Probing keys within a radius: Norouzi, Punjani
and Fleet, "Fast search in Hamming space with multi-index hashing", CVPR 2012.

Invariants: a plan that exists can be served (its limits are checked when it is made); the text form
and the fields lead back to an equal plan; what is optional and not used appears in neither, so
plans written by older versions keep their text and their fields; a plan without blocks has one
table with one bucket, which is a plain scan; all numbers are whole, so that every machine decides
alike.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from stream_dedup.domain.errors import ConfigurationError, InvariantError
from stream_dedup.domain.related import UNKNOWN, Origin, Relation, relation_of
from stream_dedup.domain.sketch import SKETCH_VALUES, SURE, alike, alike_min

WIDTH_MAX: Final = 256
BLOCKS_MAX: Final = 64
TABLES_MAX: Final = 128
RADIUS_MAX: Final = 3
THRESHOLD_MAX: Final = 255
STEPS_MAX: Final = 8
FEATURES_MAX: Final = (1 << 32) - 1
ASKED_MAX: Final = 65_535
_FORM: Final = "WIDTH:BLOCKS:RADIUS:THRESHOLD, as in 128:8:1:21"
_WRITTEN: Final = re.compile(
    r"(?P<width>N):(?P<blocks>N)(/(?P<key_blocks>N))?:(?P<radius>N):(?P<by_length>(N@N,)*)(?P<threshold>N)(:(?P<ratio>N)%)?"
    r"(~(?P<bands>N):(?P<similarity>N)(,(?P<unsure>N),(?P<same_site>N),(?P<other_title>N))?%:(?P<asked>N))?".replace(
        "N", r"[0-9]{1,10}"
    )
)
_NUMBERS: Final = ("width", "blocks", "radius", "threshold")
_BY_SITE: Final = ("unsure", "same_site", "other_title")
_OPTIONAL: Final = ("key_blocks", "by_length", "ratio", "bands", "similarity", *_BY_SITE, "asked")


class _ParsesText(type):
    """Let `Plan("bands")` parse what is written, as `Recipe("words")` does."""

    def __call__(cls, *numbers: Any, **named: Any) -> Any:
        """Return the plan that one text names, or that of the numbers."""
        if len(numbers) == 1 and not named and isinstance(numbers[0], str):
            return parse(numbers[0])
        return super().__call__(*numbers, **named)


@dataclass(frozen=True, slots=True)
class Plan(metaclass=_ParsesText):
    """The low `width` bits in `blocks` blocks; near is: a key within `radius` bits, the whole
    within `threshold`.

    A key is `key_blocks` blocks; `by_length` and `ratio` are the parts that look at feature counts,
    `bands`, `similarity` with the thresholds by site, and `asked` those that look at sketches and
    bound the cost (see the module).

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
    bands: int = 0
    similarity: int = 0
    asked: int = 0
    unsure: int = 0
    same_site: int = 0
    other_title: int = 0

    def __post_init__(self) -> None:
        self._check("width", self.width, 1, WIDTH_MAX)
        self._check("blocks", self.blocks, 0, min(BLOCKS_MAX, self.width))
        self._check("radius", self.radius, 0, RADIUS_MAX)
        self._check("threshold", self.threshold, 0, min(THRESHOLD_MAX, self.width))
        self._check("key_blocks", self.key_blocks, 1, max(1, self.blocks))
        self._check("number of sketch blocks", self.bands, 0, SKETCH_VALUES)
        if self.tables > TABLES_MAX:
            raise ConfigurationError(
                f"Keys of {self.key_blocks} out of {self.blocks} blocks make {self.tables} tables, "
                "and a plan has at most "
                f"{TABLES_MAX}; take fewer blocks, or another number of them for a key."
            )
        if not isinstance(self.by_length, tuple) or any(
            not isinstance(step, tuple) or len(step) != 2 for step in self.by_length
        ):
            raise ConfigurationError(
                "A plan's by_length is a tuple of pairs (below, threshold), not "
                f"{self.by_length!r:.100}."
            )
        if len(self.by_length) > STEPS_MAX:
            raise ConfigurationError(
                f"A plan has at most {STEPS_MAX} thresholds by length, not {len(self.by_length)}."
            )
        for below, threshold in self.by_length:
            self._check("feature count of a threshold by length", below, 1, FEATURES_MAX)
            self._check("threshold by length", threshold, 0, min(THRESHOLD_MAX, self.width))
        if any(lower >= upper for (lower, _), (upper, _) in itertools.pairwise(self.by_length)):
            raise ConfigurationError(
                "A plan's thresholds by length stand in the order of their feature counts, each "
                "once."
            )
        self._check("ratio", self.ratio, 0, 100)
        for name in ("similarity", *_BY_SITE):
            what = "similarity" if name == "similarity" else f"similarity by site ({name})"
            self._check(what, getattr(self, name), 0, 100)
        self._check("number of representatives asked", self.asked, 0, ASKED_MAX)
        if self.bands and SKETCH_VALUES % self.bands:
            raise ConfigurationError(
                f"A sketch has {SKETCH_VALUES} values, which {self.bands} blocks cannot share "
                "equally; take "
                f"{', '.join(str(count) for count in range(1, SKETCH_VALUES + 1) if SKETCH_VALUES % count == 0)} blocks, or none (0)."
            )
        if self.radius and (self.bands or self.asked):
            raise ConfigurationError(
                "A plan with sketch blocks, or with a bound on the representatives asked, compares "
                "its blocks whole: its "
                f"radius is 0, not {self.radius}."
            )

    @property
    def id(self) -> str:
        """The plan in numbers, as `parse` reads them: `128:8:1:19`, `64:6/3:0:3`,
        `128:4:0:36~20:62,70,85,97%:64`.
        """
        key = "" if self.key_blocks == 1 else f"/{self.key_blocks}"
        steps = "".join(f"{threshold}@{below}," for below, threshold in self.by_length)
        ratio = f":{self.ratio}%" if self.ratio else ""
        by_site = "".join(f",{getattr(self, name)}" for name in _BY_SITE) if self.has_sites else ""
        sketch = (
            f"~{self.bands}:{self.similarity}{by_site}%:{self.asked}"
            if self.needs_sketch or self.asked
            else ""
        )
        bits = f"{steps}{self.threshold}{ratio}"
        return f"{self.width}:{self.blocks}{key}:{self.radius}:{bits}{sketch}"

    @property
    def name(self) -> str:
        """The plan's name, or its numbers if it has none."""
        return next((name for name, plan in PLANS.items() if plan == self), self.id)

    @property
    def limbs(self) -> int:
        """How many limbs, of 64 bits each, of a print the plan looks at."""
        return -(-self.width // 64)

    @property
    def tables(self) -> int:
        """How many keys it has: one for each way of choosing a key's blocks, and one for each block
        of the sketch.
        """
        return len(self.keys) + self.bands

    @property
    def asked_last(self) -> int:
        """How many of those who are asked are the last of their block."""
        return self.asked // 2

    @property
    def needs_sketch(self) -> bool:
        """Whether the predicate looks at sketches."""
        return bool(self.bands or self.similarity or self.has_sites)

    @property
    def has_sites(self) -> bool:
        """Whether thresholds by site are written down."""
        return bool(self.unsure or self.same_site or self.other_title)

    @property
    def similarities(self) -> tuple[int, ...]:
        """How alike two texts must be, in per cent, by their `Relation`."""
        by_site = (self.unsure, self.unsure, self.same_site, self.other_title)
        return (self.similarity, *(max(self.similarity, threshold) for threshold in by_site))

    @property
    def alike_mins(self) -> tuple[int, ...]:
        """The same in parts of `ALIKE`."""
        return tuple(map(alike_min, self.similarities))

    @property
    def sketch_bounds(self) -> tuple[tuple[int, int], ...]:
        """The (first value, end value) of each block of the sketch."""
        size = SKETCH_VALUES // self.bands if self.bands else 0
        return tuple((band * size, (band + 1) * size) for band in range(self.bands))

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The (first bit, end bit) of each block; without any blocks, one block of no bits, which
        all prints share.
        """
        if self.blocks == 0:
            return () if self.bands else ((0, 0),)
        return tuple(
            (self.width * block // self.blocks, self.width * (block + 1) // self.blocks)
            for block in range(self.blocks)
        )

    @property
    def keys(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The blocks, as (first bit, end bit), that make the key of each table of the print."""
        return tuple(itertools.combinations(self.bounds, self.key_blocks))

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
        """The largest distance at which every pair is found, of all lengths within `ratio` and all
        sketches.

        What `similarity` turns away and what `asked` passes over is left out of account.

        Every key misses only if each differs in radius + 1 bits or more. The cheapest way to spread
        these bits over the blocks: the `key_blocks` that differ least share radius + 1 evenly, and
        each of the others has as many as the fullest of those. (Blocks too short to hold them
        differ less; then more is found than is said here.)
        """
        lowest = min(self.threshold, *(threshold for _, threshold in self.by_length), THRESHOLD_MAX)
        if self.blocks == 0:
            return 0 if self.bands else lowest
        fullest = -(-(self.radius + 1) // self.key_blocks)
        return min(lowest, self.radius + (self.blocks - self.key_blocks) * fullest)

    def with_similarity(self, similarity: int | None = None, **by_site: int | None) -> Plan:
        """Return the plan that finds as this one does and asks for `similarity` per cent, and for
        `unsure`, `same_site` and `other_title` of pages of one site; None leaves the plan's own.

        Raises:
            ConfigurationError: this plan compares no sketches.
        """
        asked = {"similarity": similarity, **by_site}
        chosen: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if not chosen:
            return self
        if not self.needs_sketch:
            raise ConfigurationError(
                f"The plan {self.name} compares no sketches, so a similarity cannot be asked of "
                "it; take one that does, such "
                "as bands."
            )
        return replace(self, **chosen)

    def distance(self, first: int, second: int) -> int:
        """Return in how many of the low `width` bits two prints differ."""
        return ((first ^ second) & ((1 << self.width) - 1)).bit_count()

    def threshold_of(self, features: int) -> int:
        """Return the threshold for two texts of which the shorter has `features` features."""
        return next(
            (threshold for below, threshold in self.by_length if features < below), self.threshold
        )

    def within_reach(
        self,
        fingerprint: int,
        other_fingerprint: int,
        features: tuple[int, int] | None = None,
        sketches: tuple[bytes, bytes] | None = None,
        origins: tuple[Origin, Origin] = (UNKNOWN, UNKNOWN),
    ) -> bool:
        """Return whether two texts are near, by their prints, their feature counts, their sketches
        and where they are from.

        `features` are needed where the plan judges lengths, `sketches` where it `needs_sketch`.

        Raises:
            InvariantError: what the plan needs is not given.
        """
        if not self.is_alike(fingerprint, other_fingerprint, features, sketches, origins):
            return False
        sketch, other_sketch = sketches or (b"", b"")
        if any(sketch[first:end] == other_sketch[first:end] for first, end in self.sketch_bounds):
            return True
        if not self.keys:
            return False
        difference = fingerprint ^ other_fingerprint
        inside = sorted(
            ((difference >> first) & ((1 << (end - first)) - 1)).bit_count()
            for first, end in self.bounds
        )
        return (
            sum(inside[: self.key_blocks]) <= self.radius
        )  # the blocks that differ least make the best key

    def is_alike(
        self,
        fingerprint: int,
        other_fingerprint: int,
        features: tuple[int, int] | None = None,
        sketches: tuple[bytes, bytes] | None = None,
        origins: tuple[Origin, Origin] = (UNKNOWN, UNKNOWN),
    ) -> bool:
        """Return whether two texts would be near if they were found: lengths, distance and
        similarity.

        Raises:
            InvariantError: what the plan needs is not given.
        """
        return self.likeness(fingerprint, other_fingerprint, features, sketches, origins) is True

    def likeness(
        self,
        fingerprint: int,
        other_fingerprint: int,
        features: tuple[int, int] | None = None,
        sketches: tuple[bytes, bytes] | None = None,
        origins: tuple[Origin, Origin] = (UNKNOWN, UNKNOWN),
    ) -> bool | None:
        """Return whether two texts would be near if they were found; None if only their site or
        title keeps them apart: they are siblings.

        Raises:
            InvariantError: what the plan needs is not given.
        """
        threshold = self.threshold
        if self.judges_length:
            if features is None:
                raise InvariantError(
                    f"The plan {self.id} judges lengths, and two prints were compared without "
                    "theirs."
                )
            smaller, larger = sorted(features)
            threshold = self.threshold_of(smaller)
            if 100 * smaller < self.ratio * larger:
                return False
        if self.needs_sketch and sketches is None:
            raise InvariantError(
                f"The plan {self.id} looks at sketches, and two texts were compared without theirs."
            )
        is_far = self.distance(fingerprint, other_fingerprint) > threshold
        if not any(self.alike_mins):
            return not is_far
        share = alike(*(sketches or (b"", b"")))
        if share < self.alike_mins[Relation.FREE] or (is_far and share < alike_min(SURE)):
            return False
        relation = relation_of(*origins)
        if share >= self.alike_mins[relation]:
            return True
        return None if relation.is_one_site else False

    def scan(
        self,
        wanted: tuple[int, int, bytes, Origin],
        representatives: Iterable[tuple[int, int, bytes, Origin]],
    ) -> Iterator[int]:
        """Yield the places of the representatives that are near, in their order: the whole
        predicate, as a plain scan.

        Each text is (print, feature count, sketch, origin); `representatives` are the live ones of
        its scope in log order.
        """
        return (place for place, is_near in self.alike_in(wanted, representatives) if is_near)

    def siblings(
        self,
        wanted: tuple[int, int, bytes, Origin],
        representatives: Iterable[tuple[int, int, bytes, Origin]],
    ) -> Iterator[int]:
        """Yield the places of those that only site or title keeps from being near, in their
        order.
        """
        return (place for place, is_near in self.alike_in(wanted, representatives) if not is_near)

    def alike_in(
        self,
        wanted: tuple[int, int, bytes, Origin],
        representatives: Iterable[tuple[int, int, bytes, Origin]],
    ) -> Iterator[tuple[int, bool]]:
        """Yield (place, whether it is near) of those that are near or siblings, in their order."""
        texts = list(representatives)
        number, features, sketch, origin = wanted
        sharing: list[list[int]] = [[] for _ in range(self.tables)]
        for place, (its_number, _, its_sketch, _) in enumerate(texts):
            for table, is_shared in enumerate(
                self.shared(number ^ its_number, (sketch, its_sketch))
            ):
                sharing[table] += [place] * is_shared
        for place in sorted({place for places in sharing for place in self.among(places)}):
            its_number, its_features, its_sketch, its_origin = texts[place]
            likeness = self.likeness(
                number,
                its_number,
                (features, its_features),
                (sketch, its_sketch),
                (origin, its_origin),
            )
            if likeness is not False:
                yield place, bool(likeness)

    def among(self, sharing: Sequence[int]) -> Sequence[int]:
        """Return those who are asked of the places, in log order, of all that share a block: the
        first and the last.
        """
        if not self.asked or len(sharing) <= self.asked:
            return sharing
        return [
            *sharing[: self.asked - self.asked_last],
            *sharing[len(sharing) - self.asked_last :],
        ]

    def shared(self, difference: int, sketches: tuple[bytes, bytes]) -> list[bool]:
        """Return in which tables two texts meet, the print's first; `difference` is the XOR of
        their prints.
        """
        of_print = [
            sum(
                ((difference >> first) & ((1 << (end - first)) - 1)).bit_count()
                for first, end in key
            )
            <= self.radius
            for key in self.keys
        ]
        sketch, other_sketch = sketches
        return of_print + [
            sketch[first:end] == other_sketch[first:end] for first, end in self.sketch_bounds
        ]

    def to_fields(self) -> dict[str, Any]:
        """Return the plan as the JSON object that control records carry; optional parts only where
        they are used.
        """
        fields: dict[str, Any] = {name: getattr(self, name) for name in _NUMBERS}
        if self.key_blocks != 1:
            fields["key_blocks"] = self.key_blocks
        if self.by_length:
            fields["by_length"] = [list(step) for step in self.by_length]
        for name in ("ratio", "bands", "similarity", *_BY_SITE, "asked"):
            if getattr(self, name):
                fields[name] = getattr(self, name)
        return fields

    @classmethod
    def from_fields(cls, fields: object) -> Plan:
        """Return the plan of such a JSON object.

        Raises:
            ConfigurationError: it is not an object with a plan's numbers and nothing else, or they
            do not make a plan.
        """
        if not isinstance(fields, Mapping) or not set(_NUMBERS) <= set(fields) <= {
            *_NUMBERS,
            *_OPTIONAL,
        }:
            raise ConfigurationError(
                f"A plan's fields are {', '.join(_NUMBERS)}, and where they are used "
                f"{', '.join(_OPTIONAL)}; "
                f"these are not: {fields!r:.200}."
            )
        numbers: dict[str, Any] = dict(fields)
        steps = numbers.get("by_length", [])
        if not isinstance(steps, list) or any(
            not isinstance(step, list) or len(step) != 2 for step in steps
        ):
            raise ConfigurationError(
                f"A plan's by_length is a list of pairs [below, threshold], not {steps!r:.100}."
            )
        return cls(
            **{**numbers, "by_length": tuple((below, threshold) for below, threshold in steps)}
        )

    @staticmethod
    def _check(name: str, value: object, low: int, high: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigurationError(
                f"The plan's {name} must be a whole number from {low} to {high}, not "
                f"{value!r:.40}; "
                f"write a plan as {_FORM}, or name one of {', '.join(PLANS)}."
            )


PLANS: Final[dict[str, Plan]] = {}
PLANS["bands"] = Plan(
    width=128,
    blocks=4,
    radius=0,
    threshold=36,
    bands=20,
    similarity=62,
    asked=64,
    unsure=70,
    same_site=85,
    other_title=97,
)
PLANS["blocks"] = Plan(width=128, blocks=8, radius=0, threshold=17, ratio=75, asked=1000)
PLANS["classic"] = Plan(width=64, blocks=4, radius=0, threshold=3)


def plan_for(width: int, *, has_sketches: bool) -> Plan:
    """Return the plan of those who name none, for a recipe whose prints have `width` bits and that
    makes sketches or none.
    """
    if has_sketches:
        return PLANS["bands"]
    return PLANS["blocks" if width >= PLANS["blocks"].width else "classic"]


def parse_similarity(text: str) -> int:
    """Return a similarity in per cent, written as a share (0.65) or in per cent (65%).

    Raises:
        ConfigurationError: it is neither, or no whole number of per cents.
    """
    try:
        wanted = text.strip()
        share = Fraction(wanted[:-1]) if wanted.endswith("%") else 100 * Fraction(wanted)
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if share.denominator != 1 and 1 < share < 100:
        below = int(share)
        raise ConfigurationError(
            f"A similarity is written in hundredths, such as {below / 100:.2f} or "
            f"{(below + 1) / 100:.2f}, not {text!r:.40}, because an estimate has a standard error of 0.045."
        )
    if not 1 <= share <= 100:
        raise ConfigurationError(
            "A similarity is written as a share from 0.01 to 1, in hundredths, such as 0.65, not "
            f"{text!r:.40}."
        )
    return int(share)


def parse(text: str) -> Plan:
    """Return the plan that an operator wrote: a name, or numbers.

    The whole form is
    `WIDTH:BLOCKS/KEY_BLOCKS:RADIUS:THRESHOLD@BELOW,..,THRESHOLD:RATIO%~BANDS:SIMILARITY,UNSURE,SAME_SITE,OTHER_TITLE%:ASKED`;
    `/KEY_BLOCKS`, the thresholds by length, the ratio, what follows `~`, and of that the thresholds
    by site may be left out.

    Raises:
        ConfigurationError: it is neither; the sentence names the nearest name.
    """
    wanted = text.strip().lower()
    if wanted in PLANS:
        return PLANS[wanted]
    if found := _WRITTEN.fullmatch(wanted):
        steps = (step.split("@") for step in found["by_length"].split(",")[:-1])
        numbers = {
            name: int(number)
            for name, number in found.groupdict().items()
            if number and name != "by_length"
        }
        return Plan(**numbers, by_length=tuple((int(below), int(bits)) for bits, below in steps))
    nearest = difflib.get_close_matches(wanted, PLANS, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise ConfigurationError(
        f"There is no plan {text.strip()[:60]!r}; {hint}name one of {', '.join(PLANS)}, or write "
        f"{_FORM}."
    )
