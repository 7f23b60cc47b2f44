"""What the index stores, and where.

In reading order: `layout` (keys and values), `entries` and `pages` (the representatives), `contract`
(the interface of a store) with `store` (RocksDB) and `memory` (a dict), `columns` and `tags` (what
the tables need of entries), `table_files` (derived files for quick opening), `place` (the folder of
the volume).
"""
