"""A text's keywords as `jieba.analyse` finds them, by jieba's own code, but for the path through its model of tags (`tagging`).

Invariants: keywords and weights are those of `jieba.analyse.extract_tags` and `jieba.analyse.textrank` with their
default parts of speech, for every text whose runs of Han, letters and digits are shorter than `PIECE`; longer ones are
cut there first, because jieba's own cutting is quadratic in them. jieba's data is that of the recipe's id. A user's words
and stop words mean what they mean after `jieba.load_userdict` and `set_stop_words`, and are in no other analyser.

jieba is imported at the first use, because it reads its tables for two seconds; its cache file in the directory for
temporary files is not used: any user of the machine could have written it, and it is read by `marshal`.

Sources: Mihalcea and Tarau, "TextRank: Bringing Order into Texts" (EMNLP 2004); the package jieba 0.42.1.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from stream_dedup.fingerprinting import jieba_data, tagging
from stream_dedup.fingerprinting.jieba_data import UserWord, with_frequencies

PIECE: Final = 512
# Of the IDF table and of the model that tags parts of speech.
DATA_DIGEST: Final = bytes.fromhex("a6361e31363ff9024371f5405aab2f0b")
_FILES: Final = (
    "analyse/idf.txt",
    "posseg/prob_start.py",
    "posseg/prob_trans.py",
    "posseg/prob_emit.py",
    "posseg/char_state_tab.py",
)
# What jieba takes as one block; any longer run of it is cut.
_LONG_RUN = re.compile(r"[\u4E00-\u9FD5a-zA-Z0-9+#&\._%\-]{" + str(PIECE) + r"}(?=[\u4E00-\u9FD5a-zA-Z0-9+#&\._%\-])")
_LOCK = threading.Lock()


class _InPieces:
    """One of jieba's tokenizers, given a text in pieces that it cuts in linear time."""

    def __init__(self, tokenizer: Any, split: frozenset[str] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._split = split

    def cut(self, text: str) -> Iterator[Any]:
        if not self._split:
            yield from self._cut(text)
            return
        for word in self._cut(text):
            if word in self._split:  # jieba keeps these in a set that all its tokenizers share
                yield from word
            else:
                yield word

    def _cut(self, text: str) -> Iterator[Any]:
        start = 0
        for found in _LONG_RUN.finditer(text):
            yield from self._tokenizer.cut(text[start : found.end()])
            start = found.end()
        yield from self._tokenizer.cut(text[start:])


class Analyser:
    """Finds keywords, with a user's words in the dictionary and words left out; may be shared by threads."""

    def __init__(self, user_words: tuple[UserWord, ...], stop_words: frozenset[str]) -> None:
        """Read jieba's data; raise ConfigurationError if it is not that of the recipe's id."""
        folder = jieba_data.engine_folder(_FILES, DATA_DIGEST)
        jieba_data.dictionary()  # sees that the dictionary is the recipe's, too
        import jieba.analyse  # noqa: PLC0415 - jieba reads its tables on import, for seconds

        tokenizer = jieba.Tokenizer()
        tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
        tokenizer.initialized = True
        for one, (word, frequency) in zip(user_words, with_frequencies(user_words, folder), strict=True):
            # What `Tokenizer.add_word` does, but for the set of words to split.
            tokenizer.FREQ[word] = frequency
            tokenizer.total += frequency
            for stop in range(1, len(word)):
                tokenizer.FREQ.setdefault(word[:stop], 0)
            if one.tag is not None:
                tokenizer.user_word_tag_tab[word] = one.tag
        self._tfidf = jieba.analyse.TFIDF()
        self._tfidf.tokenizer = _InPieces(tokenizer, frozenset(one.word for one in user_words if one.frequency == 0))
        self._tfidf.stop_words.update(stop_words)
        self._textrank = jieba.analyse.TextRank()
        self._textrank.tokenizer = _InPieces(tagging.quick_tokenizer(tokenizer))
        self._textrank.stop_words.update(stop_words)

    def by_tfidf(self, text: str, number: int) -> list[tuple[str, float]]:
        """Return the `number` words with the greatest TF-IDF weight, greatest first, with their weights."""
        found: list[tuple[str, float]] = self._tfidf.extract_tags(text, topK=number, withWeight=True)
        return found

    def by_textrank(self, text: str, number: int) -> list[tuple[str, float]]:
        """Return the `number` nouns and verbs that TextRank ranks highest, highest first, with their ranks."""
        found: list[tuple[str, float]] = self._textrank.textrank(text, topK=number, withWeight=True)
        return found

    def inverse_document_frequency(self, word: str) -> float:
        """Return jieba's IDF of a word, and the table's median for a word that it does not hold."""
        return float(self._tfidf.idf_freq.get(word, self._tfidf.median_idf))


@lru_cache(maxsize=4)
def _made(user_words: tuple[UserWord, ...], stop_words: frozenset[str]) -> Analyser:
    return Analyser(user_words, stop_words)


def analyser(user_words: tuple[UserWord, ...] = (), stop_words: frozenset[str] = frozenset()) -> Analyser:
    """Return the analyser for a user's words and stop words, made once.

    Raises ConfigurationError if jieba's data is not that of the recipe's id.
    """
    with _LOCK:  # two threads would read the tables twice
        return _made(user_words, stop_words)
