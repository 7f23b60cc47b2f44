"""Find the texts that contain a query, and the groups of copies, in `unique` and `duplicates`. Reads
Kafka only.

A query passes through `query` (its words and pairs of neighbours), `texts` (the full-text engine;
only it imports tantivy), `output_texts` (reads texts by their positions), `snippets` (the matching
parts of a text), `finding` (the answer) and `api` (HTTP). `role` fills the engine and removes
documents that the log orders to forget (`forgotten`).

Invariants: no verdict depends on it; the engine's documents and the offsets read in Kafka are one
commit, so that a kill loses and doubles nothing; the folder may be deleted at any time, and is
filled again from Kafka; a forgotten document is not shown, even if Kafka still contains it.
"""
