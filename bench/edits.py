"""Measure how much of edited, abridged and scanned copies of a text is found, by the text's length.

Texts of a given length are composed of real sentences, each text of one document that is similar to
no other. Each text has three copies: under another headline and with another end (`agency`: the
first sentence and the last two are replaced), its first 60 % (`abridged`), and with 2 % of its
letters misread (`scanned`). All texts are added to the index before their copies.

Invariants: everything follows from the seed and the corpora; Jaccards are exact, by `truth`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.corpus import read_corpora
from bench.quality import fingerprinter_of
from bench.truth import jaccard, shingles
from stream_dedup.domain.document import Verdict
from stream_dedup.domain.errors import InputError
from stream_dedup.domain.plan import Plan
from stream_dedup.files.offline import OfflineDocument, judge_documents

LENGTHS: Final = ((120, 200), (200, 400), (400, 800), (800, 1600))
KINDS: Final = ("agency", "abridged", "scanned")
TEXTS: Final = 300
_KEPT: Final = 0.6
_MISREAD: Final = 0.02
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class EditFinding:
    """The result for texts of one length: the mean exact Jaccard of the copies, and the share that
    the plan found.
    """

    kind: str
    words: tuple[int, int]
    texts: int
    jaccard: float
    found: float


def measure_edits(corpus: Path, plan: Plan, keys: int, seed: int) -> Iterator[EditFinding]:
    """Yield what is found of each kind of edit at each length, over `keys` hash keys.

    Raises:
        InputError: the corpora cannot be read, or have too few English texts that are like no
        other.
    """
    documents = _sentences(corpus)
    for words in LENGTHS:
        texts = _texts(documents, words, np.random.default_rng([seed, words[0]]))
        yield from _of_length(texts, words, plan, keys, np.random.default_rng([seed, words[1]]))


def _sentences(corpus: Path) -> list[list[str]]:
    """Return the sentences of each English document that no listed pair names."""
    found = []
    for read_corpus in read_corpora(corpus):
        listed = {place for pair in read_corpus.pairs for place in pair}
        for place, document in enumerate(read_corpus.documents):
            if document.language == "en" and place not in listed:
                sentences = [
                    sentence
                    for sentence in _SENTENCE.split(document.text)
                    if 6 <= len(sentence.split()) <= 60
                ]
                if len(sentences) >= 6:
                    found.append(sentences)
    if len(found) < TEXTS:
        raise InputError(
            f"The corpora have {len(found)} English texts that are like no other, and {TEXTS} are "
            "needed."
        )
    return found


def _texts(
    documents: Sequence[Sequence[str]], words: tuple[int, int], dice: np.random.Generator
) -> list[list[str]]:
    """Return texts of so many words as lists of sentences: of a document, and of those behind it
    while that is too short.
    """
    found, order, position = list[list[str]](), dice.permutation(len(documents)).tolist(), 0
    while len(found) < TEXTS and position < len(order):
        wanted, chosen = int(dice.integers(*words)), list[str]()
        while position < len(order) and sum(len(sentence.split()) for sentence in chosen) < wanted:
            chosen += documents[order[position]]
            position += 1
        while len(chosen) > 5 and sum(len(sentence.split()) for sentence in chosen[:-1]) >= wanted:
            chosen.pop()
        found.append(chosen)
    return found


def edited(kind: str, text: Sequence[str], other: Sequence[str], dice: np.random.Generator) -> str:
    """Return what comes of a text, of whose sentences `other` may give some."""
    if kind == "agency":
        return " ".join([other[0], *text[1:-2], *other[-2:]])
    whole = " ".join(text)
    if kind == "abridged":
        return " ".join(whole.split()[: round(_KEPT * len(whole.split()))])
    letters = list(whole)
    for place in np.flatnonzero(dice.random(len(letters)) < _MISREAD).tolist():
        if letters[place].isalpha():
            letters[place] = _LETTERS[int(dice.integers(len(_LETTERS)))]
    return "".join(letters)


def _of_length(
    texts: Sequence[Sequence[str]],
    words: tuple[int, int],
    plan: Plan,
    keys: int,
    dice: np.random.Generator,
) -> Iterator[EditFinding]:
    whole = [" ".join(source_text) for source_text in texts]
    for kind in KINDS:
        made = [
            edited(kind, source_text, texts[(number + 1) % len(texts)], dice)
            for number, source_text in enumerate(texts)
        ]
        exact = [
            jaccard(shingles(source_text, "en"), shingles(other, "en"))
            for source_text, other in zip(whole, made, strict=True)
        ]
        found = 0
        for key in range(keys):
            fingerprinter = fingerprinter_of("words", key)
            sources = [
                OfflineDocument(b"%d" % number, text) for number, text in enumerate([*whole, *made])
            ]
            judged = list(
                judge_documents(sources, fingerprinter.recipe, plan, fingerprinter.fingerprint)
            )[len(whole) :]
            found += sum(source_text.verdict is Verdict.DUPLICATE for source_text in judged)
        yield EditFinding(
            kind, words, len(texts), statistics.mean(exact), found / (keys * len(texts))
        )
