"""From fingerprints to verdicts: the index, in three packages, each of which imports only those
before it.

    storage   stored bytes: `layout`, `entries`, `store`, the only user of rocksdict, and its twin in memory, `memory`;
              files beside them, for quick opening: `table_files`
    tables    finding and judging in memory: `rows`, `neighbours`, and how they find. Files named `*_kernels` are compiled
    rules     meaning of the log: `apply` (a record), `judging` (a batch), `orders`, and the state that they change

Above them, `index` joins all three; `look_up` and `report` answer questions; `contents`, `digest`
and `snapshot` process a volume as a whole.
"""
