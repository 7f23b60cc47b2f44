"""Measure the whole path and a plain copy, in one run, on the same machine, broker and documents:
`bench path`.

A round measures each variant once: `copy` (exactly once, nothing else), other programs that copy if
they are requested, and the filter with each named plan. Each measurement has separate topics, which
are filled before anything is timed. Its steps are: 1 create the topics, 2 produce the documents, 3
start the program or roles as child processes, 4 watch the group's committed offsets from outside
until all is committed, 5 compare the counts of input and output.

Invariants: every variant is timed alike, from the first committed offsets at or past 5 % of the
documents until all of them are committed, so that starting, joining and compiling are not timed
(with several workers, from when all of them have joined and every partition has moved since). A
ratio is of two measurements of one round, and the median is of such ratios; the order of variants
is reversed from round to round; in = out is checked, otherwise the exit code is 1.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from bench import copy
from bench.children import MeasuredChild, cpu_seconds, process_collector
from bench.latency import Latency
from bench.latency import measure as measure_latency
from bench.path_around import fill_log, loopback_bytes_sent, machine, topic_bytes
from bench.path_peers import CopyPeer, find_peers, peer_environment
from bench.path_report import (
    PLANS,
    PathOptions,
    PathReading,
    PathReport,
    Sample,
    WorkerStart,
    alternate_order,
    timed_window,
)
from stream_dedup.domain import topics
from stream_dedup.domain.errors import BrokerError, StreamDedupError
from stream_dedup.kafka import Admin, LoadProducer, follow_topics
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.properties import child_environment
from stream_dedup.settings.settings import Settings

RATE_SECONDS = 10.0
_COUNTED_DOCUMENTS_MAX = 200_000
# Each look asks the broker, on the machine that is measured: fifty a second took 3 % of two cores.
_LOOK_SECONDS = 0.05
_STANDSTILL_SECONDS = 90.0
_TRY_BELOW = 20_000
_WARM_UP_SECONDS = 40.0
_WARM_UP_PER_SECOND = 5000.0
# Before its first answer an index reads what the log holds already.
_FOLDED_PER_SECOND_MIN = 5000
_COUNTERS_SECONDS = 10.0
_READ_SECONDS = 60.0

Say = Callable[[str], None]
Companion = Callable[
    [Settings, Path, Sequence[MeasuredChild]], contextlib.AbstractContextManager[None]
]
Value = TypeVar("Value", int, float)


def _no_companion(
    _settings: Settings, _folder: Path, _children: Sequence[MeasuredChild]
) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def run_path(options: PathOptions, say: Say) -> PathReport:
    """Measure everything; `say` is told in a line what is going on.

    Raises:
        StreamDedupError: the broker or a child did not come up or ended, or the documents stopped
        moving.
    """
    with kafka_of(options, say) as (folder, broker):
        report = PathReport(options, machine(broker.title))
        if options.with_peers:
            report.peers, report.missing = find_peers()
            for sentence in report.missing.values():
                say(sentence)
        bench = Bench(options, broker, folder, say, report.peers)
        bench.warm_up()
        for number in range(1, options.rounds + 1):
            bench.add_round(report, number)
        for plan in PLANS if options.rates else ():
            report.latencies[plan] = bench.latency(plan)
        if options.broker:
            say(
                f"The topics that begin with {bench.name} stay on {options.broker}; delete them "
                "when you like."
            )
    return report


@dataclass(frozen=True, slots=True)
class BenchCluster:
    """A Kafka cluster. `pid`, `version` and `data` (the folder of its partitions) are known only
    for a broker that this program started.
    """

    bootstrap: str
    pid: int | None = None
    version: str = ""
    data: Path | None = None

    @property
    def title(self) -> str:
        """Which Kafka it is, in words."""
        return (
            f"Apache Kafka {self.version} beside it"
            if self.version
            else f"at {self.bootstrap}, not of this run"
        )


class Bench:
    """Measures one variant at a time on one Kafka. `folder` contains what the roles store
    meanwhile.
    """

    def __init__(
        self,
        options: PathOptions,
        broker: BenchCluster,
        folder: Path,
        say: Say,
        peers: Mapping[str, CopyPeer] | None = None,
    ) -> None:
        self._options = options
        self._peers = peers or {}
        self._bootstrap = broker.bootstrap
        self._folder = folder
        self._say = say
        self._data = broker.data
        self._broker = process_collector(broker.pid) if broker.pid is not None else None
        self._prepared_count = 0
        self.name = f"bench-{uuid.uuid4().hex[:8]}"
        self.mean_value_bytes = 0.0

    def warm_up(self) -> None:
        """Have a broker that has just started make its machine code, at which it spends half a core
        for half a minute.

        What people have has run for days.
        """
        if self._broker is None or self._options.documents < _TRY_BELOW:
            return
        self._say(f"warming the broker up for {_WARM_UP_SECONDS:.0f} s")
        with (
            self._prepare_topics(PLANS[0]) as (settings, _, folder),
            self._run_variant(PLANS[0], settings, folder) as children,
        ):
            measure_latency(
                settings,
                self._options.pages(),
                children,
                (_WARM_UP_PER_SECOND,),
                _WARM_UP_SECONDS,
                self._options.partitions,
            )

    def add_round(self, report: PathReport, number: int) -> None:
        """Measure the throughput of each variant once and add it to the report."""
        for variant in alternate_order(number, report.variants):
            sample = self.throughput(variant, number)
            report.samples.append(sample)
            self._say(f"round {number} of {self._options.rounds}, {sample.sentence}")
        report.mean_value_bytes = self.mean_value_bytes

    def throughput(self, variant: str, number: int) -> Sample:
        """Measure a variant once; `number` is the round's.

        Raises:
            StreamDedupError: a child ended, the documents stopped moving, or worker and outputs
            count differently.
        """
        total = self._options.documents
        with self._prepare_topics(variant) as (settings, names, folder):
            disk_before = topic_bytes(self._data, settings.topic_prefix)  # of the index's entries
            self._load(settings, names.documents)
            began, loopback_before = time.monotonic(), loopback_bytes_sent()
            with self._run_variant(variant, settings, folder) as children:
                admin = Admin(settings)
                readings: list[PathReading] = []
                stages: list[Mapping[str, float]] = []
                for reading in self._watch(admin, settings.group, children, total):
                    readings.append(reading)
                    if (
                        variant in PLANS
                        and reading.is_in_window(total)
                        and (not stages or reading.committed >= total)
                    ):
                        stages.append(_stage_seconds(children))
                loopback_after = loopback_bytes_sent()
                counted = _wait_for_counters(children[1:], total) if variant in PLANS else {}
            disk = topic_bytes(self._data, settings.topic_prefix)
            disk_bytes = {name: size - disk_before.get(name, 0) for name, size in disk.items()}
            balance = {"in": total, **self._outputs(settings, names, total, counted)}
        loopback_bytes = None
        if self._data is not None and loopback_before is not None and loopback_after is not None:
            loopback_bytes = loopback_after - loopback_before
        first, last = timed_window(readings, total)
        return Sample(
            variant=variant,
            round=number,
            documents=last.committed - first.committed,
            seconds=last.seconds - first.seconds,
            first_commit_seconds=next(reading.seconds for reading in readings if reading.committed)
            - began,
            cpu_seconds={
                name: last.cpu_seconds[name] - first.cpu_seconds[name] for name in last.cpu_seconds
            },
            stage_seconds={name: stages[-1][name] - stages[0].get(name, 0.0) for name in stages[-1]}
            if stages
            else {},
            cpu_seconds_total=by_role(
                (
                    (reading.name, reading.usage.cpu_seconds)
                    for reading in children
                    if reading.usage
                ),
                sum,
            ),
            memory_bytes_max=by_role(
                (
                    (reading.name, reading.usage.memory_bytes_max)
                    for reading in children
                    if reading.usage
                ),
                max,
            ),
            balance=balance,
            disk_bytes=disk_bytes,
            loopback_bytes=loopback_bytes,
        )

    def latency(
        self, plan: str, seconds: float = RATE_SECONDS, companion: Companion = _no_companion
    ) -> list[Latency]:
        """Measure ages at the rates that the options give, for so long each; `beside` is what goes
        on beside the roles.
        """
        rates = self._options.rates
        with (
            self._prepare_topics(plan) as (settings, _, folder),
            self._run_variant(plan, settings, folder, {}) as children,
            companion(settings, folder, children),
        ):
            self._say(
                f"latency of {plan} at {' and '.join(f'{rate:.0f}' for rate in rates)} documents/s"
            )
            return measure_latency(
                settings, self._options.pages(), children, rates, seconds, self._options.partitions
            )

    @contextlib.contextmanager
    def _prepare_topics(self, variant: str) -> Iterator[tuple[Settings, topics.TopicNames, Path]]:
        """Give settings with names that nobody else has, their topics, and a folder that goes at
        the end.
        """
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
        declared = topics.with_partitions(topics.read_topics(prefix), self._options.partitions)
        if variant not in PLANS:
            (documents,) = [topic for topic in declared if topic.name == names.documents]
            (unique,) = [topic for topic in declared if topic.name == names.unique]
            declared = (documents, replace(unique, name=names.named(copy.TOPIC), kind=copy.TOPIC))
        topics.apply(topics.plan(topics.fit_to_brokers(declared, admin.broker_count()), {}), admin)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            if variant in PLANS and self._options.index_entries:
                fill_log(
                    _own_settings(variant, settings, Path(folder)), self._options.index_entries
                )
            yield settings, names, Path(folder)

    def _load(self, settings: Settings, topic: str) -> None:
        producer = LoadProducer(settings)
        size = 0
        for number, page in enumerate(self._options.pages(self._options.documents)):
            producer.send(topic, page.key, page.value, partition=number % self._options.partitions)
            size += len(page.value)
        if producer.flush():
            raise StreamDedupError(f"The documents could not be written: {producer.first_failure}")
        self.mean_value_bytes = size / self._options.documents

    @contextlib.contextmanager
    def _run_variant(
        self, variant: str, settings: Settings, folder: Path, more: Mapping[str, str] | None = None
    ) -> Iterator[list[MeasuredChild]]:
        """Run the copy, a peer, or an index and a worker with a plan; ours get all that is not a
        default as settings.

        `more` are further settings, of the roles.
        """
        variant_settings = _own_settings(variant, settings, folder) | dict(more or {})
        names = settings.topic_names
        programs: dict[str, tuple[list[str], dict[str, str]]]
        if variant in PLANS:
            role = [sys.executable, "-m", "stream_dedup", "run"]
            programs = {
                "index": (
                    [*role, "index", "--stop-with-parent"],
                    child_environment(variant_settings),
                )
            }
            for name in self._worker_names("worker"):
                programs[name] = (
                    [*role, "worker", "--stop-with-parent"],
                    child_environment(variant_settings | {"worker_id": name}),
                )
        elif variant in self._peers:
            topics_and_group = names.documents, names.named(copy.TOPIC), settings.group
            arguments = self._bootstrap, *topics_and_group, str(settings.batch_documents)
            peer = self._peers[variant]
            programs = {
                name: (peer.command(*arguments), peer_environment())
                for name in self._worker_names(variant)
            }
        else:
            program = [sys.executable, "-m", "bench.copy"]
            programs = {
                name: (program, child_environment(variant_settings | {"worker_id": name}))
                for name in self._worker_names(variant)
            }
        children: list[MeasuredChild] = []
        try:
            for name, (command, environment) in programs.items():
                children.append(MeasuredChild(name, command, environment, folder))
            yield children
        finally:
            for child in reversed(children):
                child.stop()

    def _worker_names(self, role: str) -> list[str]:
        """Return a name for each process of a role that shares the partitions: `worker`, or
        `worker-1`, `worker-2` and on.
        """
        count = self._options.workers
        return [role] if count == 1 else [f"{role}-{number}" for number in range(1, count + 1)]

    def _watch(
        self, admin: Admin, group: str, children: Sequence[MeasuredChild], total: int
    ) -> Iterator[PathReading]:
        """Yield a reading whenever more is committed, until all is."""
        committed = 0
        moved = time.monotonic()
        start = WorkerStart(self._options.workers, self._options.partitions)
        problem = ""
        patience = _STANDSTILL_SECONDS + self._options.index_entries / _FOLDED_PER_SECOND_MIN
        while committed < total:
            time.sleep(_LOOK_SECONDS)
            for child in children:
                child.check()
            try:
                offsets = {
                    key: offset for key, (offset, _) in admin.committed_or_last_known(group).items()
                }
                start.update(0 if start.is_joined else admin.group_members(group), offsets)
                found = sum(offsets.values())
            except (
                BrokerError
            ) as error:  # asked at a bad moment: a coordinator that loads, a transaction that ends
                problem, found = str(error), 0
            now = time.monotonic()
            if found > committed:
                committed, moved = found, now
                yield PathReading(now, committed, self._cpu_seconds(children), start.is_over)
            elif now - moved > patience:
                logs = "\n".join(f"{child.name}:\n{child.log}" for child in children)
                raise StreamDedupError(
                    f"After {committed} of {total} documents nothing was committed for "
                    f"{patience:.0f} s. {problem} What runs said last:\n{logs}"
                )

    def _cpu_seconds(self, children: Sequence[MeasuredChild]) -> Mapping[str, float]:
        found = [(child.name, child.cpu_seconds()) for child in children]
        found += [
            ("broker", cpu_seconds(self._broker) if self._broker else None),
            ("observer", time.process_time()),
        ]
        return by_role(((name, seconds) for name, seconds in found if seconds is not None), sum)

    def _outputs(
        self, settings: Settings, names: topics.TopicNames, total: int, counted: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return how many documents came out where: read, unless there are so many that the
        worker's word must do.

        `counted` is that word; a copy has none.
        """
        labels = {
            names.unique: "unique",
            names.duplicates: "duplicates",
            names.dead_letters: "dead_letters",
        }
        if not counted:
            labels = {names.named(copy.TOPIC): "copies"}
        elif total > _COUNTED_DOCUMENTS_MAX:
            return counted
        found: Counter[str] = Counter(dict.fromkeys(labels.values(), 0))
        until = time.monotonic() + _READ_SECONDS
        for message in follow_topics(settings, list(labels), from_beginning=True):
            if message is not None:
                found[labels[message.topic]] += 1
            elif found.total() >= total or time.monotonic() > until:
                break  # all is there, and nothing came after it
        if counted and counted != dict(found):
            raise StreamDedupError(
                f"The workers counted {counted}, and their outputs hold {dict(found)}; please "
                "report it."
            )
        return dict(found)


