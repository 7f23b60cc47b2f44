"""`python -m stream_dedup.serving.compile_kernels DIRECTORY`: compile every kernel by calling it once as the roles
do.

Invariant: every kernel is called with the types that a role calls it with. The result names the
kernels that were not called; a test expects none, so that a new kernel is added here.

The command `compile` runs it in a child process, because numba reads the target processor from the
environment, and only once in each process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import LogPlace, Reason
from stream_dedup.domain.plan import PLANS
from stream_dedup.domain.presets import PRESETS
from stream_dedup.domain.sketch import SKETCH_BYTES
from stream_dedup.fingerprinting import (
    Fingerprinter,
    Languages,
    Recipe,
    explain_features,
    hashes,
    simhash,
)
from stream_dedup.fingerprinting.variants import keywords
from stream_dedup.index.rules.copies import Copies, CopyCounts
from stream_dedup.index.storage.columns import (
    FULL,
    ORIGIN_BYTES,
    Columns,
    StoredRows,
    make_columns,
    select_rows,
)
from stream_dedup.index.storage.layout import row_type
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.storage.pages import EntryPage, gather, same_ids
from stream_dedup.index.storage.tags import crcs_of
from stream_dedup.index.tables.entry_columns import TAGS
from stream_dedup.index.tables.neighbours import Neighbours
from stream_dedup.kafka import warm_up_writer
from stream_dedup.kernels import compiled
from stream_dedup.log import header_columns
from stream_dedup.log.schema import Judgement, Verdicts

_DOCUMENTS = 3


def use_fingerprints() -> None:
    """Call the kernels of every preset, and those of `explain`."""
    # Presets with keywords are skipped: jieba takes seconds to read its tables.
    for name in (name for name, method in PRESETS.items() if not method.is_ranked):
        fingerprinter = Fingerprinter(Recipe(name))
        if fingerprinter.recipe.method.takes_vectors:
            fingerprinter.fingerprint_vectors([np.ones(3)])
        else:
            fingerprinter.fingerprint(["warm 研究"])
    explain_features(Recipe(), "warm")
    Languages().words("warm")
    hashes.sip_hash(np.frombuffer(b"warm", np.uint8), np.uint64(1), np.uint64(2), 1, 3)
    simhash.sum_hashes(simhash.in_halves([1]), np.ones(1, np.int64), 64, np.zeros(1, np.uint64))
    matrix, vector = np.zeros((1, 1)), np.zeros(2, np.int64)
    keywords.most_probable(
        vector, keywords.Model(matrix[0], matrix, matrix == 0, vector, vector, matrix[0])
    )


def use_index() -> None:
    """Call the kernels that judge, look up, remove, load and reorganise, for every plan."""
    for plan in PLANS.values():
        limbs = -(-plan.width // 64)
        batch = make_columns(limbs, _DOCUMENTS, SKETCH_BYTES + ORIGIN_BYTES)
        for row in range(_DOCUMENTS):
            batch.prints[row] = row * 0x0123456789ABCDEF
            batch.digests[row] = row
            batch.offsets[row] = row
        batch.features[:] = 100

        def identities(numbers: NDArray[np.int64], columns: Columns = batch) -> Columns:
            return select_rows(columns, numbers)

        index = Neighbours(plan, limbs, identities, sketch_bytes=SKETCH_BYTES)
        index.judge(batch, batch.features, 48)
        index.judge(batch, batch.features, 48)
        batch.digests[:] += 1  # equal fingerprints of different texts: near, not equal
        index.judge(batch, batch.features, 48)
        index.find_positions(batch)
        index.find_ids(batch.ids, batch.scopes, lambda asked, _: asked >= 0, 0)
        index.measure_next_table()
        index.find_near(batch.prints[0], 0, 48, bytes(SKETCH_BYTES))
        index._tables.finder.merge(0)
        index._freeze([0])
        index.change_plan(plan)
        index.drop(np.arange(1))
        tags, states = np.zeros(_DOCUMENTS, np.uint32), np.full(_DOCUMENTS, FULL, np.uint8)
        stored = StoredRows(
            numbers=np.arange(_DOCUMENTS),
            prints=batch.prints,
            scopes=batch.scopes,
            features=batch.features,
            states=states,
            sketches=batch.sketches,
            **dict.fromkeys(TAGS, tags),
        )
        Neighbours(plan, limbs, identities, sketch_bytes=SKETCH_BYTES).load(
            [stored], _DOCUMENTS, _DOCUMENTS
        )
    first, kind = np.zeros(1, np.int64), row_type(1)
    ids = gather([EntryPage(bytes(kind.itemsize))], first, first, kind, kind).ids()
    crcs_of(ids)
    same_ids(ids, ids)
    narrow = first.astype(np.uint32)
    copies = Copies(narrow, first, narrow, first)
    CopyCounts(MemoryStore()).count(
        first, copies, copies, [b""], BetterRule.LONGEST, counts_copies=True
    )


def use_outputs() -> None:
    """Call the kernels that write headers; send no record."""
    verdicts = Verdicts.of([Judgement(Reason.NEW, LogPlace(0, 0))])
    places = header_columns.SourcePlaces("warm", np.zeros(1, np.int32), np.zeros(1, np.int64))
    header_columns.of_verdicts(
        "warm", places, np.zeros((1, 2), np.uint8), verdicts, np.ones(1, np.bool_)
    )
    warm_up_writer()


def main() -> int:
    """Compile all kernels into the directory that the first argument names; print the counts as
    JSON; return 0.
    """
    compiled.compile_into(Path(sys.argv[1]))
    use_fingerprints()
    use_index()
    use_outputs()
    counts = compiled.statistics()
    print(
        json.dumps(
            {"kernels": counts.kernels, "compiled": counts.compiled, "unused": counts.unused}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
