"""A filter on a real Kafka: its topics, roles as children, a checker that reads only Kafka."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from stream_dedup.audit import content_digests
from stream_dedup.audit.findings import Findings
from stream_dedup.audit.judgements import Fold
from stream_dedup.audit.ledger import AuditLedger, Span
from stream_dedup.audit.log_contents import LogOutline
from stream_dedup.audit.replay import apply_group, judgements_of
from stream_dedup.audit.scan import PlainScan
from stream_dedup.audit.verdicts import AuditedOutputs
from stream_dedup.broker import LocalBroker
from stream_dedup.domain import topics
from stream_dedup.domain.document import Headers, Message, Unreadable, Verdict
from stream_dedup.domain.errors import BrokerError, FormatError, StreamDedupError
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.indexer import role as indexer
from stream_dedup.kafka import Admin
from stream_dedup.kafka.client import to_message
from stream_dedup.log import records
from stream_dedup.settings.properties import child_environment
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import role as worker_role
from stream_dedup.worker.dependencies import WorkerDependencies
from tests.broker.forked_roles import CONSTANTS_VARIABLE, NURSERY, Forked
from tests.broker.latin1 import has_latin1, write_latin1
from tests.waiting import wait_until

WAIT_SECONDS = 120.0

# The checker's clients are not under test: what they log while a broker is down is dropped.
_QUIET = logging.getLogger("tests.quiet")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


# Errors that a client reports while a broker restarts.
_TRANSIENT_ERRORS = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT}


class Role:
    """A role as a child process; its log lines are kept."""

    def __init__(self, name: str, environment: dict[str, str], log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        environment = child_environment({}) | environment
        self.process: Forked | subprocess.Popen[bytes]
        if hasattr(os, "pidfd_open"):
            self.process = NURSERY.start(
                ["run", name, "--log-format", "console"], environment, log_path
            )
            return
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c"),
                    "import sys; from tests.broker.forked_roles import run_patched; sys.exit(run_patched())",
                    *("run", name, "--log-format", "console"),
                ],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_for_log(self, text: str, seconds: float = WAIT_SECONDS) -> None:
        def has_logged() -> bool:
            if self.process.poll() is not None and text not in self.log:
                raise AssertionError(
                    f"{self.name} ended with {self.process.returncode} before it logged "
                    f"{text!r}:\n{self.log}"
                )
            return text in self.log

        wait_until(has_logged, f"{self.name} logs {text!r}", seconds)

    def address(self) -> str:
        """Return the URL of the role's probes; raise AssertionError if the role ends first."""
        event = "serving probes and metrics"
        self.wait_for_log(event)
        ports = re.findall(event + r".*?port=\D*(\d+)", re.sub(r"\x1b\[\d*m", "", self.log))
        assert ports, self.log
        return f"http://127.0.0.1:{ports[-1]}"

    def get(self, path: str) -> str:
        """Return the body of the answer to `GET path`; raise OSError if there is none, or it is an
        error."""
        with urllib.request.urlopen(f"{self.address()}{path}", timeout=10) as answer:  # noqa: S310 - our own address
            return str(answer.read().decode())

    def get_json(self, path: str) -> Any:
        """Return the JSON that it answers to `GET path`; {} while it does not answer."""
        try:
            return json.loads(self.get(path))
        except OSError:
            return {}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def stop(self, seconds: float = 40) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(
                signal.SIGUSR1
            )  # a role of the nursery writes down where each thread is
            time.sleep(1.0)
            self.kill()
            raise AssertionError(
                f"{self.name} did not stop within {seconds} s of SIGTERM:\n{self.log[-6000:]}"
            ) from None

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} did not end within {seconds} s:\n{self.log[-3000:]}"
            ) from None


_FINGERPRINTERS: dict[str, Fingerprinter] = {}


def fingerprinter(recipe: Recipe) -> Fingerprinter:
    """Return the shared fingerprinter of a recipe: its dictionary takes seconds to load."""
    return _FINGERPRINTERS.setdefault(
        recipe.id, _FINGERPRINTERS.get(recipe.id) or Fingerprinter(recipe)
    )


def run_in_process(
    name: str, settings: Settings, stop: threading.Event, **dependencies: Any
) -> StreamDedupError | None:
    """Run a role in this process; return what ended it, if not `stop`.

    `dependencies` replace those of a worker process.
    """
    thresholds = gc.get_threshold()
    try:
        if name == "worker":
            worker_role.run(
                settings,
                stop,
                WorkerDependencies.of_process(
                    **{"make_fingerprinter": fingerprinter} | dependencies
                ),
            )
        else:
            indexer.run(settings, stop)
    except StreamDedupError as error:
        return error
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    return None


