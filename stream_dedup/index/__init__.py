"""The index: from fingerprints to verdicts.

Three packages, each of which imports only those before it:

    storage   stored data: `layout` (bytes), `entries`, `store` (RocksDB) and `memory` (the same
              interface in memory); `table_files`, derived files for quick opening
    tables    find near representatives in memory. Modules named `*_kernels` contain compiled code
    rules     apply log records: `apply` (a record), `judging` (a batch), `orders`, and the `state`

`index` combines all three; `look_up` and `report` answer requests; `contents`, `digest` and
`snapshot` process a volume as a whole.
"""
