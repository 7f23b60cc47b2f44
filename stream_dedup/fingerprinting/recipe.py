"""Define recipes of fingerprints, and compute the fingerprints of a batch.

Invariants: a fingerprint depends only on the text (or vector) and the recipe, not on the rest of
the batch or on the thread; recipes are equal if and only if their ids are, and fingerprints of
unequal recipes are never compared. Everything that changes a fingerprint (stages, rules, character
tables, dictionary and model, key, width) is digested into the id, and so is the floor, because it
decides which fingerprints are compared.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.argument_types import checked
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.presets import DEFAULT, OF_CHARACTERS, PRESETS, PYPI, RecipeMethod
from stream_dedup.domain.presets import parse as parse_preset
from stream_dedup.domain.sketch import SKETCH_BYTES
from stream_dedup.fingerprinting import (
    canary,
    characters,
    hashes,
    jieba_cut,
    jieba_data,
    simhash,
    sketch,
    spellings,
)
from stream_dedup.fingerprinting.characters import Batch
from stream_dedup.fingerprinting.features import RANK_UNIT, find_keywords, find_runs
from stream_dedup.fingerprinting.key import PUBLIC_DEMO_KEY, check_key
from stream_dedup.fingerprinting.languages import Languages
from stream_dedup.fingerprinting.normalise import clean_batch, normalise_batch
from stream_dedup.fingerprinting.prints import (
    Cutting,
    Results,
    Secrets,
    Texts,
    Weighing,
    fingerprint_batch,
)
from stream_dedup.fingerprinting.variants import keywords
from stream_dedup.fingerprinting.variants import vectors as projection
from stream_dedup.fingerprinting.variants.vectors import Vector, as_vector

# Raise this with any change of the code that changes a fingerprint or a digest; the digests of data
# files are part of the id.
RULES_VERSION = 3
DIGEST_BYTES = 16

Content: TypeAlias = str | Vector


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Recipe:
    """The definition of fingerprints: the method, the key, the floor of distinct features, and the
    language settings.
    """

    method: RecipeMethod
    key: bytes = field(repr=False)
    floor: int
    languages: Languages

    def __init__(
        self,
        preset: str = DEFAULT,
        *,
        width: int | None = None,
        key: bytes = PUBLIC_DEMO_KEY,
        floor: int | None = None,
        languages: Languages | None = None,
    ) -> None:
        """Create the recipe `preset`: a name, or a name and a width, such as `chars:64`.

        None selects the width or floor of the preset, or the default languages.

        Raises:
            ConfigurationError: there is no such recipe, the key is invalid, or the recipe cannot
                use a language setting.
        """
        checked(preset, str, "A recipe", "a text, such as 'words'")
        method = parse_preset(preset if width is None else f"{preset}:{width}")
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "key", checked(key, bytes, "A fingerprint key", "bytes"))
        object.__setattr__(
            self,
            "floor",
            method.floor if floor is None else checked(floor, int, "A floor", "a whole number"),
        )
        if not 1 <= self.floor < 1 << 32:
            raise ConfigurationError(
                f"The floor (minimum number of features) cannot be {self.floor}: use 1 or more."
            )
        languages = (
            Languages()
            if languages is None
            else checked(languages, Languages, "The language settings", "Languages")
        )
        object.__setattr__(self, "languages", languages)
        check_key(key, "The fingerprint key")
        _check_languages(self.id, method, self.languages)

    @property
    def width(self) -> int:
        """Number of bits of a fingerprint."""
        return self.method.width

    @property
    def limbs(self) -> int:
        """Number of limbs of 64 bits of a fingerprint."""
        return -(-self.width // 64)

    @property
    def sketch_bytes(self) -> int:
        """Number of bytes of a sketch: 120, or 0 if the recipe makes no sketches."""
        return SKETCH_BYTES if self.method.cuts_words else 0

    @property
    def id(self) -> str:
        """Name that is stored with every fingerprint, such as `words:128:jieba-0.42.1:1f3a9c`: method,
        width, the data that cut texts into features, and a digest.
        """
        hasher = hashlib.blake2b(digest_size=3, person=b"recipe id")
        parts = [
            str(RULES_VERSION).encode(),
            hashlib.blake2b(self.key, digest_size=16, person=b"key id").digest(),
            str(self.floor).encode(),
            characters.digest(),
            jieba_data.ENGINE_DIGEST,
        ]
        # Not for the default preset, so that its ids in existing logs stay equal.
        if self.method != PRESETS[DEFAULT]:
            parts += [str(self.method).encode(), keywords.DATA_DIGEST]
        if self.method.cuts_words:
            parts.append(sketch.RULES)
        if self.method.is_batched:
            parts.append(spellings.digest())
        if self.languages != Languages():
            parts.append(self.languages.digest)
        for part in parts:
            hasher.update(len(part).to_bytes(2, "little") + part)
        data = {
            "vector": "planes",
            "chars": f"unicode-{characters.UNICODE_VERSION}",
            PYPI: "md5",
        }
        engine = data.get(self.method.name, jieba_data.ENGINE)
        return f"{self.method.name}:{self.width}:{engine}:{hasher.hexdigest()}"

    @property
    def uses_demo_key(self) -> bool:
        """Whether the key is the public demo key, which deserves a warning."""
        return self.key == PUBLIC_DEMO_KEY

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Recipe) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)


def as_recipe(recipe: Recipe | str | None, default: str = DEFAULT) -> Recipe:
    """Return a recipe from a `Recipe` or its text, or `default` for None.

    Raises:
        ConfigurationError: there is no such recipe.
        InputError: `recipe` is neither a recipe nor a text.
    """
    if recipe is None or isinstance(recipe, str):
        return Recipe(default if recipe is None else recipe)
    return checked(recipe, Recipe, "A recipe", "a Recipe or its string, such as 'words'")


def _check_languages(recipe: str, method: RecipeMethod, languages: Languages) -> None:
    """Raise ConfigurationError for language settings that a method would ignore."""
    unused = []
    if not (method.cuts_words or method.ranks_words):
        unused += ["a user dictionary"] if languages.user_words else []
        unused += ["stop words"] if languages.stop_words else []
    if method.takes_vectors and languages.fold_han:
        unused.append("Han variants")
    if unused:
        raise ConfigurationError(
            f"The recipe {recipe} does not use {' and '.join(unused)}: choose a recipe that "
            "splits words, or remove the setting."
        )


@dataclass(frozen=True, slots=True, eq=False)
class Prints:
    """Fingerprints of a batch, one row for each text.

    `prints`: (n, width / 64 rounded up), the low 64 bits first. `sketches`: (n, 120), or (n, 0) if
    the recipe has none. `features`: (n,), the number of distinct features (of a vector: numbers
    that are not zero); below the recipe's floor only digests are compared. `digests`: (n, 16),
    keyed, of the normalised text or of the vector's numbers. `empty`: (n,), whether the normalised
    text or the vector is empty.
    """

    prints: NDArray[np.uint64]
    sketches: NDArray[np.uint8]
    features: NDArray[np.uint32]
    digests: NDArray[np.uint8]
    empty: NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: Sequence[Prints]) -> Prints:
        """Concatenate the fingerprints of several batches."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__)
        )

    def of_rows(self, rows: NDArray[np.intp]) -> Prints:
        """Return the fingerprints of some rows, in the order of `rows`."""
        return Prints(*(getattr(self, name)[rows] for name in self.__slots__))

    def __len__(self) -> int:
        return len(self.features)


