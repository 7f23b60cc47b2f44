"""What operators tell the log: plan and window, forgotten ids, seeds and releases. Values in,
records or refusals out.

Nothing here talks to Kafka; the commands in `cli` carry it out. What each record does to the index
is told in docs/reference/control-records.md.
"""
