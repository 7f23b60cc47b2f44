"""Prometheus metrics of the roles, each on a registry of its own.

Names are the contract's; a role serves only what it moves, so that an index does not report a worker's zeros. No label
holds a host, an address or an id: the number of series must not grow with the crawl.

Invariant: documents_total + dead_letters_total = records_total, the source records whose transaction committed, counted
apart from each other; nothing is counted before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from stream_dedup import __version__
from stream_dedup.ground.document import Reason, Verdict

if TYPE_CHECKING:
    from stream_dedup.worker.outputs import Left

# The time each series began would double their number and tells nobody anything here.
disable_created_metrics()  # type: ignore[no-untyped-call]

_STAGE_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LATENCY_BUCKETS_SECONDS = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0,
)  # fmt: skip
_EVICTIONS = ("window", "forget", "retract")
_DISTANCE_BUCKETS_BITS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 24, 32)
# As `Index.searches` counts: its place k ends with 2^k - 1. Beyond a million it no longer matters by how much.
_CANDIDATE_BUCKETS = tuple(2**power - 1 for power in range(21))


class BatchHistogram(Collector):
    """A histogram that takes a whole batch at once: 5,000 single observations would cost a worker several milliseconds."""

    def __init__(self, name: str, text: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._edges = np.asarray(buckets, dtype=np.float64)
        # (counts, sum) is replaced as one value, so that the HTTP thread never sees half an observation.
        self._state = (np.zeros(len(buckets) + 1, dtype=np.int64), 0.0)
        registry.register(self)

    def observe_many(self, values: ArrayLike) -> None:
        """Count all of `values`, shape (n,)."""
        array = np.asarray(values, dtype=np.float64)
        counts, total = self._state
        places = np.searchsorted(self._edges, array, side="left")
        self._state = (counts + np.bincount(places, minlength=len(counts)), total + float(array.sum()))

    def put(self, counts: Sequence[int], total: float) -> None:
        """Take over counts that were kept elsewhere, one for each bucket; what is more belongs to the last."""
        mine = np.zeros(len(self._edges) + 1, dtype=np.int64)
        for place, count in enumerate(counts):
            mine[min(place, len(mine) - 1)] += count
        self._state = (mine, total)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram as Prometheus wants it: cumulative, with the sum."""
        counts, total = self._state
        names = [*(repr(edge) for edge in self._edges.tolist()), "+Inf"]
        buckets: list[tuple[str, float]] = [
            (name, float(count)) for name, count in zip(names, np.cumsum(counts).tolist(), strict=True)
        ]
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=total)


class _Metrics:
    """What every role has."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._build = Gauge(
            "stream_dedup_build_info",
            "Always 1; the labels say which version runs, and with which recipe.",
            ["version", "recipe"],
            registry=self.registry,
        )
        self._stages = Histogram(
            "stream_dedup_stage_duration_seconds",
            "Time that one batch spent in one stage of the role's loop.",
            ["stage"],
            buckets=_STAGE_BUCKETS_SECONDS,
            registry=self.registry,
        )

    def recipe(self, recipe: str) -> None:
        """Say which recipe is in force."""
        self._build.clear()
        self._build.labels(__version__, recipe).set(1)

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Time one stage: `with metrics.stage("prepare"): ...`."""
        timer: AbstractContextManager[object] = self._stages.labels(name).time()
        return timer


