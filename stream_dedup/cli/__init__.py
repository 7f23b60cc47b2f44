"""The commands.

`app` declares them all, with their options and help, and imports nothing heavy; each command's work is in the module of
its name, imported when it runs. `sources` reads files of documents, `output` writes tables, JSON and progress.

Invariants: results go to standard output, everything else to standard error; every listing has `--json`; text from
outside is made printable before it is shown; an error of ours ends in its sentence and its exit code.
"""

from stream_dedup.cli.app import app, main

__all__ = ["app", "main"]
