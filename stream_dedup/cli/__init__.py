"""The commands, one file each; groups of commands share a file.

`options` says how a command is stated, `app` which there are.

Invariants: results go to standard output, everything else to standard error; every listing has
`--json`; text from outside is made printable before it is shown; an error of ours ends in its
sentence and its exit code.
"""

from stream_dedup.cli.app import main

__all__ = ["main"]
