"""The metrics of the role search."""

from __future__ import annotations

from prometheus_client import Histogram

from stream_dedup.serving.metrics import DecodingMetrics

_ANSWER_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class SearchMetrics(DecodingMetrics):
    """The metrics of a search."""

    def __init__(self) -> None:
        super().__init__()
        self.set_recipe("")
        counter, gauge = self._counter, self._gauge
        self.added = counter(
            "stream_dedup_search_records",
            "Output records added to the full-text engine.",
        )
        self.without_text = counter(
            "stream_dedup_search_without_text",
            "Output records without an available text.",
        )
        self._documents = gauge(
            "stream_dedup_search_documents", "Documents and groups in the full-text engine."
        )
        self._size = gauge(
            "stream_dedup_search_size_bytes", "Bytes of the full-text engine on its volume."
        )
        self.lag = gauge("stream_dedup_search_lag_records", "Output records not yet read.")
        self.answers = Histogram(
            "stream_dedup_search_answer_seconds",
            "Time of a search query, with snippets.",
            buckets=_ANSWER_BUCKETS_SECONDS,
            registry=self.registry,
        )

    def set_size(self, documents: int, size_bytes: int) -> None:
        """Set the number of documents and the size of the engine."""
        self._documents.set(documents)
        self._size.set(size_bytes)