def _own_settings(variant: str, settings: Settings, folder: Path) -> dict[str, str]:
    """Return what a program of ours gets as settings: all that is not a default."""
    shared = ("kafka_bootstrap_servers", "topic_prefix", "group", "batch_documents")
    settings_of_variant = {name: str(getattr(settings, name)) for name in shared}
    if variant in PLANS:
        settings_of_variant |= {
            "value_format": "json",
            "id_field": "url",
            "plan": variant,
            "state_dir": str(folder),
        }
        settings_of_variant |= {"http_port": "0"}
    return settings_of_variant


def role_of(name: str) -> str:
    """Return `worker` for `worker-2`."""
    role, _, number = name.rpartition("-")
    return role if number.isdigit() else name


def by_role(
    values: Iterable[tuple[str, Value]], merge: Callable[[list[Value]], Value]
) -> dict[str, Value]:
    """Return one value for each role: of several processes their values merged."""
    found: dict[str, list[Value]] = {}
    for name, value in values:
        found.setdefault(role_of(name), []).append(value)
    return {role: merge(of) for role, of in found.items()}


def _stage_seconds(children: Sequence[MeasuredChild]) -> Mapping[str, float]:
    """Return how long each role's loops have been in each of their stages, by `role stage`."""
    found: dict[str, float] = {}
    for child in children:
        for sample in child.metrics():
            if sample.name == "stream_dedup_stage_duration_seconds_sum":
                name = f"{role_of(child.name)} {sample.labels['stage']}"
                found[name] = found.get(name, 0.0) + sample.value
    return found


