"""Meaning of the log: one record after another is applied to the state.

In reading order: `state`, `apply` (a record), `judging` (a batch) with `reasons`, `orders` (control
records), `declaration`, `positions` (earlier verdicts by position), `window`, `copies` and
`last_texts` (of ids).
"""
