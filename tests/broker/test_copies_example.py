"""The consumer of docs/how-to/copies.md on a real Kafka: its table is what the log says."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.broker.harness import Filter, Outcome, synthetic, wait_until
from tests.test_copies_example import PATH

pytestmark = [pytest.mark.broker, pytest.mark.thorough]


def test_a_killed_consumer_goes_on_where_its_table_is(make_filter: Callable[..., Filter]) -> None:
    """Killed half-way and started again, its table holds each kept document's copies and its best
    one."""
    crawl = make_filter(partitions=2, batch_documents=250, count_copies=True, better="newest")
    for role in ("index", "worker"):
        crawl.start(role)
    path = crawl.folder / "copies.db"
    command = [sys.executable, str(PATH), crawl.bootstrap, str(path), crawl.names.duplicates]
    found: dict[str, tuple[int, str]] = {}

    def rows() -> dict[str, tuple[int, str]]:
        if not path.exists():
            return {}
        with sqlite3.connect(path) as table:
            try:
                asked = table.execute("select position, copies, best_position from copies")
                return {position: (copies, best or position) for position, copies, best in asked}
            except sqlite3.OperationalError:
                return {}  # it has just begun

    count = 0
    for seed in (11, 12):
        count += crawl.produce(synthetic(1000, seed, partitions=2))
        consumer = subprocess.Popen(command)
        try:
            crawl.wait_until_committed(count)
            fold = Outcome(crawl).outline.fold
            expected = {
                str(one.as_representative().position): (
                    one.copies.count,
                    str(one.copies.best.position),
                )
                for one in fold._by_position.values()
                if one.copies.count
            }
            wait_until(lambda expected=expected: rows() == expected, "the table is level")
            found = expected
        finally:
            consumer.kill()
            consumer.wait()

    assert len(found) > 50
    assert any(best != position for position, (_, best) in found.items())
