"""From fingerprints to verdicts: the index.

Pure, except `store`, the only user of rocksdict. In reading order: `declaration` (what a log is judged by), `rows` (columns of
documents and entries), `neighbours` (the live representatives in memory) with its tables, `keyed`, within
a `budget`; `positions` (what was said before), `judge` (precedence and reasons), `state`, and what changes it:
`apply` (one log record), `judging` (a batch) and `orders` (control records); `entries` and `layout` (what is kept, as bytes),
`contract` with `store` and `memory` (where it is kept), `index` (all together). Files named `*_kernels` are compiled.
"""
