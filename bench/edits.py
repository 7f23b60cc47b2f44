"""What an editor, an abridger or a scanner makes of a text, by its length: how much of it is found.

Real sentences of one language are put together to texts of a wanted length, each text from one document that is like no other.
Of each come: the text under another headline and with another end (`agency`: the first sentence and the last two are
another's), its first 60 % (`abridged`), and the text with 2 % of its letters misread (`scanned`). All texts go through the
index, and then what came of them.

Beside the plan stands containment, the share of the shorter text's runs that the longer one has, estimated from the same
sketches and the sizes in the log: s (a + b) / ((1 + s) min(a, b)), of texts of which the shorter has at least half of the
other's features, and which the plan's blocks find. How many different texts it would take for one is counted in all pairs of
the texts, and of the pages of made-up sites, found or not.

Invariants: everything follows from the seed and the corpora; Jaccards are exact, by `demo.truth`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.corpus import read_corpora
from bench.quality import fingerprinter_of
from bench.sites import SiteOptions, SitePages
from stream_dedup.demo.truth import jaccard, shingles
from stream_dedup.fingerprinting import Prints, number_of
from stream_dedup.ground.document import Verdict
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.plan import Plan
from stream_dedup.ground.sketch import ALIKE, alike_each
from stream_dedup.local.offline import OfflineDocument, judge_documents

LENGTHS: Final = ((120, 200), (200, 400), (400, 800), (800, 1600))
KINDS: Final = ("agency", "abridged", "scanned")
CONTAINED: Final = (0.7, 0.8, 0.9)
"""From which containment on a second rule might take a pair."""
TEXTS: Final = 300
_TEMPLATES: Final = (50, 65, 75)
_RATIO: Final = 0.5
_KEPT: Final = 0.6
_MISREAD: Final = 0.02
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class EditFinding:
    """What came of texts of one length: exact Jaccard in the mean, share found by the plan, and by each of `CONTAINED`."""

    kind: str
    words: tuple[int, int]
    texts: int
    jaccard: float
    found: float
    contained: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StrangerFinding:
    """Pairs of different texts: how many, and how many of a million each of `CONTAINED` takes for one text."""

    name: str
    pairs: int
    taken_of_a_million: tuple[float, ...]


def measure_edits(corpus: Path, plan: Plan, keys: int, seed: int) -> Iterator[EditFinding | StrangerFinding]:
    """Yield what is found of each kind of edit at each length, over so many hash keys, then what containment takes falsely.

    Raises:
        InputError: the corpora cannot be read, or have too few English texts that are like no other.
    """
    documents = _sentences(corpus)
    for words in LENGTHS:
        texts = _texts(documents, words, np.random.default_rng([seed, words[0]]))
        yield from _of_length(texts, words, plan, keys, np.random.default_rng([seed, words[1]]))
    yield from _strangers(documents, keys, seed)


def _sentences(corpus: Path) -> list[list[str]]:
    """Return the sentences of each English document that no listed pair names."""
    found = []
    for one in read_corpora(corpus):
        listed = {place for pair in one.pairs for place in pair}
        for place, document in enumerate(one.documents):
            if document.language == "en" and place not in listed:
                own = [sentence for sentence in _SENTENCE.split(document.text) if 6 <= len(sentence.split()) <= 60]
                if len(own) >= 6:
                    found.append(own)
    if len(found) < TEXTS:
        raise InputError(f"The corpora have {len(found)} English texts that are like no other, and {TEXTS} are needed.")
    return found


def _texts(documents: Sequence[Sequence[str]], words: tuple[int, int], dice: np.random.Generator) -> list[list[str]]:
    """Return texts of so many words as lists of sentences: of a document, and of those behind it while that is too short."""
    found, order, at = list[list[str]](), dice.permutation(len(documents)).tolist(), 0
    while len(found) < TEXTS and at < len(order):
        wanted, own = int(dice.integers(*words)), list[str]()
        while at < len(order) and sum(len(one.split()) for one in own) < wanted:
            own += documents[order[at]]
            at += 1
        while len(own) > 5 and sum(len(one.split()) for one in own[:-1]) >= wanted:
            own.pop()
        found.append(own)
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
    texts: Sequence[Sequence[str]], words: tuple[int, int], plan: Plan, keys: int, dice: np.random.Generator
) -> Iterator[EditFinding]:
    whole = [" ".join(one) for one in texts]
    for kind in KINDS:
        made = [edited(kind, one, texts[(at + 1) % len(texts)], dice) for at, one in enumerate(texts)]
        exact = [jaccard(shingles(one, "en"), shingles(other, "en")) for one, other in zip(whole, made, strict=True)]
        found, contained = 0, np.zeros(len(CONTAINED))
        for key in range(keys):
            fingerprinter = fingerprinter_of("words", key)
            sources = [OfflineDocument(b"%d" % at, text) for at, text in enumerate([*whole, *made])]
            judged = list(judge_documents(sources, fingerprinter.recipe, plan, fingerprinter))[len(whole) :]
            found += sum(one.verdict is Verdict.DUPLICATE for one in judged)
            one, other = fingerprinter.fingerprint(whole), fingerprinter.fingerprint(made)
            share = containment(one.sketches, one.features, other.sketches, other.features)
            share *= are_found(one, other, plan)
            contained += [(share >= least).sum() for least in CONTAINED]
        of = keys * len(texts)
        yield EditFinding(kind, words, len(texts), statistics.mean(exact), found / of, tuple((contained / of).tolist()))


def containment(
    sketches: NDArray[np.uint8], features: NDArray[np.uint32], others: NDArray[np.uint8], of_others: NDArray[np.uint32]
) -> NDArray[np.float64]:
    """Return how much of the shorter text is in the longer one, as it is estimated: (n,); 0 where it is much shorter.

    `sketches`: (n, bytes) or (bytes,) for one against all; `features`: (n,) or one; `others` and `of_others`: (n, ..).
    """
    alike = np.maximum(alike_each(sketches, others), 0) / ALIKE
    a, b = np.float64(features), of_others.astype(np.float64)
    shorter, longer = np.minimum(a, b), np.maximum(np.maximum(a, b), 1)
    shared = np.minimum(alike * (a + b) / ((1 + alike) * np.maximum(shorter, 1)), 1.0)
    return np.where(shorter >= _RATIO * longer, shared, 0.0)


def are_found(one: Prints, other: Prints, plan: Plan) -> NDArray[np.bool_]:
    """Return whether the plan's blocks find each row of one by that of the other: (n,)."""
    rows = zip(one.prints, other.prints, one.sketches, other.sketches, strict=True)
    return np.array([any(plan.shared(number_of(a) ^ number_of(b), (c.tobytes(), d.tobytes()))) for a, b, c, d in rows])


def _strangers(documents: Sequence[Sequence[str]], keys: int, seed: int) -> Iterator[StrangerFinding]:
    texts = {"different texts": [" ".join(one) for one in documents]}
    for template in _TEMPLATES:
        pages = SitePages("en", template, 100, SiteOptions(pages=1000, seed=seed))
        texts[f"pages of a site, template {template} %"] = pages.texts
    for name, own in texts.items():
        pairs, taken = 0, np.zeros(len(CONTAINED))
        for key in range(keys):
            prints = fingerprinter_of("words", key).fingerprint(own)
            size = len(own) if name == "different texts" else 100
            for row in range(len(own)):
                rows = slice(row + 1, min(len(own), row - row % size + size))
                sketches, features = prints.sketches[rows], prints.features[rows]
                share = containment(prints.sketches[row], prints.features[row], sketches, features)
                pairs += len(share)
                taken += [(share >= least).sum() for least in CONTAINED]
        yield StrangerFinding(name, pairs // keys, tuple((1e6 * taken / pairs).tolist()))
