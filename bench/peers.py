"""Run other programs for the same work in a separate environment, through `peers/answer.py`.

The child reads and writes JSON, one object a line. First, without a request, it writes
`{"versions": {package: version}, "missing": {package: reason}, "methods": [{"name", "plan",
"does"}]}`. Then it writes one line for each line that it reads:

    {"ask": "pairs", "method", "texts", "languages"}  -> {"pairs": [[place, place], ..]}: all pairs that it calls near
    any that fails                                    -> {"error": "..."}

Invariants: this process imports no peer; there is one child at a time, which ends with this object;
a child that is silent for too long is ended, which is an error. Whatever ended a child, a new child
answers the next question.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from stream_dedup.domain.errors import InputError, StreamDedupError

ENVIRONMENT: Final = ".venv-peers"
_ROOT: Final = Path(__file__).parents[1]
_ANSWER_SECONDS_MAX: Final = 3600.0


@dataclass(frozen=True, slots=True)
class PeerMethod:
    """One method of a peer: its name, which texts it calls near, and how it makes the signature."""

    name: str
    plan: str
    does: str


def peers_command(root: Path = _ROOT) -> list[str]:
    """Return the command of the child, in a source folder where `make peers` has been run.

    Raises:
        InputError: there is no such environment.
    """
    python, script = root / ENVIRONMENT / "bin" / "python", root / "peers" / "answer.py"
    if not (root / ENVIRONMENT / "ready").exists() or not script.exists():
        raise InputError(
            f"The peers are not set up in {root}: run `make peers` in the source folder of "
            "stream-dedup first."
        )
    return [str(python), str(script)]


class Peers:
    """The running child. `versions`: of each peer; `missing`: why a peer could not be loaded."""

    def __init__(
        self, command: Sequence[str], answer_seconds_max: float = _ANSWER_SECONDS_MAX
    ) -> None:
        """Start the child and wait for what it has.

        Raises:
            StreamDedupError: it did not start.
        """
        self._limit = answer_seconds_max
        self._command = list(command)
        self._start()

    def _start(self) -> None:
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith("PYTHON")
                },
            )
        except OSError as error:
            raise StreamDedupError(
                f"The peers did not start ({error}): run `make peers` again."
            ) from error
        try:
            hello = self._line()
            self.versions: Mapping[str, str] = hello["versions"]
            self.missing: Mapping[str, str] = hello["missing"]
            self.methods: tuple[PeerMethod, ...] = tuple(
                PeerMethod(method["name"], method["plan"], method["does"])
                for method in hello["methods"]
            )
        except BaseException:
            self.close()
            raise

    def near_pairs(
        self, method: PeerMethod, texts: Sequence[str], languages: Sequence[str]
    ) -> set[tuple[int, int]]:
        """Return the pairs of texts, by their places, the smaller first, that a method takes for
        near-duplicates.

        Raises:
            StreamDedupError: the peer failed.
        """
        answer = self._ask(ask="pairs", method=method.name, texts=texts, languages=languages)
        return {
            (min(first, other), max(first, other))
            for first, other in answer["pairs"]
            if first != other
        }

    def close(self) -> None:
        """End the child."""
        if self._child.stdin is not None and not self._child.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                self._child.stdin.close()
        self._child.kill()
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, **question: object) -> dict[str, Any]:
        if self._child.poll() is not None:
            self.close()
            self._start()
        stdin = self._child.stdin
        if stdin is None:
            raise StreamDedupError(
                "The peers have no standard input; this is a fault of stream-dedup."
            )
        try:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise StreamDedupError(
                f"The peers ended before {question['method']} was asked; see their lines above."
            ) from error
        return self._line()

    def _line(self) -> dict[str, Any]:
        stdout = self._child.stdout
        if stdout is None:
            raise StreamDedupError(
                "The peers have no standard output; this is a fault of stream-dedup."
            )
        timer = threading.Timer(self._limit, self._child.kill)
        timer.start()
        try:
            line = stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self._child.kill()
            self._child.wait()
            raise StreamDedupError(
                f"The peers ended without an answer, or gave none within {self._limit:.0f} s; see "
                "their lines above, "
                "and run `make peers` again."
            )
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise StreamDedupError(
                f"The peers wrote a line that is no answer: {line!r:.200}."
            ) from error
        if not isinstance(answer, dict) or "error" in answer:
            raise StreamDedupError(f"A peer failed: {answer!r:.500}.")
        return answer
