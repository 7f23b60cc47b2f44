"""What the log means: one record after another, applied to the state that all before led to.

In reading order: `state`, `apply` (a record), `judging` (a batch) with `reasons`, `orders` (control
records), `declaration`, `positions` (what was said before), `window`, `copies` and
`last_texts` (of ids).
"""
