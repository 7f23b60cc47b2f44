"""Common metrics of the roles; each role has its own registry.

`docs/reference/metrics.md` lists the names; a role serves only metrics that it updates, so that an
index does not report a worker's zeros. No label contains a host, an address or an id: the number of
series must not grow with the crawl.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from stream_dedup.domain.errors import AwayError, RegistryAwayError, TextAwayError
from stream_dedup.domain.version import __version__

# Series of creation times would double the number of series and are not used.
disable_created_metrics()  # type: ignore[no-untyped-call]

_STAGE_BUCKETS_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)


class BatchHistogram(Collector):
    """A histogram that observes a batch at once: 5,000 single observations would cost a worker
    several milliseconds.
    """

    def __init__(
        self, name: str, text: str, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._text = text
        self._edges = np.asarray(buckets, dtype=np.float64)
        # (counts, sum) is replaced as one value, so that the HTTP thread never sees half an
        # observation.
        self._state = (np.zeros(len(buckets) + 1, dtype=np.int64), 0.0)
        registry.register(self)

    def observe_many(self, values: ArrayLike) -> None:
        """Count all of `values`, shape (n,)."""
        array = np.asarray(values, dtype=np.float64)
        counts, total = self._state
        buckets = np.searchsorted(self._edges, array, side="left")
        self._state = (
            counts + np.bincount(buckets, minlength=len(counts)),
            total + float(array.sum()),
        )

    def replace_counts(self, counts: Sequence[int], total: float) -> None:
        """Replace the counts, one for each bucket; further counts are added to the last bucket."""
        bucket_counts = np.zeros(len(self._edges) + 1, dtype=np.int64)
        for bucket, count in enumerate(counts):
            bucket_counts[min(bucket, len(bucket_counts) - 1)] += count
        self._state = (bucket_counts, total)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram in Prometheus's form: cumulative, with the sum."""
        counts, total = self._state
        names = [*(repr(edge) for edge in self._edges.tolist()), "+Inf"]
        buckets: list[tuple[str, float]] = [
            (name, float(count))
            for name, count in zip(names, np.cumsum(counts).tolist(), strict=True)
        ]
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=total)


class RoleMetrics:
    """The metrics of every role."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counter, self._gauge = (
            partial(Counter, registry=self.registry),
            partial(Gauge, registry=self.registry),
        )
        ProcessCollector(registry=self.registry)
        self._build = self._gauge(
            "stream_dedup_build_info",
            "Always 1; version and recipe are labels.",
            ["version", "recipe"],
        )
        self._stages = Histogram(
            "stream_dedup_stage_duration_seconds",
            "Time of one batch in one stage of the role's loop.",
            ["stage"],
            buckets=_STAGE_BUCKETS_SECONDS,
            registry=self.registry,
        )

    def set_recipe(self, recipe: str) -> None:
        """Set the recipe in force."""
        self._build.clear()
        self._build.labels(__version__, recipe).set(1)

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Time one stage: `with metrics.stage("prepare"): ...`."""
        timer: AbstractContextManager[object] = self._stages.labels(name).time()
        return timer


class RetentionMetrics(RoleMetrics):
    """The metrics of a role that needs all records of its topics."""

    def __init__(self) -> None:
        super().__init__()
        self.unkept = self._gauge(
            "stream_dedup_topic_unkept",
            "1 if Kafka removes, or has removed, records that the role needs, else 0.",
            ["topic"],
        )


class SourceRetentionMetrics(RetentionMetrics):
    """The metrics of a role that also needs all records of `documents`."""

    def __init__(self) -> None:
        super().__init__()
        self.oldest_unread = self._gauge(
            "stream_dedup_oldest_unread_seconds",
            "Age of the oldest uncommitted document, by its timestamp, or 0.",
        )
        self.retention = self._gauge(
            "stream_dedup_documents_retention_seconds",
            "Retention of documents; NaN without a limit by age.",
        )
        self.retention.set(math.nan)


class DecodingMetrics(RoleMetrics):
    """The metrics of a role that decodes records."""

    def __init__(self) -> None:
        super().__init__()
        self._away = {
            RegistryAwayError: self._gauge(
                "stream_dedup_schema_registry_away",
                "1 while records wait for the schema registry, else 0.",
            ),
            TextAwayError: self._gauge(
                "stream_dedup_texts_away",
                "1 while records wait for the store of their texts, else 0.",
            ),
        }

    def set_away(self, kind: type[AwayError], is_away: bool) -> None:
        """Set whether records wait for an unavailable service."""
        if kind in self._away:  # other kinds have no metric
            self._away[kind].set(is_away)
