"""From fingerprints to verdicts: the index.

Pure, except `store`, the only user of rocksdict. In reading order: `plan` (which prints are near), `blocks` (a
print's keys), `neighbours` (the tables in memory) within a `budget`, `positions` (what was said before), `judge`
(precedence and reasons), `apply` (one log record), `entries` and `layout` (what is kept, as bytes), `contract` with
`store` and `memory` (where it is kept), `index` (all together).
"""
