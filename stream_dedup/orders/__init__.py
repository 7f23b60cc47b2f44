"""Orders of operators: plans and windows, forgotten ids, seeds, releases and rewinds.

`release`, `rewind`, `forget`, `seed` and `in_force` are pure; `run_release`, `run_rewind`,
`run_forget`, `run_declare`, `run_redrive` and `common` carry them out for the commands in `cli`;
`declaration` and `beginnings` write the first records of the log and of `begun`.
docs/reference/control-records.md describes the effect of each record on the index.
"""
