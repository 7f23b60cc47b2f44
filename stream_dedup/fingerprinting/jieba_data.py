"""Load jieba's dictionary and model, and a user's words, into arrays that kernels read.

Invariants: only the files of the version in `ENGINE` are read, as `ENGINE_DIGEST` proves; the
numbers are those that jieba computes, sums and ties included.

jieba itself is imported only to suggest a frequency for a user's word that has none. Its cache file
in the shared temporary directory is never read: it is `marshal` data that any user of the machine
could have written.
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
from stream_dedup.fingerprinting.hashes import fnv1a
from stream_dedup.kernels.compiled import allocating_kernel, inlined
from stream_dedup.kernels.interrupts import delayed_interrupts

ENGINE = "jieba-0.42.1"
# The digest of `ENGINE_FILES`, to detect a data file that changed under the same version.
ENGINE_DIGEST = bytes.fromhex("3600dc55b827b843484a76d50bcbd119")
# The range that jieba treats as Han: every other ideograph is a word by its rules.
FIRST_KNOWN, _LAST_KNOWN = 0x4E00, 0x9FD5
KNOWN = _LAST_KNOWN - FIRST_KNOWN + 1
NO_WORD = 1.0  # instead of the logarithm of a probability
_STATES = "BMES"
_IMPOSSIBLE = -3.14e100  # jieba's logarithm of zero
ENGINE_FILES = (
    "dict.txt",
    "finalseg/prob_start.py",
    "finalseg/prob_trans.py",
    "finalseg/prob_emit.py",
)


class Dictionary(NamedTuple):
    """jieba's dictionary as a tree of characters, and its model for words that are not in it.

    `roots`: (known,), the node of each first character, 0 for none; `keys` and `children`: an
    open-addressing table from `node << 16 | character` to a node; `scores`: logarithm of the
    probability of the word that ends in a node, or `NO_WORD`; `unknown`: (1,), the logarithm for a
    single character that is not a word. `start` (4,), `change` (4, 4) and `emit` (4, known):
    logarithms of the model's probabilities, states in the order of `_STATES`. `splits`: empty, or 1
    for each node that the user's dictionary excludes as a word even if the model finds it.
    `stop_slots`: empty, or an open-addressing table of numbers of stop words, from 1;
    `stop_offsets`, `stop_bytes`: the start of each stop word, and their UTF-8.
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
    """Return the slot of a key, or the free slot to insert it."""
    mask = len(keys) - 1
    slot = np.int64((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@inlined
def edge_key(node: Any, known: Any) -> Any:
    """Return the key of the edge from a node over a character."""
    return np.uint64(node) << np.uint64(16) | np.uint64(known)


@allocating_kernel
def _read_dictionary(data: Any, user_start: Any, slots: Any) -> Any:
    """Read lines `word frequency ...` of UTF-8; return roots, keys, children, frequencies and
    splits by node, and the total frequency.

    As in jieba, the last frequency of a word that occurs twice counts, but both add to the total.
    The lines from byte `user_start` to the end are the user's; a frequency of 0 there means that the
    word is to be split.
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
        is_user_word = place >= user_start
        node: Any = -1  # before the first character
        while data[place] != 0x20:
            code_point, length = code_point_at(data, place)
            place += length
            known = code_point - FIRST_KNOWN
            if node == 0 or known < 0 or known >= KNOWN:
                node = 0  # not Han only: no run of Han contains this word
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
            if is_user_word and frequency == 0:
                splits[node] = 1
    return roots, keys, children, frequencies[:nodes], splits[:nodes], total


def engine_folder(names: Sequence[str], digest: bytes) -> Path:
    """Return jieba's folder after comparing the digest (16 bytes) of these files in it.

    Raises ConfigurationError if jieba is missing, or if the digest differs.
    """
    spec = importlib.util.find_spec("jieba")
    if spec is None or spec.origin is None:
        raise ConfigurationError("The package jieba is not installed: install version 0.42.1.")
    folder = Path(spec.origin).parent
    hasher = hashlib.blake2b(digest_size=16)
    try:
        for name in names:
            content = (folder / name).read_bytes()
            hasher.update(len(content).to_bytes(8, "little") + content)
    except OSError as error:
        raise ConfigurationError(
            f"jieba's data in {folder} cannot be read ({error}): install jieba 0.42.1 again."
        ) from error
    if hasher.digest() != digest:
        raise ConfigurationError(
            f"The files {', '.join(names)} in {folder} differ from those of {ENGINE}, so "
            "fingerprints would not be comparable: install the unmodified jieba 0.42.1."
        )
    return folder


def _model_table(file: Path) -> Any:
    """Return the table `P` of one of jieba's model files, which are Python modules."""
    loader = importlib.machinery.SourceFileLoader(f"_{file.stem}", str(file))
    module = types.ModuleType(loader.name)
    loader.exec_module(module)
    return module.P


class UserWord(NamedTuple):
    """A word of the user's dictionary, with its part of speech or None.

    `frequency`: None to have jieba suggest one; 0 for characters that must never form a word.
    """

    word: str
    frequency: int | None
    tag: str | None = None


@cache
def dictionary() -> Dictionary:
    """Return jieba's dictionary and model, read once in a process.

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
    # jieba takes a second to import, and only suggested frequencies need it.
    frequencies = [(word, frequency) for word, frequency, _ in user_words if frequency is not None]
    if len(frequencies) < len(user_words):
        _, frequencies = tokenizer_with(user_words, folder)
    added = "".join(f"{word} {frequency}\n" for word, frequency in frequencies).encode()
    slots = 1 << 20
    # A character of a user's word has three bytes and adds at most one node.
    while slots < (1 << 20) + 2 * len(added):
        slots *= 2
    data = np.frombuffer(content + added, np.uint8)
    with delayed_interrupts():
        roots, keys, children, counts, splits, total = _read_dictionary(data, len(content), slots)
    # Python's logarithm of each distinct frequency: jieba computes the same numbers, so sums and
    # ties are equal too.
    log_total = math.log(total)
    distinct, distinct_rows = np.unique(counts, return_inverse=True)
    logarithms = np.array(
        [math.log(value) - log_total if value else NO_WORD for value in distinct.tolist()]
    )
    emissions = np.full((4, KNOWN), _IMPOSSIBLE)
    for state, name in enumerate(_STATES):
        for character, score in emit[name].items():
            if FIRST_KNOWN <= ord(character) <= _LAST_KNOWN:
                emissions[state, ord(character) - FIRST_KNOWN] = score
    result_dictionary = Dictionary(
        roots,
        keys,
        children,
        logarithms[distinct_rows],
        np.array([math.log(1) - log_total]),
        np.array([start[name] for name in _STATES]),
        np.array(
            [[change[before].get(after, _IMPOSSIBLE) for after in _STATES] for before in _STATES]
        ),
        emissions,
        splits if splits.any() else splits[:0],
        *_stop_table(stop_words),
    )
    for array in result_dictionary:
        array.setflags(write=False)
    return result_dictionary


def tokenizer_with(
    user_words: Sequence[UserWord], folder: Path
) -> tuple[Any, list[tuple[str, int]]]:
    """Return a tokenizer of jieba with a user's words, added in their order, and the frequency of
    each.
    """
    import jieba  # noqa: PLC0415 - rarely needed

    tokenizer = jieba.Tokenizer()
    with (folder / "dict.txt").open("rb") as file:
        tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(file)
    tokenizer.initialized = True
    word_frequencies = []
    for word, given_frequency, tag in user_words:
        frequency: int = (
            tokenizer.suggest_freq(word) if given_frequency is None else given_frequency
        )
        # As `Tokenizer.add_word`, without the set that all tokenizers share.
        tokenizer.FREQ[word] = frequency
        tokenizer.total += frequency
        for stop in range(1, len(word)):
            tokenizer.FREQ.setdefault(word[:stop], 0)
        if tag is not None:
            tokenizer.user_word_tag_tab[word] = tag
        word_frequencies.append((word, frequency))
    return tokenizer, word_frequencies


def _stop_table(
    stop_words: Collection[str],
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]:
    encoded = sorted(word.encode() for word in stop_words)
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(word) for word in encoded], out=offsets[1:])
    slots = np.zeros(1 << (2 * len(encoded)).bit_length() if encoded else 0, np.int32)
    for number, word in enumerate(encoded, 1):
        slot = fnv1a(word) & (len(slots) - 1)
        while slots[slot]:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number
    return slots, offsets, np.frombuffer(b"".join(encoded), np.uint8)
