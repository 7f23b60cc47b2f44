"""A real Apache Kafka, embedded: for the demo, the tests and `stream-dedup broker`, on a machine
with nothing but Python.

Invariants: nothing here is needed where a Kafka exists already; only bytes whose SHA-256 is pinned
in `jars.lock` are ever run; this room uses no Kafka client library.

`jars.py` gathers what the broker is made of, `node.py` runs one node of it.
"""

from __future__ import annotations

from stream_dedup.broker.node import LocalBroker

__all__ = ["LocalBroker"]
