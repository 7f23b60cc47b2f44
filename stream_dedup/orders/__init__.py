"""Orders of operators: plans and windows, forgotten ids, seeds, releases and rewinds.

`release`, `rewind`, `forget`, `seed` and `inforce` are pure; `releasing`, `rewinding`, `forgetting`,
`redriving` and `orders` carry them out for the commands in `cli`. docs/reference/control-records.md describes
the effect of each record on the index.
"""
