"""Parse recipes: a text that an operator writes becomes a `RecipeMethod`, which defines how
fingerprints are computed.

    recipe     = PRESET | PRESET ":" WIDTH | stages
    stages     = normalise "|" features "|" weights "|" hash "|" projection
    normalise  = "raw" | any of "nfkc" "case" "space" "punctuation" "spelling"
    features   = any of "words" "bigrams" "shingles:N" "chars:N", each perhaps with "*" SCALE
               | "keywords:N" | "textrank:N" | "vector"
    weights    = "one" | "count" | "log" | "tfidf" | "rank" | "value"
    hash       = "keyed" | "xxh3" | "fnv1a" | "md5" | "sha1" | "sha256" | "none"
    projection = "signs:" WIDTH | "planes:" WIDTH | "planes:" WIDTH ":" SEED

Invariants: every `RecipeMethod` can compute fingerprints (stages that cannot be combined are
refused here, and an unknown name with the nearest known one); parsing its text returns an equal
method; equal methods have equal texts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.fingerprinting import hashes

WIDTHS: Final = (32, 64, 128)
SCALE_MAX: Final = 16
SHINGLE_MAX: Final = 16
KEYWORDS_MAX: Final = 1000
SEED_MAX: Final = (1 << 32) - 1
STAGES: Final = ("normalise", "features", "weights", "hash", "projection")

STEPS: Final = ("nfkc", "case", "space", "punctuation", "spelling")
RUNS: Final = ("words", "bigrams", "shingles", "chars")
RANKED: Final = ("keywords", "textrank")
VECTOR: Final = "vector"
COUNTED: Final = ("one", "count", "log")
WEIGHTS: Final = (*COUNTED, "tfidf", "rank", "value")
_FORM: Final = "normalise | features | weights | hash | projection"


@dataclass(frozen=True, slots=True)
class Feature:
    """A kind of feature: its name, the length of its runs (or the number of keywords), and the
    scale of its weights.
    """

    name: str
    length: int = 1
    scale: int = 1

    def __str__(self) -> str:
        written = (
            f"{self.name}:{self.length}"
            if self.name in {"shingles", "chars", *RANKED}
            else self.name
        )
        return written if self.scale == 1 else f"{written}*{self.scale}"


@dataclass(frozen=True, slots=True)
class RecipeMethod:
    """The five stages of a recipe. `steps` () is `raw`; only planes use `seed`.

    Raises:
        ConfigurationError: the stages cannot be combined.
    """

    steps: tuple[str, ...]
    features: tuple[Feature, ...]
    weights: str
    hash: str
    projection: str
    width: int
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self)

    def __str__(self) -> str:
        seed = f":{self.seed}" if self.projection == "planes" and self.seed else ""
        stages = (
            " ".join(self.steps) or "raw",
            " ".join(map(str, self.features)),
            self.weights,
            self.hash,
            f"{self.projection}:{self.width}{seed}",
        )
        return " | ".join(stages)

    @property
    def takes_vectors(self) -> bool:
        """Whether vectors are fingerprinted, not texts."""
        return self.features[0].name == VECTOR

    @property
    def is_ranked(self) -> bool:
        """Whether the features are keywords."""
        return self.features[0].name in RANKED

    @property
    def is_at_once(self) -> bool:
        """Whether one kernel computes the fingerprints of a batch; other methods process each text
        separately, and take far longer.
        """
        return (
            self.hash == hashes.KEYED
            and self.weights in COUNTED
            and self.projection == "signs"
            and not self.is_ranked
        )

    @property
    def cuts_words(self) -> bool:
        """Whether the rules of `tokens` cut texts into words."""
        return any(feature.name in {"words", "bigrams", "shingles"} for feature in self.features)

    @property
    def makes_sketches(self) -> bool:
        """Whether texts also get a sketch of their words: only if they are cut into words and
        computed as a batch.
        """
        return self.cuts_words and self.is_at_once

    @property
    def floor(self) -> int:
        """Number of distinct features below which fingerprints are not compared.

        It is the number of features of running English text of `words_min` words: 8 if the recipe
        makes sketches (from 8 words no two different short texts of six corpora were near), else
        25, where replacing one word hardly changes the bits. For keywords it is their number: a
        text with fewer keywords is short. A vector needs one number that is not zero.
        """
        if self.takes_vectors:
            return 1
        if self.is_ranked:
            return self.features[0].length
        words_min = 8 if self.makes_sketches else 25
        of_words = sum(
            max(1, words_min + 1 - feature.length)
            for feature in self.features
            if feature.name not in {"chars", "words"}
        )
        of_characters = sum(
            max(1, 144 - feature.length) for feature in self.features if feature.name == "chars"
        )
        return (
            of_words
            + of_characters
            + (words_min - 1) * sum(feature.name == "words" for feature in self.features)
        )


def _refuse(sentence: str) -> NoReturn:
    raise ConfigurationError(
        f"{sentence} A recipe is one of {', '.join(PRESETS)}, or its stages: {_FORM}."
    )


def _nearest(stage: str, unknown_name: str, known: Iterable[str]) -> NoReturn:
    names = list(known)
    close_names = difflib.get_close_matches(unknown_name.lower(), names, n=1, cutoff=0.4)
    hint = f"did you mean {close_names[0]!r}?" if close_names else f"there are {', '.join(names)}."
    _refuse(f"The stage {stage} of a recipe has no {unknown_name[:40]!r}; {hint}")


def _check(method: RecipeMethod) -> None:
    names = [feature.name for feature in method.features]
    if not names:
        _refuse("A recipe needs features.")
    if len(set(names)) < len(names) and len(set(method.features)) < len(method.features):
        _refuse(f"The features {' '.join(map(str, method.features))} name one kind twice.")
    exclusive = [name for name in names if name in {*RANKED, VECTOR}]
    if exclusive and len(names) > 1:
        _refuse(f"The features {exclusive[0]!r} cannot be combined with others.")
    if method.width not in WIDTHS:
        _refuse(f"A fingerprint has {', '.join(map(str, WIDTHS))} bits, not {method.width}.")
    for feature in method.features:
        _check_feature(feature)
    if method.takes_vectors:
        if (method.steps, method.weights, method.hash, method.projection) != (
            (),
            "value",
            "none",
            "planes",
        ):
            _refuse(
                "Vectors are neither normalised nor hashed: write raw | vector | value | none | "
                "planes:128."
            )
        return
    if method.is_ranked and "spelling" in method.steps:
        _refuse(
            "Keywords are found by jieba in the text as it is spelt: leave the step 'spelling' out."
        )
    if method.weights == "value":
        _refuse(
            "The weights 'value' are those of vectors; of texts there are one, count, log, tfidf."
        )
    if method.hash == "none":
        _refuse("Features of texts need a hash; 'none' is for vectors.")
    if method.weights == "tfidf" and names not in (["words"], ["keywords"]):
        _refuse(
            "Only single words and keywords have a TF-IDF weight; take log counts for other "
            "features."
        )
    if method.is_ranked and method.weights not in {
        "one",
        {"keywords": "tfidf", "textrank": "rank"}[names[0]],
    }:
        _refuse("Keywords weigh one or tfidf, those of textrank one or rank.")
    if method.weights == "rank" and not method.is_ranked:
        _refuse("Only the features 'textrank' have the weights 'rank'.")
    bits = hashes.BITS[method.hash]
    if bits < method.width:
        wider_hashes = ", ".join(name for name, has in hashes.BITS.items() if has >= method.width)
        _refuse(
            f"The hash {method.hash!r} has {bits} bits, and the fingerprint {method.width}: use "
            f"{method.projection}:{bits} or a wider hash ({wider_hashes})."
        )


def _check_feature(feature: Feature) -> None:
    longest = {
        "chars": hashes.CHARACTERS_MAX,
        "shingles": SHINGLE_MAX,
        "keywords": KEYWORDS_MAX,
        "textrank": KEYWORDS_MAX,
    }
    if not 1 <= feature.length <= longest.get(feature.name, 2):
        _refuse(
            f"The features {feature} are not possible: their number is from 1 to "
            f"{longest.get(feature.name, 2)}."
        )
    if not 1 <= feature.scale <= SCALE_MAX or (feature.scale > 1 and feature.name not in RUNS):
        _refuse(
            f"The features {feature} are not possible: a scale is from 1 to {SCALE_MAX}, and not "
            "of keywords or vectors."
        )


def _number(stage: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        _refuse(f"The stage {stage} of a recipe has {text[:40]!r} where a whole number is needed.")
    return int(text)


def _parse_feature(text: str) -> Feature:
    written, star, scale = text.partition("*")
    name, colon, length = written.partition(":")
    known = {
        "words": 1,
        "bigrams": 2,
        "shingles": 3,
        "chars": 4,
        "keywords": 22,
        "textrank": 22,
        VECTOR: 1,
    }
    if name not in known:
        _nearest("features", name, known)
    if colon and name in {"words", "bigrams", VECTOR}:
        _refuse(
            f"The features {name!r} take no number; write shingles:{length[:10]} for runs of that "
            "length."
        )
    return Feature(
        name,
        _number("features", length) if colon else known[name],
        _number("features", scale) if star else 1,
    )


def _need_one(stage: str, terms: Sequence[str], known: Iterable[str]) -> str:
    if len(terms) != 1:
        _refuse(f"The stage {stage} of a recipe takes one name, and has {' '.join(terms)[:60]!r}.")
    names = list(known)
    if terms[0] not in names:
        _nearest(stage, terms[0], names)
    return terms[0]


def parse(text: str) -> RecipeMethod:
    """Parse a recipe: a preset, a preset and a width, or all stages.

    Raises:
        ConfigurationError: there is no such recipe; the message suggests the nearest name.
    """
    wanted = " ".join(text.lower().split())
    stages = [stage.split() for stage in wanted.split("|")]
    if len(stages) == 1:
        return _preset(wanted)
    if len(stages) != len(STAGES):
        _refuse(f"A recipe has {len(STAGES)} stages, and {text.strip()[:60]!r} has {len(stages)}.")
    normalise, features, weights, hash_name, projection = stages
    for step in normalise:
        if step not in {"raw", *STEPS}:
            _nearest("normalise", step, ("raw", *STEPS))
    if (
        not normalise
        or ("raw" in normalise and len(normalise) > 1)
        or len(set(normalise)) < len(normalise)
    ):
        _refuse(
            "The stage normalise of a recipe is raw alone, or some of nfkc, case, space, "
            "punctuation, spelling, each once."
        )
    written = _need_one("projection", projection, projection[:1])
    kind, *numbers = written.split(":")
    if kind not in {"signs", "planes"}:
        _nearest("projection", kind, ("signs", "planes"))
    if not 1 <= len(numbers) <= (2 if kind == "planes" else 1):
        _refuse(f"The projection {written[:40]!r} is not complete: write {kind}:128.")
    seed = _number("projection", numbers[1]) if len(numbers) == 2 else 0
    if seed > SEED_MAX:
        _refuse(f"The seed of the planes is at most {SEED_MAX}, not {seed}.")
    return RecipeMethod(
        tuple(step for step in STEPS if step in normalise),
        tuple(map(_parse_feature, features)),
        _need_one("weights", weights, WEIGHTS),
        _need_one("hash", hash_name, (*hashes.BITS, "none")),
        kind,
        _number("projection", numbers[0]),
        seed,
    )


def _preset(wanted: str) -> RecipeMethod:
    name, colon, width = wanted.partition(":")
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "look at the names."
        _refuse(f"There is no recipe {wanted[:60]!r}; {hint}")
    method = PRESETS[name]
    return replace(method, width=_number("projection", width)) if colon else method


def name_of(method: RecipeMethod) -> str:
    """Return the name of the preset that equals a method, at any width; else `custom`."""
    return next(
        (name for name, preset in PRESETS.items() if _but_width(preset) == _but_width(method)),
        "custom",
    )


def _but_width(method: RecipeMethod) -> tuple[object, ...]:
    return (
        method.steps,
        method.features,
        method.weights,
        method.hash,
        method.projection,
        method.seed,
    )


def _presets() -> dict[str, RecipeMethod]:
    # `PRESETS` exists before it is filled: a parse error lists its names.
    texts = {
        "words": "nfkc case space spelling | words bigrams*2 | log | keyed | signs:128",
        "chars": "nfkc case space spelling | chars:4 | log | keyed | signs:128",
        "shingles": "nfkc case space spelling | shingles:3 | log | keyed | signs:128",
        "keywords": "raw | keywords:22 | tfidf | fnv1a | signs:64",
        "textrank": "raw | textrank:22 | rank | fnv1a | signs:64",
        "vector": "raw | vector | value | none | planes:128",
    }
    return {name: parse(text) for name, text in texts.items()}


PRESETS: Final[dict[str, RecipeMethod]] = {}
PRESETS.update(_presets())
