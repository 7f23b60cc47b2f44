"""Normalised text -> words. The only user of jieba.

Invariants: a pure function of the text, of jieba's dictionary and model, and of what `languages` adds to them, all of
whose digests are in the recipe id; time linear in the text.

A text is split by script first (`characters` says which code point is what):

- A maximal run of `WORD` characters is one word.
- A maximal run of `HAN` is cut into words as `jieba.cut` does, in pieces of at most `HAN_PIECE` characters.
- In a run of `UNSPACED` characters every two neighbours are a word, overlapping; a single one stands for itself.
- Everything else only separates.
- Where a segmenter has marked words, these are the words, of Han too.
- Words on the stop list are left out, as if they were not there: their neighbours become a bigram.

Words of all kinds stand in one row, in text order; the bigrams made of them span scripts and punctuation.

Why two characters: measured on Japanese with random edits, this takes the same share of pairs at Jaccard 0.8 as words
do in spaced scripts; single characters take too many pairs below 0.65, triples lose some above 0.8.

Of jieba, only the data is used: its dictionary (words and frequencies) and its hidden Markov model. Cutting is compiled
here, word for word what `jieba.cut(run, HMM=True)` returns (a test holds the two together), at about thirty times the
speed, outside the GIL and in linear time: jieba copies the path so far at every character of a stretch it does not
know. jieba itself is imported for one thing: to suggest the frequency of a user's word that has none. Its cache file in
the shared temporary directory is never read: it is `marshal` data that any user of the machine could have written.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import math
import types
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.fingerprinting import characters
from stream_dedup.fingerprinting.characters import HAN, KIND_BITS, UNSPACED, WORD, code_point_at, of_two_bytes
from stream_dedup.fingerprinting.hashes import eight_bytes
from stream_dedup.fingerprinting.variants.segmenter import BEGINS
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.machine.compiled import allocating_kernel, inlined, lowest_bit

ENGINE = "jieba-0.42.1"
# Of dict.txt and of the three files of the model, so that a data file changed under the same version is noticed.
ENGINE_DIGEST = bytes.fromhex("3600dc55b827b843484a76d50bcbd119")
HAN_PIECE = 512
# Two words with no separator between them are of different kinds, or found by a segmenter; all but `WORD` take three bytes
# a character.
BYTES_PER_WORD_MIN = 2

# What jieba holds for Han: other ideographs are words of their own to it.
_FIRST_KNOWN, _LAST_KNOWN = 0x4E00, 0x9FD5
_KNOWN = _LAST_KNOWN - _FIRST_KNOWN + 1
_NO_WORD = 1.0  # in place of a logarithm of a probability
_BEGIN, _MIDDLE, _END, _SINGLE = range(4)
_STRETCH = 64
_HIGHEST = 0x8080808080808080  # bits of eight bytes
_STATES = "BMES"
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_IMPOSSIBLE = -3.14e100  # jieba's logarithm of zero

_MODEL_FILES = ("finalseg/prob_start.py", "finalseg/prob_trans.py", "finalseg/prob_emit.py")


class Dictionary(NamedTuple):
    """jieba's dictionary as a tree of characters, and its model for what the dictionary does not know.

    `roots`: (known,), the node of each first character, 0 for none; `keys` and `children`: an open-addressing table
    from `node << 16 | character` to a node; `scores`: logarithm of the probability of the word that ends in a node, or
    `_NO_WORD`; `unknown`: (1,), the same for a single character that is no word. `start` (4,), `change` (4, 4) and
    `emit` (4, known): logarithms of the model's probabilities, states in the order of `_STATES`. `splits`: empty, or by
    node 1 for what the user's dictionary says is no word even where the model finds it. `stop_slots`: empty, or an
    open-addressing table of numbers of stop words, from 1; `stop_offsets`, `stop_bytes`: where each begins, and their UTF-8.
    """

    roots: NDArray[np.int32]
    keys: NDArray[np.uint64]
    children: NDArray[np.int32]
    scores: NDArray[np.float64]
    unknown: NDArray[np.float64]
    start: NDArray[np.float64]
    change: NDArray[np.float64]
    emit: NDArray[np.float64]
    splits: NDArray[np.uint8]
    stop_slots: NDArray[np.int32]
    stop_offsets: NDArray[np.int64]
    stop_bytes: NDArray[np.uint8]


class Scratch(NamedTuple):
    """What cutting a batch needs besides its text: memory for one piece of Han, used again for every piece, and `marks`.

    `marks`: empty, or for every byte of the batch what `segmenter.mark_words` says of it.
    """

    places: NDArray[np.int64]
    known: NDArray[np.int64]
    best: NDArray[np.float64]
    following: NDArray[np.int64]
    came_from: NDArray[np.uint8]
    marks: NDArray[np.uint8]


def scratch(marks: NDArray[np.uint8] | None = None) -> Scratch:
    """Return what one thread's cutting of one batch needs."""
    return Scratch(
        np.zeros(HAN_PIECE + 1, np.int64),
        np.zeros(HAN_PIECE, np.int64),
        np.zeros(HAN_PIECE + 1, np.float64),
        np.zeros(HAN_PIECE, np.int64),
        np.zeros((HAN_PIECE, 4), np.uint8),
        np.zeros(0, np.uint8) if marks is None else marks,
    )


