"""Keep how many copies each kept document has, and which copy is the best, in a SQLite table.

`python copies.py BROKERS TABLE [TOPIC]` reads `duplicates` and never ends; the table is its state,
including offsets, so it can be stopped at any time and continues where it stopped.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable

from confluent_kafka import Consumer, TopicPartition

SCHEMA = """
create table if not exists copies (
    position text primary key, id text, copies integer not null,
    best_position text, best_id text, best_why text, best_log integer, best_place integer);
create table if not exists offsets (part integer primary key, next integer not null);
"""
# A partition is read in order, several partitions are not: `dedup.log` says which of two better
# copies was judged later, and the greatest count is the latest.
MERGE = """
insert into copies values (:position, :id, :copies, :best, :best_id, :why, :log, :place)
on conflict (position) do update set copies = max(copies, excluded.copies);
"""
BETTER = """
update copies set best_position = :best, best_id = :best_id, best_why = :why,
    best_log = :log, best_place = :place
where position = :position and :why is not null
    and (:log, :place) > (coalesce(best_log, -1), coalesce(best_place, -1));
"""


def keep(
    table: sqlite3.Connection, key: bytes | None, headers: Iterable[tuple[str, bytes]]
) -> None:
    """Take in one record of `duplicates`; the same record twice changes nothing."""
    found = {name: value.decode() for name, value in headers if name.startswith("dedup.")}
    if "dedup.of.position" not in found:
        return
    why = found.get("dedup.better")
    log, place = map(int, found["dedup.log"].split("/")) if why else (None, None)
    row = {
        "position": found["dedup.of.position"],
        "id": found.get("dedup.of.id"),
        "copies": int(found.get("dedup.copies", 0)),
        "best": found["dedup.position"] if why else None,
        "best_id": (key or b"").decode(errors="replace") if why else None,
        "why": why,
        "log": log,
        "place": place,
    }
    table.execute(MERGE, row)
    table.execute(BETTER, row)


def main(brokers: str, path: str, topic: str = "duplicates") -> None:
    """Read the topic from where the table is, each batch of records in one transaction of it."""
    table = sqlite3.connect(path)
    table.executescript(SCHEMA)
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "copies", "auto.offset.reset": "earliest"}
    )
    parts = consumer.list_topics(topic, 10).topics[topic].partitions
    known = dict(table.execute("select part, next from offsets"))
    consumer.assign([TopicPartition(topic, part, known.get(part, 0)) for part in parts])
    while True:
        with table:
            for message in consumer.consume(1000, 1.0):
                if message.error():
                    raise SystemExit(str(message.error()))
                keep(table, message.key(), message.headers() or [])
                reached = message.partition(), message.offset() + 1
                table.execute("insert or replace into offsets values (?, ?)", reached)


if __name__ == "__main__":
    main(*sys.argv[1:])
