"""The worker: from a source record to its output record, exactly once.

`inputs` decodes a record, `prepare` fingerprints the batch and encodes it for the log, `flow` tracks
the batches in flight and decides what may be committed, `outputs` builds the output records, `loop`
connects them to Kafka, `role` assembles the parts.
"""