class WorkerMetrics(_Metrics):
    """What a worker counts."""

    def __init__(self, recipe: str) -> None:
        super().__init__()
        self.recipe(recipe)
        registry = self.registry
        self._records = Counter(
            "stream_dedup_records",
            "Source records whose transaction committed: what went in. Equals documents and dead letters together.",
            registry=registry,
        )
        self._documents = Counter(
            "stream_dedup_documents",
            "Documents that left with a verdict, by verdict and reason.",
            ["verdict", "reason"],
            registry=registry,
        )
        self._bytes = Counter("stream_dedup_bytes", "Bytes of the values of those documents.", ["verdict"], registry=registry)
        self._dead_letters = Counter(
            "stream_dedup_dead_letters",
            "Documents that went to the dead letters, by the stage that could not go on.",
            ["stage"],
            registry=registry,
        )
        self._transactions = Counter(
            "stream_dedup_transactions", "Transactions, by how they ended.", ["result"], registry=registry
        )
        self._rebalances = Counter(
            "stream_dedup_rebalances", "Times that the group moved partitions to or from this worker.", registry=registry
        )
        self._lag = Gauge(
            "stream_dedup_consumer_lag_records",
            "Records between the committed offset and the end of each partition of this worker.",
            ["topic", "partition"],
            registry=registry,
        )
        self._batches_in_flight = Gauge(
            "stream_dedup_batches_in_flight", "Batches that wait for the index or for their commit.", registry=registry
        )
        self._documents_in_flight = Gauge("stream_dedup_documents_in_flight", "Documents in those batches.", registry=registry)
        self._bytes_in_flight = Gauge(
            "stream_dedup_bytes_in_flight", "Memory that those batches take, about.", registry=registry
        )
        self._allowed = Gauge(
            "stream_dedup_transaction_documents_max",
            "Documents that one transaction may carry now: fewer when outputs are written slowly.",
            registry=registry,
        )
        self._unemitted = Gauge(
            "stream_dedup_unemitted_representatives",
            "Documents that the index made representatives and this worker has not committed to the output yet.",
            registry=registry,
        )
        self._distance = BatchHistogram(
            "stream_dedup_distance_bits",
            "Distance of duplicates from the document they name.",
            _DISTANCE_BUCKETS_BITS,
            registry,
        )
        self._latency = BatchHistogram(
            "stream_dedup_verdict_latency_seconds",
            "Age of a document, by its record's timestamp, when its verdict was committed. Crawlers that send the "
            "fetch time as timestamp see the age of the page.",
            _LATENCY_BUCKETS_SECONDS,
            registry,
        )
        self._insights = Counter(
            "stream_dedup_insights_sent",
            "Records with counts per host, by whether Kafka took them; a lost one costs counts and no document.",
            ["result"],
            registry=registry,
        )
        for result in ("delivered", "lost"):
            self._insights.labels(result)
        for verdict in Verdict:
            self._bytes.labels(verdict.value)
        for reason in Reason:
            if reason.verdict is not None:
                self._documents.labels(reason.verdict.value, reason.label)
        for stage in ("decode", "field", "size", "fingerprint"):
            self._dead_letters.labels(stage)
        for result in ("committed", "aborted", "unknown"):
            self._transactions.labels(result)

    def took(self, records: int) -> None:
        """Count the source records of a transaction that has committed."""
        self._records.inc(records)

    def waited(self, seconds: float) -> None:
        """Note how long a batch was on its way, from being read until its verdicts were in."""
        self._stages.labels("verdict").observe(seconds)

    def left(self, left: Left) -> None:
        """Count the records of a transaction that has committed."""
        documents, sizes = left.documents.tolist(), left.bytes.tolist()
        for reason in Reason:
            if documents[reason] and reason.verdict is not None:
                self._documents.labels(reason.verdict.value, reason.label).inc(documents[reason])
                self._bytes.labels(reason.verdict.value).inc(sizes[reason])
        for stage, count in left.stages.items():
            self._dead_letters.labels(stage).inc(count)
        self._distance.observe_many(left.distances)
        ages_ms = time.time() * 1000 - left.timestamps_ms
        self._latency.observe_many(np.maximum(ages_ms, 0.0) / 1000)

    def insights(self, result: str) -> None:
        """Count a record of counts per host: `delivered` or `lost`."""
        self._insights.labels(result).inc()

    def transaction(self, result: str) -> None:
        """Count a transaction that ended so: `committed`, `aborted` or `unknown`."""
        self._transactions.labels(result).inc()

    def rebalanced(self) -> None:
        """Count a rebalance; the lag of partitions that went away is not reported any longer."""
        self._rebalances.inc()
        self._lag.clear()

    def lag(self, topic: str, partition: int, records: int) -> None:
        """Say how far behind its partition this worker is."""
        self._lag.labels(topic, str(partition)).set(records)

    def in_flight(self, batches: int, documents: int, held_bytes: int) -> None:
        """Say how much is on its way."""
        self._batches_in_flight.set(batches)
        self._documents_in_flight.set(documents)
        self._bytes_in_flight.set(held_bytes)

    def allowed(self, documents: int) -> None:
        """Say how much one transaction may carry."""
        self._allowed.set(documents)

    def unemitted(self, representatives: int) -> None:
        """Say how many documents duplicates may name that readers of the output do not see yet."""
        self._unemitted.set(representatives)


