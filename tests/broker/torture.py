"""Random faults for as long as asked, then healing, then every invariant: `make torture
MINUTES=10`.

Faults rotate every few seconds: a worker or an index is killed, stopped and continued, or told to
end; an index comes back with an empty volume, with an older copy of it, finds its disk full, or has
too little memory for a plan that comes; both volumes are lost, the second while the first is
rebuilt; the broker is killed and restarted, stops for a while, or is away for longer than any
time-out; workers join and leave; two workers have one transactional id; connections are cut, go
dark or lose one kind of answer (the second worker and the second index are behind a proxy); outputs
are written slowly, by a quota; the topic `verdicts` is deleted
and created again; retention is set on the log, which roles report and are not ready for until it is
mended; the broker goes ten times in a row, which leaves no threads behind; documents of up to 900 kB
come, and records that no output can hold or no client reads as a whole (`hostile_records`); no worker may
take more memory than it was given; a crowd of idle connections keeps no probe out. With
`--elsewhere` every third text is on a web server that is away at times. The seed is printed; the
order of faults is a function of it, the moments at which they strike are not. A table at the
end shows how often each kind of fault struck, and for how many seconds documents stalled after it,
median and maximum; with `--singly` that is how long it took to heal. Below it follows for each loss
of both volumes when verdicts flowed again, and SLOW where that took a minute longer than an index
takes to start. When all that is proven, Kafka removes the log's records: roles that have
applied them report it and go on, an index with its volume starts again, and one without refuses to.
The last two lines are a summary, for people and as JSON.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import TopicPartition

from stream_dedup.broker import LocalBroker
from stream_dedup.domain.document import Headers
from tests.broker import kproxy
from tests.broker.harness import (
    Filter,
    Outcome,
    Role,
    large_documents,
    peak_bytes,
    synthetic,
    threads_of,
)
from tests.broker.hostile_records import send_hostile_records
from tests.broker.kproxy import KafkaProxy
from tests.broker.quotas import producer_quota
from tests.broker.stalls import Stalls
from tests.inputs.store_server import Pages, Reply, serving
from tests.waiting import wait_until

STEP_DOCUMENTS = 2000
LEFT_BEHIND_SECONDS = 120
PEACE_SECONDS = 60
OUTAGES_FIRST = 3
# After a kill of the broker, each step of a transaction may first run into its time-out.
_STOP_SECONDS = 90
SLOW_EACH = 1000
ELSEWHERE_EACH = 3
MISSING_EACH = 300

FAULTS = (
    *("kill worker",) * 5,
    *("kill index",) * 3,
    *("kill both",) * 3,
    "stop worker",
    "stop index",
    "end worker",
    "end index",
    "new volume",
    "older volume",
    *("both volumes",) * 2,
    "disk full",
    "plan beyond memory",
    "kill broker",
    "stop broker",
    "broker away",
    "one more worker",
    "one transactional id",
    "cut connections",
    "dark network",
    "late commit",
    "lost answers",
    "slow outputs",
    "large documents",
    "idle connections",
    "new verdicts",
    "retention on log",
    "ten outages",
    "nothing",
)
DISK_BYTES = 300_000
# A plan whose tables need more than this memory.
LARGE_PLAN, LITTLE_MEMORY = "128:32:0:28~80:65%:64", "545MB"
# Longer than every time-out of a client, so that a role which ends for one is noticed.
AWAY_SECONDS = 70
MEMORY_BYTES = 400 << 20
QUOTA_BYTES = 20_000
FLOW_SECONDS = 60
# More than a role keeps (serving/admission.py).
IDLE_CONNECTIONS = 600
# A step of a transaction may still hang in a thread, besides the five of its client; two producers
# take turns.
THREADS_MORE = 12
# A probe's own time-out in the manifests is shorter; here a role may just be stopped by a slow disk
# or a full processor.
PROBE_SECONDS = 30
LOSABLE = (
    kproxy.PRODUCE,
    kproxy.END_TXN,
    kproxy.TXN_OFFSET_COMMIT,
    kproxy.ADD_PARTITIONS_TO_TXN,
    kproxy.HEARTBEAT,
    kproxy.INIT_PRODUCER_ID,
    kproxy.METADATA,
)


class Flow(NamedTuple):
    """Seconds from the loss of a second volume until verdicts flow, and of a start of an index."""

    seconds: float
    start_seconds: float

    @property
    def is_slow(self) -> bool:
        return self.seconds - self.start_seconds > FLOW_SECONDS


class Nemesis:
    """One filter, two workers and two index replicas, and the faults that befall them."""

    def __init__(
        self,
        broker: LocalBroker,
        proxy: KafkaProxy,
        crawl: Filter,
        seed: int,
        session_seconds: float,
        pages: Pages | None,
    ) -> None:
        self.pages = pages
        self.session_seconds = session_seconds
        self.record_fault: Callable[..., None] = lambda *_, **__: None
        self.ended: list[str] = []
        self.unanswered: list[str] = []
        self.left_behind: list[str] = []
        self.over_memory: list[str] = []
        self.unreported: list[str] = []
        self.flows: list[Flow] = []
        self.broker = broker
        self.proxy = proxy
        self.crawl = crawl
        self.dice = random.Random(seed)
        self.deck: list[str] = []
        self.faults: Counter[str] = Counter()
        self.kills = 0
        self.sent = 0  # beside what is sent evenly
        self.peak_bytes = 0
        self.index = [self._start_index(0), self._start_index(1)]
        self.workers = [self._start_worker(0), self._start_worker(1)]

    def strike(self) -> str:
        """Let one fault happen, and undo what must be undone."""
        if not self.deck:
            faults = (*FAULTS, *(("texts away",) * 3 if self.pages is not None else ()))
            self.deck = self.dice.sample(faults, len(faults))
        fault = self.deck.pop()
        self.faults[fault] += 1
        number = self.dice.randrange(2)
        self.weigh()
        self.record_fault(fault)
        doing, _, whom = fault.partition(" ")
        worker, index = self.workers[number], self.index[number]
        if (
            roles := {"worker": [worker], "index": [index], "both": [worker, index]}.get(whom)
        ) is None:
            getattr(self, "_" + fault.replace(" ", "_"))(number)
        for role in roles or ():
            {"kill": self._kill, "stop": self._pause, "end": self._end}[doing](role)
        self.mend()
        return fault

    def weigh(self) -> None:
        """Note the most memory that a worker has taken."""
        self.peak_bytes = max(self.peak_bytes, *map(peak_bytes, self.workers))

    def mend(self) -> None:
        """Restart the roles that ended, also because the broker was away."""
        for number in range(2):
            if self.workers[number].process.poll() is not None:
                self.workers[number] = self._start_worker(number)
            if self.index[number].process.poll() is not None:
                self.index[number] = self._start_index(number)

    # -- the faults, by name

    def _kill(self, role: Role) -> None:
        if role.process.poll() is None:
            role.kill()
            self.kills += 1

    def _pause(self, role: Role) -> None:
        """Stop for longer than the session: the group moves on without it, and it comes back as a
        zombie."""
        role.process.send_signal(signal.SIGSTOP)
        time.sleep(self.session_seconds + 5)
        role.process.send_signal(signal.SIGCONT)

    def _end(self, role: Role) -> None:
        role.stop(_STOP_SECONDS)

    def _new_volume(self, number: int) -> None:
        self._kill(self.index[number])
        shutil.rmtree(self._volume(number), ignore_errors=True)

    def _older_volume(self, number: int) -> None:
        """Copy the volume as a crash would leave it, go on for a while, then put the copy in its
        place."""
        self._kill(self.index[number])
        older = self.crawl.folder / "older"
        shutil.rmtree(older, ignore_errors=True)
        shutil.copytree(self._volume(number), older)
        self.index[number] = self._start_index(number)
        time.sleep(self.dice.uniform(3, 6))
        self._kill(self.index[number])
        shutil.rmtree(self._volume(number))
        older.rename(self._volume(number))

    def _both_volumes(self, number: int) -> None:
        """Lose one volume, and the other while the first is rebuilt, until verdicts flow."""
        self._new_volume(number)
        began = time.monotonic()
        self._wait_for_index_log("index started", number)
        start_seconds = time.monotonic() - began
        self._new_volume(1 - number)
        lost = time.monotonic()
        self._wait_until_ready()
        before = self.crawl.committed()
        self.sent += self.crawl.produce(
            large_documents(400, 2_000, self.dice.randrange(1 << 30), partitions=4)
        )
        wait_until(
            lambda: self.mend() or self.crawl.committed() > before, "verdicts flow again", 300
        )
        self.flows.append(Flow(round(time.monotonic() - lost, 1), round(start_seconds, 1)))

    def _wait_for_index_log(self, text: str, number: int) -> None:
        def has_logged() -> bool:
            self.mend()
            return text in self.index[number].log

        wait_until(has_logged, f"an index says {text}")

    def _wait_until_ready(self) -> None:
        """Wait until one of the two has caught up with the log."""

        def is_ready() -> bool:
            self.mend()
            for role in self.index:
                with suppress(OSError, AssertionError):
                    return bool(role.get("/readyz"))
            return False

        wait_until(is_ready, "an index has caught up", 300)

    def _disk_full(self, number: int) -> None:
        """No file may grow beyond a size (RLIMIT_FSIZE), which fails writes as a full disk does;
        then there is room again."""
        role = self.index[number]
        if role.process.poll() is None:
            before = resource.prlimit(role.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(role.process.pid, resource.RLIMIT_FSIZE, (DISK_BYTES, before[1]))
            time.sleep(self.dice.uniform(2, 5))
            if role.process.poll() is None:
                resource.prlimit(role.process.pid, resource.RLIMIT_FSIZE, before)

    def _plan_beyond_memory(self, number: int) -> None:
        """The log changes to a plan for which an index has too little memory: it ends with 78, and
        goes on once it has more."""
        self._kill(self.index[number])
        self.index[number] = self._start_index(number, STREAM_DEDUP_MEMORY=LITTLE_MEMORY)
        self._declare(LARGE_PLAN)
        try:
            code = self.index[number].process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
            self._kill(self.index[number])
        if code != 78 or "STREAM_DEDUP_MEMORY allows" not in self.index[number].log:
            self.over_memory.append(
                f"{self.index[number].name} ended with {code}: {self.index[number].log[-2000:]}"
            )
        self._declare(self.crawl.settings.judging_plan.id)

    def _declare(self, plan: str) -> None:
        """Change the plan, asking no index; a broker that was killed a moment ago may want it
        twice."""
        wait_until(
            lambda: (
                self.crawl.command("declare", "--plan", plan, "--unchecked", code=None).returncode
                == 0
            ),
            f"the plan {plan} is declared",
            120,
        )

    def _kill_broker(self, _: int) -> None:
        self.broker.kill()
        self.broker.start()

    def _stop_broker(self, _: int) -> None:
        os.kill(self.broker.pid, signal.SIGSTOP)
        time.sleep(self.dice.uniform(2, 12))
        os.kill(self.broker.pid, signal.SIGCONT)

    def _broker_away(self, _: int) -> None:
        """The broker is away for long: no role ends, and all go on soon after it is back."""
        alive = [role for role in (*self.workers, *self.index) if role.process.poll() is None]
        self.broker.kill()
        time.sleep(AWAY_SECONDS)
        # An index may just have been ending when the broker went, because its disk had been full.
        ended = [
            role
            for role in alive
            if role.process.poll() is not None and "the disk is full" not in role.log
        ]
        self.ended += [f"{role.name}: {role.log[-2000:]}" for role in ended]
        self.broker.start()
        self.record_fault("broker away, once it is back", from_now=True)

    def _one_more_worker(self, _: int) -> None:
        """Two rebalances, in mid-stream."""
        more = self.crawl.start("worker")
        time.sleep(self.dice.uniform(4, 8))
        if self.dice.random() < 0.5:
            self._kill(more)
        else:
            more.stop(_STOP_SECONDS)

    def _one_transactional_id(self, number: int) -> None:
        """Start a second worker with the name of a running one: one of them is fenced and ends."""
        twin = self.crawl.start("worker", STREAM_DEDUP_WORKER_ID=f"worker-{number}")
        time.sleep(self.dice.uniform(4, 8))
        self._kill(twin)

    def _cut_connections(self, _: int) -> None:
        self.proxy.cut_all()

    def _dark_network(self, _: int) -> None:
        with self.proxy.dark():
            time.sleep(self.dice.uniform(2, 15))

    def _late_commit(self, _: int) -> None:
        request = self.proxy.add(kproxy.END_TXN, self.dice.choice(("hold", "strand")))
        request.struck.wait(10)
        time.sleep(self.dice.uniform(0, 14))
        self.proxy.release(request)

    def _lost_answers(self, _: int) -> None:
        for _ in range(3):
            self.proxy.add(self.dice.choice(LOSABLE), self.dice.choice(("lose-answer", "cut")))  # type: ignore[arg-type]
        self.proxy.add(self.dice.choice(LOSABLE), "delay", self.dice.uniform(1, 12))

    def _slow_outputs(self, number: int) -> None:
        """Send more than the quota lets through, for longer than a transaction may take."""
        with producer_quota(
            self.crawl.bootstrap,
            f"{self.crawl.settings.group}-worker-{number}-outputs",
            QUOTA_BYTES,
        ):
            made = large_documents(400, 12_000, self.dice.randrange(1 << 30), partitions=4)
            self.sent += self.crawl.produce(made)
            time.sleep(self.dice.uniform(20, 35))

    def _large_documents(self, _: int) -> None:
        size = self.dice.choice((12_000, 58_000, 900_000))
        made = large_documents(20_000_000 // size, size, self.dice.randrange(1 << 30), partitions=4)
        self.sent += self.crawl.produce(made)

    def _idle_connections(self, number: int) -> None:
        """Many connections that send nothing are opened; probes are answered all the same."""
        for role in (self.workers[number], self.index[number]):
            try:
                address = role.address()
            except AssertionError:  # it has ended, which the invariants judge
                continue
            host, _, port = address.removeprefix("http://").rpartition(":")
            with ExitStack() as crowd:
                try:
                    for _ in range(IDLE_CONNECTIONS):
                        crowd.enter_context(
                            socket.create_connection((host, int(port)), PROBE_SECONDS)
                        )
                    with urllib.request.urlopen(  # noqa: S310 - our own address
                        f"{address}/livez", timeout=PROBE_SECONDS
                    ) as answer:
                        answer.read()
                except OSError as error:
                    try:
                        role.process.wait(
                            PROBE_SECONDS
                        )  # it was about to end, as one of two with one name does
                    except subprocess.TimeoutExpired:
                        self.unanswered.append(f"{role.name}: {error!r}")

    def _retention_on_log(self, _: int) -> None:
        """Each role reports it, is not ready, and is again after `topics apply`."""
        log = self.crawl.names.fingerprints
        running = [role for role in (*self.workers, *self.index) if role.process.poll() is None]
        self.crawl.admin.set_config(log, {"retention.ms": str(7 * 86_400_000)})
        for role in running:
            self._wait_for_report(role, f"The topic {log} has retention.ms=604800000")
        self.crawl.command("topics", "apply")

    def _wait_for_report(self, role: Role, text: str) -> None:
        """Wait until `/readyz` reports the text with 503, or the role ends."""

        def has_reported() -> bool:
            if role.process.poll() is not None:
                return True
            try:
                role.get("/readyz")
            except urllib.error.HTTPError as error:
                return text in error.read().decode()
            except (OSError, AssertionError):
                pass
            return False

        try:
            wait_until(has_reported, f"{role.name} says {text}", 180)
        except AssertionError as error:
            self.unreported.append(str(error))

    def _new_verdicts(self, _: int) -> None:
        """Delete and re-create the topic of answers: lost answers are requested again."""
        self.crawl.delete_topic(self.crawl.names.verdicts)
        time.sleep(self.dice.uniform(0.5, 8.0))
        self.crawl.create_topics()

    def _ten_outages(self, _: int) -> None:
        """Kafka goes and comes back, and surviving roles keep no threads of it."""
        before: dict[Role, Counter[str]] = {}
        for outage in range(10):
            if (
                outage == OUTAGES_FIRST
            ):  # by now a role that came a moment ago has made all its clients
                before = {
                    role: self._threads_in_peace(role) for role in (*self.workers, *self.index)
                }
            self.broker.kill()
            time.sleep(self.dice.uniform(0.5, 3.0))
            self.broker.start()
            time.sleep(self.dice.uniform(0.5, 3.0))
        self.record_fault("ten outages, once it is back", from_now=True)
        # A step of a transaction that hangs has its client until librdkafka gives the step up.
        until = time.monotonic() + LEFT_BEHIND_SECONDS
        for role, threads in before.items():
            while (
                threads_of(role).total() > threads.total() + THREADS_MORE
                and time.monotonic() < until
            ):
                time.sleep(0.5)
            more = threads_of(role) - threads
            if threads and more.total() > THREADS_MORE:
                self.left_behind.append(
                    f"{role.name}: after ten outages more threads than after three: {dict(more)}"
                )

    def _threads_in_peace(self, role: Role) -> Counter[str]:
        """Return the threads of a role once it is ready; none if it is not in time."""
        until = time.monotonic() + PEACE_SECONDS
        while role.process.poll() is None and time.monotonic() < until:
            with (
                suppress(OSError, AssertionError),
                urllib.request.urlopen(f"{role.address()}/readyz", timeout=2) as answer,  # noqa: S310
            ):
                if answer.status == 200:
                    return threads_of(role)
            time.sleep(0.5)
        return Counter()

    def _texts_away(self, _: int) -> None:
        assert self.pages is not None
        worse = self.dice.choice([None, self.pages.half_closed, self.pages.silent])
        self.pages.instead = Reply(status=503, worse=worse)
        time.sleep(self.dice.uniform(1.0, 8.0))
        self.pages.instead = None

    def _nothing(self, _: int) -> None: ...

    # -- inside

    def _volume(self, number: int) -> Path:
        return self.crawl.folder / f"replica-{number}" / "index"

    def _address(self, number: int) -> str:
        return self.proxy.bootstrap if number else self.crawl.bootstrap

    def _start_worker(self, number: int) -> Role:
        return self.crawl.start(
            "worker",
            STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS=self._address(number),
            STREAM_DEDUP_WORKER_ID=f"worker-{number}",
        )

    def _start_index(self, number: int, **environment: str) -> Role:
        return self.crawl.start(
            "index",
            STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS=self._address(number),
            STREAM_DEDUP_STATE_DIR=str(self._volume(number).parent),
            **environment,
        )


def main() -> int:
    """Run the torture; return 0 when every invariant held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument(
        "--documents", type=int, default=120_000, help="how many, evenly over the time"
    )
    parser.add_argument(
        "--session",
        type=float,
        default=3.0,
        help="seconds; the default lets more faults happen than that of the workers, 10",
    )
    parser.add_argument(
        "--elsewhere", action="store_true", help="put every third text on a web server"
    )
    parser.add_argument(
        "--singly", action="store_true", help="let each fault heal before the next one strikes"
    )
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.minutes} minutes", flush=True)
    # A process that compiles kernels takes 200 MB more, and its forks are measured with them.
    warm = "from stream_dedup.serving import compile_kernels; compile_kernels.use_fingerprints(); compile_kernels.use_index()"
    subprocess.run([sys.executable, "-c", warm], check=True)
    with (
        tempfile.TemporaryDirectory(prefix="torture-") as folder,
        LocalBroker(Path(folder) / "kafka") as broker,
        KafkaProxy(int(broker.bootstrap.rpartition(":")[2])) as proxy,
        serving() as pages,
    ):
        elsewhere = {"text_at": "header:text-uri", "text_prefixes": pages.url}
        crawl = Filter(
            *(broker.bootstrap, Path(folder)),
            partitions=4,
            batch_documents=500,
            text_is="html",
            memory=MEMORY_BYTES,
            count_copies=True,
            **(elsewhere if options.elsewhere else {}),
        )
        crawl.environment["STREAM_DEDUP_KAFKA_SESSION_TIMEOUT_MS"] = str(
            round(1000 * options.session)
        )
        crawl.environment["STREAM_DEDUP_KAFKA_HEARTBEAT_INTERVAL_MS"] = str(
            round(100 * options.session)
        )
        crawl.create_topics()
        try:
            return _run(broker, proxy, crawl, options, pages if options.elsewhere else None)
        except BaseException:
            crawl.stop()
            raise


