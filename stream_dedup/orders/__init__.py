"""Orders of operators: plans and windows, forgotten ids, seeds, releases and rewinds.

`release`, `rewind`, `forget`, `seed` and `in_force` contain the rules, without Kafka. The modules
`run_*` carry orders out for the commands in `cli`; `common` contains their shared parts. `declaration`
and `beginnings` write the first records of the log and of `begun`.
docs/reference/control-records.md describes the effect of each record on the index.
"""
