"""What the log means: one record after another, applied to the state that all before led to.

In reading order: `state`, `apply` (a record), `judging` (a batch) with `decided`, `orders` (control
records), `declaration`, `positions` (what was said before), `window`, `copies`, `last_texts` (of
ids), `published` and `outbox` (what the topic `representatives` is told).
"""
