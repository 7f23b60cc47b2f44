"""Search the documents on `unique` and `duplicates`: find those that contain a query, and groups of
copies. Writes nothing to Kafka.

A query passes through these modules: `api` (HTTP), `finding` (builds the answer), `query` (splits it
into pairs of words), `texts` (the full-text engine; the only module that imports tantivy),
`output_texts` (reads texts by position) and `snippets` (marks the matching words). `role` fills the
engine, and removes the documents that a `forget` in the log covers (`forgotten`).

Invariants: no verdict depends on this package; the engine's documents and the next offsets to read
are written in one commit, so that a kill loses and duplicates nothing; the folder may be deleted at
any time, and is filled again from Kafka; a forgotten document is not shown, even if Kafka still
contains it.
"""
