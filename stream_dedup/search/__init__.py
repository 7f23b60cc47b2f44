"""Every text that contains a query, and every group of copies: from what left on `unique` and
`duplicates`. Reads Kafka only.

In the order of a question: `query` (words, and pairs of neighbours, that are searched for), `texts`
(the full-text engine; only it knows tantivy), `kept_texts` (a text by where it lies), `snippets`
(where a text contains the query), `finding` (all of these, as an answer), `api` (HTTP). `role` fills
the engine, and lets go what the log says is forgotten (`forgotten`).

Invariants: no verdict depends on it; what the engine holds and the place in Kafka up to which it
has read are one commit, so that a kill loses and doubles nothing; the folder may be deleted at any
time, and is then filled anew from what Kafka still has; a document that was forgotten is not shown,
though Kafka may have it.
"""
