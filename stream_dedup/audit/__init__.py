"""Check the guarantees of a filter on its topics, with a second implementation of the rules.

    scan             compares a text with all rows under a plan, without tables
    judgements       applies the rules to log records, with a scan instead of the index's tables
    log_contents     collects positions, epochs, plans and operators' orders from the log
    content_digests  computes digests of the parts that a source record and its output share
    ledger           matches source records with outputs: each exactly once, in order, unchanged
    verdicts         checks the headers of outputs, and the representatives that duplicates name
    replay           judges a log again under another plan, and reports the differences
    live             reads Kafka for the commands `audit` and `replay`
    answers          compares the answers in `verdicts` with those of an index that judges the log again

Invariants: only `live` reads Kafka, the clock and settings; only `live` and `replay` import the index.
The audit is convincing because two independent implementations of the rules (`judgements` and
`index.rules.apply`) must agree. They share only the byte formats (`log/`) and the types in `domain/`.
"""