def _wait_for_counters(workers: Sequence[MeasuredChild], total: int) -> dict[str, int]:
    """Return the workers' own counts, once they have counted the last transaction too."""
    until = time.monotonic() + _COUNTERS_SECONDS
    while True:
        counted = {"unique": 0, "duplicates": 0, "dead_letters": 0}
        for sample in itertools.chain.from_iterable(worker.metrics() for worker in workers):
            if sample.name == "stream_dedup_documents_total":
                counted["unique" if sample.labels["verdict"] == "unique" else "duplicates"] += int(
                    sample.value
                )
            elif sample.name == "stream_dedup_dead_letters_total":
                counted["dead_letters"] += int(sample.value)
        if sum(counted.values()) >= total or time.monotonic() > until:
            return counted
        time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def kafka_of(options: PathOptions, say: Say) -> Iterator[tuple[Path, BenchCluster]]:
    """Give a folder for a while, and the Kafka of the options, or one of our own that runs in there
    meanwhile.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-dedup-bench-"))
        )
        yield (
            folder,
            BenchCluster(options.broker)
            if options.broker
            else stack.enter_context(_own_broker(folder, say)),
        )


@contextlib.contextmanager
def _own_broker(folder: Path, say: Say) -> Iterator[BenchCluster]:
    """Run a broker in the folder, that Java compiles as Kafka's own scripts have it."""
    from stream_dedup.broker import LocalBroker
    from stream_dedup.broker.jars import pinned_jars

    versions = [
        jar.coordinate.split(":")[2]
        for jar in pinned_jars()
        if jar.coordinate.startswith("org.apache.kafka:kafka_")
    ]
    with LocalBroker(folder / "kafka", is_long_running=True, log=say) as broker:
        yield BenchCluster(broker.bootstrap, broker.pid, versions[0], broker.data)
