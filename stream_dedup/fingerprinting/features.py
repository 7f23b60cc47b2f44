"""Return readable features of texts with their weights: words and characters for explanations, and
keywords for fingerprints too.

Invariants: the features of a text depend only on the text and the recipe; they are in the order of
their first occurrence (keywords: the greatest weight first); a run of words is spelt with one space
between words.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.presets import KEYWORDS, OF_WORDS, PYPI, RecipeMethod
from stream_dedup.fingerprinting.languages import Languages
from stream_dedup.fingerprinting.simhash import WEIGHT_ONE, log_count_weight
from stream_dedup.fingerprinting.variants import keywords

# TF-IDF weights and ranks are real numbers; other weights are multiples of 1 / 256 already.
RANK_UNIT: Final = 1 << 24
_LETTERS: Final = re.compile(r"[\w\u4e00-\u9fcc]+")


def find_runs(form: bytes, method: RecipeMethod, languages: Languages) -> dict[str, float]:
    """Return the runs of words or characters of a text, in UTF-8 as `make_forms` returns it, with
    their weights.
    """
    weights: dict[str, float] = {}
    for kind, length, scale in method.runs:
        if kind == OF_WORDS:
            words = languages.spelt_words(form)
            runs = [" ".join(words[i : i + length]) for i in range(len(words) - length + 1)]
        else:
            text = form.decode()
            runs = [text[i : i + length] for i in range(len(text) - length + 1)]
        for run, count in Counter(runs).items():
            weight = scale * log_count_weight(count) / WEIGHT_ONE
            weights[run] = weights.get(run, 0.0) + weight
    return weights


def find_keywords(
    form: bytes, method: RecipeMethod, languages: Languages
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return the keywords of a text (m,), UTF-8, and their weights (m,) in units of 1 /
    `RANK_UNIT`; or the runs of four letters with their counts, as PyPI's `simhash` 2.1.2 finds
    them.
    """
    if method.name == PYPI:
        letters = "".join(_LETTERS.findall(form.decode().lower()))
        runs = Counter(letters[i : i + 4] for i in range(max(1, len(letters) - 3)))
        counts = np.array([*runs.values()], np.int64)
        return [run.encode() for run in runs], counts * RANK_UNIT
    analyser = keywords.analyser(languages.user_words, languages.stop_words)
    rank = analyser.by_tfidf if method.name == "keywords" else analyser.by_textrank
    ranked_words = rank(form.decode(), KEYWORDS)
    weights = [round(RANK_UNIT * weight) for _, weight in ranked_words]
    return [word.encode() for word, _ in ranked_words], np.array(weights, np.int64)