class Fingerprinter:
    """Compute the fingerprints of a recipe; threads may share it, and it works outside the GIL for
    most of the time.

    Recipes of keywords hold the GIL in jieba's Python code and in the hash functions of libraries.
    """

    def __init__(self, recipe: Recipe) -> None:
        """Read the dictionary, load the compiled kernels, and compare the canary's fingerprints
        with the frozen ones.

        Raises ConfigurationError if jieba or another library changed under the same version.
        """
        _check_canary(canary.stages(recipe.method))
        self.recipe = recipe
        self._fingerprinter = _MethodFingerprinter(recipe.method, recipe.key, recipe.languages)

    def fingerprint(self, contents: Sequence[Content]) -> Prints:
        """Fingerprint a batch of texts, or of vectors if the recipe takes them: one row each, in
        their order.

        Raises ConfigurationError for texts if the recipe takes vectors, and for vectors if it takes
        texts.
        """
        takes_vectors = self.recipe.method.takes_vectors
        if any(isinstance(content, str) is takes_vectors for content in contents):
            wanted, actual = ("vectors", "a text") if takes_vectors else ("texts", "a vector")
            raise ConfigurationError(
                f"The recipe {self.recipe.id} expects {wanted}, but {actual} was given."
            )
        if takes_vectors:
            return self._fingerprinter.fingerprint_vectors(cast("Sequence[Vector]", contents))
        return self._fingerprinter.fingerprint_texts(cast("Sequence[str]", contents))

    def fingerprint_vectors(
        self, vectors: NDArray[np.floating[Any]] | Sequence[NDArray[np.floating[Any]]]
    ) -> Prints:
        """Fingerprint vectors, (n, d) float32 or float64, or rows of unequal length: one row each,
        in their order.

        Raises:
            ConfigurationError: the recipe takes texts.
            InputError: a vector is not a row of finite numbers.
        """
        return self.fingerprint([as_vector(vector) for vector in vectors])


