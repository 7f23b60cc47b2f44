"""`python -m stream_dedup`: the same as the command `stream-dedup`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failure, 2 usage, 78 configuration."""
    from stream_dedup.cli import main as run_command  # noqa: PLC0415 - a child process may import this module

    return run_command(arguments)


if __name__ == "__main__":
    sys.exit(main())
