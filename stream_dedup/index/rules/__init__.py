"""The rules of the log: how each record changes the state.

In reading order: `state`, `apply` (a record), `judging` (a batch) with `reasons`, `orders` (control
records), `positions` (earlier verdicts by position), `window`, `copies` and `last_texts` (of ids).
"""
