"""How old a record is when a `read_committed` reader sees it in an output, at a steady rate of records.

Invariants: records are sent by the clock, whether or not earlier ones have come out, and each carries the time at which it
was due: a stall of sender, broker or filter makes all records behind it older, and none is left out of the figures.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stream_dedup.bench.children import Child
from stream_dedup.demo.crawl import Page
from stream_dedup.document import Message
from stream_dedup.errors import StreamDedupError
from stream_dedup.log.kafka import LoadProducer, reader
from stream_dedup.settings import Settings
from stream_dedup.topics import TopicNames

WARM_UP_DOCUMENTS = 2000
_TICK_SECONDS = 0.001
_WAIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Latency:
    """The ages at one rate, in ms."""

    load: float
    documents_per_second: float
    ages_ms: Sequence[float]

    def percentile_ms(self, percent: float) -> float:
        """Return the age that this share of the records did not exceed."""
        return float(np.percentile(self.ages_ms, percent))

    def as_json(self) -> Mapping[str, object]:
        """Return the figures."""
        percentiles = {name: round(self.percentile_ms(percent), 1) for name, percent in PERCENTILES.items()}
        return {
            "load": self.load,
            "documents_per_second": round(self.documents_per_second, 1),
            "documents": len(self.ages_ms),
            **percentiles,
        }


PERCENTILES = {"p50_ms": 50.0, "p99_ms": 99.0, "p99_9_ms": 99.9, "max_ms": 100.0}


def measure(
    settings: Settings,
    pages: Iterator[Page],
    children: Sequence[Child],
    full_documents_per_second: float,
    loads: Sequence[float],
    seconds: float,
) -> list[Latency]:
    """Return the ages at each of these shares of the full throughput, for so long each; the roles must be running.

    Raises:
        StreamDedupError: a role ended, or documents did not come out in time.
    """
    names = TopicNames(settings.topic_prefix)
    partitions = settings.model_copy(update={"kafka": {"linger.ms": "0"}})
    outputs = reader(settings, names.outputs, from_beginning=True)
    # Starting and compiling are not the filter's latency.
    _send_paced(partitions, names, list(_some(pages, WARM_UP_DOCUMENTS)), float("inf"))
    _receive(outputs, WARM_UP_DOCUMENTS, children, _WAIT_SECONDS)
    found = []
    for load in loads:
        rate = full_documents_per_second * load
        chosen = list(_some(pages, max(1, round(rate * seconds))))
        problems: list[StreamDedupError] = []

        def send(chosen: Sequence[Page] = chosen, rate: float = rate, problems: list[StreamDedupError] = problems) -> None:
            try:
                _send_paced(partitions, names, chosen, rate)
            except StreamDedupError as error:
                problems.append(error)

        sender = threading.Thread(target=send, name="sender", daemon=True)
        sender.start()
        ages = _receive(outputs, len(chosen), children, seconds + _WAIT_SECONDS)
        sender.join()
        if problems:
            raise problems[0]
        found.append(Latency(load, rate, ages))
    outputs.close()
    return found
