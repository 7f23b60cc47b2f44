"""What the role search counts."""

from __future__ import annotations

from functools import partial

from prometheus_client import Counter, Gauge, Histogram

from stream_dedup.service.metrics import DecodingMetrics

_ANSWER_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class SearchMetrics(DecodingMetrics):
    """What a search reports."""

    def __init__(self) -> None:
        super().__init__()
        self.recipe("")
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self._read = counter("stream_dedup_search_records", "Records of the outputs that were taken into the full-text engine.")
        self._without_text = counter(
            "stream_dedup_search_without_text",
            "Records of the outputs whose text cannot be had: not found by words.",
        )
        self._documents = gauge("stream_dedup_search_documents", "Documents and groups in the full-text engine.")
        self._size = gauge("stream_dedup_search_size_bytes", "Bytes that the full-text engine takes on its volume.")
        self._lag = gauge("stream_dedup_search_lag_records", "Records of the outputs that wait to be read.")
        self._answers = Histogram(
            "stream_dedup_search_answer_seconds",
            "How long it took to find the documents that hold a clue, snippets included.",
            buckets=_ANSWER_BUCKETS_SECONDS,
            registry=self.registry,
        )

    def committed(self, records: int) -> None:
        """Count records."""
        self._read.inc(records)

    def holds(self, documents: int, size_bytes: int) -> None:
        """Say how much the engine holds."""
        self._documents.set(documents)
        self._size.set(size_bytes)

    def without_text(self) -> None:
        """Count a record whose text cannot be had."""
        self._without_text.inc()

    def lag(self, records: int) -> None:
        """Say how many records wait."""
        self._lag.set(records)

    def answered(self, seconds: float) -> None:
        """Count an answer."""
        self._answers.observe(seconds)
