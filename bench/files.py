"""`bench files`: near-duplicates in one file, by `stream-dedup check` and by other programs, each
in a separate process.

The file is generated: words are drawn by the law of Zipf and Mandelbrot, and every second word is
one of a few that follow the word before it, so that texts share phrases. A tenth of the documents
are copies of an earlier one, with some words changed. Their exact similarity, by runs of three
words, is known: from .8 on a copy must be dropped, from .5 to .8 it may be. All other documents
must be kept.

Invariants: the same numbers generate the same file; a process is measured from its start to its
end.
"""

from __future__ import annotations

import json
import os
import random
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Final

from bench.peers import ENVIRONMENT
from stream_dedup.domain.errors import InputError, StreamDedupError

OURS: Final = "stream-dedup"
PEERS: Final = (
    "datatrove",
    "text-dedup",
    "rensa",
    "rensa batch",
    "gaoya",
    "datasketch",
    "FastSketchLSH",
)
COPY_FROM, GREY_FROM = 0.8, 0.5
_ROOT: Final = Path(__file__).parents[1]
_LAUNCHER: Final = """
import os, sys
report, command = int(sys.argv[1]), sys.argv[2:]
os.set_inheritable(report, False)
pid = os.posix_spawn(command[0], command, os.environ)
_, status, usage = os.wait4(pid, 0)
code, seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
os.write(report, f"{code} {seconds} {usage.ru_maxrss}".encode())
"""
_WORDS: Final = 20_000
_FOLLOWERS: Final = 8
_COPIES: Final = 0.1
_CHANGED_MOST: Final = 0.1


@dataclass(frozen=True, slots=True)
class FileTruth:
    """The truth about the documents of a file, by row: which are copies, and which are grey."""

    documents: int
    copies: frozenset[int]
    grey: frozenset[int]


@dataclass(frozen=True, slots=True)
class FileRun:
    """The result of one program: recall, other documents that it dropped, CPU seconds of all
    threads, and peak memory in MB.
    """

    program: str
    recall: float
    false_drops: int
    cpu_seconds: float
    memory_mb: float


def write_file(path: Path, documents: int, size_bytes: int, seed: int) -> FileTruth:
    """Write a file of JSONL; return what is true of it."""
    dice = random.Random(seed)  # noqa: S311 - made-up texts
    weights = list(accumulate(1 / (rank + 2.7) for rank in range(_WORDS)))
    words = [_word_of_rank(rank) for rank in range(_WORDS)]
    texts: list[list[str]] = []
    copies: set[int] = set()
    grey: set[int] = set()
    with path.open("w", encoding="utf-8") as lines:
        for row in range(documents):
            if texts and dice.random() < _COPIES:
                original = texts[dice.randrange(len(texts))]
                text = list(original)
                for _ in range(int(len(text) * dice.random() * _CHANGED_MOST)):
                    text[dice.randrange(len(text))] = dice.choice(words)
                alike = _trigram_jaccard(original, text)
                (copies if alike >= COPY_FROM else grey if alike >= GREY_FROM else set()).add(row)
            else:
                text = list(_draw_words(dice, words, weights, size_bytes))
                texts.append(text)
            lines.write(json.dumps({"id": str(row), "text": " ".join(text)}) + "\n")
    return FileTruth(documents, frozenset(copies), frozenset(grey))


def measure(program: str, path: Path, truth: FileTruth) -> FileRun:
    """Run a program on the file.

    Raises:
        InputError: the other programs are not set up.
        StreamDedupError: it failed.
    """
    with tempfile.TemporaryFile() as out:
        code, cpu_seconds, memory_mb = run_measured(_command(program, path), out)
        if code:
            raise StreamDedupError(f"{program} ended with {code}; see its lines above.")
        out.seek(0)
        if program == OURS:
            dropped = {
                row for row, line in enumerate(out) if json.loads(line)["verdict"] == "duplicate"
            }
        else:
            dropped = set(json.load(out))
    found = len(dropped & truth.copies) / len(truth.copies)
    false = len(dropped - truth.copies - truth.grey)
    return FileRun(program, found, false, cpu_seconds, memory_mb)


def run_measured(command: Sequence[str], out: IO[bytes]) -> tuple[int, float, float]:
    """Run a command; return its exit code, CPU seconds and most memory in MB.

    A small process launches it: the kernel begins a child's peak with the memory of the process
    that forks, and this one is large.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="ascii") as report:
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(writing), *command]
        child = subprocess.Popen(launcher, stdout=out, cwd=_ROOT, pass_fds=[writing])
        os.close(writing)
        code, cpu_seconds, kilobytes = report.read().split()
    child.wait()
    return int(code), float(cpu_seconds), int(kilobytes) / 1024


def _command(program: str, path: Path) -> Sequence[str]:
    if program == OURS:
        return [sys.executable, "-m", "stream_dedup", "check", str(path), "--json"]
    python = _ROOT / ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise InputError(
            f"The peers are not set up in {_ROOT}: run `make peers` in the source folder first."
        )
    return [str(python), str(_ROOT / "peers" / "files.py"), program, str(path)]


def _word_of_rank(rank: int) -> str:
    """Return a word of letters alone: some programs take all numbers for one."""
    letters, left = "", rank + 26
    while left:
        left, letter = divmod(left, 26)
        letters += string.ascii_lowercase[letter]
    return letters


def _draw_words(
    dice: random.Random, words: Sequence[str], weights: Sequence[float], size_bytes: int
) -> Iterator[str]:
    """Yield words, every second one from the few that follow the word before it."""
    size, before = 0, 0
    while size < size_bytes:
        if before and dice.random() < 0.5:
            rank = (before * 7919 + dice.randrange(_FOLLOWERS) * 104_729) % _WORDS
        else:
            rank = dice.choices(range(_WORDS), cum_weights=weights)[0]
        before = rank
        size += len(words[rank]) + 1
        yield words[rank]


def _trigram_jaccard(first: Sequence[str], other: Sequence[str]) -> float:
    runs = [
        {tuple(words[start : start + 3]) for start in range(len(words) - 2)}
        for words in (first, other)
    ]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])
