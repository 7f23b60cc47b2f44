"""Compare how similar the documents of `bench index` are to each other with real, distinct texts.

Texts count as distinct if, for every two of them, at most half of their sketch values are equal,
and more bits of their fingerprints differ than `bands` allows. They are added in random order, in
batches, because documents of one batch are compared in another way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from bench.corpus import read_corpora
from bench.log_stream import FEATURES, RECORD_DOCUMENTS, WORDS, PrintStream
from bench.quality import recipe_of
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.domain.sketch import SKETCH_BYTES, per_cents
from stream_dedup.fingerprinting import Fingerprinter
from stream_dedup.index.storage.columns import ORIGIN_BYTES, Columns, make_columns, select_rows
from stream_dedup.index.tables.neighbours import Neighbours

_BATCH: Final = 50


def real_columns(folder: Path) -> Columns:
    """Return the distinct texts of the sets in a folder.

    Raises:
        InputError: there are none, or they cannot be read.
    """
    prints = Fingerprinter(recipe_of("words")).fingerprint(
        [document.text for corpus in read_corpora(folder) for document in corpus.documents]
    )
    kept: list[int] = []
    for place in np.random.default_rng(1).permutation(len(prints)).tolist():
        alike = per_cents(prints.sketches[kept], prints.sketches[place])
        apart = np.bitwise_count(prints.prints[kept] ^ prints.prints[place]).sum(axis=1)
        if not ((alike > 50) | (apart <= PLANS["bands"].threshold)).any():
            kept.append(place)
    return _columns(prints.prints[kept], prints.sketches[kept], prints.features[kept])


def generated_columns(plan: Plan, count: int, seed: int, *, template: bool = False) -> Columns:
    """Return `count` documents of the stream of `bench index`, without copies."""
    stream = PrintStream(plan, count, 0.0, 0, seed, template=template)
    parts = [stream.texts(number) for number in range(-(-count // RECORD_DOCUMENTS))]
    prints, sketches = (
        np.concatenate([part for _, part, _ in parts]),
        np.concatenate([part for _, _, part in parts]),
    )
    return _columns(prints, sketches, np.full(count, FEATURES, np.uint32))


def candidates_per_text(plan: Plan, texts: Columns) -> float:
    """Return the mean number of entries that a search compares, while all texts are added."""
    index = Neighbours(
        plan,
        WORDS,
        lambda numbers: select_rows(texts, numbers),
        threads=1,
        sketch_bytes=SKETCH_BYTES,
    )
    count = len(texts.features)
    for first in range(0, count, _BATCH):
        batch = select_rows(texts, slice(first, first + _BATCH))
        index.judge(batch, batch.features, 1)
    return index.candidates / count


def _columns(prints: np.ndarray, sketches: np.ndarray, features: np.ndarray) -> Columns:
    columns = make_columns(WORDS, len(features), SKETCH_BYTES + ORIGIN_BYTES)
    columns.prints[:], columns.features[:] = prints, features
    columns.sketches[:, :SKETCH_BYTES] = sketches
    columns.offsets[:] = np.arange(len(features))
    columns.digests[:, 0] = np.arange(len(features))
    return columns
