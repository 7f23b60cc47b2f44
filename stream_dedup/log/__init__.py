"""The formats of the records that the roles exchange, as pure functions from and to bytes.

record_frame      the frame that all records below share
records           the log: batches of documents, and orders
controls          the fields of orders
answers           verdicts on the documents of a log record
schema            the columns of a verdict
begun_partitions  the topic `begun`
headers           our headers on the output topics; `header_columns` writes those of many records
output_records    parses records of the output topics
dead_letters      parses dead letters
epochs            the metadata of committed offsets
"""
