"""How many files a role may open."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from stream_dedup.cli import run
run._run = lambda *_: print(*resource.getrlimit(resource.RLIMIT_NOFILE))
from stream_dedup.settings.settings import Settings
run.run_role("index", Settings())
"""


@pytest.mark.parametrize(("soft", "hard"), [(256, 300), (300, 300)])
def test_a_role_opens_as_many_files_as_the_system_lets_it(soft: int, hard: int) -> None:
    """The limit that it begins with is raised to the one that it may not pass."""
    program = PROGRAM.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == [str(hard), str(hard)]
