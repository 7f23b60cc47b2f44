"""An embedded Apache Kafka for the demo, the tests and `stream-dedup broker`, on a machine that has
only Python.

Invariants: this package is not needed with an existing Kafka; only files whose SHA-256 is pinned in
`jars.lock` are run; this package uses no Kafka client library.

`jars` fetches the broker's files, `node` runs a node.
"""

from __future__ import annotations

from stream_dedup.broker.node import LocalBroker

__all__ = ["LocalBroker"]
