"""The commands. Each command has a file, or is in the file of its group.

`app` lists the commands, `options` declares them, `exit_codes` converts errors to exit codes.

Invariants: results go to standard output, everything else to standard error; every listing has
`--json`; control characters in text from outside are escaped; a `StreamDedupError` is printed as
one sentence and ends the command with its exit code.
"""

from stream_dedup.cli.app import main

__all__ = ["main"]
