"""What a recipe can be told about languages: a user's words for jieba, stop words, a segmenter, one
Han for two.

Invariants: everything here is part of the recipe, by its digest, unless it is left at its default;
what is given but cannot be used is an error when the recipe is made, never a silent default.

The two files are UTF-8, a word a line, read as texts are (`normalise`), so that they match what is
looked up:

- the user's dictionary has jieba's format, `word [frequency] [tag]`, and jieba's meaning, within runs of Han;
- the stop list has a word a line, and `#` begins a comment. What a line holds is split at separators as texts are
  (`don't` stops `don` and `t`); Han is taken as it stands.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.fingerprinting import characters, jieba_data, spellings, tokens
from stream_dedup.fingerprinting.characters import KIND_BITS, SEPARATOR, SPACE
from stream_dedup.fingerprinting.jieba_data import Dictionary, UserWord
from stream_dedup.fingerprinting.normalise import normalise
from stream_dedup.fingerprinting.variants import han as variants
from stream_dedup.fingerprinting.variants import segmenter

Segmenter = Literal["pairs", "icu"]
HanVariants = Literal["distinct", "same"]
Entry = TypeVar("Entry")

# jieba's, but for words with white space in them.
_USER_LINE = re.compile(r"(\S+)(?:[ \t]+([0-9]{1,13}))?(?:[ \t]+([a-z]+))?\Z")
_FREQUENCY_MAX = 1 << 40  # a million such words still add up within 63 bits


@dataclass(frozen=True)
class Languages:
    """How texts are split beyond the rules that are the same for everybody; the default changes
    nothing.

    `user_words`: in the file's order, on which jieba's suggested frequencies depend. `segmenter`:
    `pairs` takes every two neighbours of an unspaced script for a word; `icu` has ICU's
    dictionaries cut Japanese, Thai, Lao, Khmer and Burmese. `han_variants`: whether traditional and
    simplified Han are `distinct`, or the `same`.
    """

    user_words: tuple[UserWord, ...] = ()
    stop_words: frozenset[str] = frozenset()
    segmenter: Segmenter = "pairs"
    han_variants: HanVariants = "distinct"

    @property
    def is_default(self) -> bool:
        """Whether nothing is changed, and so the recipe's id is that of the recipe alone."""
        return self == Languages()

    @property
    def fold_han(self) -> bool:
        """Whether normalising turns traditional Han into simplified."""
        return self.han_variants == "same"

    @cached_property
    def engine(self) -> str:
        """What cuts words, for the recipe's name: `jieba-0.42.1`, or `jieba-0.42.1+icu-78.3`.

        Raises ConfigurationError if the segmenter is not installed.
        """
        return (
            jieba_data.ENGINE
            if self.segmenter == "pairs"
            else f"{jieba_data.ENGINE}+{segmenter.version()}"
        )

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that name all of it."""
        made = hashlib.blake2b(digest_size=16, person=b"languages")
        for part in (
            "".join(map(_line_of, self.user_words)).encode(),
            "".join(f"{word}\n" for word in sorted(self.stop_words)).encode(),
            self.engine.encode(),
            variants.digest() if self.fold_han else b"",
        ):
            made.update(len(part).to_bytes(8, "little") + part)
        return made.digest()

    @cached_property
    def dictionary(self) -> Dictionary:
        """What the kernels cut Han and leave out words by.

        Raises ConfigurationError if jieba is missing or another than in the recipe's name.
        """
        if not self.user_words and not self.stop_words:
            return jieba_data.dictionary()
        return jieba_data.make_dictionary(self.user_words, self.stop_words)

    def folded(self) -> Languages:
        """Return the same for texts after the step `spelling`: stop words are spelt as the texts
        then are.
        """
        if not self.stop_words:
            return self
        return replace(self, stop_words=frozenset(map(spellings.fold, self.stop_words)))

    def marks(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> NDArray[np.uint8] | None:
        """Return where the segmenter finds words in normalised texts, for `jieba_cut.scratch`; None
        if there is none.
        """
        return None if self.segmenter == "pairs" else segmenter.mark_words(data, offsets)

    def words(self, text: str) -> list[str]:
        """Return the words of a text, in text order."""
        data = normalise(text, fold_han=self.fold_han).encode()
        return [data[start:stop].decode() for start, stop in self.spans(data)]

    def spans(self, normalised: bytes) -> list[tuple[int, int]]:
        """Return where the words of a normalised text in UTF-8 begin and end, in text order."""
        data = np.frombuffer(normalised, np.uint8)
        return tokens.spans(normalised, self.dictionary, self.marks(data, np.array([0, len(data)])))


def load_languages(
    user_dictionary: Path | None = None,
    stop_words: Path | None = None,
    segmenter: Segmenter = "pairs",  # the setting's name, too
    han_variants: HanVariants = "distinct",
) -> Languages:
    """Return what the settings ask for.

    Raises ConfigurationError, with the number of the line, for a file that cannot be read or used.
    """
    fold_han = han_variants == "same"

    def user_word(line: str) -> Iterator[UserWord]:
        found = _USER_LINE.match(line)
        if found is None:
            raise ValueError(
                "must be `word [frequency] [tag]`, with a whole number and a tag of small letters"
            )
        word, frequency = found[1], found[2]
        if frequency is not None and int(frequency) > _FREQUENCY_MAX:
            raise ValueError(f"has a frequency above {_FREQUENCY_MAX}")
        normalised = normalise(word, fold_han=fold_han)
        if not normalised or " " in normalised:
            raise ValueError("holds no word once it is normalised")
        yield UserWord(normalised, None if frequency is None else int(frequency), found[3])

    def stopped(line: str) -> Iterator[str]:
        found = list(_parts(normalise(line.split("#", 1)[0], fold_han=fold_han)))
        if not found and line.split("#", 1)[0].strip():
            raise ValueError("holds no letter or digit, and only words are ever counted")
        yield from found

    return Languages(
        tuple(_entries(user_dictionary, "user dictionary", user_word)),
        frozenset(_entries(stop_words, "list of stop words", stopped)),
        segmenter,
        han_variants,
    )


def _line_of(one: UserWord) -> str:
    tag = "" if one.tag is None else f"\t{one.tag}"
    return f"{one.word}\t{'' if one.frequency is None else one.frequency}{tag}\n"


def _parts(normalised: str) -> Iterator[str]:
    """Yield the parts of a line between separators and where the kind of script changes."""
    kinds = characters.table()
    for kind, run in itertools.groupby(
        normalised, lambda character: int(kinds[ord(character)]) & KIND_BITS
    ):
        if kind not in {SEPARATOR, SPACE}:
            yield "".join(run)


def _entries(
    path: Path | None, what: str, parse: Callable[[str], Iterator[Entry]]
) -> Iterator[Entry]:
    """Yield what `parse` makes of every line that is not blank."""
    if path is None:
        return
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"The {what} {path} cannot be read ({error.strerror}): name a readable file."
        ) from error
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        try:
            line = raw.decode().strip()
            if line:
                yield from parse(line)
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"Line {number} of the {what} {path} is not UTF-8: save the file as UTF-8."
            ) from error
        except ValueError as error:
            raise ConfigurationError(
                f"Line {number} of the {what} {path} {error}: correct the line or remove it."
            ) from error
