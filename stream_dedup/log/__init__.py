"""The formats of the records that the roles exchange, as pure functions from and to bytes.

`records` and `answers` are the log's questions and verdicts in the frame of `record_frame`,
`controls` the orders in it, `schema` the columns of a verdict; `begun_partitions` the topic of begun
partitions; `headers` those of the output topics, in columns by `header_columns`; `output_records`
and `dead_letters` what readers parse; `epochs` the metadata of committed offsets.
"""
