"""`make test` leaves tests out, but runs at least one test of every invariant."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = re.findall(
    r"^\| (\d+) .*? \| (.*) \|$",
    (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def run_by_make_test(path: str) -> set[str]:
    """Return the tests of a file that neither they nor their module mark as left out."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    left_out = re.compile(r"mark\.(thorough|long)\b")
    if any(
        isinstance(node, ast.Assign) and left_out.search(ast.unparse(node)) for node in tree.body
    ):
        return set()
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not any(left_out.search(ast.unparse(decorator)) for decorator in node.decorator_list)
    }


@pytest.mark.parametrize(("number", "tests"), ROWS)
def test_make_test_runs_the_tests_of_each_invariant(number: str, tests: str) -> None:
    for path, names in re.findall(r"`(tests/\S+\.py)`((?: ?,? ?`test_\w+`)*)", tests):
        run = run_by_make_test(path)
        assert run
        assert set(re.findall(r"test_\w+", names)) <= run, path


def test_all_ten_invariants_are_in_the_table() -> None:
    invariants = re.findall(
        r"^(\d+)\. .*\(`tests/",
        (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )

    assert [number for number, tests in ROWS if "`tests/" in tests] == invariants
    assert len(invariants) == 10
