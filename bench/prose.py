"""Generate prose in nine languages from an abstract article: a list of sentences, each a frame with
values.

Invariants: every file of `languages/` has the same sections with the same number of entries and, for
each frame, the same slots, so that an article can be rendered in each language (a translation);
equal dice give equal articles on every Python, because only `random.Random.random` is used, the one
method whose sequence for a seed Python guarantees.

A file of `languages/` consists of sections. Lists (places, people, ...) contain entries separated by
`;`, with grammatical forms separated by `|`; other sections contain a text on each line. A slot
`{people2.1}` means: another entry of the list `people` than `{people}`, in its form 1. The numbers
avoid endings that require another plural in Russian or Arabic.
"""

from __future__ import annotations

import functools
import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from stream_dedup.domain.errors import FormatError

LANGUAGES = ("en", "de", "fr", "ru", "zh", "ja", "ar", "hi", "th")
HAN = ("zh", "ja")
WITHOUT_SPACES = (*HAN, "th")
SENTENCES_PER_PARAGRAPH = 4

LISTS = (
    *("host", "nav", "place", "site", "people", "thing", "part"),
    *("event", "reason", "work", "opinion", "manner", "month", "weekday"),
)
TEXTS = ("title", "aside", "frame", "footer", "short")
_NUMBERS = {
    "n": [number for number in range(15, 100) if number % 10 in (0, 5, 6, 7, 8, 9)],
    "m": [
        number
        for number in range(115, 1000)
        if number % 100 >= 15 and number % 10 in (0, 5, 6, 7, 8, 9)
    ],
    "year": list(range(1890, 2025)),
}
# The number of entries of a list that an article repeats; sentences draw from other lists in full.
_FOCUS_SIZES = {
    "place": 3,
    "site": 3,
    "people": 8,
    "thing": 9,
    "part": 5,
    "event": 5,
    "reason": 8,
    "work": 4,
    "opinion": 6,
}
_SLOT = re.compile(r"\{([a-z]+)(2?)(?:\.(\d))?\}")

T = TypeVar("T")