class IndexMetrics(_Metrics):
    """What an index reports."""

    def __init__(self) -> None:
        super().__init__()
        self.recipe("")  # known once the log's declaration was read
        self._entries = Gauge("stream_dedup_index_entries", "Representatives in the index.", registry=self.registry)
        self._candidates = BatchHistogram(
            "stream_dedup_candidates",
            "Prints compared for one document; those found by their text alone are not counted.",
            _CANDIDATE_BUCKETS,
            self.registry,
        )
        self._size = Gauge("stream_dedup_index_size_bytes", "Bytes that the index takes on its volume.", registry=self.registry)
        self._applied = Gauge(
            "stream_dedup_index_applied_offset",
            "The log offset up to which the index has applied the log: the next one it will read.",
            registry=self.registry,
        )
        self._evicted = Counter(
            "stream_dedup_index_evicted",
            "Representatives that left the index: by its window, forgotten by an operator, or retracted.",
            ["reason"],
            registry=self.registry,
        )
        self._evicted_before = dict.fromkeys(_EVICTIONS, 0)
        for reason in _EVICTIONS:
            self._evicted.labels(reason)

        self._restored_empty = Counter(
            "stream_dedup_index_restored_empty",
            "Starts with an empty volume beside a log that an index had answered: it was rebuilt.",
            registry=self.registry,
        )

        self._memory = Gauge(
            "stream_dedup_index_memory_bytes",
            "Bytes of the index's rows and tables: held in memory, or mapped from files beyond the memory budget.",
            ["where"],
            registry=self.registry,
        )
        self._hottest = Gauge(
            "stream_dedup_index_hottest_bucket_entries",
            "Entries of the longest bucket, all of which a look-up that visits it reads.",
            registry=self.registry,
        )

    def restored_empty(self) -> None:
        """Count a start with an empty volume that has to be rebuilt from the log."""
        self._restored_empty.inc()

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
        for reason, before in self._evicted_before.items():
            count = statistics[f"evicted_{reason}"]
            self._evicted.labels(reason).inc(count - before)
            self._evicted_before[reason] = count


class InsightsMetrics(_Metrics):
    """What the role insights reports; nothing of it is by host."""

    def __init__(self) -> None:
        super().__init__()
        self.recipe("")
        self._read = Counter(
            "stream_dedup_insights_records",
            "Records of insights: counted, passed over because they were counted before, or not readable.",
            ["result"],
            registry=self.registry,
        )
        self._hosts = Gauge("stream_dedup_insights_hosts", "Hosts that are remembered.", registry=self.registry)
        self._signals = Counter("stream_dedup_host_signals", "Records written to host-signals.", registry=self.registry)
        self._events = Counter(
            "stream_dedup_host_events",
            "Times that something began at a host: many ids fell on one document, or nearly all its documents were dropped.",
            ["event"],
            registry=self.registry,
        )
        self._lag = Gauge(
            "stream_dedup_insights_lag_records", "Records of insights that wait to be read.", registry=self.registry
        )
        for result in ("counted", "repeated", "malformed"):
            self._read.labels(result)
        for event in ("one-page", "vanishing"):
            self._events.labels(event)

    def read(self, result: str) -> None:
        """Count a record: `counted`, `repeated` or `malformed`."""
        self._read.labels(result).inc()

    def wrote(self, signals: int, hosts: int) -> None:
        """Count signals that were written; say how many hosts there are."""
        self._signals.inc(signals)
        self._hosts.set(hosts)

    def event(self, kind: str) -> None:
        """Count something that has begun at a host."""
        self._events.labels(kind).inc()

    def lag(self, records: int) -> None:
        """Say how many records wait."""
        self._lag.set(records)