def _move_texts(documents: list[tuple[int, bytes, bytes, Headers]], pages: Pages) -> None:
    """Move every third text to a web server, compressed; a few of them are missing there."""
    for number in range(0, len(documents), ELSEWHERE_EACH):
        part, url, value, headers = documents[number]
        documents[number] = (
            part,
            url,
            b"elsewhere",
            [*headers, ("text-uri", f"{pages.url}/{number}".encode())],
        )
        if number % MISSING_EACH:
            pages.by_path[f"/{number}"] = Reply(gzip.compress(value))


def documents_by_reason(worker: Role, reason: str) -> float:
    """Return how many documents left a worker for a reason, by its metrics."""
    found = [
        float(line.rpartition(" ")[2])
        for line in worker.get("/metrics").splitlines()
        if line.startswith("stream_dedup_documents_total") and f'reason="{reason}"' in line
    ]
    assert found, f"no metric for {reason}"
    return sum(found)


def remove_the_log(crawl: Filter) -> None:
    """Have Kafka remove all records of the log under an index and a worker, and look whether they
    keep what is promised: those that run report it, and their verdicts stay right; an index with
    its volume starts again; one that has neither volume nor log refuses.

    Raises:
        AssertionError: one of them does not.
    """
    log, committed = crawl.names.fingerprints, crawl.committed()
    index, worker = crawl.start_both()
    texts = list(synthetic(200, 77, partitions=crawl.partitions))
    committed += crawl.produce(texts)
    wait_until(lambda: crawl.committed() >= committed, "documents flow before", 300)
    known = documents_by_reason(worker, "new")
    low = crawl.admin.end_offset(log, 0)
    removed = crawl.admin._client.delete_records([TopicPartition(log, 0, low)])
    assert [future.result(30).low_watermark for future in removed.values()] == [low]
    for role in (index, worker):
        role.wait_for_log(f"The log {log} begins at offset {low}", 180)
    committed += crawl.produce(texts)
    wait_until(lambda: crawl.committed() >= committed, "documents flow behind the gap", 300)
    assert documents_by_reason(worker, "new") == known, "a page is no longer known"
    assert index.stop() == 0
    index = crawl.start("index")
    committed += crawl.produce(texts)
    wait_until(lambda: crawl.committed() >= committed, "an index with its volume goes on", 300)
    assert documents_by_reason(worker, "new") == known, "a page is no longer known after a restart"
    for role in (index, worker):
        role.stop(_STOP_SECONDS)
    new = crawl.start("index", STREAM_DEDUP_STATE_DIR=str(crawl.folder / "removed"))
    assert new.process.wait(180) == 78, new.log[-2000:]


