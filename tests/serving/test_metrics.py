"""Every metric has its documented name and counts what was committed."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from stream_dedup import __version__
from stream_dedup.domain.document import (
    DeadLetter,
    LogPlace,
    Message,
    Position,
    Reason,
    Representative,
)
from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.insights.metrics import InsightsMetrics
from stream_dedup.kafka import Output
from stream_dedup.log.schema import Judgement
from stream_dedup.search.metrics import SearchMetrics
from stream_dedup.serving.metrics import BatchHistogram
from stream_dedup.worker.metrics import WorkerMetrics
from stream_dedup.worker.outputs import EmittedCounts, EmittedRecord
from stream_dedup.worker.prepare import Decision

OF = Representative(Position("documents", bytes(16), 0, 1), b"id", 0)


def make_emitted(
    decided: Decision, value: bytes | None = b"12345", timestamp_ms: int | None = None
) -> EmittedRecord:
    message = Message("documents", 0, 7, b"k", value, timestamp_ms, [])
    return EmittedRecord(Output("t", 0, b"k", value, timestamp_ms, []), message, decided)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"stream_dedup_{name}", labels)


def test_committed_records_are_counted_by_verdict_reason_and_stage() -> None:
    """In = out: every record of a committed transaction is one document or one dead letter, with
    its bytes."""
    metrics = WorkerMetrics("words:128")
    place = LogPlace(3, 4)
    batch = [
        make_emitted(Judgement(Reason.NEW, place)),
        make_emitted(Judgement(Reason.NEW, place)),
        make_emitted(Judgement(Reason.NEAR, place, 9, OF, 60)),
        make_emitted(Judgement(Reason.EXACT, place, 0, OF)),
        make_emitted(Reason.EMPTY, b""),
        make_emitted(Reason.TOMBSTONE, None),
        make_emitted(DeadLetter("decode", "ValueError", "x")),
        make_emitted(DeadLetter("size", "TooLarge", "x")),
    ]

    metrics.count_committed(EmittedCounts.of(batch))

    found = metrics.registry
    assert value(found, "documents_total", verdict="unique", reason="new") == 2
    assert value(found, "documents_total", verdict="duplicate", reason="near") == 1
    assert value(found, "documents_total", verdict="duplicate", reason="exact") == 1
    assert value(found, "documents_total", verdict="unique", reason="empty") == 1
    assert value(found, "documents_total", verdict="unique", reason="tombstone") == 1
    assert value(found, "bytes_total", verdict="unique") == 10
    assert value(found, "bytes_total", verdict="duplicate") == 10
    assert value(found, "dead_letters_total", stage="decode") == 1
    assert value(found, "dead_letters_total", stage="size") == 1
    assert value(found, "distance_bits_count") == 2
    assert value(found, "distance_bits_sum") == 9
    assert value(found, "similarity_count") == 1, "of an exact copy none is told"
    assert value(found, "similarity_sum") == 0.6
    samples = [sample for metric in found.collect() for sample in metric.samples]
    out = sum(
        sample.value
        for sample in samples
        if sample.name.endswith(("documents_total", "dead_letters_total"))
    )
    assert out == len(batch)


def test_latency_is_the_age_by_the_record_s_timestamp() -> None:
    """A record of ten seconds ago lies in the bucket up to 30 s; one without a timestamp, or from
    the future, is no error."""
    metrics = WorkerMetrics("r")
    now_ms = int(time.time() * 1000)

    records = [
        make_emitted(Reason.EMPTY, b"", now_ms - 10_500),
        make_emitted(Reason.EMPTY, b"", now_ms + 10**9),
        make_emitted(Reason.EMPTY),
    ]
    metrics.count_committed(EmittedCounts.of(records))

    assert value(metrics.registry, "verdict_latency_seconds_count") == 2
    assert 10 < (value(metrics.registry, "verdict_latency_seconds_sum") or 0) < 300
    assert value(metrics.registry, "verdict_latency_seconds_bucket", le="10.0") == 1
    assert value(metrics.registry, "verdict_latency_seconds_bucket", le="30.0") == 2


def test_every_series_is_exported_from_the_start() -> None:
    """Rates need a first value of 0."""
    metrics = WorkerMetrics("r")

    for reason in Reason:
        if reason.verdict is not None:
            assert (
                value(
                    metrics.registry,
                    "documents_total",
                    verdict=reason.verdict.value,
                    reason=reason.label,
                )
                == 0
            )
    for stage in ("decode", "field", "size", "fetch", "fingerprint"):
        assert value(metrics.registry, "dead_letters_total", stage=stage) == 0


def test_a_rebalance_drops_the_lag_of_partitions() -> None:
    """Otherwise the lag of partitions that moved to another worker would never change."""
    metrics = WorkerMetrics("words:128:x")
    metrics.observe_wait(0.2)
    metrics.set_lag("documents", 3, 17)
    metrics.set_in_flight(2, 900, 1_700_000)
    found = metrics.registry
    assert value(found, "stage_duration_seconds_sum", stage="verdict") == 0.2
    assert value(found, "transactions_total", result="aborted") == 0
    assert value(found, "build_info", version=__version__, recipe="words:128:x") == 1
    assert value(found, "consumer_lag_records", topic="documents", partition="3") == 17
    names = ("batches_in_flight", "documents_in_flight", "bytes_in_flight")
    assert [value(found, name) for name in names] == [2, 900, 1_700_000]

    metrics.count_rebalance()
    assert value(found, "rebalances_total") == 1
    assert value(found, "consumer_lag_records", topic="documents", partition="3") is None


FIGURES = {
    "entries": 10,
    "removed": 3,
    "applied": 77,
    "bytes_on_disk": 4096,
    "bytes_in_memory": 1000,
    "bytes_mapped": 24,
    "hottest_bucket": 5,
    "full_blocks": 6,
    "numbers_used": 41,
    "candidates": 35,
    "evicted_window": 2,
    "evicted_forget": 1,
    "evicted_retract": 0,
    "rejected": 4,
    "ignored_control_records": 5,
    "tables_unwritten": 2,
}


def test_the_index_updates_its_metrics() -> None:
    """Representatives, size and offset follow the index's statistics; the recipe is known once it
    was declared."""
    metrics = IndexMetrics()
    metrics.update(FIGURES)
    metrics.update(FIGURES | {"evicted_window": 5}, (4, 1, 2, *[0] * 29, 1))
    metrics.set_recipe("words:128:y")

    found = metrics.registry
    counts = {
        le: value(found, "candidates_bucket", le=le)
        for le in ("0.0", "1.0", "3.0", "7.0", "1048575.0", "+Inf")
    }
    assert counts == {"0.0": 4, "1.0": 5, "3.0": 7, "7.0": 7, "1048575.0": 7, "+Inf": 8}
    assert value(found, "candidates_sum") == 35
    assert [
        value(found, "index_evicted_total", reason=reason)
        for reason in ("window", "forget", "retract")
    ] == [5, 1, 0]
    shown = [value(found, "index_memory_bytes", where=where) for where in ("memory", "file")]
    assert shown == [1000, 24]
    single = {
        "index_unwritten_tables_total": 2,
        "index_entries": 7,
        "index_size_bytes": 4096,
        "index_applied_offset": 77,
        "index_hottest_bucket_entries": 5,
        "full_blocks": 6,
        "index_numbers_used": 41,
        "rejected_records_total": 4,
        "ignored_orders_total": 5,
    }
    assert {name: value(found, name) for name in single} == single
    assert value(found, "build_info", version=__version__, recipe="words:128:y") == 1
    assert value(found, "build_info", version=__version__, recipe="") is None


def test_no_label_grows_with_the_crawl() -> None:
    """Exactly these metrics have labels, and these; which names there are the reference page
    says."""
    roles = (WorkerMetrics("r"), IndexMetrics(), InsightsMetrics(), SearchMetrics())
    worker, index, *_ = roles
    worker.count_committed(
        EmittedCounts.of([make_emitted(Judgement(Reason.NEAR, LogPlace(0, 0), 1, OF))])
    )
    worker.set_lag("documents", 0, 1)
    worker.transactions.labels("committed").inc()
    index.update(FIGURES)
    labels: dict[str, set[str]] = {}
    for metrics in roles:
        with metrics.stage("s"):
            pass
        for metric in metrics.registry.collect():
            for sample in metric.samples:
                labels.setdefault(metric.name.removeprefix("stream_dedup_"), set()).update(
                    sample.labels
                )

    assert {
        name: " ".join(sorted(found))
        for name, found in labels.items()
        if found and not name.startswith("process_")
    } == {
        "build_info": "recipe version",
        "bytes": "verdict",
        "candidates": "le",
        "consumer_lag_records": "partition topic",
        "dead_letters": "stage",
        "distance_bits": "le",
        "documents": "reason verdict",
        "host_events": "event",
        "index_evicted": "reason",
        "index_memory_bytes": "where",
        "insights_records": "result",
        "search_answer_seconds": "le",
        "similarity": "le",
        "stage_duration_seconds": "le stage",
        "transactions": "result",
        "verdict_latency_seconds": "le",
    }


def test_the_reference_page_lists_exactly_the_metrics() -> None:
    """Each metric with its type, its role and its own help text; nothing that is gone."""
    page = (Path(__file__).parent.parent.parent / "docs" / "reference" / "metrics.md").read_text(
        encoding="utf-8"
    )
    lines = re.findall(r"^- `(stream_dedup_\w+)` \((.*?); (.*?)\): (.*)$", page, re.MULTILINE)
    rows = {name: fields for name, *fields in lines}
    assert len(rows) == len(lines)
    exported: dict[str, list[str]] = {}
    roles = {
        "worker": WorkerMetrics("r"),
        "index": IndexMetrics(),
        "insights": InsightsMetrics(),
        "search": SearchMetrics(),
    }
    for role, metrics in roles.items():
        for family in metrics.registry.collect():
            if not family.name.startswith("process_"):
                name = family.name + ("_total" if family.type == "counter" else "")
                exported.setdefault(name, [family.type, "", family.documentation])[1] += f", {role}"

    assert rows.keys() == exported.keys()
    for name, (kind, named, text) in exported.items():
        assert rows[name] == [rows[name][0], named.removeprefix(", "), text]
        assert rows[name][0].split(",")[0] == kind


@pytest.mark.parametrize("values", [[], [0], [1, 1.5, 2, 2.1, 99], [-1, 0.5]])
def test_a_batch_histogram_equals_single_observations(values: list[float]) -> None:
    """Counting a batch at once exports the same as prometheus_client's own histogram, one by
    one."""
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    batch = BatchHistogram("h", "text", [1, 2, 10], ours)
    single = Histogram("h", "text", buckets=[1, 2, 10], registry=theirs)
    batch.observe_many(values[:2])
    batch.observe_many(values[2:])
    for observed in values:
        single.observe(observed)

    assert generate_latest(ours) == generate_latest(theirs)
    assert openmetrics.generate_latest(ours) == openmetrics.generate_latest(theirs)  # type: ignore[no-untyped-call]
