"""Texts -> prints: the recipe that names how, and the fingerprinter that does it.

Invariants: a print is a function of the text and the recipe alone, whatever other texts stand in the batch, whichever
thread asks; recipes are equal if and only if their ids are, and prints of unequal recipes are never compared. Whatever
changes a print (rules, character tables, dictionary and model, key, width) is digested into the id, and so is the
floor, because it decides which prints are compared at all.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from stream_dedup.errors import ConfigurationError
from stream_dedup.fingerprint import canary, characters, simhash, tokens
from stream_dedup.fingerprint.key import PUBLIC_DEMO_KEY, check_key
from stream_dedup.fingerprint.languages import Languages
from stream_dedup.fingerprint.normalise import normalise_batch

# Raise this with any change of the code that changes a print or a digest; data files digest themselves into the id.
RULES_VERSION = 1
DIGEST_BYTES = 16

# Distinct words and bigrams below which a print says too little: distinct ones, because they decide how far one edit
# moves a print, while repetition adds length and no knowledge. Measured on windows of running text in nine languages
# with one word replaced: at 10 words (19 features) such pairs have Jaccard 0.45, and one in twenty would be taken; at 25
# words (48 features) they have 0.77; from 29 words on they are duplicates. In scripts with spaces a text of 12 words has
# at most 23 features and one of 40 words has 55 to 79; Japanese and Thai come to 48 at 25 to 36 characters.
FLOOR = 48


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How prints are made: preset, width in bits, key, the floor of distinct features, and what is said about languages."""

    preset: str = "words"
    width: int = simhash.WIDTH
    key: bytes = field(default=PUBLIC_DEMO_KEY, repr=False)
    floor: int = FLOOR
    languages: Languages = field(default_factory=Languages)

    def __post_init__(self) -> None:
        if self.preset != "words":
            raise ConfigurationError(f"There is no recipe {self.preset!r}: use 'words'.")
        if self.width != simhash.WIDTH:
            raise ConfigurationError(f"The recipe 'words' makes prints of {simhash.WIDTH} bits, not of {self.width}.")
        if not 0 <= self.floor < 1 << 32:
            raise ConfigurationError(f"The floor of features cannot be {self.floor}: use 0 or more.")
        check_key(self.key, "The fingerprint key")
        _ = self.languages.engine  # raises if the segmenter is missing

    @property
    def id(self) -> str:
        """The name that travels with every print, such as `words:128:jieba-0.42.1:1f3a9c`."""
        everything = hashlib.blake2b(digest_size=3, person=b"recipe id")
        for part in (
            str(RULES_VERSION).encode(),
            hashlib.blake2b(self.key, digest_size=16, person=b"key id").digest(),
            str(self.floor).encode(),
            characters.digest(),
            tokens.ENGINE_DIGEST,
            *(() if self.languages.is_default else (self.languages.digest,)),
        ):
            everything.update(len(part).to_bytes(2, "little") + part)
        return f"{self.preset}:{self.width}:{self.languages.engine}:{everything.hexdigest()}"

    @property
    def uses_demo_key(self) -> bool:
        """Whether the key is the public one: a warning is due."""
        return self.key == PUBLIC_DEMO_KEY

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Recipe) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True, slots=True, eq=False)
class Prints:
    """Fingerprints of a batch, one row a text.

    `prints`: (n, 2), the low 64 bits, then the high ones. `features`: (n,), distinct words and bigrams; below the
    recipe's floor only the digest counts. `digests`: (n, 16), keyed, of the normalised text. `empty`: (n,), whether
    normalising left nothing.
    """

    prints: NDArray[np.uint64]
    features: NDArray[np.uint32]
    digests: NDArray[np.uint8]
    empty: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.features)


class Fingerprinter:
    """Makes the prints of one recipe; may be shared by threads, and works outside the GIL for most of its time."""

    def __init__(self, recipe: Recipe) -> None:
        """Read the dictionary, load the compiled kernels, and see that they still give the prints they gave.

        Raises ConfigurationError if jieba or another library changed under the same version.
        """
        _check_canary()
        self.recipe = recipe
        self._keyed = _Keyed.by(recipe.key)
        _ = recipe.languages.dictionary  # read now, not with the first batch

    def fingerprint(self, texts: Sequence[str]) -> Prints:
        """Fingerprint a batch of texts: one row a text, in their order."""
        languages = self.recipe.languages
        return _fingerprint(*normalise_batch(texts, fold_han=languages.fold_han), self._keyed, languages)


