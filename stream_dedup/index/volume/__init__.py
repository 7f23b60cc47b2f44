"""What is kept, as bytes, and where.

In reading order: `layout` (keys and values), `entries` and `pages` (the representatives), `idtags`, `contract` (one step, and
who writes it) with `store` (RocksDB) and `memory` (its twin), `undelivered` (answers, decisions), `beside` (files for quick
opening, never the truth).
"""
