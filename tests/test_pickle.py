"""Nothing here unpickles what came from outside: whoever could write to a topic or a volume could otherwise run code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import stream_dedup
from tests.test_floors import imports

PACKAGE = Path(stream_dedup.__file__).parent
# numba's machine code is kept as pickles; that module loads them from folders of this user's own only (tests/test_compiled.py).
FILES = sorted(set(PACKAGE.rglob("*.py")) - {PACKAGE / "machine" / "compiled.py"})
CODECS_THAT_RUN_CODE = {"pickle", "cPickle", "_pickle", "shelve", "marshal", "joblib", "dill", "cloudpickle", "jsonpickle"}


def allows_pickle(path: Path) -> bool:
    """Whether a call in the file passes `allow_pickle` as anything but False."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    given = [word.value for call in calls for word in call.keywords if word.arg == "allow_pickle"]
    return any(not (isinstance(value, ast.Constant) and value.value is False) for value in given)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_module_unpickles(path: Path) -> None:
    """No module imports a codec that runs code, nor lets numpy do so."""
    assert {name.partition(".")[0] for name in imports(path)} & CODECS_THAT_RUN_CODE == set()
    assert not allows_pickle(path)


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    """A file that does both is found out."""
    path = tmp_path / "bad.py"
    path.write_text("import numpy, marshal\nnumpy.load('x', allow_pickle=True)\n")

    assert imports(path) & CODECS_THAT_RUN_CODE == {"marshal"}
    assert allows_pickle(path)
