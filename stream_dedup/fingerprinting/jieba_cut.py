"""Cut runs of Han into words, as jieba does.

Invariants: the words are those of `jieba.cut(run, HMM=True)` (a test compares the two); the time is
linear in the run (in jieba it is not, because jieba copies its path at every unknown character). No
Python code runs meanwhile, so the GIL is free.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting.jieba_data import KNOWN, NO_WORD, edge_key, slot_of
from stream_dedup.kernels.compiled import inlined

HAN_PIECE = 512


_BEGIN, _MIDDLE, _END, _SINGLE = range(4)


class Scratch(NamedTuple):
    """The buffers of a thread that cuts a batch: memory for one piece of Han, reused for every
    piece.
    """

    places: NDArray[np.int64]
    known: NDArray[np.int64]
    best: NDArray[np.float64]
    following: NDArray[np.int64]
    came_from: NDArray[np.uint8]


def scratch() -> Scratch:
    """Return new buffers for a thread that cuts a batch."""
    return Scratch(
        np.zeros(HAN_PIECE + 1, np.int64),
        np.zeros(HAN_PIECE, np.int64),
        np.zeros(HAN_PIECE + 1, np.float64),
        np.zeros(HAN_PIECE, np.int64),
        np.zeros((HAN_PIECE, 4), np.uint8),
    )


@inlined
def _node_of(known: Any, first: Any, stop: Any, dictionary: Any) -> Any:
    """Return the dictionary's node for a sequence of characters, 0 for none."""
    node = np.int64(dictionary.roots[known[first]])
    for place in range(first + 1, stop):
        if node == 0:
            return node
        node = np.int64(dictionary.children[slot_of(edge_key(node, known[place]), dictionary.keys)])
    return node


@inlined
def _is_word(known: Any, first: Any, stop: Any, dictionary: Any) -> Any:
    node = _node_of(known, first, stop, dictionary)
    return node != 0 and dictionary.scores[node] != NO_WORD


@inlined
def _cut_unknown(
    first: Any, stop: Any, dictionary: Any, scratch: Any, starts: Any, stops: Any, words: Any
) -> Any:
    """Cut characters that form no word of the dictionary: the most probable path through the model
    (Viterbi). Return the number of words so far.

    Of two equally probable paths the one through the state with the later letter in the alphabet
    wins, as in jieba.
    """
    known = scratch.known
    came_from = scratch.came_from
    emit = dictionary.emit
    change = dictionary.change
    begin = dictionary.start[_BEGIN] + emit[_BEGIN, known[first]]
    middle = dictionary.start[_MIDDLE] + emit[_MIDDLE, known[first]]
    end = dictionary.start[_END] + emit[_END, known[first]]
    single = dictionary.start[_SINGLE] + emit[_SINGLE, known[first]]
    for place in range(first + 1, stop):
        character = known[place]
        from_end = end + change[_END, _BEGIN] + emit[_BEGIN, character]
        from_single = single + change[_SINGLE, _BEGIN] + emit[_BEGIN, character]
        came_from[place, _BEGIN] = _SINGLE if from_single >= from_end else _END
        new_begin = max(from_single, from_end)
        from_begin = begin + change[_BEGIN, _MIDDLE] + emit[_MIDDLE, character]
        from_middle = middle + change[_MIDDLE, _MIDDLE] + emit[_MIDDLE, character]
        came_from[place, _MIDDLE] = _MIDDLE if from_middle >= from_begin else _BEGIN
        new_middle = max(from_middle, from_begin)
        from_begin = begin + change[_BEGIN, _END] + emit[_END, character]
        from_middle = middle + change[_MIDDLE, _END] + emit[_END, character]
        came_from[place, _END] = _MIDDLE if from_middle >= from_begin else _BEGIN
        new_end = max(from_middle, from_begin)
        from_end = end + change[_END, _SINGLE] + emit[_SINGLE, character]
        from_single = single + change[_SINGLE, _SINGLE] + emit[_SINGLE, character]
        came_from[place, _SINGLE] = _SINGLE if from_single >= from_end else _END
        new_single = max(from_single, from_end)
        begin, middle, end, single = new_begin, new_middle, new_end, new_single
    # Backwards along the path: the words are written in reverse order, and reversed at the end.
    state: Any = _SINGLE if single >= end else _END
    count = words
    word_stop = stop
    for place in range(stop - 1, first - 1, -1):
        before = np.int64(came_from[place, state])
        # A path may begin within a word, if the model knows its first character only there; the
        # word then begins at this character.
        if state in (_SINGLE, _BEGIN) or place == first:
            if (
                len(dictionary.splits) > 0
                and dictionary.splits[_node_of(known, place, word_stop, dictionary)]
            ):
                for index in range(word_stop - 1, place, -1):
                    starts[count] = scratch.places[index]
                    stops[count] = scratch.places[index + 1]
                    count += 1
                word_stop = place + 1
            starts[count] = scratch.places[place]
            stops[count] = scratch.places[word_stop]
            count += 1
            word_stop = place
        state = before
    low, high = words, count - 1
    while low < high:
        starts[low], starts[high] = starts[high], starts[low]
        stops[low], stops[high] = stops[high], stops[low]
        low += 1
        high -= 1
    return count


@inlined
def _cut_known(
    first: Any, stop: Any, dictionary: Any, scratch: Any, starts: Any, stops: Any, words: Any
) -> Any:
    """Cut characters along the most probable path through the dictionary; prefer the longer of
    equally probable words. Return the number of words so far.
    """
    known = scratch.known
    places = scratch.places
    best = scratch.best
    following = scratch.following
    best[stop] = 0.0
    for place in range(stop - 1, first - 1, -1):
        top = -np.inf
        node = np.int64(dictionary.roots[known[place]])
        reach = place
        while node != 0:
            score = dictionary.scores[node]
            reach += 1
            if score != NO_WORD and score + best[reach] >= top:
                top = score + best[reach]
                following[place] = reach
            if reach == stop:
                break
            node = np.int64(
                dictionary.children[slot_of(edge_key(node, known[reach]), dictionary.keys)]
            )
        if top == -np.inf:
            top = dictionary.unknown[0] + best[place + 1]
            following[place] = place + 1
        best[place] = top
    place = first
    pending = first  # the first of the single characters that are still to be cut together
    while place <= stop:
        reach = following[place] if place < stop else stop + 1
        if reach == place + 1 and place < stop:
            place = reach
            continue
        if place - pending == 1 or (
            place - pending > 1 and _is_word(known, pending, place, dictionary)
        ):
            for single in range(pending, place):
                starts[words] = places[single]
                stops[words] = places[single + 1]
                words += 1
        elif place > pending:
            words = _cut_unknown(pending, place, dictionary, scratch, starts, stops, words)
        if place < stop:
            starts[words] = places[place]
            stops[words] = places[reach]
            words += 1
        place = reach
        pending = reach
    return words


@inlined
def cut_piece(
    count: Any, dictionary: Any, scratch: Any, starts: Any, stops: Any, words: Any
) -> Any:
    """Cut a piece of a run of Han, whose characters are in `scratch`; return the number of words so
    far.
    """
    first: Any = np.int64(0)
    while first < count:
        stop = first
        while stop < count and 0 <= scratch.known[stop] < KNOWN:
            stop += 1
        if stop > first:
            words = _cut_known(first, stop, dictionary, scratch, starts, stops, words)
        if stop < count:
            starts[words] = scratch.places[stop]
            stops[words] = scratch.places[stop + 1]
            words += 1
        first = stop + 1
    return words
