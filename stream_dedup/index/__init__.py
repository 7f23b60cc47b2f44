"""From fingerprints to verdicts: the index, in three rooms, each of which imports only those before
it.

    tables   finding and judging in memory: `rows`, `neighbours`, and how they find. Files named `*_kernels` are compiled
    volume   what is kept, as bytes, and where: `layout`, `entries`, `store`, the only user of rocksdict, and its twin `memory`;
             files beside them, for quick opening: `beside`
    rules    what the log means: `apply` (a record), `judging` (a batch), `orders`, and the state that they change

On top of them, `index` puts all together; `look_up` and `report` are what is asked of it;
`contents`, `digest`, `verify` and `snapshot` look at a volume as a whole.
"""
