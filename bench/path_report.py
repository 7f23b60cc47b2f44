"""Store the results of `bench path`: samples, and figures computed from them.

Invariants: a ratio is of two measurements of one round, and the median is of such ratios; a value
that was not measured is absent, never zero.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.endless_crawl import endless
from bench.latency import Latency
from bench.path_peers import QUIX, CopyPeer
from stream_dedup.demo.crawl import CrawledPage
from stream_dedup.domain.document import TopicPartitionKey
from stream_dedup.domain.errors import InputError
from stream_dedup.settings.settings import Settings

COPY = "copy"
PLANS = ("bands", "blocks", "classic")
VARIANTS = (COPY, *PLANS)
LOOPBACK = "over loopback"
PARTITIONS = 4
TRANSACTION_DOCUMENTS_MAX: int = Settings.model_fields["batch_documents"].default
WINDOW_FROM = 0.05
_TRANSACTIONS_MIN = 20

RATES = (1000.0, 12_000.0)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class PathOptions:
    """What to measure. `broker`: None to start a local one. After the rounds, latency is measured
    at each of `rates`, in documents/s.

    `with_peers` adds other programs that copy to each round. The index contains `index_entries`
    representatives before the first document arrives.
    """

    documents: int = 200_000
    size_bytes: int = 1000
    duplicate_share: float = 0.3
    languages: tuple[str, ...] = ("en",)
    rounds: int = 3
    seed: int = 1
    broker: str | None = None
    rates: tuple[float, ...] = RATES
    with_peers: bool = False
    workers: int = 1
    partitions: int = PARTITIONS
    index_entries: int = 0

    @property
    def transaction_documents(self) -> int:
        """Most documents in one transaction; fewer in a short run, because a window needs some
        transactions.
        """
        return min(TRANSACTION_DOCUMENTS_MAX, self.documents // _TRANSACTIONS_MIN)

    def check(self) -> None:
        """Check that the options can be measured.

        Raises:
            InputError: such documents cannot be made, or some workers would have nothing to do.
        """
        self.pages(0)
        if self.workers > self.partitions:
            raise InputError(
                f"Of {self.workers} workers only {self.partitions} would have a partition; give "
                f"--partitions {self.workers} "
                "or more."
            )

    def pages(self, count: int | None = None) -> Iterator[CrawledPage]:
        """Yield the documents; each call gives the same ones."""
        return endless(
            self.seed,
            count,
            size_bytes=self.size_bytes,
            duplicate_share=self.duplicate_share,
            languages=self.languages,
        )


@dataclass(frozen=True, slots=True)
class PathReading:
    """The state at one moment: the number of committed documents, and the CPU time of each role so
    far.

    `is_complete`: whether the workers' `WorkerStart` was over.
    """

    seconds: float
    committed: int
    cpu_seconds: Mapping[str, float]
    is_complete: bool = True

    def is_in_window(self, total: int) -> bool:
        """Whether what comes after it counts: start-up is over."""
        return self.is_complete and self.committed >= WINDOW_FROM * total


class WorkerStart:
    """Detects when the workers' start is over: all have joined the group, and every partition has
    moved since then.

    When a member joins, the others learn it from heartbeats, finish their work and give partitions
    away, which takes seconds.
    """

    def __init__(self, workers: int, partitions: int) -> None:
        self._workers = workers
        self._partitions = partitions
        self._joined_at: Mapping[TopicPartitionKey, int] | None = None
        self.is_over = workers == 1

    @property
    def is_joined(self) -> bool:
        """Whether all had joined when last seen."""
        return self.is_over or self._joined_at is not None

    def update(self, members: int, committed: Mapping[TopicPartitionKey, int]) -> None:
        """Add the number of members of the group, which is used until all have joined, and its
        committed offsets.
        """
        if self._joined_at is None:
            self._joined_at = committed if members >= self._workers else None
        elif not self.is_over:
            moved = [
                key for key, offset in committed.items() if offset > self._joined_at.get(key, 0)
            ]
            self.is_over = len(moved) == self._partitions


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one variant.

    `documents` and `seconds` are those of the timed window; both are 0 if the run was too short for
    a window. `cpu_seconds`: by role, within the window, several workers together. `stage_seconds`:
    the time that the loops spent in their stages within the window. `cpu_seconds_total` and
    `memory_bytes_max` (of the largest worker) are from the start of a child to its end.
    `first_commit_seconds`: since the start of the children. `disk_bytes`: by topic, of all
    documents and one replica. `loopback_bytes`: of everything on the machine from the start of the
    children until all is committed, because clients read ahead of what is committed.
    """

    variant: str
    round: int
    documents: int
    seconds: float
    first_commit_seconds: float
    cpu_seconds: Mapping[str, float]
    stage_seconds: Mapping[str, float]
    cpu_seconds_total: Mapping[str, float]
    memory_bytes_max: Mapping[str, int]
    balance: Mapping[str, int]
    disk_bytes: Mapping[str, int] = field(default_factory=dict)
    loopback_bytes: int | None = None

    @property
    def documents_per_second(self) -> float | None:
        """The throughput; None if there was no window."""
        return self.documents / self.seconds if self.seconds > 0 else None

    @property
    def sentence(self) -> str:
        """The variant and its throughput, as a sentence."""
        rate = self.documents_per_second
        return (
            f"{self.variant}: "
            + ("too few for a figure of" if rate is None else f"{rate:,.0f}")
            + " documents/s"
        )

    @property
    def is_balanced(self) -> bool:
        """Whether as many documents came out as went in."""
        return self.balance["in"] == sum(
            count for name, count in self.balance.items() if name != "in"
        )

    def per_document_us(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return times of the window as microseconds for each of its documents."""
        return (
            {name: value / self.documents * 1e6 for name, value in seconds.items()}
            if self.documents
            else {}
        )

    @property
    def bytes_per_document(self) -> dict[str, float]:
        """Bytes on disk for each document by topic, and all that went over loopback for it; what is
        unknown is absent.
        """
        found = {name: size / self.balance["in"] for name, size in self.disk_bytes.items()}
        if self.loopback_bytes is not None:
            found[LOOPBACK] = self.loopback_bytes / self.balance["in"]
        return found

    def as_json(self) -> Mapping[str, object]:
        """Return the sample."""
        return {
            "variant": self.variant,
            "round": self.round,
            "documents_per_second": _rounded(self.documents_per_second),
            "window_documents": self.documents,
            "window_seconds": round(self.seconds, 3),
            "first_commit_seconds": round(self.first_commit_seconds, 2),
            "cpu_per_document_us": _all_rounded(self.per_document_us(self.cpu_seconds)),
            "stages_per_document_us": _all_rounded(self.per_document_us(self.stage_seconds)),
            "cpu_seconds_total": {
                name: round(value, 2) for name, value in self.cpu_seconds_total.items()
            },
            "memory_bytes_max": dict(self.memory_bytes_max),
            "bytes_per_document": _all_rounded(self.bytes_per_document),
            "balance": dict(self.balance),
        }


@dataclass(slots=True)
class PathReport:
    """All measurements, and the environment.

    `missing`: a sentence for each requested peer that is not installed.
    """

    options: PathOptions
    machine: Mapping[str, object]
    samples: list[Sample] = field(default_factory=list)
    latencies: dict[str, list[Latency]] = field(default_factory=dict)
    mean_value_bytes: float = 0.0
    peers: Mapping[str, CopyPeer] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of what each round measures: the copy, the peers that are here, the plans."""
        return (COPY, *self.peers, *PLANS)

    def of(self, variant: str) -> list[Sample]:
        """Return the samples of a variant, in the order of rounds."""
        return sorted(
            (sample for sample in self.samples if sample.variant == variant),
            key=lambda sample: sample.round,
        )

    def documents_per_second(self, variant: str) -> float | None:
        """Return the median throughput of a variant."""
        return median([sample.documents_per_second for sample in self.of(variant)])

    def ratios(self, variant: str, base: str = COPY) -> list[float]:
        """Return the throughput of a variant divided by that of `base`, for each round that has
        both.
        """
        bases = {sample.round: sample.documents_per_second for sample in self.of(base)}
        pairs = (
            (sample.documents_per_second, bases.get(sample.round)) for sample in self.of(variant)
        )
        return [rate / other for rate, other in pairs if rate and other]

    @property
    def complaints(self) -> list[str]:
        """What must not be, in sentences; a peer that copies at least once may copy some twice."""
        found = []
        for sample in self.samples:
            peer = self.peers.get(sample.variant)
            came_out = sum(count for name, count in sample.balance.items() if name != "in")
            if sample.is_balanced or (
                peer is not None and not peer.is_exactly_once and came_out > sample.balance["in"]
            ):
                continue
            found.append(
                f"In round {sample.round} of {sample.variant}, {sample.balance['in']} documents went in and "
                f"{', '.join(f'{count} {name}' for name, count in sample.balance.items() if name != 'in')} came out; "
                + (f"its figures do not count, ask {peer.title}." if peer else "please report it.")
            )
        return found

    def as_json(self) -> Mapping[str, object]:
        """Return everything, raw samples included."""
        options = self.options
        variants: dict[str, object] = {}
        for variant in self.variants:
            of, ratios = self.of(variant), self.ratios(variant)
            cpu = [sample.per_document_us(sample.cpu_seconds) for sample in of]
            stages = [sample.per_document_us(sample.stage_seconds) for sample in of]
            quix = (
                {"ratio_to_quix": _rounded(median(self.ratios(variant, QUIX)), 4)}
                if QUIX in self.peers
                else {}
            )
            variants[variant] = {
                "documents_per_second": _rounded(self.documents_per_second(variant)),
                "ratio_to_copy": _rounded(median(ratios), 4),
                "ratios_to_copy": [round(ratio, 4) for ratio in ratios],
                **quix,
                "cpu_per_document_us": _all_rounded(medians(cpu)),
                "stages_per_document_us": _all_rounded(medians(stages)),
                "bytes_per_document": _all_rounded(
                    medians([sample.bytes_per_document for sample in of])
                ),
                "memory_bytes_max": {
                    name: int(value)
                    for name, value in medians([sample.memory_bytes_max for sample in of]).items()
                },
            }
        return {
            "machine": dict(self.machine),
            "documents": {
                "count": options.documents,
                "size_bytes": options.size_bytes,
                "mean_value_bytes": round(self.mean_value_bytes, 1),
                "duplicate_share": options.duplicate_share,
                "languages": list(options.languages),
                "seed": options.seed,
                "partitions": options.partitions,
                "workers": options.workers,
                "index_entries": options.index_entries,
                "transaction_documents": options.transaction_documents,
            },
            "peers": {
                name: {
                    "versions": dict(peer.versions),
                    "exactly_once": peer.is_exactly_once,
                }
                for name, peer in self.peers.items()
            },
            "peers_missing": dict(self.missing),
            "variants": variants,
            "latency": {
                plan: [sample.as_json() for sample in found]
                for plan, found in self.latencies.items()
            },
            "samples": [sample.as_json() for sample in self.samples],
            "complaints": self.complaints,
        }


def alternate_order(number: int, measured: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return what is measured in the order of round `number`, from 1: there, and back in the
    next.
    """
    return measured if number % 2 else measured[::-1]


def timed_window(readings: Sequence[PathReading], total: int) -> tuple[PathReading, PathReading]:
    """Return the first and last reading of the timed window.

    Both are the last one if less than half of the documents would lie between them: what remains is
    then start and end effects, and no throughput.
    """
    last = readings[-1]
    first = next((reading for reading in readings if reading.is_in_window(total)), last)
    return (first, last) if first.committed <= total / 2 else (last, last)


def medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each name over those that have it."""
    names = dict.fromkeys(itertools.chain.from_iterable(found))
    return {
        name: statistics.median([sample[name] for sample in found if name in sample])
        for name in names
    }


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def _all_rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in values.items()}
