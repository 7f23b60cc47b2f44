"""jieba's dictionary and model, and a user's words, as arrays that kernels read.

Invariants: nothing but the files of the version in `ENGINE` is ever read, which `ENGINE_DIGEST`
holds; the numbers are those that jieba computes, sums and ties included.

jieba itself is imported for one thing: to suggest the frequency of a user's word that has none. Its
cache file in the shared temporary directory is never read: it is `marshal` data that any user of
the machine could have written.
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

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.fingerprinting.characters import code_point_at
from stream_dedup.kernels.compiled import allocating_kernel, inlined

ENGINE = "jieba-0.42.1"
# Of `ENGINE_FILES`, so that a data file changed under the same version is noticed.
ENGINE_DIGEST = bytes.fromhex("3600dc55b827b843484a76d50bcbd119")
# What jieba holds for Han: other ideographs are words of their own to it.
FIRST_KNOWN, _LAST_KNOWN = 0x4E00, 0x9FD5
KNOWN = _LAST_KNOWN - FIRST_KNOWN + 1
NO_WORD = 1.0  # in place of a logarithm of a probability
_STATES = "BMES"
FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_IMPOSSIBLE = -3.14e100  # jieba's logarithm of zero
ENGINE_FILES = (
    "dict.txt",
    "finalseg/prob_start.py",
    "finalseg/prob_trans.py",
    "finalseg/prob_emit.py",
)


class Dictionary(NamedTuple):
    """jieba's dictionary as a tree of characters, and its model for what the dictionary does not
    know.

    `roots`: (known,), the node of each first character, 0 for none; `keys` and `children`: an
    open-addressing table from `node << 16 | character` to a node; `scores`: logarithm of the
    probability of the word that ends in a node, or `NO_WORD`; `unknown`: (1,), the same for a
    single character that is no word. `start` (4,), `change` (4, 4) and `emit` (4, known):
    logarithms of the model's probabilities, states in the order of `_STATES`. `splits`: empty, or
    by node 1 for what the user's dictionary says is no word even where the model finds it.
    `stop_slots`: empty, or an open-addressing table of numbers of stop words, from 1;
    `stop_offsets`, `stop_bytes`: where each begins, and their UTF-8.
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


