"""`python -m stream_dedup`: the same as the command `stream-dedup`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failure, 2 usage, 78 configuration."""
    try:
        from stream_dedup.cli import main as run_command  # noqa: PLC0415 - a child process may import this module
    except KeyboardInterrupt:  # typed while the commands are loaded, which takes up to a second
        return 130
    code = run_command(arguments)
    if arguments is None and sys.argv[1:2] == ["run"]:
        # A role has closed what it had by now. The interpreter's own end would destroy the clients,
        # too, and wait for ever for one that was left behind in a call which never returns.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
