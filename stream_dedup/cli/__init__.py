"""The commands, one file each; groups of commands share a file.

`options` declares commands, `app` lists them, `exit_codes` converts errors to exit codes.

Invariants: results go to standard output, everything else to standard error; every listing has
`--json`; text from outside is made printable before it is printed; a `StreamDedupError` is printed as
one sentence and ends the command with its exit code.
"""

from stream_dedup.cli.app import main

__all__ = ["main"]