def _digest_each(keyed: hashlib.blake2b, parts: Iterable[bytes | memoryview]) -> NDArray[np.uint8]:
    """Return the digest of each part, (n, 16); `keyed` has hashed the key and nothing else."""
    digests = bytearray()
    for part in parts:
        # The key is hashed as a block before the part: the copy saves hashing it again.
        digest = keyed.copy()
        digest.update(part)
        digests += digest.digest()
    return np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES)


class _MethodFingerprinter:
    """Compute the fingerprints of a method under a key, without checking the canary."""

    def __init__(self, method: RecipeMethod, key: bytes, languages: Languages) -> None:
        self._method = method
        self._languages = languages.spelt() if method.is_batched else languages
        # Texts that are cut into words need no such step: cutting folds spelling variants.
        self._spells_texts = any(kind == OF_CHARACTERS for kind, _, _ in method.runs)
        if method.cuts_words:
            _ = self._languages.dictionary  # read it now, not with the first batch
        digest_key = hashlib.blake2b(key, person=b"text digest").digest()
        self._text_digest = hashlib.blake2b(digest_size=DIGEST_BYTES, key=digest_key)
        self._vector_digest = hashlib.blake2b(
            digest_size=DIGEST_BYTES, key=digest_key, person=b"vector digest"
        )
        self._secrets = Secrets(hashes.derive_secrets(key), hashes.derive_character_secrets(key))
        self._plane_secrets = projection.derive_plane_secrets(key)
        self._limbs = -(-method.width // 64)
        self._sketch_secrets = sketch.derive_sketch_secrets(key)
        groups = np.array(method.runs, np.int64)
        self._weighing = Weighing(groups, simhash.WEIGHTS, method.width)

    def make_forms(self, texts: Sequence[str]) -> tuple[Batch, Batch]:
        """Return the normalised texts, for the digests, and the form that features are taken from:
        jieba finds keywords in the text as it is written.
        """
        fold_han = self._languages.fold_han
        normalised = normalise_batch(texts, fold_han=fold_han)
        if self._method.is_ranked:
            return normalised, clean_batch(texts, fold_han=fold_han)
        return normalised, (spellings.fold_batch(*normalised) if self._spells_texts else normalised)

    def explain(self, text: str) -> dict[str, float]:
        """Return the readable features of a text with their weights."""
        _, (data, bounds) = self.make_forms([text])
        form = data[: bounds[-1]].tobytes()
        if not self._method.is_ranked:
            return find_runs(form, self._method, self._languages)
        names, weights = find_keywords(form, self._method, self._languages)
        shares = (weights / RANK_UNIT).tolist()
        return dict(zip((name.decode() for name in names), shares, strict=True))

    def fingerprint_texts(self, texts: Sequence[str]) -> Prints:
        (normalised, offsets), (data, bounds) = self.make_forms(texts)
        edges = itertools.pairwise(offsets.tolist())
        # Computed first, because `fingerprint_batch` folds spelling variants in place.
        digests = _digest_each(
            self._text_digest, (normalised.data[start:stop] for start, stop in edges)
        )
        prints = np.zeros((len(texts), self._limbs), np.uint64)
        sketching = sketch.sketching(
            self._sketch_secrets, len(texts), is_wanted=self._method.cuts_words
        )
        features = np.zeros(len(texts), np.uint32)
        if self._method.is_batched:
            dictionary = (
                self._languages.dictionary if self._method.cuts_words else jieba_data.dictionary()
            )
            scratch = jieba_cut.scratch()
            fingerprint_batch(
                Texts(data, bounds),
                Cutting(
                    characters.table(), spellings.spelling_table(folded=True), dictionary, scratch
                ),
                self._secrets,
                self._weighing,
                Results(prints, features, sketching),
            )
        else:
            for row, (start, stop) in enumerate(itertools.pairwise(bounds.tolist())):
                form = data[start:stop].tobytes()
                names, weights = find_keywords(form, self._method, self._languages)
                features[row] = len(names)
                hash_of = hashes.md5 if self._method.name == PYPI else hashes.fnv1a
                hashed = simhash.in_halves(map(hash_of, names))
                simhash.sum_hashes(hashed, weights, self._method.width, prints[row])
        return Prints(prints, sketching.rows, features, digests, offsets[1:] == offsets[:-1])

    def fingerprint_vectors(self, vectors: Sequence[Vector]) -> Prints:
        bounds = np.zeros(len(vectors) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, vectors), np.int64, len(vectors)), out=bounds[1:])
        numbers = np.concatenate([np.empty(0, np.float64), *vectors])
        prints = np.zeros((len(vectors), self._limbs), np.uint64)
        projection.project_vectors(
            numbers,
            bounds,
            self._plane_secrets,
            projection.NORMAL_LEVELS,
            self._method.width,
            prints,
        )
        features = np.fromiter(
            (np.count_nonzero(vector) for vector in vectors), np.uint32, len(vectors)
        )
        digests = _digest_each(
            self._vector_digest, (vector.astype("<f8").tobytes() for vector in vectors)
        )
        return Prints(
            prints,
            np.zeros((len(vectors), 0), np.uint8),
            features,
            digests,
            bounds[1:] == bounds[:-1],
        )


