"""What must hold before documents pass: one list of checks, which `doctor` shows and both roles hold at their start.

    finding      the outcome of a check: ok, warning, refused, not checked; a sentence with the remedy
    cluster      topics, their settings and sizes, retention, committed offsets, the clock. Pure, given `Facts`
    facts        reads the `Facts` from Kafka
    clients      the properties that the clients get: known, safe, large enough, encrypted
    machine      disk, open files, memory, folders, the address of the probes
    declaration  the log's first record against this recipe and group
    recipe       key, dictionary, canary texts
    volume       the index's volume: readable, of this log, not ahead of it
    start        which of them a role holds

Invariants: a check changes nothing anywhere; what endangers documents, or would stop the role for good, is refused; what
only costs is a warning; what could not be looked at says so, and is never called ok. Nothing is imported here, so that
a role loads the rooms of its own checks only.
"""
