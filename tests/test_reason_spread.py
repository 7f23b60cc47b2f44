"""Count the files that mention a reason, as many as a new reason would change.

A reason is mentioned as `Reason.NAME`, as a string that is its label, or by its label in backquotes
or as a class of a style sheet. Recipes have steps of the same names, which do not count.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import stream_dedup
from stream_dedup.domain.document import DUPLICATES

PACKAGE = Path(stream_dedup.__file__).parent
REASON_FILES = 8


def mentions(folder: Path, names: set[str], words: re.Pattern[str]) -> set[str]:
    """Return the files that mention one of the dotted `names`, or in a text the `words`."""
    found = set()
    for path in sorted(folder.rglob("*")):
        if "fingerprinting" in path.parts or path.suffix not in {
            ".py",
            ".html",
            ".css",
            ".js",
            ".json",
        }:
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            nodes = list(ast.walk(ast.parse(text)))
            if names & {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}:
                found.add(path.relative_to(folder).as_posix())
            strings = (node.value for node in nodes if isinstance(node, ast.Constant))
            text = "\n".join(f'"{value}"' for value in strings if isinstance(value, str))
        if words.search(text):
            found.add(path.relative_to(folder).as_posix())
    return found


def files_of_reason(folder: Path, label: str) -> set[str]:
    name = f"Reason.{label.upper().replace('-', '_')}"
    words = re.compile(rf"""["'`]{label}["'`]|\br-{label}\b|--{label}\b""")
    return {"domain/document.py"} | mentions(folder, {name}, words)


@pytest.mark.parametrize("label", DUPLICATES)
def test_a_reason_is_mentioned_in_few_files(label: str) -> None:
    found = files_of_reason(PACKAGE, label)

    assert len(found) <= REASON_FILES, sorted(found)
