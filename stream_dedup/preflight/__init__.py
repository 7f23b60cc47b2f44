"""Checks before documents are processed.

    finding      the result of a check: ok, warning, refused, not checked; a sentence with the remedy
    cluster      topics, their settings and sizes, retention, committed offsets; pure functions of `Facts`
    clients      the properties of the clients: known, safe, large enough, encrypted
    machine      disk, open files, memory, folders, the address of the probes
    declaration  key, dictionary, canary texts; the log's declaration; how documents are read
    roles        members of the group, answers to the log's records
    sites        whether documents have a web site
    volume       the index's volume: readable, of this log, not ahead of it
    start        reads the `Facts` from Kafka, and runs the checks of a role
    doctor       runs all checks

Invariants: a check changes nothing; a danger to documents, or a permanent stop of the role, is
refused; a cost is a warning; a check that could not run is reported as such, never as ok. This
module imports nothing, so that a role loads only the modules of its checks.
"""
