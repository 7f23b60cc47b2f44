"""What an index counts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from prometheus_client import Counter, Gauge

from stream_dedup.service.metrics import BatchHistogram, RoleMetrics

_EVICTIONS = ("window", "forget", "retract")
# As `Index.searches` counts: its place k ends with 2^k - 1. Beyond a million it no longer matters by how much.
_CANDIDATE_BUCKETS = tuple(2**power - 1 for power in range(21))


class IndexMetrics(RoleMetrics):
    """What an index reports."""

    def __init__(self) -> None:
        super().__init__()
        self.recipe("")  # known once the log's declaration was read
        self._entries = Gauge("stream_dedup_index_entries", "Representatives in the index.", registry=self.registry)
        self._candidates = BatchHistogram(
            "stream_dedup_candidates",
            "Prints compared for one document.",
            _CANDIDATE_BUCKETS,
            self.registry,
        )
        self._threshold = Gauge(
            "stream_dedup_similarity_threshold",
            "Similarity from which on documents are near, 0 to 1; 0 where the plan asks for none.",
            registry=self.registry,
        )
        self._size = Gauge("stream_dedup_index_size_bytes", "Bytes that the index takes on its volume.", registry=self.registry)
        self._applied = Gauge(
            "stream_dedup_index_applied_offset",
            "The next log offset that the index will read.",
            registry=self.registry,
        )
        self._evicted = Counter(
            "stream_dedup_index_evicted",
            "Representatives that left the index: by its window, forgotten, or retracted.",
            ["reason"],
            registry=self.registry,
        )
        self._evicted_before = dict.fromkeys(_EVICTIONS, 0)
        for reason in _EVICTIONS:
            self._evicted.labels(reason)
        self._rejected = Counter(
            "stream_dedup_rejected_records",
            "Log records that the index refused, since the log began; `/readyz` names the last.",
            registry=self.registry,
        )
        self._ignored = Counter(
            "stream_dedup_ignored_orders",
            "Orders that the index passed over, since the log began.",
            registry=self.registry,
        )
        self._passed_over_before = {"rejected": 0, "ignored_control_records": 0}
        self._restored_empty = Counter(
            "stream_dedup_index_restored_empty",
            "Starts with an empty volume beside a log that was answered before.",
            registry=self.registry,
        )

        self._made_anew = Counter(
            "stream_dedup_index_made_anew",
            "Rows and tables beside the volume that were made anew at a start.",
            registry=self.registry,
        )
        self._unwritten = Counter(
            "stream_dedup_index_unwritten_tables",
            "Tables that could not be written beside the volume.",
            registry=self.registry,
        )
        self._unwritten_before = 0
        self._memory = Gauge(
            "stream_dedup_index_memory_bytes",
            "Bytes of the index's rows and tables, in memory or in files.",
            ["where"],
            registry=self.registry,
        )
        self._hottest = Gauge(
            "stream_dedup_index_hottest_bucket_entries",
            "The most entries that a look-up reads in one table; one table is looked at each second, in turn.",
            registry=self.registry,
        )

        self._full_blocks = Gauge(
            "stream_dedup_full_blocks",
            "Blocks that more representatives share than the plan asks of one; one table is looked at each second, in turn.",
            registry=self.registry,
        )
        self._behind = Gauge(
            "stream_dedup_representatives_behind_records",
            "Log records that the topic representatives is behind.",
            registry=self.registry,
        )
        self._decisions_behind = Gauge(
            "stream_dedup_decisions_behind_records",
            "Decisions that the topic decisions does not hold yet.",
            registry=self.registry,
        )
        self._decisions_applied = Counter(
            "stream_dedup_decisions_applied",
            "Log records that were applied by the topic decisions.",
            registry=self.registry,
        )
        self._published = Counter(
            "stream_dedup_representatives",
            "Values and tombstones written to representatives.",
            registry=self.registry,
        )
        self._transactions = Counter(
            "stream_dedup_representatives_transactions",
            "Transactions on representatives: committed, fenced by another index, or failed.",
            ["result"],
            registry=self.registry,
        )
        for result in ("committed", "fenced", "failed"):
            self._transactions.labels(result)
        self._snapshot_taken = math.nan
        Gauge(
            "stream_dedup_snapshot_age_seconds",
            "Time since the last whole snapshot, or since the start; NaN without STREAM_DEDUP_SNAPSHOTS.",
            registry=self.registry,
        ).set_function(lambda: time.time() - self._snapshot_taken)
        self._snapshot_size = Gauge(
            "stream_dedup_snapshot_size_bytes",
            "Bytes of the last whole snapshot; 0 while there is none.",
            registry=self.registry,
        )

    def snapshot(self, taken: float, size_bytes: int) -> None:
        """Say when the last snapshot was whole, in seconds since 1970, or the process started, and how large it is."""
        self._snapshot_taken = taken
        self._snapshot_size.set(size_bytes)

    def decisions_applied(self, records: int) -> None:
        """Count log records on which was decided before."""
        self._decisions_applied.inc(records)

    def decisions_behind(self, records: int) -> None:
        """Say how far the topic `decisions` is behind."""
        self._decisions_behind.set(records)

    def representatives_behind(self, records: int) -> None:
        """Say how far the topic `representatives` is behind."""
        self._behind.set(records)

    def representatives_written(self, result: str, values: int) -> None:
        """Count a transaction on the topic `representatives`, and what it wrote."""
        self._transactions.labels(result).inc()
        self._published.inc(values)

    def restored_empty(self) -> None:
        """Count a start with an empty volume that has to be rebuilt from the log."""
        self._restored_empty.inc()

    def made_anew(self, count: int) -> None:
        """Count what of the files beside the volume did not fit at the start."""
        self._made_anew.inc(count)

    def threshold(self, similarity: float) -> None:
        """Say from which similarity on the plan in force calls two documents near."""
        self._threshold.set(similarity)

    def state(self, statistics: Mapping[str, int], searches: Sequence[int] = ()) -> None:
        """Report the index's state, as `Index.statistics` and `Index.searches` give it."""
        if searches:
            self._candidates.put(searches, float(statistics["candidates"]))
        self._entries.set(statistics["entries"] - statistics["removed"])
        self._size.set(statistics["bytes_on_disk"])
        self._applied.set(statistics["applied"])
        self._memory.labels("memory").set(statistics["bytes_in_memory"])
        self._memory.labels("file").set(statistics["bytes_mapped"])
        self._hottest.set(statistics["hottest_bucket"])
        self._full_blocks.set(statistics["full_blocks"])
        self._unwritten.inc(statistics["tables_unwritten"] - self._unwritten_before)
        self._unwritten_before = statistics["tables_unwritten"]
        for name, counter in (("rejected", self._rejected), ("ignored_control_records", self._ignored)):
            counter.inc(statistics[name] - self._passed_over_before[name])
            self._passed_over_before[name] = statistics[name]
        for reason, before in self._evicted_before.items():
            count = statistics[f"evicted_{reason}"]
            self._evicted.labels(reason).inc(count - before)
            self._evicted_before[reason] = count
