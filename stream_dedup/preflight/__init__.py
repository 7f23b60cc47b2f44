"""What must hold before documents pass: one list of checks, which `doctor` shows and both roles
hold at their start.

    finding      the outcome of a check: ok, warning, refused, not checked; a sentence with the remedy
    cluster      topics, their settings and sizes, retention, committed offsets, the clock. Pure, given `Facts`
    facts        reads the `Facts` from Kafka
    clients      the properties that the clients get: known, safe, large enough, encrypted
    machine      disk, open files, memory, folders, the address of the probes
    declaration  key, dictionary, canary texts; the log's first record against this recipe and group
    reading      whether documents are read as the log's others are
    roles        members of the group, answers to what was asked
    volume       the index's volume: readable, of this log, not ahead of it
    start        which of them a role holds

Invariants: a check changes nothing anywhere; what endangers documents, or would stop the role for
good, is refused; what only costs is a warning; what could not be looked at says so, and is never
called ok. Nothing is imported here, so that a role loads the rooms of its own checks only.
"""
