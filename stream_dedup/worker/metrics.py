"""The worker's metrics.

Invariant: documents_total + dead_letters_total = records_total, the source records whose
transaction committed. The sides are counted independently, and only after the commit.
"""

from __future__ import annotations

import time
from functools import partial
from typing import get_args

import numpy as np

from stream_dedup.domain.document import Reason, Stage
from stream_dedup.serving.metrics import BatchHistogram, DecodingMetrics, SourceRetentionMetrics
from stream_dedup.worker.outputs import EmittedCounts

_LATENCY_BUCKETS_SECONDS = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    1800,
    3600,
    21600,
    86400,
)
_DISTANCE_BUCKETS_BITS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 24, 32)
_SIMILARITY_BUCKETS = (0.25, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


class WorkerMetrics(SourceRetentionMetrics, DecodingMetrics):
    """The metrics of a worker."""

    def __init__(self, recipe: str) -> None:
        super().__init__()
        self.set_recipe(recipe)
        counter, gauge = self._counter, self._gauge
        histogram = partial(BatchHistogram, registry=self.registry)
        self.records = counter(
            "stream_dedup_records", "Source records whose transaction committed."
        )
        self._documents = counter(
            "stream_dedup_documents",
            "Documents delivered with a verdict.",
            ["verdict", "reason"],
        )
        self._bytes = counter(
            "stream_dedup_bytes", "Bytes of the values of those documents.", ["verdict"]
        )
        self._dead_letters = counter(
            "stream_dedup_dead_letters",
            "Documents that became dead letters, by stage.",
            ["stage"],
        )
        self.transactions = counter(
            "stream_dedup_transactions", "Transactions by result.", ["result"]
        )
        self._rebalances = counter(
            "stream_dedup_rebalances",
            "Rebalances that moved partitions of this worker.",
        )
        self._lag = gauge(
            "stream_dedup_consumer_lag_records",
            "Offsets from the committed offset to the end of a partition, including transaction "
            "markers.",
            ["topic", "partition"],
        )
        self._batches_in_flight = gauge(
            "stream_dedup_batches_in_flight", "Batches that wait for the index or for their commit."
        )
        self._documents_in_flight = gauge(
            "stream_dedup_documents_in_flight", "Documents in those batches."
        )
        self._bytes_in_flight = gauge(
            "stream_dedup_bytes_in_flight", "Approximate memory of those batches."
        )
        self.allowed = gauge(
            "stream_dedup_transaction_documents_max",
            "Current limit of documents in a transaction; lower if outputs are slow.",
        )
        self.unemitted = gauge(
            "stream_dedup_unemitted_representatives",
            "Representatives that this worker has not yet committed.",
        )
        self.unanswered = gauge(
            "stream_dedup_unanswered_seconds",
            "Age of the oldest log record without an answer, or 0.",
        )
        self._distance = histogram(
            "stream_dedup_distance_bits",
            "Distance of duplicates from their kept document.",
            _DISTANCE_BUCKETS_BITS,
        )
        self._similarity = histogram(
            "stream_dedup_similarity",
            "Similarity of near and revised duplicates to their kept document, 0 to 1.",
            _SIMILARITY_BUCKETS,
        )
        self._latency = histogram(
            "stream_dedup_verdict_latency_seconds",
            "Age of a document, by its timestamp, when its verdict was committed.",
            _LATENCY_BUCKETS_SECONDS,
        )
        for reason in Reason:
            if reason.verdict is not None:
                self._bytes.labels(reason.verdict.value)
                self._documents.labels(reason.verdict.value, reason.label)
        for stage in get_args(Stage):
            self._dead_letters.labels(stage)
        for result in ("committed", "aborted", "unknown"):
            self.transactions.labels(result)

    def observe_wait(self, seconds: float) -> None:
        """Observe the seconds from the read of a batch until its verdicts arrived."""
        self._stages.labels("verdict").observe(seconds)

    def count_committed(self, counts: EmittedCounts) -> None:
        """Count the records of a transaction that has committed."""
        documents, sizes = counts.documents.tolist(), counts.bytes.tolist()
        for reason in Reason:
            if documents[reason] and reason.verdict is not None:
                self._documents.labels(reason.verdict.value, reason.label).inc(documents[reason])
                self._bytes.labels(reason.verdict.value).inc(sizes[reason])
        for stage, count in counts.stages.items():
            self._dead_letters.labels(stage).inc(count)
        self._distance.observe_many(counts.distances)
        self._similarity.observe_many(counts.similarities)
        ages_ms = time.time() * 1000 - counts.timestamps_ms
        self._latency.observe_many(np.maximum(ages_ms, 0.0) / 1000)

    def count_rebalance(self) -> None:
        """Count a rebalance, and stop reporting the lag of all partitions until it is set again."""
        self._rebalances.inc()
        self._lag.clear()

    def set_lag(self, topic: str, partition: int, records: int) -> None:
        """Set the lag of a partition."""
        self._lag.labels(topic, str(partition)).set(records)

    def set_in_flight(self, batches: int, documents: int, held_bytes: int) -> None:
        """Set the batches, documents and bytes in flight."""
        self._batches_in_flight.set(batches)
        self._documents_in_flight.set(documents)
        self._bytes_in_flight.set(held_bytes)