@inlined
def slot_of(key: Any, keys: Any) -> Any:
    """Return the slot of a key, or the free one where it would stand."""
    mask = len(keys) - 1
    slot = np.int64((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@inlined
def edge_key(node: Any, known: Any) -> Any:
    """Return what stands in `keys` for the way from a node over a character."""
    return np.uint64(node) << np.uint64(16) | np.uint64(known)


@allocating_kernel
def _read_dictionary(data: Any, users: Any, slots: Any) -> Any:
    """Read lines `word frequency ...` of UTF-8; return roots, keys, children, frequency and splits
    per node, and the total.

    As jieba does: of a word given twice the last frequency counts, but both add to the total. From
    byte `users` on the lines are the user's, and a frequency of 0 there means that the word is to
    be split.
    """
    roots = np.zeros(KNOWN, np.int32)
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
            known = code_point - FIRST_KNOWN
            if node == 0 or known < 0 or known >= KNOWN:
                node = 0  # no run of Han reaches such a word
            elif node == -1:
                if roots[known] == 0:
                    roots[known] = nodes
                    nodes += 1
                node = np.int64(roots[known])
            else:
                slot = slot_of(edge_key(node, known), keys)
                if keys[slot] == 0:
                    keys[slot] = edge_key(node, known)
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


def engine_folder(names: Sequence[str], digest: bytes) -> Path:
    """Return jieba's folder, in which the files of these names have this digest, of 16 bytes.

    Raises ConfigurationError if jieba is missing, or if they have another.
    """
    found = importlib.util.find_spec("jieba")
    if found is None or found.origin is None:
        raise ConfigurationError(
            "The package jieba is not installed: install it at the version 0.42.1."
        )
    folder = Path(found.origin).parent
    made = hashlib.blake2b(digest_size=16)
    try:
        for name in names:
            content = (folder / name).read_bytes()
            made.update(len(content).to_bytes(8, "little") + content)
    except OSError as error:
        raise ConfigurationError(
            f"jieba's data in {folder} cannot be read ({error}): install jieba 0.42.1 again."
        ) from error
    if made.digest() != digest:
        raise ConfigurationError(
            f"What {folder} holds ({', '.join(names)}) is not that of {ENGINE}, so its prints "
            "would not be comparable: install "
            "jieba 0.42.1 as it was published."
        )
    return folder


def _model_table(file: Path) -> Any:
    """Return the table in one of jieba's model files, which are Python modules of one dictionary
    `P` each.
    """
    loader = importlib.machinery.SourceFileLoader(f"_{file.stem}", str(file))
    module = types.ModuleType(loader.name)
    loader.exec_module(module)
    return module.P


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

    Raises ConfigurationError if jieba is missing, or if its data is not that of the version in the
    recipe's name.
    """
    return make_dictionary((), ())


def make_dictionary(user_words: Sequence[UserWord], stop_words: Collection[str]) -> Dictionary:
    """Return jieba's dictionary and model with a user's words, as `jieba.load_userdict` adds them,
    and with stop words.

    Raises ConfigurationError as `dictionary`.
    """
    folder = engine_folder(ENGINE_FILES, ENGINE_DIGEST)
    content = (folder / "dict.txt").read_bytes()
    start, change, emit = (_model_table(folder / name) for name in ENGINE_FILES[1:])
    added = "".join(
        f"{word} {frequency}\n" for word, frequency in with_frequencies(user_words, folder)
    ).encode()
    slots = 1 << 20
    while slots < (1 << 20) + 2 * len(
        added
    ):  # a node takes a character of the user's, and so three bytes
        slots *= 2
    data = np.frombuffer(content + added, np.uint8)
    roots, keys, children, frequencies, splits, total = _read_dictionary(data, len(content), slots)
    # Python's logarithm, once for every frequency there is: the same numbers as jieba computes,
    # sums and ties included.
    log_total = math.log(total)
    distinct, places = np.unique(frequencies, return_inverse=True)
    logarithms = np.array(
        [math.log(value) - log_total if value else NO_WORD for value in distinct.tolist()]
    )
    emissions = np.full((4, KNOWN), _IMPOSSIBLE)
    for state, name in enumerate(_STATES):
        for character, score in emit[name].items():
            if FIRST_KNOWN <= ord(character) <= _LAST_KNOWN:
                emissions[state, ord(character) - FIRST_KNOWN] = score
    made = Dictionary(
        roots,
        keys,
        children,
        logarithms[places],
        np.array([math.log(1) - log_total]),
        np.array([start[name] for name in _STATES]),
        np.array(
            [[change[before].get(after, _IMPOSSIBLE) for after in _STATES] for before in _STATES]
        ),
        emissions,
        splits if splits.any() else splits[:0],
        *_stop_table(stop_words),
    )
    for array in made:
        array.setflags(write=False)
    return made


def with_frequencies(user_words: Sequence[UserWord], folder: Path) -> list[tuple[str, int]]:
    """Return a user's words with the frequency that each has in jieba when they are added in this
    order.
    """
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
        tokenizer.FREQ[word] = (
            frequency  # what `Tokenizer.add_word` does, but for a set that all tokenizers share
        )
        tokenizer.total += frequency
        for stop in range(1, len(word)):
            tokenizer.FREQ.setdefault(word[:stop], 0)
        found.append((word, frequency))
    return found


def _hash_of(content: bytes) -> int:
    """Return FNV-1a-64 of bytes: what `_is_stop_word` computes."""
    value = FNV_OFFSET
    for byte in content:
        value = (value ^ byte) * FNV_PRIME & 0xFFFF_FFFF_FFFF_FFFF
    return value


def _stop_table(
    stop_words: Collection[str],
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]:
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