def character_ngrams(text: str, length: int) -> list[str]:
    """Return every run of `length` neighbouring characters, in text order; a shorter text has none."""
    return [text[start : start + length] for start in range(len(text) - length + 1)]


@inlined
def _slot(key: Any, keys: Any) -> Any:
    """Return the slot of a key, or the free one where it would stand."""
    mask = len(keys) - 1
    slot = np.int64((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@inlined
def _key(node: Any, known: Any) -> Any:
    return np.uint64(node) << np.uint64(16) | np.uint64(known)


@allocating_kernel
def _read_dictionary(data: Any, users: Any, slots: Any) -> Any:
    """Read lines `word frequency ...` of UTF-8; return roots, keys, children, frequency and splits per node, and the total.

    As jieba does: of a word given twice the last frequency counts, but both add to the total. From byte `users` on the
    lines are the user's, and a frequency of 0 there means that the word is to be split.
    """
    roots = np.zeros(_KNOWN, np.int32)
    keys = np.zeros(slots, np.uint64)
    children = np.zeros(slots, np.int32)
    frequencies = np.zeros(slots // 2 + 1, np.int64)
    splits = np.zeros(slots // 2 + 1, np.uint8)
    nodes = 1
    total = 0
    place = 0
    while place < len(data):
        is_users = place >= users
        node: Any = -1  # before the first character
        while data[place] != 0x20:
            code_point, length = code_point_at(data, place)
            place += length
            known = code_point - _FIRST_KNOWN
            if node == 0 or known < 0 or known >= _KNOWN:
                node = 0  # no run of Han reaches such a word
            elif node == -1:
                if roots[known] == 0:
                    roots[known] = nodes
                    nodes += 1
                node = np.int64(roots[known])
            else:
                slot = _slot(_key(node, known), keys)
                if keys[slot] == 0:
                    keys[slot] = _key(node, known)
                    children[slot] = nodes
                    nodes += 1
                node = np.int64(children[slot])
        place += 1
        frequency: Any = 0
        while place < len(data) and 0x30 <= data[place] <= 0x39:
            frequency = 10 * frequency + np.int64(data[place]) - 0x30
            place += 1
        while place < len(data) and data[place] != 0x0A:
            place += 1
        place += 1
        total += frequency
        if node > 0:
            frequencies[node] = frequency
            if is_users and frequency == 0:
                splits[node] = 1
    return roots, keys, children, frequencies[:nodes], splits[:nodes], total


def _engine_folder() -> Path:
    found = importlib.util.find_spec("jieba")
    if found is None or found.origin is None:
        raise ConfigurationError("The package jieba is not installed: install it at the version 0.42.1.")
    return Path(found.origin).parent


def _model_table(file: Path) -> Any:
    """Return the table in one of jieba's model files, which are Python modules of one dictionary `P` each."""
    loader = importlib.machinery.SourceFileLoader(f"_{file.stem}", str(file))
    module = types.ModuleType(loader.name)
    loader.exec_module(module)
    return module.P


def engine_digest(folder: Path) -> bytes:
    """Return 16 bytes that name jieba's dictionary and model as they are on this disk."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("dict.txt", *_MODEL_FILES):
        content = (folder / name).read_bytes()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.digest()


class UserWord(NamedTuple):
    """A word of the user's dictionary, and its part of speech if one is given.

    `frequency`: None to have jieba suggest one; 0 for what is never to be one word.
    """

    word: str
    frequency: int | None
    tag: str | None = None


@cache
def dictionary() -> Dictionary:
    """Return jieba's dictionary and model, read once a process.

    Raises ConfigurationError if jieba is missing, or if its data is not that of the version in the recipe's name.
    """
    return make_dictionary((), ())


def make_dictionary(user_words: Sequence[UserWord], stop_words: Collection[str]) -> Dictionary:
    """Return jieba's dictionary and model with a user's words, as `jieba.load_userdict` adds them, and with stop words.

    Raises ConfigurationError as `dictionary`.
    """
    folder = _engine_folder()
    try:
        if engine_digest(folder) != ENGINE_DIGEST:
            raise ConfigurationError(
                f"The dictionary or model in {folder} is not that of {ENGINE}, so its prints would not be comparable: "
                "install jieba 0.42.1 as it was published."
            )
        content = (folder / "dict.txt").read_bytes()
        start, change, emit = (_model_table(folder / name) for name in _MODEL_FILES)
    except OSError as error:
        raise ConfigurationError(f"jieba's data in {folder} cannot be read ({error}): install jieba 0.42.1 again.") from error
    added = "".join(f"{word} {frequency}\n" for word, frequency in with_frequencies(user_words, folder)).encode()
    slots = 1 << 20
    while slots < (1 << 20) + 2 * len(added):  # a node takes a character of the user's, and so three bytes
        slots *= 2
    data = np.frombuffer(content + added, np.uint8)
    roots, keys, children, frequencies, splits, total = _read_dictionary(data, len(content), slots)
    # Python's logarithm, once for every frequency there is: the same numbers as jieba computes, sums and ties included.
    log_total = math.log(total)
    distinct, places = np.unique(frequencies, return_inverse=True)
    logarithms = np.array([math.log(value) - log_total if value else _NO_WORD for value in distinct.tolist()])
    emissions = np.full((4, _KNOWN), _IMPOSSIBLE)
    for state, name in enumerate(_STATES):
        for character, score in emit[name].items():
            if _FIRST_KNOWN <= ord(character) <= _LAST_KNOWN:
                emissions[state, ord(character) - _FIRST_KNOWN] = score
    made = Dictionary(
        roots,
        keys,
        children,
        logarithms[places],
        np.array([math.log(1) - log_total]),
        np.array([start[name] for name in _STATES]),
        np.array([[change[before].get(after, _IMPOSSIBLE) for after in _STATES] for before in _STATES]),
        emissions,
        splits if splits.any() else splits[:0],
        *_stop_table(stop_words),
    )
    for array in made:
        array.setflags(write=False)
    return made


def with_frequencies(user_words: Sequence[UserWord], folder: Path) -> list[tuple[str, int]]:
    """Return a user's words with the frequency that each has in jieba when they are added in this order."""
    if all(one.frequency is not None for one in user_words):
        return [(one.word, one.frequency or 0) for one in user_words]
    import jieba  # noqa: PLC0415 - hardly anybody needs it

    tokenizer = jieba.Tokenizer()
    with (folder / "dict.txt").open("rb") as file:
        tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(file)
    tokenizer.initialized = True
    found = []
    for word, given, _ in user_words:
        frequency: int = tokenizer.suggest_freq(word) if given is None else given
        tokenizer.FREQ[word] = frequency  # what `Tokenizer.add_word` does, but for a set that all tokenizers share
        tokenizer.total += frequency
        for stop in range(1, len(word)):
            tokenizer.FREQ.setdefault(word[:stop], 0)
        found.append((word, frequency))
    return found


def _hash_of(content: bytes) -> int:
    """Return FNV-1a-64 of bytes: what `_is_stop_word` computes."""
    value = _FNV_OFFSET
    for byte in content:
        value = (value ^ byte) * _FNV_PRIME & 0xFFFF_FFFF_FFFF_FFFF
    return value


def _stop_table(stop_words: Collection[str]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]:
    encoded = sorted(word.encode() for word in stop_words)
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(word) for word in encoded], out=offsets[1:])
    slots = np.zeros(1 << (2 * len(encoded)).bit_length() if encoded else 0, np.int32)
    for number, word in enumerate(encoded, 1):
        slot = _hash_of(word) & (len(slots) - 1)
        while slots[slot]:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number
    return slots, offsets, np.frombuffer(b"".join(encoded), np.uint8)


@inlined
def _node_of(known: Any, first: Any, stop: Any, dictionary: Any) -> Any:
    """Return the node that a row of characters leads to, 0 for none."""
    node = np.int64(dictionary.roots[known[first]])
    for place in range(first + 1, stop):
        if node == 0:
            return node
        node = np.int64(dictionary.children[_slot(_key(node, known[place]), dictionary.keys)])
    return node


@inlined
def _is_word(known: Any, first: Any, stop: Any, dictionary: Any) -> Any:
    node = _node_of(known, first, stop, dictionary)
    return node != 0 and dictionary.scores[node] != _NO_WORD


@inlined
def _is_stop_word(data: Any, start: Any, stop: Any, dictionary: Any) -> Any:
    value = np.uint64(_FNV_OFFSET)
    for place in range(start, stop):
        value = (value ^ np.uint64(data[place])) * np.uint64(_FNV_PRIME)
    mask = len(dictionary.stop_slots) - 1
    slot = np.int64(value & np.uint64(mask))
    while dictionary.stop_slots[slot] != 0:
        number = dictionary.stop_slots[slot]
        begin = dictionary.stop_offsets[number - 1]
        if dictionary.stop_offsets[number] - begin == stop - start:
            same = True
            for byte in range(stop - start):
                same = same and dictionary.stop_bytes[begin + byte] == data[start + byte]
            if same:
                return True
        slot = (slot + 1) & mask
    return False


@inlined
def _cut_unknown(first: Any, stop: Any, dictionary: Any, scratch: Any, starts: Any, stops: Any, words: Any) -> Any:
    """Cut characters that the dictionary sees as single ones: the most probable path through the model (Viterbi).

    Of two equally probable ways the one over the state whose letter is later in the alphabet is taken, as jieba does.
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
        seen = known[place]
        from_end = end + change[_END, _BEGIN] + emit[_BEGIN, seen]
        from_single = single + change[_SINGLE, _BEGIN] + emit[_BEGIN, seen]
        came_from[place, _BEGIN] = _SINGLE if from_single >= from_end else _END
        new_begin = max(from_single, from_end)
        from_begin = begin + change[_BEGIN, _MIDDLE] + emit[_MIDDLE, seen]
        from_middle = middle + change[_MIDDLE, _MIDDLE] + emit[_MIDDLE, seen]
        came_from[place, _MIDDLE] = _MIDDLE if from_middle >= from_begin else _BEGIN
        new_middle = max(from_middle, from_begin)
        from_begin = begin + change[_BEGIN, _END] + emit[_END, seen]
        from_middle = middle + change[_MIDDLE, _END] + emit[_END, seen]
        came_from[place, _END] = _MIDDLE if from_middle >= from_begin else _BEGIN
        new_end = max(from_middle, from_begin)
        from_end = end + change[_END, _SINGLE] + emit[_SINGLE, seen]
        from_single = single + change[_SINGLE, _SINGLE] + emit[_SINGLE, seen]
        came_from[place, _SINGLE] = _SINGLE if from_single >= from_end else _END
        new_single = max(from_single, from_end)
        begin, middle, end, single = new_begin, new_middle, new_end, new_single
    # Back along the path: the words come out last first, and are turned round afterwards.
    state: Any = _SINGLE if single >= end else _END
    counted = words
    word_stop = stop
    for place in range(stop - 1, first - 1, -1):
        before = np.int64(came_from[place, state])
        # A path may begin within a word, where the model knows the first character there alone; then the word begins there.
        if state in (_SINGLE, _BEGIN) or place == first:
            if len(dictionary.splits) > 0 and dictionary.splits[_node_of(known, place, word_stop, dictionary)]:
                for single in range(word_stop - 1, place, -1):
                    starts[counted] = scratch.places[single]
                    stops[counted] = scratch.places[single + 1]
                    counted += 1
                word_stop = place + 1
            starts[counted] = scratch.places[place]
            stops[counted] = scratch.places[word_stop]
            counted += 1
            word_stop = place
        state = before
    low, high = words, counted - 1
    while low < high:
        starts[low], starts[high] = starts[high], starts[low]
        stops[low], stops[high] = stops[high], stops[low]
        low += 1
        high -= 1
    return counted


@inlined
def _cut_known(first: Any, stop: Any, dictionary: Any, scratch: Any, starts: Any, stops: Any, words: Any) -> Any:
    """Cut characters along the most probable way through the dictionary; of equally probable words the longer."""
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
            if score != _NO_WORD and score + best[reach] >= top:
                top = score + best[reach]
                following[place] = reach
            if reach == stop:
                break
            node = np.int64(dictionary.children[_slot(_key(node, known[reach]), dictionary.keys)])
        if top == -np.inf:
            top = dictionary.unknown[0] + best[place + 1]
            following[place] = place + 1
        best[place] = top
    place = first
    pending = first  # single characters from here on wait to be cut together
    while place <= stop:
        reach = following[place] if place < stop else stop + 1
        if reach == place + 1 and place < stop:
            place = reach
            continue
        if place - pending == 1 or (place - pending > 1 and _is_word(known, pending, place, dictionary)):
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
def _cut_piece(characters_in: Any, dictionary: Any, scratch: Any, starts: Any, stops: Any, words: Any) -> Any:
    """Cut one piece of a run of Han, whose characters stand in `scratch`; return the number of words found so far."""
    first: Any = np.int64(0)
    while first < characters_in:
        stop = first
        while stop < characters_in and 0 <= scratch.known[stop] < _KNOWN:
            stop += 1
        if stop > first:
            words = _cut_known(first, stop, dictionary, scratch, starts, stops, words)
        if stop < characters_in:
            starts[words] = scratch.places[stop]
            stops[words] = scratch.places[stop + 1]
            words += 1
        first = stop + 1
    return words


@inlined
def _of_words(block: Any) -> Any:
    """Return the highest bit of each of eight ASCII bytes that is a letter or a digit, which are those that words are made of.

    Adding what is missing to 128 tells whether a byte is at least so much, and no byte reaches into the next.
    """
    lower = block | np.uint64(0x2020202020202020)
    letters = (lower + np.uint64(0x1F1F1F1F1F1F1F1F)) & ~(lower + np.uint64(0x0505050505050505))
    digits = (block + np.uint64(0x5050505050505050)) & ~(block + np.uint64(0x4646464646464646))
    return (letters | digits) & np.uint64(_HIGHEST)


@inlined
def _ascii_words(data: Any, place: Any, stop: Any, kinds: Any, starts: Any, stops: Any, words: Any) -> Any:
    """Find the words up to the first byte that is not ASCII, of which only words and separators are made.

    Returns where that byte is, the words so far, and where the last word begins if it may go on there, or -1. Where words
    begin and end no processor can foresee, so byte by byte nothing is branched on; of 64 bytes at once the edges are bits,
    and only those are visited.
    """
    inside = np.int64(0)
    begin = place
    while place < stop:
        if place + _STRETCH <= stop:
            beyond = np.uint64(0)
            of_words = np.uint64(0)
            for at in range(8):
                block = eight_bytes(data, place + 8 * at)
                beyond |= block
                # The product gathers the eight bits in its highest byte, the first byte's lowest.
                bits = ((_of_words(block) >> np.uint64(7)) * np.uint64(0x0102040810204080)) >> np.uint64(56)
                of_words |= bits << np.uint64(8 * at)
            if beyond & np.uint64(_HIGHEST) == 0:
                before = of_words << np.uint64(1) | np.uint64(inside)
                begins = of_words & ~before
                ends = before & ~of_words
                starts[np.uint64(words)] = begin
                begun = words + inside
                while begins != 0:
                    starts[np.uint64(begun)] = place + lowest_bit(begins)
                    begun += 1
                    begins &= begins - np.uint64(1)
                while ends != 0:
                    stops[np.uint64(words)] = place + lowest_bit(ends)
                    words += 1
                    ends &= ends - np.uint64(1)
                inside = np.int64(of_words >> np.uint64(63))
                begin = starts[np.uint64(words)] if inside else begin
                place += _STRETCH
                continue
        for _ in range(min(_STRETCH, stop - place)):
            byte = data[np.uint64(place)]  # an index without a sign is not looked at for counting from the end
            if byte >= 0x80:
                return place, words, begin if inside else np.int64(-1)
            is_word = np.int64(kinds[byte] & KIND_BITS == WORD)
            begin = begin if inside else place
            starts[np.uint64(words)] = begin
            stops[np.uint64(words)] = place
            words += inside & (1 - is_word)
            inside = is_word
            place += 1
    return place, words, begin if inside else np.int64(-1)


@inlined
def _alphabet_words(data: Any, place: Any, stop: Any, kinds: Any, starts: Any, stops: Any, words: Any) -> Any:
    """Do the same among code points of up to two bytes: alphabets from Latin to Arabic, which have words and separators only.

    Gives back to `_ascii_words` where two ASCII characters begin with a separator, and leaves the text's last byte to others.
    """
    inside = np.int64(0)
    begin = place
    while place + 1 < stop:
        byte = data[np.uint64(place)]
        following = data[np.uint64(place + 1)]
        if byte >= 0xE0:
            break
        has_two = np.int64(byte >= 0x80)
        code_point = of_two_bytes(byte, following) if has_two else np.int64(byte)
        is_word = np.int64(kinds[np.uint64(code_point)] & KIND_BITS == WORD)
        if (byte | following) < 0x80 and not is_word and not inside:
            break
        begin = begin if inside else place
        starts[np.uint64(words)] = begin
        stops[np.uint64(words)] = place
        words += inside & (1 - is_word)
        inside = is_word
        place += 1 + has_two
    return place, words, begin if inside else np.int64(-1)


@inlined
def words_between(data: Any, start: Any, stop: Any, kinds: Any, dictionary: Any, scratch: Any, starts: Any, stops: Any) -> Any:
    """Find the words of `data[start:stop]` (UTF-8); fill `starts` and `stops` with their places, return their number."""
    words: Any = np.int64(0)  # not 0: numba would compile what is called with it twice, for a constant and a variable
    place = start
    while place < stop:
        if data[place] < 0x80 and len(scratch.marks) == 0:
            place, words, begin = _ascii_words(data, place, stop, kinds, starts, stops, words)
            if begin < 0:
                continue
            kind: Any = np.int64(WORD)
        elif data[place] < 0xE0 and len(scratch.marks) == 0:
            place, words, begin = _alphabet_words(data, place, stop, kinds, starts, stops, words)
            if begin < 0:
                continue
            kind = np.int64(WORD)
        else:
            code_point, length = code_point_at(data, place)
            kind = np.int64(kinds[code_point] & KIND_BITS)
            begin = place
            place += length
        if len(scratch.marks) > 0 and scratch.marks[begin] != 0:
            while place < stop and scratch.marks[place] != BEGINS:
                if data[place] & 0xC0 != 0x80 and scratch.marks[place] == 0:
                    break
                place += 1
            starts[words] = begin
            stops[words] = place
            words += 1
        elif kind == WORD:
            while place < stop:
                code_point, length = code_point_at(data, place)
                if kinds[code_point] & KIND_BITS != WORD:
                    break
                place += length
            starts[words] = begin
            stops[words] = place
            words += 1
        elif kind == HAN:
            count: Any = np.int64(0)
            place = begin
            while place < stop and count < HAN_PIECE:
                code_point, length = code_point_at(data, place)
                if kinds[code_point] & KIND_BITS != HAN or (len(scratch.marks) > 0 and scratch.marks[place] != 0):
                    break
                scratch.places[count] = place
                scratch.known[count] = code_point - _FIRST_KNOWN
                count += 1
                place += length
            scratch.places[count] = place
            words = _cut_piece(count, dictionary, scratch, starts, stops, words)
        elif kind == UNSPACED:
            previous = begin
            alone = True
            while place < stop:
                code_point, length = code_point_at(data, place)
                if kinds[code_point] & KIND_BITS != UNSPACED or (len(scratch.marks) > 0 and scratch.marks[place] != 0):
                    break
                starts[words] = previous
                stops[words] = place + length
                words += 1
                alone = False
                previous = place
                place += length
            if alone:
                starts[words] = begin
                stops[words] = place
                words += 1
    if len(dictionary.stop_slots) == 0:
        return words
    kept: Any = np.int64(0)
    for word in range(words):
        if not _is_stop_word(data, starts[word], stops[word], dictionary):
            starts[kept] = starts[word]
            stops[kept] = stops[word]
            kept += 1
    return kept


@allocating_kernel
def _spans(data: Any, kinds: Any, dictionary: Any, scratch: Any) -> Any:
    starts = np.empty(len(data) // BYTES_PER_WORD_MIN + 1, np.int64)
    stops = np.empty(len(data) // BYTES_PER_WORD_MIN + 1, np.int64)
    words = words_between(data, np.int64(0), len(data), kinds, dictionary, scratch, starts, stops)
    return starts[:words], stops[:words]


def words(normalised: str, using: Dictionary | None = None, marks: NDArray[np.uint8] | None = None) -> list[str]:
    """Return the words of a normalised text, in text order; without `using`, by jieba's own dictionary."""
    data = normalised.encode()
    using = dictionary() if using is None else using
    starts, stops = _spans(np.frombuffer(data, np.uint8), characters.table(), using, scratch(marks))
    return [data[start:stop].decode() for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
