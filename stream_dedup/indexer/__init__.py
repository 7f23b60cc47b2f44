"""The index role: it reads the log, judges documents and writes verdicts.

role        the loop from the log to the verdicts
api         the HTTP API of the role
snapshots   takes and restores snapshots of the volume, in a second process
verifying   judges the log again for `index verify`
"""
