"""The bytes that the index stores, and their places.

In reading order: `layout` (keys and values), `entries` and `pages` (the representatives),
`contract` (one step, its writer, and writes in flight) with `store` (RocksDB) and `memory` (its
twin), `table_files` (derived files for quick opening).
"""
