"""The index's metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from stream_dedup.serving.metrics import BatchHistogram, RetentionMetrics

# The upper bounds of the buckets of `LogIndex.searches`.
_CANDIDATE_BUCKETS = tuple(2**power - 1 for power in range(21))
# By name in `LogIndex.statistics`: the values that are gauges, and those that are counters.
_GAUGES = {
    "numbers_used": (
        "stream_dedup_index_numbers_used",
        "Row numbers used, of 4,294,967,280; at 4.2 billion an index without a window exits.",
    ),
    "bytes_on_disk": ("stream_dedup_index_size_bytes", "Bytes of the index on its volume."),
    "applied": (
        "stream_dedup_index_applied_offset",
        "Next log offset to read.",
    ),
    "hottest_bucket": (
        "stream_dedup_index_hottest_bucket_entries",
        ("Entries of the fullest bucket; one table is measured each second."),
    ),
    "full_blocks": (
        "stream_dedup_full_blocks",
        (
            "Blocks with more representatives than the plan compares; one table is measured"
            " each second."
        ),
    ),
}
_COUNTERS = {
    "tables_unwritten": (
        "stream_dedup_index_unwritten_tables",
        "Table files that could not be written.",
    ),
    "rejected": (
        "stream_dedup_rejected_records",
        "Log records refused since the log began.",
    ),
    "ignored_control_records": (
        "stream_dedup_ignored_orders",
        "Orders ignored since the log began.",
    ),
}


class IndexMetrics(RetentionMetrics):
    """The metrics of an index."""

    def __init__(self) -> None:
        super().__init__()
        self.set_recipe("")  # known once the log's declaration was read
        counter, gauge = self._counter, self._gauge
        self.restored_empty = counter(
            "stream_dedup_index_restored_empty",
            "Starts with an empty volume although an index had answered the log before.",
        )
        self.rebuilt_files = counter(
            "stream_dedup_index_made_anew",
            "Table files rebuilt at a start.",
        )
        self.threshold = gauge(
            "stream_dedup_similarity_threshold",
            "Minimum similarity of copies, 0 to 1; 0 without sketches.",
        )
        self._snapshot_taken_at = math.nan
        gauge(
            "stream_dedup_snapshot_age_seconds",
            "Time since the last complete snapshot, or the start; NaN without "
            "STREAM_DEDUP_SNAPSHOTS.",
        ).set_function(lambda: time.time() - self._snapshot_taken_at)
        self._snapshot_size = gauge(
            "stream_dedup_snapshot_size_bytes",
            "Bytes of the last complete snapshot, or 0.",
        )
        self._candidates = BatchHistogram(
            "stream_dedup_candidates",
            "Fingerprints compared for one document.",
            _CANDIDATE_BUCKETS,
            self.registry,
        )
        self._entries = gauge("stream_dedup_index_entries", "Representatives in the index.")
        self._gauges = {name: gauge(*arguments) for name, arguments in _GAUGES.items()}
        memory = gauge(
            "stream_dedup_index_memory_bytes",
            "Bytes of rows and tables, in memory or in files.",
            ["where"],
        )
        self._gauges |= {
            "bytes_in_memory": memory.labels("memory"),
            "bytes_mapped": memory.labels("file"),
        }
        self._counters = {name: counter(*arguments) for name, arguments in _COUNTERS.items()}
        evicted = counter(
            "stream_dedup_index_evicted",
            "Representatives removed by window, forget or retraction.",
            ["reason"],
        )
        self._counters |= {
            f"evicted_{reason}": evicted.labels(reason)
            for reason in ("window", "forget", "retract")
        }
        self._counted = dict.fromkeys(self._counters, 0)

    def set_snapshot(self, taken_at: float, size_bytes: int) -> None:
        """Set the time of the last complete snapshot (or the process's start), in seconds since
        1970, and its size.
        """
        self._snapshot_taken_at = taken_at
        self._snapshot_size.set(size_bytes)

    def update(self, statistics: Mapping[str, int], searches: Sequence[int] = ()) -> None:
        """Update the metrics from `LogIndex.statistics` and `LogIndex.searches`."""
        if searches:
            self._candidates.replace_counts(searches, float(statistics["candidates"]))
        self._entries.set(statistics["entries"] - statistics["removed"])
        for name, named_gauge in self._gauges.items():
            named_gauge.set(statistics[name])
        for name, named_counter in self._counters.items():
            named_counter.inc(statistics[name] - self._counted[name])
            self._counted[name] = statistics[name]
