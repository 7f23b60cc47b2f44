"""The size of the product in statements, and of its documents in words; ceilings only fall."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import stream_dedup

PACKAGE = Path(stream_dedup.__file__).parent
ROOT = Path(__file__).parent.parent
WHOLE = 32_817
"""Statements (`ast.stmt` nodes) of the product. Faust 0.15.3 has 18,347, aiokafka 8,732."""
WORDS = 36_000
"""Words of all Markdown files, counted as `wc -w` does."""
CEILINGS = {
    "audit": 1_681,
    "broker": 419,
    "cli": 1_339,
    "console": 1_615,
    "demo": 504,
    "domain": 1_832,
    "files": 2_765,
    "fingerprinting": 2_206,
    "index": 5_464,
    "indexer": 674,
    "inputs": 2_935,
    "insights": 478,
    "kafka": 1_839,
    "kernels": 293,
    "loading": 264,
    "log": 1_206,
    "orders": 1_255,
    "preflight": 791,
    "search": 1_313,
    "serving": 1_245,
    "settings": 670,
    "worker": 1_985,
    "": 44,
}
"""Statements of each package; "" is the modules beside them. Lower a ceiling with each step that
makes a package smaller; raise one only with the reason in the commit."""


def statements(folder: Path) -> Counter[str]:
    """Return the number of statements of each package below `folder`."""
    counts: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        package, *modules = path.relative_to(folder).parts
        tree = ast.parse(path.read_text(encoding="utf-8"))
        counts[package if modules else ""] += sum(
            isinstance(node, ast.stmt) for node in ast.walk(tree)
        )
    return counts


def test_no_package_grows_past_its_ceiling():
    """Each package has at most its ceiling of statements, and every package has a ceiling."""
    counts = statements(PACKAGE)

    assert set(CEILINGS) == set(counts)
    assert {name: count for name, count in counts.items() if count > CEILINGS[name]} == {}


def test_the_whole_stays_below_its_ceiling():
    """The product has at most `WHOLE` statements."""
    assert statements(PACKAGE).total() <= WHOLE


def test_the_documents_stay_below_their_ceiling():
    """All Markdown files have at most `WORDS` words."""
    pages = [*ROOT.glob("*.md")]
    for folder in ("docs", "deploy", "topics", "tests", "peers", "examples"):
        pages += (ROOT / folder).rglob("*.md")

    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= WORDS


LONG_TABLES = {("worker/metrics.py", "__init__")}
"""Functions that are tables: each line declares one more of the same."""


def test_no_function_is_long():
    """A function has at most 60 lines beside its docstring, unless it is a table."""
    long = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = (ast.get_docstring(node, clean=False) or "").splitlines()
                lines = (node.end_lineno or 0) - node.lineno + 1 - len(docstring)
                if lines > 60:
                    long[str(path.relative_to(PACKAGE)), node.name] = lines
    assert set(long) == LONG_TABLES, long