@dataclass(frozen=True, slots=True)
class _Keyed:
    """What a key becomes: the kernels' secrets, and the beginning of every text digest (keyed BLAKE2b-128)."""

    secrets: NDArray[np.uint64]
    digest: hashlib.blake2b

    @classmethod
    def by(cls, key: bytes) -> _Keyed:
        digest_key = hashlib.blake2b(key, person=b"text digest").digest()
        return cls(simhash.derive_secrets(key), hashlib.blake2b(digest_size=DIGEST_BYTES, key=digest_key))


def _fingerprint(data: NDArray[np.uint8], offsets: NDArray[np.int64], keyed: _Keyed, languages: Languages) -> Prints:
    """Fingerprint normalised texts: their UTF-8 one after another, and (n + 1,) where each begins."""
    count = len(offsets) - 1
    prints = np.zeros((count, 2), np.uint64)
    features = np.zeros(count, np.uint32)
    simhash.fingerprint_batch(
        data,
        offsets,
        characters.table(),
        languages.dictionary,
        tokens.scratch(languages.marks(data, offsets)),
        keyed.secrets,
        simhash.WEIGHTS,
        prints,
        features,
    )
    content = data.data
    digests = []
    for start, stop in itertools.pairwise(offsets.tolist()):
        digest = keyed.digest.copy()
        digest.update(content[start:stop])
        digests.append(digest.digest())
    rows = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)
    return Prints(prints, features, rows, offsets[1:] == offsets[:-1])


def canary_digests() -> dict[str, str]:
    """Return a short digest of each stage's result for the canary texts, under the public demo key."""
    data, offsets = normalise_batch(canary.TEXTS)
    prints = _fingerprint(data, offsets, _Keyed.by(PUBLIC_DEMO_KEY), Languages())
    stages = {
        "weights": simhash.WEIGHTS.astype("<i4").tobytes(),
        "normalised texts": data[: offsets[-1]].tobytes() + offsets.astype("<i8").tobytes(),
        "fingerprints": prints.prints.astype("<u8").tobytes() + prints.features.astype("<u4").tobytes(),
        "digests": prints.digests.tobytes(),
    }
    return {what: hashlib.blake2b(content, digest_size=8).hexdigest() for what, content in stages.items()}


@cache
def _check_canary() -> None:
    for what, digest in canary_digests().items():
        if digest != canary.FROZEN[what]:
            raise ConfigurationError(
                f"The {what} of the canary texts differ from those frozen with this version of stream-dedup, so new "
                "prints could not be compared with those in the log: a library (numba, numpy or Python itself) has "
                "changed. Install the versions of requirements.lock; if these are installed, report it."
            )


def hamming(a: Sequence[int] | NDArray[np.uint64], b: Sequence[int] | NDArray[np.uint64]) -> int:
    """Return in how many bits two prints (low half, high half) differ."""
    return (int(a[0]) ^ int(b[0])).bit_count() + (int(a[1]) ^ int(b[1])).bit_count()


def format_print(low: int, high: int) -> str:
    """Return a print as 32 lower-case hexadecimal digits, high half first."""
    return f"{int(high):016x}{int(low):016x}"


def format_prints(prints: NDArray[np.uint64]) -> list[bytes]:
    """Return prints (n, words), low word first, as lower-case hexadecimal digits, high word first."""
    digits = 16 * prints.shape[1]
    written = prints[:, ::-1].astype(">u8").tobytes().hex().encode()
    return [written[start : start + digits] for start in range(0, len(written), digits)]


def explain_features(recipe: Recipe, text: str) -> dict[str, float]:
    """Return the features of a text with their weights, readable: a bigram is its two words with a space between.

    A weight of 1 is that of a word that occurs once. What two texts share is what their dictionaries share.
    """
    words = recipe.languages.words(text)
    bigrams = (f"{first} {second}" for first, second in itertools.pairwise(words))
    weights: dict[str, float] = {}
    for features, scale in ((Counter(words), 1), (Counter(bigrams), simhash.BIGRAM_WEIGHT)):
        for feature, count in features.items():
            weights[feature] = scale * simhash.log_count_weight(count) / simhash.WEIGHT_ONE
    return weights
