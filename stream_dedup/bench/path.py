"""`bench path`: the whole path beside a plain copy, in one run, on the same machine, broker and documents.

A round measures each variant once: `copy` (exactly-once, nothing else), and the filter with the plans `wide` and `classic`.
A measurement has topics of its own, filled before anything is timed: 1 the topics, 2 the documents, 3 the program or roles
as child processes, 4 the group's committed offsets watched from outside until all is committed, 5 the balance.

Invariants: every variant is timed alike, from the first committed offsets at or past 5 % of the documents until all of them
are committed, so that starting, joining and compiling are outside; a ratio is of two measurements of one round, and the
median is of such ratios; the order turns around from round to round; in = out is counted, or the exit code is 1.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import os
import platform
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stream_dedup import __version__, topics
from stream_dedup.bench import copy
from stream_dedup.bench.children import Child, cpu_seconds, process_looker
from stream_dedup.bench.latency import Latency
from stream_dedup.bench.latency import measure as measure_latency
from stream_dedup.demo.crawl import Page, endless
from stream_dedup.errors import BrokerError, StreamDedupError
from stream_dedup.log.kafka import Admin, LoadProducer, reader
from stream_dedup.settings import Settings, load_settings

COPY = "copy"
PLANS = ("wide", "classic")
VARIANTS = (COPY, *PLANS)
PARTITIONS = 4
TRANSACTION_DOCUMENTS_MAX = 5000
DOCUMENTS_MIN = 2000
WINDOW_FROM = 0.05
LOADS = (0.1, 0.5)
LOAD_SECONDS = 10.0
_TRANSACTIONS_MIN = 20
_COUNTED_DOCUMENTS_MAX = 200_000
_LOOK_SECONDS = 0.02
_STANDSTILL_SECONDS = 90.0
_COUNTERS_SECONDS = 10.0
_READ_SECONDS = 60.0
_LIBRARIES = ("confluent-kafka", "numba", "numpy", "rocksdict", "jieba")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. `broker` None is one of our own; `with_latency` adds the paced runs after the rounds."""

    documents: int = 100_000
    size_bytes: int = 1000
    duplicate_share: float = 0.3
    languages: tuple[str, ...] = ("en",)
    rounds: int = 3
    seed: int = 1
    broker: str | None = None
    with_latency: bool = True

    @property
    def transaction_documents(self) -> int:
        """Most documents in one transaction; fewer in a short run, because a window needs some transactions."""
        return min(TRANSACTION_DOCUMENTS_MAX, self.documents // _TRANSACTIONS_MIN)

    def pages(self, count: int | None = None) -> Iterator[Page]:
        """Return the documents; the same each time."""
        return endless(
            self.seed,
            count,
            size_bytes=self.size_bytes,
            duplicate_share=self.duplicate_share,
            languages=self.languages,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """What was seen at one moment: the documents committed, and the CPU time of each process so far."""

    seconds: float
    committed: int
    cpu_seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one variant.

    `documents` and `seconds` are the window's; both are 0 if the run was too short to hold one. `cpu_seconds` is of each
    process within the window, `stage_seconds` the time that the loops spent in their stages there. `cpu_seconds_total` and
    `memory_bytes_max` are from the start of a child to its end. `first_commit_seconds` is from the start of the children.
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

    @property
    def documents_per_second(self) -> float | None:
        """The throughput; None if there was no window."""
        return self.documents / self.seconds if self.seconds > 0 else None

    @property
    def is_balanced(self) -> bool:
        """Whether as many documents came out as went in."""
        return self.balance["in"] == sum(count for name, count in self.balance.items() if name != "in")

    def per_document_us(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return times of the window as microseconds for each of its documents."""
        return {name: value / self.documents * 1e6 for name, value in seconds.items()} if self.documents else {}

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
            "cpu_seconds_total": {name: round(value, 2) for name, value in self.cpu_seconds_total.items()},
            "memory_bytes_max": dict(self.memory_bytes_max),
            "balance": dict(self.balance),
        }


@dataclass(slots=True)
class Report:
    """All that was measured, and on what."""

    options: Options
    machine: Mapping[str, object]
    samples: list[Sample] = field(default_factory=list)
    latencies: dict[str, list[Latency]] = field(default_factory=dict)
    mean_value_bytes: float = 0.0

    def of(self, variant: str) -> list[Sample]:
        """Return the samples of a variant, by round."""
        return sorted((one for one in self.samples if one.variant == variant), key=lambda one: one.round)

    def documents_per_second(self, variant: str) -> float | None:
        """Return the median throughput of a variant."""
        return _median([one.documents_per_second for one in self.of(variant)])

    def ratios(self, variant: str) -> list[float]:
        """Return the throughput of a variant divided by that of the copy, for each round that has both."""
        pairs = zip(self.of(variant), self.of(COPY), strict=True)
        return [
            one.documents_per_second / base.documents_per_second
            for one, base in pairs
            if one.documents_per_second and base.documents_per_second
        ]

    @property
    def complaints(self) -> list[str]:
        """What must not be, in sentences."""
        return [
            f"In round {one.round} of {one.variant}, {one.balance['in']} documents went in and "
            f"{', '.join(f'{count} {name}' for name, count in one.balance.items() if name != 'in')} came out; please report it."
            for one in self.samples
            if not one.is_balanced
        ]

    def as_json(self) -> Mapping[str, object]:
        """Return everything, raw samples included."""
        options = self.options
        variants: dict[str, object] = {}
        for variant in VARIANTS:
            of, ratios = self.of(variant), self.ratios(variant)
            cpu = [one.per_document_us(one.cpu_seconds) for one in of]
            stages = [one.per_document_us(one.stage_seconds) for one in of]
            variants[variant] = {
                "documents_per_second": _rounded(self.documents_per_second(variant)),
                "ratio_to_copy": _rounded(_median(ratios), 4),
                "ratios_to_copy": [round(ratio, 4) for ratio in ratios],
                "cpu_per_document_us": _all_rounded(medians(cpu)),
                "stages_per_document_us": _all_rounded(medians(stages)),
                "memory_bytes_max": {name: int(value) for name, value in medians([one.memory_bytes_max for one in of]).items()},
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
                "partitions": PARTITIONS,
                "transaction_documents": options.transaction_documents,
            },
            "variants": variants,
            "latency": {plan: [one.as_json() for one in found] for plan, found in self.latencies.items()},
            "samples": [one.as_json() for one in self.samples],
            "complaints": self.complaints,
        }


def run_path(options: Options, say: Say) -> Report:
    """Measure everything; `say` is told in a line what is going on.

    Raises:
        StreamDedupError: the broker or a child did not come up or ended, or the documents stopped moving.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-dedup-bench-")))
        broker = Cluster(options.broker) if options.broker else stack.enter_context(_own_broker(folder, say))
        report = Report(options, _machine(broker))
        bench = Bench(options, broker, folder, say)
        for number in range(1, options.rounds + 1):
            for variant in order(number):
                sample = bench.throughput(variant, number)
                report.samples.append(sample)
                say(f"round {number} of {options.rounds}, {variant}: {_count(sample.documents_per_second)} documents/s")
        report.mean_value_bytes = bench.mean_value_bytes
        for plan in PLANS if options.with_latency else ():
            full = report.documents_per_second(plan)
            if full is not None:
                report.latencies[plan] = bench.latency(plan, full)
        if options.broker:
            say(f"The topics that begin with {bench.name} stay on {options.broker}; delete them when you like.")
    return report


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where Kafka is; `pid` and `version` are known of one of our own only."""

    bootstrap: str
    pid: int | None = None
    version: str = ""


class Bench:
    """Measures, one variant at a time, on one Kafka; `folder` holds what the roles keep meanwhile."""

    def __init__(self, options: Options, broker: Cluster, folder: Path, say: Say) -> None:
        self._options = options
        self._bootstrap = broker.bootstrap
        self._folder = folder
        self._say = say
        self._broker = process_looker(broker.pid) if broker.pid is not None else None
        self._prepared_count = 0
        self.name = f"bench-{uuid.uuid4().hex[:8]}"
        self.mean_value_bytes = 0.0

    def throughput(self, variant: str, number: int) -> Sample:
        """Measure a variant once; `number` is the round's.

        Raises:
            StreamDedupError: a child ended, the documents stopped moving, or worker and outputs count differently.
        """
        total = self._options.documents
        with self._prepared(variant) as (settings, names, folder):
            self._load(settings, names.documents)
            began = time.monotonic()
            with self._running(variant, settings, folder) as children:
                admin = Admin(settings)
                readings: list[Reading] = []
                stages: list[Mapping[str, float]] = []
                for reading in self._watch(admin, settings.group, children):
                    readings.append(reading)
                    is_in_window = reading.committed >= WINDOW_FROM * total
                    if variant != COPY and is_in_window and (not stages or reading.committed >= total):
                        stages.append(_stages(children))
                counted = {} if variant == COPY else _wait_for_counters(children[-1], total)
            balance = {"in": total, **self._outputs(variant, settings, names, counted)}
        first, last = window(readings, total)
        return Sample(
            variant=variant,
            round=number,
            documents=last.committed - first.committed,
            seconds=last.seconds - first.seconds,
            first_commit_seconds=next(one.seconds for one in readings if one.committed) - began,
            cpu_seconds={name: last.cpu_seconds[name] - first.cpu_seconds[name] for name in last.cpu_seconds},
            stage_seconds={name: stages[-1][name] - stages[0].get(name, 0.0) for name in stages[-1]} if stages else {},
            cpu_seconds_total={child.name: child.usage.cpu_seconds for child in children if child.usage},
            memory_bytes_max={child.name: child.usage.memory_bytes_max for child in children if child.usage},
            balance=balance,
        )

    def latency(self, plan: str, full_per_second: float, seconds: float = LOAD_SECONDS) -> list[Latency]:
        """Measure ages at the `LOADS`, for so long each."""
        with self._prepared(plan) as (settings, _, folder), self._running(plan, settings, folder) as children:
            self._say(f"latency of {plan} at {' and '.join(f'{load:.0%}' for load in LOADS)} of {full_per_second:.0f}/s")
            return measure_latency(settings, self._options.pages(), children, full_per_second, LOADS, seconds)

    @contextlib.contextmanager
    def _prepared(self, variant: str) -> Iterator[tuple[Settings, topics.TopicNames, Path]]:
        """Give settings with names that nobody else has, their topics, and a folder that goes at the end."""
        self._prepared_count += 1
        prefix = f"{self.name}-{self._prepared_count}."
        overrides = {
            "kafka_bootstrap_servers": self._bootstrap,
            "topic_prefix": prefix,
            "group": f"{prefix}stream-dedup",
            "batch_documents": self._options.transaction_documents,
        }
        settings = load_settings(overrides, environ={})
        names = topics.TopicNames(prefix)
        admin = Admin(settings)
        declared = topics.with_partitions(topics.read_topics(prefix), PARTITIONS)
        if variant == COPY:
            (documents,) = [topic for topic in declared if topic.name == names.documents]
            (unique,) = [topic for topic in declared if topic.name == names.unique]
            declared = (documents, replace(unique, name=names.named(copy.TOPIC), kind=copy.TOPIC))
        topics.apply(topics.plan(topics.fit_to_brokers(declared, admin.broker_count()), {}), admin)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            yield settings, names, Path(folder)

    def _load(self, settings: Settings, topic: str) -> None:
        producer = LoadProducer(settings)
        size = 0
        for number, page in enumerate(self._options.pages(self._options.documents)):
            producer.send(topic, page.key, page.value, partition=number % PARTITIONS)
            size += len(page.value)
        if producer.flush():
            raise StreamDedupError(f"The documents could not be written: {producer.first_failure}")
        self.mean_value_bytes = size / self._options.documents

    @contextlib.contextmanager
    def _running(self, variant: str, settings: Settings, folder: Path) -> Iterator[list[Child]]:
        """Run the copy, or an index and a worker with a plan; what the roles get is all that is not a default."""
        shared = ("kafka_bootstrap_servers", "topic_prefix", "group", "batch_documents")
        own = {name: str(getattr(settings, name)) for name in shared}
        modules = {"copy": ["stream_dedup.bench.copy"]}
        if variant != COPY:
            modules = {role: ["stream_dedup", "run", role, "--stop-with-parent"] for role in ("index", "worker")}
            own |= {"value_format": "json", "id_field": "url", "plan": variant, "state_dir": str(folder)}
            own |= {"http_port": "0", "log_format": "json"}
        children: list[Child] = []
        try:
            for name, module in modules.items():
                children.append(Child(name, module, own, folder))
            yield children
        finally:
            for child in reversed(children):
                child.stop()

    def _watch(self, admin: Admin, group: str, children: Sequence[Child]) -> Iterator[Reading]:
        """Yield a reading whenever more is committed, until all is."""
        committed = 0
        moved = time.monotonic()
        has_members = False
        problem = ""
        while committed < self._options.documents:
            time.sleep(_LOOK_SECONDS)
            for child in children:
                child.check()
            try:
                # librdkafka crashes if it asks for offsets while the group has no coordinator (its issue 5040).
                has_members = has_members or admin.group_members(group) > 0
                found = sum(offset for offset, _ in admin.committed(group).values()) if has_members else 0
            except BrokerError as error:  # asked at a bad moment: a coordinator that loads, a transaction that ends
                problem, found = str(error), 0
            now = time.monotonic()
            if found > committed:
                committed, moved = found, now
                yield Reading(now, committed, self._cpu_seconds(children))
            elif now - moved > _STANDSTILL_SECONDS:
                logs = "\n".join(f"{child.name}:\n{child.log}" for child in children)
                raise StreamDedupError(
                    f"After {committed} of {self._options.documents} documents nothing was committed for "
                    f"{_STANDSTILL_SECONDS:.0f} s. {problem} What runs said last:\n{logs}"
                )

    def _cpu_seconds(self, children: Sequence[Child]) -> Mapping[str, float]:
        found = {child.name: child.cpu_seconds() for child in children}
        found |= {"broker": cpu_seconds(self._broker) if self._broker else None, "observer": time.process_time()}
        return {name: seconds for name, seconds in found.items() if seconds is not None}

    def _outputs(
        self, variant: str, settings: Settings, names: topics.TopicNames, counted: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return how many documents came out where: read, unless there are so many that the worker's word must do."""
        total = self._options.documents
        labels = {names.unique: "unique", names.duplicates: "duplicates", names.dead_letters: "dead_letters"}
        if variant == COPY:
            labels = {names.named(copy.TOPIC): "copies"}
        elif total > _COUNTED_DOCUMENTS_MAX:
            return counted
        found: Counter[str] = Counter(dict.fromkeys(labels.values(), 0))
        until = time.monotonic() + _READ_SECONDS
        for message in reader(settings, list(labels), from_beginning=True):
            if message is not None:
                found[labels[message.topic]] += 1
            elif found.total() >= total or time.monotonic() > until:
                break  # all is there, and nothing came after it
        if counted and counted != dict(found):
            raise StreamDedupError(f"The worker counted {counted}, and its outputs hold {dict(found)}; please report it.")
        return dict(found)


def order(number: int) -> tuple[str, ...]:
    """Return the variants in the order of round `number`, from 1: there, and back in the next."""
    return VARIANTS if number % 2 else VARIANTS[::-1]


def window(readings: Sequence[Reading], total: int) -> tuple[Reading, Reading]:
    """Return the first and last reading of the timed window.

    Both are the last one if less than half of the documents would lie between them: what remains is then start and end
    effects, and no throughput.
    """
    last = readings[-1]
    first = next(one for one in readings if one.committed >= WINDOW_FROM * total)
    return (first, last) if first.committed <= total / 2 else (last, last)


def medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each name over those that have it."""
    names = dict.fromkeys(itertools.chain.from_iterable(found))
    return {name: statistics.median([one[name] for one in found if name in one]) for name in names}


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def _all_rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in values.items()}


def _count(value: float | None) -> str:
    return "too few for a figure of" if value is None else f"{value:,.0f}"


def _stages(children: Sequence[Child]) -> Mapping[str, float]:
    """Return how long each role's loop has been in each of its stages, by `role stage`."""
    return {
        f"{child.name} {sample.labels['stage']}": sample.value
        for child in children
        for sample in child.metrics()
        if sample.name == "stream_dedup_stage_duration_seconds_sum"
    }


def _wait_for_counters(worker: Child, total: int) -> dict[str, int]:
    """Return the worker's own counts, once it has counted the last transaction too."""
    until = time.monotonic() + _COUNTERS_SECONDS
    while True:
        counted = {"unique": 0, "duplicates": 0, "dead_letters": 0}
        for sample in worker.metrics():
            if sample.name == "stream_dedup_documents_total":
                counted["unique" if sample.labels["verdict"] == "unique" else "duplicates"] += int(sample.value)
            elif sample.name == "stream_dedup_dead_letters_total":
                counted["dead_letters"] += int(sample.value)
        if sum(counted.values()) >= total or time.monotonic() > until:
            return counted
        time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def _own_broker(folder: Path, say: Say) -> Iterator[Cluster]:
    from stream_dedup.broker import LocalBroker  # noqa: PLC0415 - an extra, not needed on somebody's own Kafka
    from stream_dedup.broker.jars import pinned_jars  # noqa: PLC0415

    versions = [jar.coordinate.split(":")[2] for jar in pinned_jars() if jar.coordinate.startswith("org.apache.kafka:kafka_")]
    with LocalBroker(folder / "kafka", log=say) as broker:
        yield Cluster(broker.bootstrap, broker.pid, versions[0])


def _machine(broker: Cluster) -> Mapping[str, object]:
    """Return what the figures depend on besides the program."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cores": usable,
        "processor": _processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load_before": _rounded(load, 2),
        "libraries": {"stream-dedup": __version__} | {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "broker": f"Apache Kafka {broker.version} beside it" if broker.version else f"at {broker.bootstrap}, not of this run",
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
