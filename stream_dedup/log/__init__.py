"""The formats of the records that the roles exchange, as pure functions from and to bytes.

`records` and `answers` are the log's questions and verdicts, `begun_partitions` the topic of begun partitions,
`headers` those of the output topics, `dead_letters` the dead letters, `epochs` the metadata of committed offsets.
"""