def _run(
    broker: LocalBroker,
    proxy: KafkaProxy,
    crawl: Filter,
    options: argparse.Namespace,
    pages: Pages | None = None,
) -> int:
    documents = synthetic(options.documents, options.seed, partitions=4)
    for number in range(SLOW_EACH // 2, len(documents), SLOW_EACH):  # pages that hang the extractor
        part, url, value, headers = documents[number]
        documents[number] = part, url, b"<div>" * 15_000 + value, headers
    if pages is not None:
        _move_texts(documents, pages)
    nemesis = Nemesis(broker, proxy, crawl, options.seed, options.session, pages)
    dice = random.Random(f"strange {options.seed}")
    pace = options.documents / max(1.0, options.minutes * 60)
    began = time.monotonic()
    sent = 0
    stalls = Stalls(crawl.committed, lambda: sent + nemesis.sent)
    nemesis.record_fault = stalls.record_fault
    stalls.start()

    def has_healed() -> bool:
        nemesis.mend()
        return crawl.committed() >= sent + nemesis.sent

    while (passed := time.monotonic() - began) < options.minutes * 60:
        due = min(len(documents), int(passed * pace) + STEP_DOCUMENTS)
        if due > sent:
            crawl.produce(documents[sent:due])
            sent = due
            nemesis.sent += send_hostile_records(crawl.produce, dice, 4)
        fault = nemesis.strike()
        print(
            f"{passed:7.1f} s  {sent:8d} sent  {crawl.committed():8d} committed  {fault}",
            flush=True,
        )
        time.sleep(nemesis.dice.uniform(0.5, 4.0))
        if options.singly:
            sent += crawl.produce(documents[sent : sent + 100])  # else there may be no stall
            wait_until(has_healed, f"{fault} has healed", 300)
    sent += crawl.produce(documents[sent:])

    wait_until(has_healed, f"all {sent + nemesis.sent} records are committed after healing", 900)
    healing = time.monotonic() - began - options.minutes * 60
    stalls.stop()
    nemesis.weigh()

    for role in crawl.roles:
        role.stop(_STOP_SECONDS)
    problems = [f"ended while the broker was away: {problem}" for problem in nemesis.ended]
    problems += [f"left behind: {problem}" for problem in nemesis.left_behind]
    problems += [
        f"a probe had no answer beside {IDLE_CONNECTIONS} idle connections: {problem}"
        for problem in nemesis.unanswered
    ]
    problems += [
        f"did not report that records of the log are removed: {problem}"
        for problem in nemesis.unreported
    ]
    problems += [
        f"did not stop at a plan beyond its memory: {problem}" for problem in nemesis.over_memory
    ]
    if nemesis.peak_bytes >= MEMORY_BYTES:
        problems.append(f"a worker took {nemesis.peak_bytes} bytes of {MEMORY_BYTES}")
    if pages is not None and not pages.asked:
        problems.append("no text was fetched")
    sent += nemesis.sent
    try:
        Outcome(crawl).check()
    except AssertionError as error:
        problems.append(str(error))
    try:
        remove_the_log(crawl)
    except AssertionError as error:
        problems.append(f"after the log's records were removed: {error}")
    found = " ".join(problems)
    print("  times  median s  longest s  documents stood still after")
    for fault, recovery in stalls.table().items():
        print(f"{recovery.count:7}  {recovery.median:8.1f}  {recovery.longest:9.1f}  {fault}")
    for flow in nemesis.flows:
        print(
            f"both volumes lost: verdicts flowed again after {flow.seconds} s, a start alone takes "
            f"{flow.start_seconds} s{'; SLOW' if flow.is_slow else ''}"
        )
    summary = {
        "seed": options.seed,
        "minutes": options.minutes,
        "documents": sent,
        "kills": nemesis.kills,
        "peak_mib": nemesis.peak_bytes >> 20,
        "faults": dict(sorted(nemesis.faults.items())),
        "healing_seconds": round(healing, 1),
        "recovery_seconds": {
            fault: recovery._asdict() for fault, recovery in stalls.table().items()
        },
        "flow_seconds": [flow.seconds for flow in nemesis.flows],
        "flow_slow": sum(flow.is_slow for flow in nemesis.flows),
        "verdict": found or "clean",
    }
    faults = ", ".join(f"{count} {name}" for name, count in sorted(nemesis.faults.items()))
    verdict = found or "nothing lost, nothing twice, nothing wrong"
    print(
        f"seed {options.seed}: {sent} documents, {nemesis.kills} roles killed; faults: {faults}; "
        f"{verdict}"
    )
    print(json.dumps(summary), flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    os.chdir(Path(__file__).parent.parent.parent)
    sys.exit(main())
