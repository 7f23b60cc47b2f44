"""Check a filter's topics against its promises, with a second implementation of the rules.

    scan             the plan's predicate: for one pair, and for many rows as a plain scan
    judgements       log records to judgements: the rules, with a scan instead of the index's tables
    log_contents     what the log contains, without judging it: positions, epochs, plans, operators' orders
    content_digests  digests of the parts that a source record and its output share
    ledger           matches source records with outputs: each exactly once, in order, unchanged
    verdicts         the headers that each output must carry, and the representatives that duplicates name
    replay           a recorded log judged again under another plan, and the differences
    live             reads Kafka for the commands `audit` and `replay`
    answers          the answers that an index wrote, compared with those of one that judges the log again

Invariants: only `live` reads Kafka, a clock and settings, and only it and `replay` import the index. The
proof is that two implementations of the rules (`judgements` and `index.rules.apply`) agree; so they share
only the byte formats (`log/`) and the types of `domain/`.
"""
