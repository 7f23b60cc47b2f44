"""The worker: from a source record to its output record, exactly once.

A record's way: `inputs` decodes it, `prepare` fingerprints the batch and packs it for the log,
`flow` keeps what is in flight and decides what may be committed, `outputs` writes the headers,
`role` is the loop that carries this out.
"""