class Filter:
    """One filter with separate topics on a shared broker."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        *,
        partitions: int = 4,
        prefix: str | None = None,
        replicas: int = 1,
        constants: Mapping[str, float] | None = None,
        **settings: Any,
    ) -> None:
        self.replicas = replicas
        self.bootstrap = bootstrap
        self.folder = folder
        self.partitions = partitions
        prefix = f"t{uuid.uuid4().hex[:10]}" if prefix is None else prefix
        group = prefix or "stream-dedup"
        self.environment = {
            "STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
            "STREAM_DEDUP_TOPIC_PREFIX": prefix,
            "STREAM_DEDUP_GROUP": group,
            "STREAM_DEDUP_STATE_DIR": str(folder / "state"),
            "STREAM_DEDUP_HTTP_PORT": "0",
            # A killed worker's partitions move after the session's end: short, so that tests need
            # not wait for 45 s.
            "STREAM_DEDUP_KAFKA_SESSION_TIMEOUT_MS": "3000",
            "STREAM_DEDUP_KAFKA_HEARTBEAT_INTERVAL_MS": "300",
            CONSTANTS_VARIABLE: json.dumps(constants or {}),
        }
        self.environment |= {
            f"STREAM_DEDUP_{name.upper()}": str(value) for name, value in settings.items()
        }
        self.settings = Settings(
            kafka_bootstrap_servers=bootstrap, topic_prefix=prefix, group=group
        )
        self.names = topics.TopicNames(prefix)
        self.roles: list[Role] = []
        self.sent = 0  # to `documents`
        self.admin = Admin(self.settings)
        self._asker: Consumer | None = None
        self._reader: Consumer | None = None
        self._producers: dict[str, Producer] = {}

    def create_topics(
        self, names: topics.TopicNames | None = None, *, documents_bytes_max: int | None = None
    ) -> None:
        """Create the topics from the files in `topics/`, as `topics apply` does."""
        declared = topics.fit_to_brokers(
            topics.with_partitions(topics.read_topics(names or self.names), self.partitions),
            self.replicas,
        )
        existing = self.admin.describe([topic.name for topic in declared])
        topics.apply(topics.plan(declared, existing), self.admin)
        # Kafka's retention, which runs half a minute after its start and every five minutes, would
        # delete the tests' old timestamps.
        self.admin.set_config(self.names.documents, {"retention.ms": "-1"})
        if documents_bytes_max is not None:
            self.admin.set_config(
                self.names.documents, {"max.message.bytes": str(documents_bytes_max)}
            )
            for name in self.names.outputs:
                self.admin.set_config(
                    name, {"max.message.bytes": str(documents_bytes_max + 100_000)}
                )

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin._client.delete_topics([name])[name].result()
        wait_until(lambda: not self.admin.topic_ids([name]), f"{name} is gone")

    def start(self, name: str, **environment: str) -> Role:
        """Start a role; the memory of a filter is that of its workers."""
        shared = dict(self.environment)
        if name != "worker":
            shared.pop("STREAM_DEDUP_MEMORY", None)
        role = Role(name, shared | environment, self.folder / f"{name}-{len(self.roles)}.log")
        self.roles.append(role)
        return role

    def start_both(self) -> tuple[Role, Role]:
        """Start an index and a worker."""
        return self.start("index"), self.start("worker")

    def command(
        self, *words: object, code: int | None = 0, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with the filter's settings; it ends with `code`, unless that is None."""
        line = [sys.executable, "-m", "stream_dedup", *map(str, words)]
        variables = child_environment({}) | self.environment | environment
        done = subprocess.run(
            line,
            env=variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert code in (None, done.returncode), done.stdout + done.stderr
        return done

    def stop(self) -> None:
        """Stop whatever still runs, and show the logs of a test that fails."""
        for client in (self._asker, self._reader):
            if client is not None:
                client.close()
        self._asker = self._reader = None
        self._producers.clear()
        for role in self.roles:
            if role.process.poll() is None:
                role.kill()
            print(
                f"--- {role.log_path.name} (ended with "
                f"{role.process.returncode})\n{role.log[-3000:]}"
            )

    def produce(
        self,
        documents: Iterable[tuple[int, bytes | None, bytes | None, Headers]],
        timestamp_ms: int | None = None,
        topic: str = "",
        **properties: Any,
    ) -> int:
        """Write (partition, key, value, headers) to `documents` or another topic; return how
        many."""
        failures: list[KafkaError] = []
        producer = self._producer_with(properties)
        count = 0
        for partition, key, value, headers in documents:
            if has_latin1(headers):
                write_latin1(
                    producer,
                    topic or self.names.documents,
                    partition,
                    key,
                    value,
                    timestamp_ms or 0,
                    headers,
                )
                count += 1
                continue
            while True:
                try:
                    producer.produce(
                        topic or self.names.documents,
                        value,
                        key,
                        partition,
                        on_delivery=lambda error, _: failures.append(error) if error else None,
                        timestamp=timestamp_ms or 0,
                        headers=headers,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            count += 1
        assert producer.flush(60) == 0
        assert failures == []
        self.sent += count if topic in ("", self.names.documents) else 0
        return count

    def _producer_with(self, properties: dict[str, Any]) -> Producer:
        """Return one producer for all calls with the same properties: a new one takes half a second
        to connect."""
        key = repr(sorted(properties.items()))
        if key not in self._producers:
            self._producers[key] = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "enable.idempotence": True,
                    "linger.ms": 5,
                    "message.max.bytes": 1_000_000_000,
                    "queue.buffering.max.kbytes": 1_000_000,
                }
                | properties
            )
        return self._producers[key]

    def _uncommitted(self) -> Consumer:
        if self._asker is None:
            self._asker = Consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": self.settings.group,
                    "isolation.level": "read_uncommitted",
                },
                logger=_QUIET,
            )
        return self._asker

    def committed_by_partition(self) -> dict[int, int]:
        """Return the group's committed offsets; nothing for a moment while the coordinator is away.

        A consumer asks, because AdminClient's request can crash librdkafka when the coordinator
        moves (librdkafka #5040), and brokers are killed here.
        """
        asker = self._uncommitted()
        try:
            topic = asker.list_topics(self.names.documents, timeout=5).topics[self.names.documents]
            offsets = asker.committed(
                [TopicPartition(topic.topic, part) for part in topic.partitions], timeout=5
            )
        except KafkaException:
            return {}
        return {
            committed.partition: committed.offset
            for committed in offsets
            if committed.error is None and committed.offset >= 0
        }

    def committed(self) -> int:
        """Return the sum of the group's committed offsets over all partitions."""
        return sum(self.committed_by_partition().values())

    def stable_committed(self) -> dict[tuple[str, int], tuple[int, str | None]]:
        """Return the group's committed offsets and metadata, once no transaction is open."""
        found: dict[tuple[str, int], tuple[int, str | None]] = {}

        def is_stable() -> bool:
            try:
                found.update(self.admin.stable_committed(self.settings.group))
            except BrokerError:
                return False
            return True

        wait_until(is_stable, "no transaction is open")
        return found

    def wait_until_committed(self, documents: int, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the group has committed past that many records."""

        def done() -> bool:
            for role in self.roles:
                if role.process.poll() not in (None, 0, -signal.SIGKILL):
                    raise AssertionError(
                        f"{role.name} ended with {role.process.returncode}:\n{role.log[-3000:]}"
                    )
            return self.committed() >= documents

        wait_until(done, f"{documents} records are committed", seconds)

    def outcome(self) -> Outcome:
        """Wait until all sent records are committed; return the checked outcome."""
        self.wait_until_committed(self.sent)
        found = Outcome(self)
        found.check()
        return found

    def read(self, topic: str) -> list[Message]:
        """Return everything in a topic, in a read_committed view."""
        consumer = self._reader = self._reader or Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "checker",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.queue.backoff.ms": 10,
                "fetch.wait.max.ms": 10,  # delays the report of a partition's end
                # The checker reads what the filter cannot: damaged batches, and any that expands
                # beyond all measure.
                "check.crcs": False,
                "receive.message.max.bytes": 2_000_000_000,
            },
            logger=_QUIET,
        )
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        open_partitions = set(partitions)
        # A commit is acknowledged before its markers are in the outputs; until then the committed
        # view ends in front of it.
        asker = self._uncommitted()
        asker.list_topics(topic, timeout=20)  # else it does not know new partitions
        ends = {
            part: asker.get_watermark_offsets(TopicPartition(topic, part), timeout=20)[1]
            for part in partitions
        }
        consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in partitions])
        found = []
        until = time.monotonic() + WAIT_SECONDS
        while open_partitions:
            assert time.monotonic() < until, (
                f"{topic} could not be read to its end: a transaction is left open"
            )
            for raw in consumer.consume(5000, 0.05):
                error = raw.error()
                if error is None:
                    found.append(to_message(raw))
                elif error.code() == KafkaError._PARTITION_EOF:
                    if raw.offset() >= ends[raw.partition()]:
                        open_partitions.discard(raw.partition())
                elif error.code() not in _TRANSIENT_ERRORS:
                    raise AssertionError(str(error))
        consumer.unassign()
        return found


MakeFilter = Callable[..., Filter]


@contextlib.contextmanager
def run_broker_and_filter(
    folder: Path, *, heap_mb: int = 384, documents_bytes_max: int | None = None, **settings: Any
) -> Iterator[tuple[LocalBroker, Filter]]:
    """Run a broker that may be killed and a filter with topics; both end with the block."""
    with LocalBroker(folder / "kafka", heap_mb=heap_mb) as broker:
        crawl = Filter(broker.bootstrap, folder, **settings)
        crawl.create_topics(documents_bytes_max=documents_bytes_max)
        try:
            yield broker, crawl
        finally:
            crawl.stop()


# A plain scan compares every document with every representative, which is fast enough for this
# many. Other tests check that the index gives the same answers.
PLAIN_MAX = 2_000


class Outcome:
    """The records of a filter's source, outputs and log; `check` asserts the invariants."""

    def __init__(self, crawl: Filter) -> None:
        names = self.names = crawl.names
        self.source = crawl.read(names.documents)
        self.unique = crawl.read(names.unique)
        self.duplicates = crawl.read(names.duplicates)
        self.dead = crawl.read(names.dead_letters)
        self.log = crawl.read(names.fingerprints)
        self.committed = crawl.committed_by_partition()
        self.topic_id = crawl.admin.topic_ids([names.documents])[names.documents][0]
        is_small = len(self.source) <= PLAIN_MAX
        self.outline = LogOutline(Fold(PlainScan() if is_small else None))
        for message in self.log:
            try:
                record = records.decode(message.value)
            except FormatError:
                record = None  # not a record of this product
            self.outline.add_record(message.offset, message.timestamp_ms or 0, record)
        if not is_small:
            raws = [(entry.offset, entry.timestamp_ms or 0, entry.value) for entry in self.log]
            index = LogIndex(MemoryStore())
            for first in range(0, len(raws), 20):
                answers = apply_group(index, raws[first : first + 20])
                self.outline.judgements |= judgements_of(answers)

    def reasons(self) -> Counter[str]:
        """Count the outputs by reason; dead letters by `dead:` and their stage."""
        counts = Counter(
            header(message, "dedup.reason") for message in (*self.unique, *self.duplicates)
        )
        counts.update("dead:" + header(message, "dedup.error.stage") for message in self.dead)
        return counts

    def check(self) -> None:
        """Assert every invariant that a reader relies on, from Kafka's contents alone."""
        self._check_once_and_in_order()
        self._check_verdicts()
        self._check_by_audit()
        ends = self.committed
        for part, offset in Counter(message.partition for message in self.source).items():
            assert ends[part] == offset, (
                f"partition {part} is committed up to {ends[part]} of {offset}"
            )

    def _check_by_audit(self) -> None:
        """Check that the audit, which matches outputs in another way, finds nothing."""
        ends = {message.partition: message.offset + 1 for message in self.source}
        spans = {
            part: Span(0, ends.get(part, 0), end)
            for part, end in {**ends, **self.committed}.items()
        }
        findings = Findings(5)
        names = (self.names.unique, self.names.duplicates, self.names.dead_letters)
        ledger = AuditLedger(self.outline, self.names.documents, self.topic_id, spans, {}, findings)
        outputs = AuditedOutputs(
            self.outline,
            ledger,
            names,
            (self.names.documents, self.topic_id),
            self.committed,
            dict.fromkeys(spans, 0),
            findings,
            1 << 60,
        )
        unreadable = {
            (
                int(header(message, "__dlq.errors.partition")),
                int(header(message, "__dlq.errors.offset")),
            )
            for message in self.dead
            if header(message, "dedup.error.class") == "Unreadable"
        }
        for message in self.source:
            # The audit's reader verifies checksums, so it reads such a record as unreadable; this
            # one does not.
            is_lost = (message.partition, message.offset) in unreadable
            seen = (
                Unreadable(message.topic, message.partition, message.offset, None, None, None, [])
                if is_lost
                else message
            )
            ledger.add_source(message, content_digests.digest_source(seen))
        for message in (*self.unique, *self.duplicates, *self.dead):
            outputs.add_message(message)
        ledger.close()
        outputs.close()
        assert [finding.sentence for finding in findings.shown] == []

    def _check_once_and_in_order(self) -> None:
        """Check that each record left once, unchanged, and in the order of its partition."""
        by_partition: dict[int, list[Message]] = defaultdict(list)
        for message in self.source:
            by_partition[message.partition].append(message)
        expected = {
            part: [fingerprint_of(message) for message in sorted(messages, key=lambda m: m.offset)]
            for part, messages in by_partition.items()
        }
        source_at = {(message.partition, message.offset): message for message in self.source}
        total = len(self.unique) + len(self.duplicates) + len(self.dead)
        counts = Counter(
            header(message, "dedup.position")
            for message in (*self.unique, *self.duplicates, *self.dead)
        )
        repeated = [
            f"{message.position} {dict(message.headers)}"
            for message in (*self.unique, *self.duplicates, *self.dead)
            if counts[header(message, "dedup.position")] > 1
        ]
        assert len(self.source) == total, (
            f"{len(self.source)} went in and {total} came out; more than once: {repeated!r:.4000}"
        )
        for part, sources in expected.items():
            unique, duplicates, dead = (
                sorted(
                    (message for message in topic if message.partition == part),
                    key=lambda message: message.offset,
                )
                for topic in (self.unique, self.duplicates, self.dead)
            )
            dead = [
                _restore_source(message, source_at) for message in dead
            ]  # in the order of the dead letters, not of their sources
            delivered = Counter(
                fingerprint_of(message) for topic in (unique, duplicates, dead) for message in topic
            )
            lost, added = list(Counter(sources) - delivered), list(delivered - Counter(sources))
            assert (lost, added) == ([], []), (
                f"partition {part}: lost {lost!r:.600}, came from nowhere {added!r:.600}"
            )
            for topic in (unique, duplicates, dead):
                rest = iter(sources)
                assert all(fingerprint_of(message) in rest for message in topic), (
                    f"partition {part}: the order was not kept"
                )

    def _check_verdicts(self) -> None:
        """Check that verdicts equal the log's fold and representatives are in `unique`."""
        unique_at = {
            self._log_source(message) for message in self.unique if header(message, "dedup.log")
        }
        for message in (*self.unique, *self.duplicates):
            log = header(message, "dedup.log")
            if not log:
                assert header(message, "dedup.reason") in ("empty", "tombstone", "bypass")
                continue
            offset, place = map(int, log.split("/"))
            reason = header(message, "dedup.reason")
            if reason == "released":
                assert offset in self.outline.releases, f"log {log} is no release"
                continue
            if reason == "fail-open":
                continue  # it left before its verdict, which may be any
            expected = self.outline.judgements[offset][place]
            assert expected.reason.label == reason, (
                f"log {log}: expected {expected.reason.label}, found {reason}"
            )
            if expected.of is not None:
                topic, topic_id, partition, source_offset = expected.of.position
                if ((topic, topic_id, partition), source_offset) in self.outline.seeded_positions:
                    continue
                assert topic_id == self.topic_id
                position = f"{topic}-{partition}@{source_offset}"
                if expected.reason.verdict is Verdict.UNIQUE:  # its sibling, unless it is reread
                    assert header(message, "dedup.sibling.position") in (position, "")
                    continue
                found = (header(message, "dedup.of.position"), header(message, "dedup.distance"))
                named = (position, str(expected.distance))
                assert found == named, (
                    f"log {log}, {reason}: the fold of the log names {named}, and the header "
                    f"{found}"
                )
                assert (partition, source_offset) in unique_at, (
                    f"log {log} names a document that is not in unique"
                )

    def _log_source(self, message: Message) -> tuple[int, int]:
        offset, place = map(int, header(message, "dedup.log").split("/"))
        position = self.outline.batches[offset].position(place)
        return position.partition, position.offset


def _restore_source(dead: Message, source_at: dict[tuple[int, int], Message]) -> Message:
    """Return the source of a truncated or unreadable dead letter; other letters as they are."""
    is_unreadable = header(dead, "dedup.error.class") == "Unreadable"
    sizes = [
        header(dead, f"dedup.error.{name}")
        for name in ("key.truncated", "truncated", "headers.dropped")
    ]
    if not any(sizes) and not is_unreadable:
        return dead
    source = source_at[
        int(header(dead, "__dlq.errors.partition")), int(header(dead, "__dlq.errors.offset"))
    ]
    if is_unreadable:
        assert (dead.key, dead.value) == (None, None)
        return source
    for was, left, size in zip(
        (source.key, source.value), (dead.key, dead.value), sizes, strict=False
    ):
        assert (
            left == was
            if not size
            else (len(was or b""), (was or b"").startswith(left or b"")) == (int(size), True)
        )
    rest = iter(source.headers)
    kept = fingerprint_of(dead)[3]
    assert all(kept_header in rest for kept_header in kept), (
        "the remaining headers are some of the source's, in their order"
    )
    assert len(source.headers) - len(kept) == int(sizes[2] or "0")
    return source


def header(message: Message, name: str) -> str:
    """Return the last header of that name, or nothing."""
    for found, value in reversed(message.headers):
        if found == name:
            return (value or b"").decode()
    return ""


def fingerprint_of(message: Message) -> tuple[Any, ...]:
    """Return what input and output must have in common: key, value, timestamp, foreign headers."""
    foreign = tuple(
        (name, value)
        for name, value in message.headers
        if not name.startswith(("dedup.", "__dlq.errors."))
    )
    # A dead letter has its timestamp in a header: its topic sets new ones, because its retention is
    # short.
    is_dead = any(name == "dedup.error.timestamp" for name, _ in message.headers)
    timestamp = (
        header(message, "dedup.error.timestamp") if is_dead else str(message.timestamp_ms or "")
    )
    return message.key, message.value, timestamp, foreign


_WORDS = [
    f"{a}{b}{c}"
    for a in ("ka", "lo", "mi", "ten", "sur")
    for b in ("ra", "ve", "dol", "nim", "po", "qua")
    for c in ("s", "n", "tor", "la", "ri", "den", "mos")
]


def large_documents(
    count: int, size: int, seed: int, *, partitions: int
) -> Iterator[tuple[int, bytes, bytes, Headers]]:
    """Yield documents of `size` bytes that compress to half of it; none is a copy of another."""
    generator = random.Random(seed)
    letters = b"abcdefghijklmnopqrstuvwxyz"
    words = [bytes(generator.choices(letters, k=generator.randint(2, 9))) for _ in range(20_000)]
    pool = b" ".join(generator.choices(words, k=max(50_000, size // 3)))
    for number in range(count):
        start = generator.randrange(len(pool) - size + 1)
        value = b"%d %d " % (seed, number) + pool[start : start + size]
        yield number % partitions, b"https://large-%d.example/%d" % (seed, number), value[:size], []


def threads_of(role: Role) -> Counter[str]:
    """Return the number of a role's threads by name; none once it has ended."""
    names: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{role.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread ended meanwhile
                names[(task / "comm").read_text().strip()] += 1
    return names


def peak_bytes(role: Role) -> int:
    """Return a role's peak memory; 0 once it has ended."""
    try:
        status = Path(f"/proc/{role.process.pid}/status").read_text()
    except OSError:
        return 0
    return next(
        (int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")), 0
    )


def synthetic(
    count: int, seed: int, *, partitions: int, duplicate_share: float = 0.3
) -> list[tuple[int, bytes, bytes, Headers]]:
    """Return documents of some 60 random words; a share of them are near copies of earlier ones, on
    any partition."""
    generator = random.Random(seed)
    texts: list[list[str]] = []
    documents: list[tuple[int, bytes, bytes, Headers]] = []
    for number in range(count):
        if texts and generator.random() < duplicate_share:
            words = list(generator.choice(texts[-5000:]))
            for _ in range(generator.randint(0, 2)):
                words[generator.randrange(len(words))] = generator.choice(_WORDS)
        else:
            words = generator.choices(_WORDS, k=60)
            texts.append(words)
        url = f"https://site-{number % 17}.example/{number}".encode()
        documents.append(
            (
                generator.randrange(partitions),
                url,
                " ".join(words).encode(),
                [("n", b"%d" % number)],
            )
        )
    return documents
