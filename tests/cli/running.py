"""Run a command in a test, read its output, and write and read files of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """What was said on standard error, without the frame and the line breaks that a usage error
        is drawn with."""
        return " ".join(self.err.replace("│", " ").split())

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ended]


def jsonl(rows: Iterable[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
