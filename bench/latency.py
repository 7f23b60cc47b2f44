"""Measure the age of a record when a `read_committed` consumer receives it from an output, at a
constant rate of records.

Invariants: records are sent by the clock, whether or not earlier ones were delivered, and each
contains the time at which it was due; so a stall of producer, broker or filter makes all records
behind it older, and none is left out. Records are sent to the partitions in turn, and the ages are
those of one partition, because a consumer of all would use a third of a core of the machine that is
measured.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.children import MeasuredChild
from stream_dedup.demo.crawl import CrawledPage
from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.kafka import LINGER_MS, LoadProducer, RecordColumns, follow_topics
from stream_dedup.kafka.bulk import BulkWriter
from stream_dedup.log.header_columns import HeaderColumns
from stream_dedup.settings.settings import Settings

PERCENTILES = {"p50_ms": 50.0, "p99_ms": 99.0, "p99_9_ms": 99.9, "max_ms": 100.0}
# Starting and compiling are not the filter's latency.
_WARM_UP_DOCUMENTS = 2000
_WARM_UP_PER_SECOND = 1000.0
_TICK_SECONDS = 0.001
_OBSERVED_PARTITION = 0
_WAIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Latency:
    """The ages of all records of one steady rate, in ms."""

    documents_per_second: float
    ages_ms: Sequence[float]

    def as_json(self) -> Mapping[str, float]:
        """Return the figures."""
        found = {
            "documents_per_second": round(self.documents_per_second, 1),
            "documents": len(self.ages_ms),
        }
        percentiles = np.percentile(self.ages_ms, list(PERCENTILES.values())).tolist()
        found |= {
            name: round(value, 1) for name, value in zip(PERCENTILES, percentiles, strict=True)
        }
        return found


def measure(
    settings: Settings,
    pages: Iterator[CrawledPage],
    children: Sequence[MeasuredChild],
    rates: Sequence[float],
    seconds: float,
    partitions: int,
) -> list[Latency]:
    """Return the ages at each of `rates` (documents/s), for so long each; the roles are running.

    The topics have so many `partitions`.

    Raises:
        StreamDedupError: a role ended, or documents did not come out in time.
    """
    names = settings.topic_names
    outputs = follow_topics(
        settings, names.outputs, from_beginning=True, partition=_OBSERVED_PARTITION
    )
    # One that is still connecting would be measured here too. Without any linger each record is a
    # request, and the broker spends itself on those, on the cores that are measured: 0.56 of a core
    # at 3,000 records a second; 0.26 with it.
    producer = LoadProducer(settings, linger_ms=LINGER_MS)

    def run(count: int, per_second: float) -> list[float]:
        chosen = list(itertools.islice(pages, count))
        return _run(
            _Sender(producer, names.documents, chosen, per_second, partitions), outputs, children
        )

    run(_WARM_UP_DOCUMENTS, _WARM_UP_PER_SECOND)
    return [Latency(rate, run(max(1, round(rate * seconds)), rate)) for rate in rates]


class _Sender(threading.Thread):
    """Sends pages at a steady rate; `failure` is a sentence if they could not be written."""

    def __init__(
        self,
        producer: LoadProducer,
        topic: str,
        pages: Sequence[CrawledPage],
        per_second: float,
        partitions: int,
    ) -> None:
        super().__init__(name="sender", daemon=True)
        self._producer = producer
        self._topic = topic
        self._pages = pages
        self._per_second = per_second
        self._partitions = partitions
        self.observed = len(range(_OBSERVED_PARTITION, len(pages), partitions))
        self.seconds = len(pages) / per_second
        self.failure = ""

    def run(self) -> None:
        """Send all pages at their times, then wait until they are written."""
        count = len(self._pages)
        due_ms = np.arange(count) / self._per_second * 1000
        columns = self._columns(np.zeros(count, np.int64))
        writer = BulkWriter.of(self._producer._producer, columns)
        began, began_ms = time.monotonic(), time.time() * 1000
        columns.timestamps_ms[:] = began_ms + due_ms
        sent = 0
        while sent < count:
            due = min(count, int((time.monotonic() - began) * self._per_second) + 1)
            sent = (
                self._send_one_by_one(columns, sent, due)
                if writer is None
                else writer.write(sent, due)
            )
            self._producer.poll()
            time.sleep(_TICK_SECONDS)
        self._producer.flush()
        self.failure = self._producer.first_failure

    def _columns(self, timestamps_ms: NDArray[np.int64]) -> RecordColumns:
        """Return the pages as records to write, the partitions in turn."""
        count = len(self._pages)
        numbers, none = np.zeros(count, np.int64), np.zeros(0, np.uint8)
        return RecordColumns(
            topics=[self._topic],
            topic_numbers=np.zeros(count, np.uint8),
            partitions=(np.arange(count) % self._partitions).astype(np.int32),
            keys=[page.key for page in self._pages],
            values=[page.value for page in self._pages],
            timestamps_ms=timestamps_ms,
            headers=HeaderColumns([], none, numbers[:0], numbers, none),
            packed=np.ones(count, np.bool_),
        )

    def _send_one_by_one(self, columns: RecordColumns, start: int, stop: int) -> int:
        for place in range(start, stop):
            key, value = columns.keys[place], columns.values[place]
            time_ms, partition = int(columns.timestamps_ms[place]), int(columns.partitions[place])
            self._producer.send(self._topic, key, value, timestamp_ms=time_ms, partition=partition)
        return stop


def _run(
    sender: _Sender, outputs: Iterator[Message | None], children: Sequence[MeasuredChild]
) -> list[float]:
    """Have the pages sent, and return how old each of the observed partition was when it came out, in
    ms.
    """
    until = time.monotonic() + sender.seconds + _WAIT_SECONDS
    sender.start()
    ages_ms: list[float] = []
    for message in outputs:
        if message is not None and message.timestamp_ms is not None:
            ages_ms.append(time.time() * 1000 - message.timestamp_ms)
            if len(ages_ms) == sender.observed:
                break
            continue
        for child in children:
            child.check()
        if sender.failure or time.monotonic() > until:
            raise StreamDedupError(
                f"Only {len(ages_ms)} of {sender.observed} documents came out within "
                f"{_WAIT_SECONDS:.0f} s of the last one's "
                f"turn. {sender.failure}"
            )
    sender.join()
    return ages_ms
