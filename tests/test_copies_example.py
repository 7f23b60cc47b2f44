"""The consumer of docs/how-to/copies.md stores the headers' values, in any partition order."""

from __future__ import annotations

import importlib.util
import os
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parent.parent / "examples" / "copies.py"
Headers = list[tuple[str, bytes]]


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("copies_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_duplicates(chance: random.Random, documents: int) -> list[tuple[bytes, Headers]]:
    """Return duplicates of a few kept documents as a log judges them, in its order."""
    copies = dict.fromkeys(range(4), 0)
    found = []
    for number in range(documents):
        kept = chance.randrange(4)
        copies[kept] += 1
        headers = [
            ("dedup.of.position", f"documents-0@{kept}".encode()),
            ("dedup.of.id", f"kept-{kept}".encode()),
            ("dedup.position", f"documents-1@{number}".encode()),
            ("dedup.log", f"{number // 3}/{number % 3}".encode()),
            ("dedup.copies", str(copies[kept]).encode()),
            ("crawl", b"\xff"),
        ]
        if chance.random() < 0.3:
            headers.append(("dedup.better", b"longest"))
        found.append((f"copy-{number}".encode(), headers))
    return found


@pytest.mark.parametrize("salt", range(5))
def test_the_table_equals_the_log(salt: int) -> None:
    """The partitions are read one after another, and some records twice."""
    seed = int(os.environ.get("SEED", "0")) + salt
    print("seed", seed)
    chance = random.Random(seed)
    log = random_duplicates(chance, 60)
    expected: dict[str, tuple[int, str | None]] = {}
    for key, headers in log:
        known = dict(headers)
        position = known["dedup.of.position"].decode()
        best = key.decode() if "dedup.better" in known else expected.get(position, (0, None))[1]
        expected[position] = int(known["dedup.copies"]), best
    parts: list[list[tuple[bytes, Headers]]] = [[], [], []]
    for message in log:
        parts[chance.randrange(3)].append(message)
    module, table = load_example(), sqlite3.connect(":memory:")
    table.executescript(module.SCHEMA)
    for part in chance.sample(parts, 3):
        for key, headers in [*part, *part[-5:]]:
            module.keep(table, key, headers)

    rows = table.execute("select position, copies, best_id from copies").fetchall()
    assert {position: (copies, best) for position, copies, best in rows} == expected
