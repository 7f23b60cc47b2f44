"""jieba's parts of speech for the Han that its dictionary does not know: the most probable path through its model (Viterbi).

Invariants: words and tags are those of `jieba.posseg` 0.42.1, to the last bit of every probability: each sum is made in jieba's
order, and of two equally probable states the later one in the alphabet wins. Time is linear in the text, and at most some
10 us a character: jieba's own code compares every state of the model with every other, and takes 3 ms for each character that
the model has not seen, so that one text of 120 kB kept a worker busy for minutes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.machine.compiled import kernel

_NEVER = -3.14e100  # jieba's probability of what was never seen


class Model(NamedTuple):
    """jieba's model, by number of the state (in alphabetical order) and of the character; character 0 is all it has not seen.

    `start` (s,); `emit` (c, s); `may` (c, s): which states jieba considers for a character. Changes between states stand by
    the state that is gone to, in order of the one that is left: of state i at `bounds[i]:bounds[i + 1]` of `left`, `change`.
    """

    start: NDArray[np.float64]
    emit: NDArray[np.float64]
    may: NDArray[np.bool_]
    bounds: NDArray[np.int64]
    left: NDArray[np.int64]
    change: NDArray[np.float64]


@kernel
def _most_probable(seen: Any, model: Any, odds: Any, is_open: Any, came_from: Any, path: Any) -> None:
    """Fill `path` (n,) with the states of the most probable path through the characters `seen`.

    `odds` (2, s), `is_open` (2, s) and `came_from` (n, s) are scratch: of this character and the one before.
    """
    states = len(model.start)
    now = np.int64(0)
    for state in range(states):
        is_open[now, state] = model.may[seen[0], state]
        odds[now, state] = model.start[state] + model.emit[seen[0], state]
    for place in range(1, len(seen)):
        before = now
        now = 1 - before
        # If no state that the character may have can follow, jieba takes all that can.
        for takes_all in range(2):
            found = False
            for state in range(states):
                is_open[now, state] = False
                if takes_all == 0 and not model.may[seen[place], state]:
                    continue
                best = -np.inf
                best_left = np.int64(-1)
                for at in range(model.bounds[state], model.bounds[state + 1]):
                    left = model.left[at]
                    if is_open[before, left]:
                        probability = odds[before, left] + model.change[at] + model.emit[seen[place], state]
                        if probability >= best:
                            best = probability
                            best_left = left
                if best_left >= 0:
                    is_open[now, state] = True
                    odds[now, state] = best
                    came_from[place, state] = best_left
                    found = True
            if found:
                break
    last = np.int64(-1)
    for state in range(states):
        if is_open[now, state] and (last < 0 or odds[now, state] >= odds[now, last]):
            last = np.int64(state)
    for place in range(len(seen) - 1, -1, -1):
        path[place] = last
        last = np.int64(came_from[place, last])


def most_probable(seen: NDArray[np.int64], model: Model) -> NDArray[np.int64]:
    """Return the states (n,) of the most probable path through some characters."""
    states = len(model.start)
    path = np.empty(len(seen), np.int64)
    came_from = np.zeros((len(seen), states), np.uint8)
    _most_probable(seen, model, np.empty((2, states)), np.empty((2, states), np.bool_), came_from, path)
    return path


def _model() -> tuple[Model, list[tuple[str, str]], dict[str, int]]:
    """Return the model, the states by their numbers, and the numbers of characters."""
    from jieba.posseg.char_state_tab import P as states_of  # noqa: PLC0415, N811 - jieba reads its tables on import, for seconds
    from jieba.posseg.prob_emit import P as all_emitted  # noqa: PLC0415, N811
    from jieba.posseg.prob_start import P as started  # noqa: PLC0415, N811
    from jieba.posseg.prob_trans import P as changed  # noqa: PLC0415, N811

    states = sorted(changed)
    number = {state: place for place, state in enumerate(states)}
    characters = sorted({*states_of, *(one for emitted in all_emitted.values() for one in emitted)})
    known = {one: place for place, one in enumerate(characters, 1)}
    emit = np.full((len(characters) + 1, len(states)), _NEVER)
    for state, emitted in all_emitted.items():
        for one, probability in emitted.items():
            emit[known[one], number[state]] = probability
    may = np.ones((len(characters) + 1, len(states)), np.bool_)
    for one, listed in states_of.items():
        may[known[one]] = False
        may[known[one], [number[state] for state in listed]] = True
    changes = sorted((number[to], number[left], odds) for left, follow in changed.items() for to, odds in follow.items())
    to, left, odds = zip(*changes, strict=True)
    bounds = np.searchsorted(np.array(to), np.arange(len(states) + 1)).astype(np.int64)
    start = np.array([started[state] for state in states])
    return Model(start, emit, may, bounds, np.array(left, np.int64), np.array(odds)), states, known


class Tags:
    """Finds the words and parts of speech of runs of Han."""

    def __init__(self) -> None:
        self._model, self._states, self._known = _model()

    def path(self, run: str) -> Sequence[tuple[str, str]]:
        """Return the state of each character: its place in the word (B, M, E, S), and the word's part of speech."""
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


def quick_tokenizer(tokenizer: Any) -> Any:
    """Return jieba's tokenizer that tags, with the model's path found by machine code."""
    from jieba.posseg import POSTokenizer, pair  # noqa: PLC0415

    tags = Tags()
    made = POSTokenizer(tokenizer)

    def cut(run: str) -> Iterator[Any]:
        return (pair(word, tag) for word, tag in tags.words(run))

    # jieba's own name for what cuts a run of Han that the dictionary does not know, in the version that the recipe's id names.
    cutter = "_POSTokenizer__cut"
    if not callable(getattr(POSTokenizer, cutter, None)):
        raise ConfigurationError("The package jieba is not that of version 0.42.1: install jieba 0.42.1 as it was published.")
    setattr(made, cutter, cut)
    return made