def canary_digest(stage: str) -> str:
    """Return a short digest of a stage's result for the canary texts or vectors, under the public
    demo key.
    """
    if stage == "weights":
        content = simhash.WEIGHTS.astype("<i4").tobytes()
    elif stage == "normalised texts":
        data, offsets = normalise_batch(canary.TEXTS)
        content = data[: offsets[-1]].tobytes() + offsets.astype("<i8").tobytes()
    elif stage == "planes":
        content = projection.NORMAL_LEVELS.astype("<i4").tobytes()
    else:
        of_default = stage in {"fingerprints", "digests", "sketches"}
        preset = DEFAULT if of_default else stage.split(maxsplit=1)[0]
        fingerprinter = _MethodFingerprinter(PRESETS[preset], PUBLIC_DEMO_KEY, Languages())
        result = (
            fingerprinter.fingerprint_vectors(canary.vectors())
            if preset == "vector"
            else fingerprinter.fingerprint_texts(canary.TEXTS)
        )
        bits = result.prints.astype("<u8").tobytes() + result.features.astype("<u4").tobytes()
        parts = {"digests": result.digests.tobytes(), "sketches": result.sketches.tobytes()}
        content = parts.get(stage, bits)
    return hashlib.blake2b(content, digest_size=8).hexdigest()


@cache
def _check_canary(stages: tuple[str, ...]) -> None:
    for stage in stages:
        if canary_digest(stage) != canary.FROZEN[stage]:
            raise ConfigurationError(
                f"The {stage} of the canary texts differ from those recorded in this version of "
                "stream-dedup, so new fingerprints could not be compared with those in the log: "
                "numba, numpy, jieba or Python computes different results. Install the versions "
                "of requirements.lock; if they are installed, please report this bug."
            )


def number_of(row: Sequence[int] | NDArray[np.uint64]) -> int:
    """Return a fingerprint, given as numbers of 64 bits, lowest first, as one number."""
    return sum(int(word) << 64 * place for place, word in enumerate(row))


def width_of(recipe_id: str, limbs: int) -> int:
    """Return the width of a recipe's fingerprints in bits, from its id; 64 for each limb if the id
    does not contain the width.
    """
    parts = recipe_id.rsplit(":", 3)
    stated_width = (
        int(parts[1]) if len(parts) == 4 and parts[1].isascii() and parts[1].isdigit() else 0
    )
    return stated_width if 0 < stated_width <= 64 * limbs else 64 * limbs


def format_prints(prints: NDArray[np.uint64], width: int) -> list[bytes]:
    """Return fingerprints (n, limbs), low limb first, as width / 4 lower-case hexadecimal digits,
    high bits first.
    """
    row_digits, digit_count = 16 * prints.shape[1], width // 4
    hexadecimal = prints[:, ::-1].astype(">u8").tobytes().hex().encode()
    return [
        hexadecimal[stop - digit_count : stop]
        for stop in range(row_digits, len(hexadecimal) + 1, row_digits)
    ]


def explain_features(recipe: Recipe, content: Content) -> dict[str, float]:
    """Return the readable features of a text with their weights; a bigram is two words with a space
    between them.

    A word that occurs once has the weight 1; keywords have the weights of `jieba.analyse`. Two
    texts share the features that both results contain. The features of a vector are its
    numbers, by their index: `#0`, `#1` and so on.
    """
    if not isinstance(content, str):
        return {f"#{place}": float(number) for place, number in enumerate(content) if number}
    if recipe.method.takes_vectors:
        raise ConfigurationError(f"The recipe {recipe.id} expects vectors, but a text was given.")
    return _MethodFingerprinter(recipe.method, recipe.key, recipe.languages).explain(content)
