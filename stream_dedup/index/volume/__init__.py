"""What is kept, as bytes, and where.

In reading order: `layout` (keys and values), `entries` and `pages` (the representatives),
`contract` (one step, who writes it, and what is on its way) with `store` (RocksDB) and `memory`
(its twin), `beside` (files for quick opening, never the truth).
"""
