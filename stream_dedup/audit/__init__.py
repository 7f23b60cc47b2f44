"""The checker: what must hold of a filter's topics, worked out anew from the log, by other means
than the index.

    scan     the plan's predicate, for one pair, and for many as a plain scan or by whole keys
    fold     the log's records to judgements: the rules, with a plain scan instead of tables
    outline  what the log says without judging anybody: positions, epochs, plans, orders of operators
    content  what must not change between a record that went in and the one that came out
    ledger   what went in, and where it came out: each once, in order, as it was
    verdicts the headers that each output must carry, and the representatives that duplicates name

Invariants: nothing here imports anything of the index, or reads Kafka, a clock or a setting: values
go in, sentences come out. Two implementations of the rules (this and `index.rules.apply`) that
agree are the proof; so nothing may be shared but the bytes of the log and of its answers (`log/`)
and the nouns (`document.py`).
"""
