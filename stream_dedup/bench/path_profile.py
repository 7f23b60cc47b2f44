"""Where the roles' time goes: a sampling profile of each, by py-spy from outside, and what librdkafka says of its clients.

Into the folder go, of each plan and role, `PLAN-ROLE.stacks` (a stack a line, outermost first, frames separated by `;`, then
the samples: Gregg's collapsed stacks, which speedscope and flamegraph.pl read) and `PLAN-ROLE.librdkafka.json` (client name ->
its last statistics, librdkafka's STATISTICS.md).

Invariants: a profiled measurement is never one of the figures; py-spy is an optional tool, and one that is missing or may not
look is a sentence.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from stream_dedup.bench.children import MeasuredChild
from stream_dedup.bench.peers import ENVIRONMENT
from stream_dedup.ground.errors import InputError
from stream_dedup.kafka import STATISTICS_EVENT

STATISTICS_SETTINGS: Final = {"kafka.statistics.interval.ms": "1000"}
SHOWN: Final = 12
_ROOT: Final = Path(__file__).parents[2]
_PER_SECOND: Final = "200"
_END_SECONDS: Final = 60.0
# Threads that do nothing but wait are seen as busy where py-spy cannot ask the kernel what they do.
_WAITS: Final = (
    "EpollSelector.select ",
    "_worker (concurrent/futures/",
    "_stop_at_end_of_input ",
    "SideThread._serve ",
    "SideThread.call ",
)

Share = tuple[str, float]
"""A function, and its share of the samples, from 0 to 1, in which it was the innermost."""


def find_py_spy(root: Path = _ROOT) -> Path | None:
    """Return the tool: on the path, in our environment, or in the peers'; None if it is nowhere."""
    on_path = shutil.which("py-spy")
    places = [Path(on_path)] if on_path else []
    places += [Path(sys.executable).with_name("py-spy"), root / ENVIRONMENT / "bin" / "py-spy"]
    return next((place for place in places if place.exists()), None)


class Profiler:
    """Profiles the children of one measurement after the other into a folder, which is made."""

    def __init__(self, folder: Path, say: Callable[[str], None], py_spy: Path | None) -> None:
        """Make the folder; without `py_spy` only librdkafka's statistics are kept.

        Raises:
            InputError: the folder cannot be made.
        """
        self._folder = folder
        self._say = say
        self._py_spy = py_spy
        self._running: list[tuple[str, Path, subprocess.Popen[str]]] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"The profile cannot be kept in {folder}: {error.strerror}. Give another folder.") from error
        if py_spy is None:
            say("py-spy is not here, so no stacks are sampled: pip install py-spy, or `make peers`.")

    def attach(self, variant: str, children: Sequence[MeasuredChild]) -> None:
        """Begin to sample the children."""
        for child in children if self._py_spy is not None else ():
            path = self._folder / f"{variant}-{child.name}.stacks"
            command = [str(self._py_spy), "record", "--pid", str(child.pid), "--rate", _PER_SECOND]
            command += ["--format", "raw", "--function", "--output", str(path)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self._running.append((child.name, path, process))

    def finish(self) -> dict[str, list[Share]]:
        """End the sampling, while the children still run; return the largest shares of each child, the largest first."""
        for _, _, process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)  # it writes what it has
        found = {}
        for name, path, process in self._running:
            try:
                said, _ = process.communicate(timeout=_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
            if path.exists():
                found[name] = shares(path.read_text(encoding="utf-8"))[:SHOWN]
            else:
                self._say(f"py-spy could not look at the {name}: {' '.join(said.split()) or 'it said nothing'}")
        self._running.clear()
        return found

    def keep_statistics(self, variant: str, children: Sequence[MeasuredChild]) -> None:
        """Write the last statistics of each client of the children, from their logs."""
        for child in children:
            text = json.dumps(statistics_in(child.log_lines()), indent=1)
            (self._folder / f"{variant}-{child.name}.librdkafka.json").write_text(text + "\n", encoding="utf-8")


def shares(stacks: str) -> list[Share]:
    """Return the innermost functions of collapsed stacks with their shares of all samples, the largest first.

    Samples of threads that wait for work are left out; the stacks have them.
    """
    found: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        innermost = stack.rpartition(";")[2]
        if count.isdigit() and not innermost.startswith(_WAITS):
            found[innermost] += int(count)
    return [(name, count / found.total()) for name, count in found.most_common()]


def statistics_in(lines: Sequence[str]) -> dict[str, object]:
    """Return the last statistics of each client in a role's log of JSON lines, by the client's name."""
    found: dict[str, object] = {}
    for line in lines:
        if STATISTICS_EVENT in line:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                said = json.loads(line)["statistics"]
                found[said["name"]] = said
    return found
