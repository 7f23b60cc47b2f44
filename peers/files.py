"""Drop near-duplicates from one file of JSONL with another program: python files.py METHOD FILE
prints the dropped rows as JSON.

For `python -m bench files`. Runs in `.venv-peers` and imports nothing of stream_dedup. Each program
runs with its documented defaults at a threshold of 0.7, with its calls for many texts at once if it
has any. If it leaves the features to its user, it gets runs of three words, as in the truth.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import answer

PERMUTATIONS, BANDS, THRESHOLD = 128, 16, 0.7
AT_ONCE = 10_000


def later_of_pairs(method, texts):
    """Drop each text that is near an earlier one."""
    return sorted(
        {max(pair) for pair in method.pairs(texts, ["en"] * len(texts)) if pair[0] != pair[1]}
    )


def token_sets(texts):
    return [sorted(answer.shingles(text, "en")) for text in texts]


def rensa_batch(texts):
    from rensa import RMinHash, RMinHashDeduplicator

    index = RMinHashDeduplicator(THRESHOLD, PERMUTATIONS, True, BANDS, 42)
    dropped = []
    for first in range(0, len(texts), AT_ONCE):
        signed = RMinHash.from_token_sets(
            token_sets(texts[first : first + AT_ONCE]), PERMUTATIONS, 42
        )
        kept = index.add_pairs([(str(row), one) for row, one in enumerate(signed, first)])
        dropped += [first + row for row, is_kept in enumerate(kept) if not is_kept]
    return dropped


def fast_sketch(texts):
    import numpy as np
    from FastSketchLSH import LSH, FastSimilaritySketch

    sketcher, index = (
        FastSimilaritySketch(size=PERMUTATIONS, seed=42),
        LSH(num_perm=PERMUTATIONS, num_bands=BANDS),
    )
    dropped = []
    for first in range(0, len(texts), AT_ONCE):
        sketches = np.asarray(sketcher.batch(token_sets(texts[first : first + AT_ONCE])))
        # One by one: together they would be duplicates of each other, and neither of two would be
        # kept.
        flags = [
            index.insert_and_query_duplicates(sketches[row : row + 1])[0]
            for row in range(len(sketches))
        ]
        dropped += [first + row for row, is_duplicate in enumerate(flags) if is_duplicate]
    return dropped


def datatrove(texts):
    from datatrove.data import Document
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig

    config = MinhashConfig()
    with tempfile.TemporaryDirectory() as folder:
        signatures, buckets, removed = (
            str(Path(folder) / name) for name in ("signatures", "buckets", "removed")
        )
        documents = [Document(text=text, id=str(row)) for row, text in enumerate(texts)]
        MinhashDedupSignature(signatures, config).run(iter(documents), 0, 1)
        for bucket in range(config.num_buckets):
            MinhashDedupBuckets(signatures, buckets, config=config).run(
                None, bucket, config.num_buckets
            )
        MinhashDedupCluster(buckets, removed, config=config).run(None, 0, 1)
        kept = {int(one.id) for one in MinhashDedupFilter(removed).run(iter(documents), 0, 1)}
    return [row for row in range(len(texts)) if row not in kept]


METHODS = {
    "datatrove": datatrove,
    "text-dedup": lambda texts: later_of_pairs(answer.TextDedupMinHash(), texts),
    "rensa": lambda texts: later_of_pairs(answer.Rensa(), texts),
    "rensa batch": rensa_batch,
    "gaoya": lambda texts: later_of_pairs(answer.GaoyaMinHash(), texts),
    "datasketch": lambda texts: later_of_pairs(answer.Datasketch(THRESHOLD), texts),
    "FastSketchLSH": fast_sketch,
}


def main():
    method, path = sys.argv[1:]
    texts = [json.loads(line)["text"] for line in Path(path).read_bytes().splitlines()]
    json.dump([int(row) for row in METHODS[method](texts)], sys.stdout)


if __name__ == "__main__":
    main()
