"""Find the keywords of a text with `jieba.analyse`; only the path through its model of tags is
replaced.

Invariants: keywords and weights are those of `jieba.analyse.extract_tags` and
`jieba.analyse.textrank` with their default parts of speech, for every text whose runs of Han,
letters and digits are shorter than `PIECE`; longer runs are first cut to that length, because
jieba's code is quadratic in them. jieba's data is that of the recipe's id. A user's words and stop
words have the same effect as after `jieba.load_userdict` and `set_stop_words`, in this analyser
only.

jieba is imported at the first use, because it reads its tables for two seconds; its cache file in
the directory for temporary files is not used: any user of the machine could have written it, and
`marshal` reads it.

The path through the model, for the parts of speech of the Han that the dictionary does not contain,
is the most probable one (Viterbi): words and tags are those of `jieba.posseg` 0.42.1, to the last
bit of every probability, because each sum is made in jieba's order, and of two equally probable
states the later one in the alphabet wins. A character takes 10 us at most: jieba's code compares
every state of the model with every other, and takes 3 ms for each unknown character, so a text of
120 kB kept a worker busy for minutes.

Sources: Mihalcea and Tarau, "TextRank: Bringing Order into Texts" (EMNLP 2004); the package jieba
0.42.1.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.fingerprinting import jieba_data
from stream_dedup.fingerprinting.jieba_data import UserWord, tokenizer_with
from stream_dedup.kernels.compiled import kernel

PIECE: Final = 512
# The digest of the IDF table and of the model that tags parts of speech.
DATA_DIGEST: Final = bytes.fromhex("a6361e31363ff9024371f5405aab2f0b")
_FILES: Final = (
    "analyse/idf.txt",
    "posseg/prob_start.py",
    "posseg/prob_trans.py",
    "posseg/prob_emit.py",
    "posseg/char_state_tab.py",
)
# A block of jieba's that is longer than `PIECE`, and must be cut.
_LONG_RUN = re.compile(
    r"[\u4E00-\u9FD5a-zA-Z0-9+#&\._%\-]{" + str(PIECE) + r"}(?=[\u4E00-\u9FD5a-zA-Z0-9+#&\._%\-])"
)
_LOCK = threading.Lock()
_NEVER = -3.14e100  # jieba's log probability of unknown events


class Model(NamedTuple):
    """jieba's model, by number of the state (in alphabetical order) and of the character; character
    0 represents all unknown ones.

    `start` (s,); `emit` (c, s); `can_emit` (c, s): whether jieba considers a state for a character.
    The transitions to state i are at `bounds[i]:bounds[i + 1]`: `sources` has the states that they
    come from, in ascending order, and `change` their log probabilities.
    """

    start: NDArray[np.float64]
    emit: NDArray[np.float64]
    can_emit: NDArray[np.bool_]
    bounds: NDArray[np.int64]
    sources: NDArray[np.int64]
    change: NDArray[np.float64]


@kernel
def _most_probable(
    seen: Any, model: Any, odds: Any, is_open: Any, came_from: Any, path: Any
) -> None:
    """Fill `path` (n,) with the states of the most probable path through the characters `seen`.

    `odds` (2, s), `is_open` (2, s) and `came_from` (n, s) are buffers; the first two are for this
    character and the one before.
    """
    states = len(model.start)
    now = np.int64(0)
    for state in range(states):
        is_open[now, state] = model.can_emit[seen[0], state]
        odds[now, state] = model.start[state] + model.emit[seen[0], state]
    for place in range(1, len(seen)):
        before = now
        now = 1 - before
        # If none of the character's states can follow, jieba considers all states that can.
        for takes_all in range(2):
            has_open = False
            for state in range(states):
                is_open[now, state] = False
                if takes_all == 0 and not model.can_emit[seen[place], state]:
                    continue
                best = -np.inf
                best_source = np.int64(-1)
                for change in range(model.bounds[state], model.bounds[state + 1]):
                    source = model.sources[change]
                    if is_open[before, source]:
                        probability = (
                            odds[before, source]
                            + model.change[change]
                            + model.emit[seen[place], state]
                        )
                        if probability >= best:
                            best = probability
                            best_source = source
                if best_source >= 0:
                    is_open[now, state] = True
                    odds[now, state] = best
                    came_from[place, state] = best_source
                    has_open = True
            if has_open:
                break
    last = np.int64(-1)
    for state in range(states):
        if is_open[now, state] and (last < 0 or odds[now, state] >= odds[now, last]):
            last = np.int64(state)
    for place in range(len(seen) - 1, -1, -1):
        path[place] = last
        last = np.int64(came_from[place, last])


def most_probable(seen: NDArray[np.int64], model: Model) -> NDArray[np.int64]:
    """Return the states (n,) of the most probable path through the characters `seen`."""
    states = len(model.start)
    path = np.empty(len(seen), np.int64)
    came_from = np.zeros((len(seen), states), np.uint8)
    _most_probable(
        seen, model, np.empty((2, states)), np.empty((2, states), np.bool_), came_from, path
    )
    return path


def _model() -> tuple[Model, list[tuple[str, str]], dict[str, int]]:
    """Return the model, the states by their numbers, and the numbers of characters."""
    from jieba.posseg.char_state_tab import P as states_of  # noqa: PLC0415, N811 - jieba reads its tables on import, for seconds
    from jieba.posseg.prob_emit import P as all_emitted  # noqa: PLC0415, N811
    from jieba.posseg.prob_start import P as started  # noqa: PLC0415, N811
    from jieba.posseg.prob_trans import P as changed  # noqa: PLC0415, N811

    states = sorted(changed)
    number = {state: place for place, state in enumerate(states)}
    characters = sorted(
        {*states_of, *(character for emitted in all_emitted.values() for character in emitted)}
    )
    known = {character: place for place, character in enumerate(characters, 1)}
    emit = np.full((len(characters) + 1, len(states)), _NEVER)
    for state, emitted in all_emitted.items():
        for character, probability in emitted.items():
            emit[known[character], number[state]] = probability
    can_emit = np.ones((len(characters) + 1, len(states)), np.bool_)
    for character, possible_states in states_of.items():
        can_emit[known[character]] = False
        can_emit[known[character], [number[state] for state in possible_states]] = True
    changes = sorted(
        (number[target], number[source], odds)
        for source, follow in changed.items()
        for target, odds in follow.items()
    )
    targets, sources, odds_by_change = zip(*changes, strict=True)
    bounds = np.searchsorted(np.array(targets), np.arange(len(states) + 1)).astype(np.int64)
    start = np.array([started[state] for state in states])
    return (
        Model(start, emit, can_emit, bounds, np.array(sources, np.int64), np.array(odds_by_change)),
        states,
        known,
    )


class Tags:
    """Find the words and parts of speech of runs of Han."""

    def __init__(self) -> None:
        self._model, self._states, self._known = _model()

    def path(self, run: str) -> Sequence[tuple[str, str]]:
        """Return the state of each character: its place in the word (B, M, E, S), and the word's
        part of speech.
        """
        seen = np.fromiter(map(self._known.get, run, itertools.repeat(0)), np.int64, len(run))
        return [self._states[state] for state in most_probable(seen, self._model).tolist()]

    def words(self, run: str) -> Iterator[tuple[str, str]]:
        """Yield the words of a run with their parts of speech, as `POSTokenizer.__cut` does."""
        tags = self.path(run)
        begin = after = 0
        for place, (position, tag) in enumerate(tags):
            if position == "B":
                begin = place
            elif position in {"E", "S"}:
                yield run[begin if position == "E" else place : place + 1], tag
                after = place + 1
        if after < len(run):
            yield run[after:], tags[after][1]


def _quick_tokenizer(tokenizer: Any) -> Any:
    """Return jieba's tagging tokenizer, with a compiled kernel for the model's path."""
    from jieba.posseg import POSTokenizer, pair  # noqa: PLC0415

    tags = Tags()
    tagger = POSTokenizer(tokenizer)

    def cut(run: str) -> Iterator[Any]:
        return (pair(word, tag) for word, tag in tags.words(run))

    # jieba's method, in the version of the recipe's id, that cuts runs of Han which are not in the
    # dictionary.
    cutter = "_POSTokenizer__cut"
    if not callable(getattr(POSTokenizer, cutter, None)):
        raise ConfigurationError(
            "The package jieba differs from version 0.42.1: install the unmodified jieba 0.42.1."
        )
    setattr(tagger, cutter, cut)
    return tagger


class _InPieces:
    """A tokenizer of jieba that gets a text in pieces, so that it takes linear time."""

    def __init__(self, tokenizer: Any, split: frozenset[str] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._split = split

    def cut(self, text: str) -> Iterator[Any]:
        if not self._split:
            yield from self._cut(text)
            return
        for word in self._cut(text):
            if word in self._split:  # jieba stores these in a set that all its tokenizers share
                yield from word
            else:
                yield word

    def _cut(self, text: str) -> Iterator[Any]:
        start = 0
        for match in _LONG_RUN.finditer(text):
            yield from self._tokenizer.cut(text[start : match.end()])
            start = match.end()
        yield from self._tokenizer.cut(text[start:])


class Analyser:
    """Find keywords with a user's words and stop words; threads may share an analyser."""

    def __init__(self, user_words: tuple[UserWord, ...], stop_words: frozenset[str]) -> None:
        """Read jieba's data; raise ConfigurationError if it is not that of the recipe's id."""
        folder = jieba_data.engine_folder(_FILES, DATA_DIGEST)
        jieba_data.dictionary()  # checks the dictionary's digest
        import jieba.analyse  # noqa: PLC0415 - jieba reads its tables on import, for seconds

        tokenizer, _ = tokenizer_with(user_words, folder)
        self._tfidf = jieba.analyse.TFIDF()
        self._tfidf.tokenizer = _InPieces(
            tokenizer,
            frozenset(user_word.word for user_word in user_words if user_word.frequency == 0),
        )
        self._tfidf.stop_words.update(stop_words)
        self._textrank = jieba.analyse.TextRank()
        self._textrank.tokenizer = _InPieces(_quick_tokenizer(tokenizer))
        self._textrank.stop_words.update(stop_words)

    def by_tfidf(self, text: str, number: int) -> list[tuple[str, float]]:
        """Return the `number` words with the greatest TF-IDF weight, greatest first, with their
        weights.
        """
        keywords: list[tuple[str, float]] = self._tfidf.extract_tags(
            text, topK=number, withWeight=True
        )
        return keywords

    def by_textrank(self, text: str, number: int) -> list[tuple[str, float]]:
        """Return the `number` nouns and verbs that TextRank ranks highest, highest first, with
        their ranks.
        """
        keywords: list[tuple[str, float]] = self._textrank.textrank(
            text, topK=number, withWeight=True
        )
        return keywords


@lru_cache(maxsize=4)
def _make_analyser(user_words: tuple[UserWord, ...], stop_words: frozenset[str]) -> Analyser:
    return Analyser(user_words, stop_words)


def analyser(
    user_words: tuple[UserWord, ...] = (), stop_words: frozenset[str] = frozenset()
) -> Analyser:
    """Return the analyser for a user's words and stop words, created once.

    Raises ConfigurationError if jieba's data is not that of the recipe's id.
    """
    with _LOCK:  # else two threads would read the tables twice
        return _make_analyser(user_words, stop_words)
