"""The index role: it reads the log, judges documents and writes verdicts.

role        the loop from the log to the verdicts
api         the HTTP API of the role
snapshots   when a snapshot is due, and the process that takes it
verifying   judges the log again for `index verify`
"""
