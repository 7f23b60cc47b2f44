"""The language settings of a recipe: a user's words for jieba, stop words, and whether traditional and
simplified Han are equal.

Invariants: all settings are part of the recipe, by their digest, unless they are the defaults; a
setting that the recipe cannot use is an error when the recipe is made, never ignored.

The user's dictionary and the stop list are UTF-8 files, one word per line, normalised as texts are
(`normalise`), so their words match those of texts:

- the user's dictionary has jieba's format, `word [frequency] [tag]`, and jieba's meaning, within runs of Han;
- the stop list has a word per line, and `#` begins a comment. A line is split at separators as texts are
  (`don't` stops `don` and `t`); Han is not split.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.fingerprinting import characters, jieba_data, spellings, tokens
from stream_dedup.fingerprinting.characters import KIND_BITS, SEPARATOR, SPACE
from stream_dedup.fingerprinting.jieba_data import Dictionary, UserWord
from stream_dedup.fingerprinting.normalise import normalise
from stream_dedup.fingerprinting.variants import han as variants

Entry = TypeVar("Entry")

# jieba's format, except for words that contain white space.
_USER_LINE = re.compile(r"(\S+)(?:[ \t]+([0-9]{1,13}))?(?:[ \t]+([a-z]+))?\Z")
_FREQUENCY_MAX = 1 << 40  # a million such words still add up within 63 bits


@dataclass(frozen=True)
class Languages:
    """A user's changes to the way texts are split into words; the default changes nothing.

    `user_words`: in the file's order, on which jieba's suggested frequencies depend. `fold_han`:
    whether normalising turns traditional Han into simplified.
    """

    user_words: tuple[UserWord, ...] = ()
    stop_words: frozenset[str] = frozenset()
    fold_han: bool = False

    @cached_property
    def digest(self) -> bytes:
        """The digest of all settings: 16 bytes."""
        hasher = hashlib.blake2b(digest_size=16, person=b"languages")
        for part in (
            "".join(map(_line_of, self.user_words)).encode(),
            "".join(f"{word}\n" for word in sorted(self.stop_words)).encode(),
            jieba_data.ENGINE.encode(),
            variants.digest() if self.fold_han else b"",
        ):
            hasher.update(len(part).to_bytes(8, "little") + part)
        return hasher.digest()

    @cached_property
    def dictionary(self) -> Dictionary:
        """The dictionary and stop words for the kernels.

        Raises ConfigurationError if jieba is missing, or if its version is not the one in the
        recipe's name.
        """
        if not self.user_words and not self.stop_words:
            return jieba_data.dictionary()
        return jieba_data.make_dictionary(self.user_words, self.stop_words)

    def spelt(self) -> Languages:
        """Return the languages for texts after the step `spelling`: their stop words are spelt in
        the same way.
        """
        if not self.stop_words:
            return self
        return replace(self, stop_words=frozenset(map(spellings.fold, self.stop_words)))

    def words(self, text: str) -> list[str]:
        """Return the words of a text, in text order."""
        data = normalise(text, fold_han=self.fold_han).encode()
        return [data[start:stop].decode() for start, stop in self.spans(data)]

    def spans(self, normalised: bytes) -> list[tuple[int, int]]:
        """Return the (start, stop) byte positions of the words of a normalised text in UTF-8."""
        return tokens.cut(normalised, self.dictionary, folded=False)[1]

    def spelt_words(self, normalised: bytes) -> list[str]:
        """Return the words of a normalised text after the step `spelling`, in text order."""
        spelt, spans = tokens.cut(normalised, self.dictionary, folded=True)
        return [spelt[start:stop].decode() for start, stop in spans]


def load_languages(
    user_dictionary: Path | None = None,
    stop_words: Path | None = None,
    *,
    fold_han: bool = False,
) -> Languages:
    """Return the languages of the settings.

    Raises ConfigurationError, with the line number, for a file that cannot be read or used.
    """

    def parse_user_word(line: str) -> Iterator[UserWord]:
        match = _USER_LINE.match(line)
        if match is None:
            raise ValueError(
                "must be `word [frequency] [tag]`, with a whole number and a tag of small letters"
            )
        word, frequency = match[1], match[2]
        if frequency is not None and int(frequency) > _FREQUENCY_MAX:
            raise ValueError(f"has a frequency above {_FREQUENCY_MAX}")
        normalised = normalise(word, fold_han=fold_han)
        if not normalised or " " in normalised:
            raise ValueError("contains no word after normalisation")
        yield UserWord(normalised, None if frequency is None else int(frequency), match[3])

    def parse_stop_words(line: str) -> Iterator[str]:
        words = list(_parts(normalise(line.split("#", 1)[0], fold_han=fold_han)))
        if not words and line.split("#", 1)[0].strip():
            raise ValueError("contains no letter or digit, so it cannot be a stop word")
        yield from words

    return Languages(
        tuple(_entries(user_dictionary, "user dictionary", parse_user_word)),
        frozenset(_entries(stop_words, "list of stop words", parse_stop_words)),
        fold_han,
    )


def _line_of(user_word: UserWord) -> str:
    tag = "" if user_word.tag is None else f"\t{user_word.tag}"
    return f"{user_word.word}\t{'' if user_word.frequency is None else user_word.frequency}{tag}\n"


def _parts(normalised: str) -> Iterator[str]:
    """Yield the parts of a line, split at separators and where the kind of script changes."""
    kinds = characters.table()
    for kind, run in itertools.groupby(
        normalised, lambda character: int(kinds[ord(character)]) & KIND_BITS
    ):
        if kind not in {SEPARATOR, SPACE}:
            yield "".join(run)


def _entries(
    path: Path | None, what: str, parse: Callable[[str], Iterator[Entry]]
) -> Iterator[Entry]:
    """Yield the entries that `parse` returns for every line that is not blank."""
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
