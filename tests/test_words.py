"""Words that hide who does what: how often pages, help texts, docstrings and names may use them.

A ceiling only falls: lower it when a rewrite uses fewer. The reference pages of commands and
settings are generated from the help texts, so the pages cover these.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import stream_dedup

PACKAGE = Path(stream_dedup.__file__).parent
ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "deploy", "topics", "tests", "peers", "examples")

CEILINGS = {
    r"told|tells?": 0,
    r"stands?|stood": 0,
    r"lies|lay": 0,
    r"whoever|whatever|wherever": 0,
    r"so many|so much": 0,
    r"nothing but": 0,
    r"by itself|by themselves": 0,
    r"anew": 0,
    r"what (?:is|was|are|were|it|they|came|comes|left)": 1,
    r"of its own|of their own|of our own": 1,
    r"from on|from then on": 0,
}
VAGUE_NAMES = {"told", "said", "own", "one", "held", "around", "mine", "at", "limits"}
# Uses that say exactly what they mean.
RIGHT = ("stand-in", "standing for", "what it is", "what is not obvious")


def pages() -> dict[str, str]:
    """Return each page of the repository without its code, by path."""
    found = [*ROOT.glob("*.md")]
    found += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    return {
        path.relative_to(ROOT).as_posix(): re.sub(
            r"```.*?```|`[^`\n]*`|\]\([^)]*\)",
            " ",
            path.read_text(encoding="utf-8"),
            flags=re.DOTALL,
        )
        for path in found
    }


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module of the product, by path."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }


@cache
def docstrings() -> dict[str, str]:
    """Return all docstrings of the product without quoted names, by module and name."""
    found = {}
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node) or ""
                found[f"{module} {getattr(node, 'name', '')}"] = re.sub(r"`[^`]*`", "`", text)
    return found


def names() -> list[str]:
    """Return the names that the product gives to functions, parameters, locals and attributes, with
    their modules.
    """
    found = []
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append(f"{module}: {node.name}")
            elif isinstance(node, ast.arg):
                found.append(f"{module}: {node.arg}")
            elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                name = node.id if isinstance(node, ast.Name) else node.attr
                found.append(f"{module}: {name}")
    return found


def uses(pattern: str, texts: dict[str, str]) -> list[str]:
    """Return each use of a word, with the words next to it."""
    found = []
    for place, text in texts.items():
        line = " ".join(text.split())
        for right in RIGHT:
            line = re.sub(re.escape(right), " ", line, flags=re.IGNORECASE)
        found += [
            f"{place}: {line[max(0, match.start() - 40) : match.end() + 40]}"
            for match in re.finditer(rf"\b(?:{pattern})\b", line, re.IGNORECASE)
        ]
    return found


@pytest.mark.parametrize(("pattern", "ceiling"), CEILINGS.items())
def test_a_vague_word_is_not_used_more_often(pattern: str, ceiling: int) -> None:
    found = uses(pattern, pages() | docstrings())

    print("\n".join(found))
    assert len(found) <= ceiling


def test_names_are_not_vague() -> None:
    vague = [name for name in names() if name.split(": ")[1].lstrip("_") in VAGUE_NAMES]

    print("\n".join(vague))
    assert len(vague) <= 20  # nearly all `at`, a field of the console's JSON


def test_uses_are_found_outside_code_only() -> None:
    assert len(uses(r"lies|lay", {"a": "State lies\nin Kafka, which lay there. relies"})) == 2
    assert uses(r"stands?|stood", {"a": "the stand-in"}) == []