class Dice:
    """A seeded random generator with the same sequence on every Python."""

    def __init__(self, *seed: int | str) -> None:
        self.roll = random.Random(":".join(map(str, seed))).random  # noqa: S311 - reproducible texts, no secrets

    def below(self, count: int) -> int:
        """Return a uniform integer from 0 to count - 1."""
        return int(self.roll() * count)

    def pick(self, items: Sequence[T]) -> T:
        """Return a uniformly chosen item."""
        return items[self.below(len(items))]

    def pick_early(self, items: Sequence[T]) -> T:
        """Return an item chosen by Zipf's law: the k-th has the weight 1 / (k + 3)."""
        weights = _zipf_weights(len(items))
        return items[bisect_right(weights, self.roll() * weights[-1])]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in a random order (Fisher and Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result


@functools.cache
def _zipf_weights(count: int) -> list[float]:
    return list(accumulate(1 / (rank + 4) for rank in range(count)))


@dataclass(frozen=True, slots=True)
class Sentence:
    """A frame of a section with a value for each of its slots: a number, or the index of an entry in
    its list.
    """

    section: str
    frame: int
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Article:
    """An article independent of its language."""

    title: Sentence
    body: tuple[Sentence, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """A sentence with slots: their names in alphabetical order, and pieces of (text before the slot,
    index in slots, forms).
    """

    slots: tuple[str, ...]
    pieces: tuple[tuple[str, int, tuple[str, ...] | None], ...]
    end: str


class Language:
    """The words and frames of one language."""

    def __init__(self, code: str, source: str) -> None:
        self.code = code
        self._gap = "" if code in HAN else " "
        sections = _sections(code, source)
        self.lists = {
            name: [tuple(entry.split("|")) for line in sections[name] for entry in line.split("; ")]
            for name in LISTS
        }
        self.texts = {name: tuple(sections[name]) for name in TEXTS}
        self.frames = {
            name: [self._frame(line) for line in sections[name]]
            for name in ("title", "aside", "frame")
        }

    def _frame(self, line: str) -> Frame:
        matches = list(_SLOT.finditer(line))
        slots = tuple(sorted({match[1] + match[2] for match in matches}))
        pieces: list[tuple[str, int, tuple[str, ...] | None]] = []
        start = 0
        for match in matches:
            forms = (
                None if match[1] in _NUMBERS else self._forms(match[1], int(match[3] or 0), line)
            )
            pieces.append((line[start : match.start()], slots.index(match[1] + match[2]), forms))
            start = match.end()
        return Frame(slots, tuple(pieces), line[start:])

    def _forms(self, name: str, form: int, line: str) -> tuple[str, ...]:
        try:
            return tuple(entry[form] for entry in self.lists[name])
        except (KeyError, IndexError) as error:
            raise FormatError(
                f"languages/{self.code}.txt lacks form {form} of an entry of [{name}], asked for "
                f"in '{line}'; add it."
            ) from error

    def render(self, sentence: Sentence) -> str:
        """Render a sentence in this language."""
        frame = self.frames[sentence.section][sentence.frame]
        parts: list[str] = []
        for before, place, forms in frame.pieces:
            value = sentence.values[place]
            parts += (before, str(value) if forms is None else forms[value])
        text = "".join(parts) + frame.end
        return text[0].upper() + text[1:]

    def render_article(self, article: Article) -> str:
        """Render an article in this language: a title line and paragraphs, separated by blank
        lines.
        """
        sentences = [self.render(sentence) for sentence in article.body]
        starts = range(0, len(sentences), SENTENCES_PER_PARAGRAPH)
        paragraphs = [
            self._gap.join(sentences[start : start + SENTENCES_PER_PARAGRAPH]) for start in starts
        ]
        return "\n\n".join([self.render(article.title), *paragraphs])

    def size(self, text: str) -> int:
        """Return the length of a text in words, or in characters for languages without spaces."""
        return len(text) if self.code in WITHOUT_SPACES else text.count(" ") + 1

    @functools.cached_property
    def sentence_size(self) -> float:
        """The mean `size` of a sentence, each slot filled with the third entry of its list."""
        frames = self.frames["frame"]
        return sum(
            self.size(self.render(Sentence("frame", i, (2,) * len(f.slots))))
            for i, f in enumerate(frames)
        ) / len(frames)


@functools.cache
def language(code: str) -> Language:
    """Return a language of `LANGUAGES`, cached."""
    path = Path(__file__).parent / "languages" / f"{code}.txt"
    return Language(code, path.read_text(encoding="utf-8"))


def _sections(code: str, source: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for line in source.splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), [])
        elif line:
            current.append(line)
    missing = [name for name in (*LISTS, *TEXTS) if name not in sections]
    if missing:
        raise FormatError(
            f"languages/{code}.txt lacks the sections {', '.join(missing)}; add them as in the "
            "other files."
        )
    return sections


class Writer:
    """Writes the sentences of an article, which repeat a few places, people and things, the first
    ones most often.
    """

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._reference = language(LANGUAGES[0])
        self._focus = {
            name: self._choose_entries(name, count) for name, count in _FOCUS_SIZES.items()
        }

    def article(self, sentences: int) -> Article:
        """Return an article of `sentences` sentences; no frame is repeated before each was used."""
        title = self.sentence("title", self._dice.below(len(self._reference.frames["title"])))
        deck: list[int] = []
        while len(deck) < sentences:
            deck += self._dice.shuffled(range(len(self._reference.frames["frame"])))
        return Article(title, tuple(self.sentence("frame", frame) for frame in deck[:sentences]))

    def sentence(self, section: str, frame: int) -> Sentence:
        """Return a sentence of a frame, with its slots filled from the article's entries."""
        values: dict[str, int] = {}
        for slot in self.slots(section, frame):
            values[slot] = self._value(slot, values)
        return Sentence(section, frame, tuple(values.values()))

    def slots(self, section: str, frame: int) -> tuple[str, ...]:
        """Return the names of a frame's slots, in the order of `Sentence.values`."""
        return self._reference.frames[section][frame].slots

    def with_other_value(self, sentence: Sentence, place: int) -> Sentence:
        """Return the sentence with another value in the slot at index `place`."""
        slots = self.slots(sentence.section, sentence.frame)
        values = dict(zip(slots, sentence.values, strict=True))
        old_value = values[slots[place]]
        while values[slots[place]] == old_value:
            values[slots[place]] = self._value(slots[place], values)
        return Sentence(sentence.section, sentence.frame, tuple(values.values()))

    def _value(self, slot: str, values: dict[str, int]) -> int:
        """Return a value for a slot that differs from its twin's (`people` and `people2` of one
        sentence).
        """
        twin = values.get(slot[:-1] if slot[-1] == "2" else f"{slot}2")
        value = self._draw(slot)
        while value == twin:
            value = self._draw(slot)
        return value

    def _draw(self, slot: str) -> int:
        name = slot.removesuffix("2")
        if name in _NUMBERS:
            return self._dice.pick(_NUMBERS[name])
        focus = self._focus.get(name)
        if focus is None:
            return self._dice.below(len(self._reference.lists[name]))
        return focus[int(len(focus) * self._dice.roll() * self._dice.roll())]

    def _choose_entries(self, name: str, count: int) -> list[int]:
        everything = range(len(self._reference.lists[name]))
        chosen: list[int] = []
        while len(chosen) < count:
            entry = self._dice.pick_early(everything)
            if entry not in chosen:
                chosen.append(entry)
        return chosen
