"""Plans: value objects that define how candidates are found and which of them count as near.

A plan compares the low `width` bits of two fingerprints. They are divided into `blocks` blocks of
(nearly) equal length. A key consists of `key_blocks` blocks (default 1), and there is one table for
each combination of blocks. Two fingerprints are within reach if at least one key differs in at most
`radius` bits in total, and all bits together differ in at most `threshold`. Two optional parts use
the numbers of features of both texts:

    by_length   steps (below, threshold), ascending by `below`: if the shorter text has fewer features than `below`,
                the step's threshold replaces that of the plan; the first such step counts
    ratio       in per cent: the smaller number of features is at least this share of the larger

Four more parts use the sketches of both texts, or limit the number of candidates:

    bands       number of equal blocks of the first part of a sketch, which has `SKETCH_VALUES` values; two texts are
                also within reach if at least one block of their sketches is equal
    similarity  in per cent: the minimum similarity of the sketches, for documents of different sites or of one id
    by site     the minimum for documents of one site: `unsure` if the titles are equal, `same_site` if the title of one
                is unknown, `other_title` if they differ; `unsure` also if the site of one is unknown. A minimum is
                never below `similarity`, so 0 means `similarity`
    asked       maximum number of candidates from each block (of each table's key): half of them the first live
                representatives in log order (one more if the number is odd), half the last; 0 means all

From a similarity of `SURE` per cent the sketches alone decide: repetition in a text changes many
bits of its fingerprint, so the number of differing bits is ignored.

An index may use any tables: its answers equal those of a plain scan with these conditions, which
`index.tables.near_kernels` and `audit.scan` implement.
Blocks and tables of several blocks: Manku, Jain and Das Sarma, "Detecting near-duplicates for web
crawling", WWW 2007, section 3. Blocks of sketches (there called bands): Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", section 3.4. Probing keys within a radius: Norouzi, Punjani
and Fleet, "Fast search in Hamming space with multi-index hashing", CVPR 2012.

Invariants: an index can serve every plan, because the constructor checks its numbers; parsing the
text form or the fields of a plan returns an equal plan; neither contains unused optional parts, so
plans written by older versions keep their text and their fields; a plan without blocks has one
table with one bucket, which is a plain scan; all numbers are integers, so that every machine
decides alike.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.sketch import SKETCH_VALUES, alike_min

WIDTH_MAX: Final = 256
BLOCKS_MAX: Final = 64
TABLES_MAX: Final = 128
RADIUS_MAX: Final = 3
THRESHOLD_MAX: Final = 255
STEPS_MAX: Final = 8
FEATURES_MAX: Final = (1 << 32) - 1
ASKED_MAX: Final = 65_535
_FORM: Final = "WIDTH:BLOCKS:RADIUS:THRESHOLD, as in 128:8:1:21"
_PATTERN: Final = re.compile(
    r"(?P<width>N):(?P<blocks>N)(/(?P<key_blocks>N))?:(?P<radius>N):(?P<by_length>(N@N,)*)(?P<threshold>N)(:(?P<ratio>N)%)?"
    r"(~(?P<bands>N):(?P<similarity>N)(,(?P<unsure>N),(?P<same_site>N),(?P<other_title>N))?%:(?P<asked>N))?".replace(
        "N", r"[0-9]{1,10}"
    )
)
_NUMBERS: Final = ("width", "blocks", "radius", "threshold")
_BY_SITE: Final = ("unsure", "same_site", "other_title")
_OPTIONAL: Final = ("key_blocks", "by_length", "ratio", "bands", "similarity", *_BY_SITE, "asked")


class _ParsesText(type):
    """Let `Plan("bands")` parse a text, as `Recipe("words")` does."""

    def __call__(cls, *numbers: Any, **named: Any) -> Any:
        """Return the plan that a single text describes, or the plan with these numbers."""
        if len(numbers) == 1 and not named and isinstance(numbers[0], str):
            return parse(numbers[0])
        return super().__call__(*numbers, **named)


@dataclass(frozen=True, slots=True)
class Plan(metaclass=_ParsesText):
    """How candidates are found and which of them count as near (see the module).

    `width`, `blocks`, `radius`, `threshold` and `key_blocks` concern the bits of fingerprints;
    `by_length` and `ratio` the numbers of features; `bands`, `similarity` and the thresholds by
    site the sketches. `asked` limits the number of candidates.

    Raises:
        ConfigurationError: the numbers do not make a valid plan.
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
                f"and a plan has at most {TABLES_MAX}; use fewer blocks, or another number of "
                "blocks per key."
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
                "A plan's thresholds by length must be in ascending order of their feature counts, "
                "each once."
            )
        self._check("ratio", self.ratio, 0, 100)
        for name in ("similarity", *_BY_SITE):
            label = "similarity" if name == "similarity" else f"similarity by site ({name})"
            self._check(label, getattr(self, name), 0, 100)
        self._check("number of candidates per block", self.asked, 0, ASKED_MAX)
        if self.bands and SKETCH_VALUES % self.bands:
            raise ConfigurationError(
                f"A sketch has {SKETCH_VALUES} values, which cannot be divided into {self.bands} "
                "equal blocks; use "
                f"{', '.join(str(count) for count in range(1, SKETCH_VALUES + 1) if SKETCH_VALUES % count == 0)} blocks, or none (0)."
            )
        if self.radius and (self.bands or self.asked):
            raise ConfigurationError(
                "A plan with sketch blocks, or with a limit on candidates, must "
                f"have a radius of 0, not {self.radius}."
            )

    @property
    def id(self) -> str:
        """Numbers of the plan in the text form that `parse` reads: `128:8:1:19`, `64:6/3:0:3`,
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
        """Name of the plan, or its `id` if it has no name."""
        return next((name for name, plan in PLANS.items() if plan == self), self.id)

    @property
    def limbs(self) -> int:
        """Number of limbs of 64 bits of a fingerprint that the plan compares."""
        return -(-self.width // 64)

    @property
    def tables(self) -> int:
        """Number of tables: one for each combination of a key's blocks, and one for each block of
        the sketch.
        """
        return len(self.keys) + self.bands

    @property
    def asked_last(self) -> int:
        """Number of candidates that are taken from the end of a block."""
        return self.asked // 2

    @property
    def needs_sketch(self) -> bool:
        """Whether the predicate compares sketches."""
        return bool(self.bands or self.similarity or self.has_sites)

    @property
    def has_sites(self) -> bool:
        """Whether the plan has thresholds by site."""
        return bool(self.unsure or self.same_site or self.other_title)

    @property
    def similarities(self) -> tuple[int, ...]:
        """Similarity thresholds in per cent, by `Relation`."""
        by_site = (self.unsure, self.unsure, self.same_site, self.other_title)
        return (self.similarity, *(max(self.similarity, threshold) for threshold in by_site))

    @property
    def alike_mins(self) -> tuple[int, ...]:
        """Similarity thresholds in parts of `ALIKE`, by `Relation`."""
        return tuple(map(alike_min, self.similarities))

    @property
    def sketch_bounds(self) -> tuple[tuple[int, int], ...]:
        """Half-open range of values, (first, end), of each block of the sketch."""
        size = SKETCH_VALUES // self.bands if self.bands else 0
        return tuple((band * size, (band + 1) * size) for band in range(self.bands))

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Half-open range of bits, (first, end), of each block; without blocks and bands one block
        of no bits, which all fingerprints share.
        """
        if self.blocks == 0:
            return () if self.bands else ((0, 0),)
        return tuple(
            (self.width * block // self.blocks, self.width * (block + 1) // self.blocks)
            for block in range(self.blocks)
        )

    @property
    def keys(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Blocks of the key of each table of fingerprints, as ranges of bits (first, end)."""
        return tuple(itertools.combinations(self.bounds, self.key_blocks))

    @property
    def threshold_max(self) -> int:
        """Largest threshold of bits for any number of features."""
        return max(self.threshold, *(threshold for _, threshold in self.by_length), 0)

    @property
    def distance_guaranteed(self) -> int:
        """Largest distance in bits at which every pair is found, for all lengths within `ratio` and
        all sketches.

        The limits `similarity` and `asked` are ignored.

        A pair is missed only if every key differs in radius + 1 bits or more. The fewest bits for
        this: the `key_blocks` blocks that differ least share radius + 1 bits evenly, and each other
        block has as many as the fullest of those. (Shorter blocks have fewer bits; then pairs at a
        larger distance are found too.)
        """
        lowest = min(self.threshold, *(threshold for _, threshold in self.by_length), THRESHOLD_MAX)
        if self.blocks == 0:
            return 0 if self.bands else lowest
        fullest = -(-(self.radius + 1) // self.key_blocks)
        return min(lowest, self.radius + (self.blocks - self.key_blocks) * fullest)

    def with_similarity(self, similarity: int | None = None, **by_site: int | None) -> Plan:
        """Return this plan with other thresholds in per cent: `similarity`, and by site `unsure`,
        `same_site` and `other_title`. None keeps a threshold.

        Raises:
            ConfigurationError: this plan compares no sketches.
        """
        thresholds = {"similarity": similarity, **by_site}
        changed: dict[str, Any] = {
            name: value for name, value in thresholds.items() if value is not None
        }
        if not changed:
            return self
        if not self.needs_sketch:
            raise ConfigurationError(
                f"The plan {self.name} compares no sketches, so it has no similarity "
                "(STREAM_DEDUP_SIMILARITY, STREAM_DEDUP_SIMILARITY_UNSURE, --similarity): unset it, or "
                "use a recipe and plan with sketches, such as bands."
            )
        return replace(self, **changed)

    def distance(self, first: int, second: int) -> int:
        """Return the number of the low `width` bits in which two fingerprints differ."""
        return ((first ^ second) & ((1 << self.width) - 1)).bit_count()

    def threshold_of(self, features: int) -> int:
        """Return the threshold in bits for two texts; the shorter has `features` features."""
        return next(
            (threshold for below, threshold in self.by_length if features < below), self.threshold
        )

    def to_fields(self) -> dict[str, Any]:
        """Return the plan as the JSON object in control records, without unused optional parts."""
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
        """Return the plan of a JSON object that `to_fields` made.

        Raises:
            ConfigurationError: a field is missing or unknown, or the numbers do not make a valid
            plan.
        """
        if not isinstance(fields, Mapping) or not set(_NUMBERS) <= set(fields) <= {
            *_NUMBERS,
            *_OPTIONAL,
        }:
            raise ConfigurationError(
                f"A plan's fields are {', '.join(_NUMBERS)}, and optionally "
                f"{', '.join(_OPTIONAL)}; not {fields!r:.200}."
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
    """Return the default plan for a recipe with fingerprints of `width` bits, with or without
    sketches.
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
        number_text = text.strip()
        share = (
            Fraction(number_text[:-1]) if number_text.endswith("%") else 100 * Fraction(number_text)
        )
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    nearest = round(share)
    if abs(share - nearest) < 1e-7:  # 0.7 + 0.1 is 0.7999999999999999
        share = Fraction(nearest)
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
            + (f" Write per cent as {nearest // 100}%." if 200 <= nearest <= 10_000 else "")
        )
    return int(share)


def parse(text: str) -> Plan:
    """Return the plan that a text describes: a name, or numbers.

    The complete form is
    `WIDTH:BLOCKS/KEY_BLOCKS:RADIUS:THRESHOLD@BELOW,..,THRESHOLD:RATIO%~BANDS:SIMILARITY,UNSURE,SAME_SITE,OTHER_TITLE%:ASKED`;
    `/KEY_BLOCKS`, the thresholds by length, the ratio, the part from `~` on, and in that part the
    thresholds by site may be left out.

    Raises:
        ConfigurationError: the text is neither; the message contains the nearest name.
    """
    plan = text.strip().lower()
    if plan in PLANS:
        return PLANS[plan]
    if match := _PATTERN.fullmatch(plan):
        steps = (step.split("@") for step in match["by_length"].split(",")[:-1])
        numbers = {
            name: int(number)
            for name, number in match.groupdict().items()
            if number and name != "by_length"
        }
        return Plan(**numbers, by_length=tuple((int(below), int(bits)) for bits, below in steps))
    nearest = difflib.get_close_matches(plan, PLANS, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise ConfigurationError(
        f"There is no plan {text.strip()[:60]!r}; {hint}name one of {', '.join(PLANS)}, or write "
        f"{_FORM}."
    )
