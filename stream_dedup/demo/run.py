"""Run the demo: the whole filter, as users run it, on a real Apache Kafka, with a crawl whose true
copies are known.

The steps: 1 start a broker, 2 create the topics, 3 start the roles as processes, 4 send the crawl,
5 read the outputs as any consumer would, 6 print the balance and the score, 7 explain three
duplicates.

Invariants: results are read only from the topics; the true copies come from the file of the crawl,
and were measured on the texts alone. The exit code is 1 for a missing or repeated record, a false
duplicate, or a recall below `RECALL_MIN`; it is also 1 if the broker or a role ends unexpectedly,
which is reported at once.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stream_dedup.demo import explain
from stream_dedup.demo.crawl import CrawledPage, read_crawl
from stream_dedup.demo.score import Pair, TrueJudgement, score_verdicts
from stream_dedup.domain import topics
from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import ConfigurationError, StreamDedupError
from stream_dedup.domain.extras import missing_packages
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.terminal import console
from stream_dedup.kafka import LINGER_MS, Admin, LoadProducer, follow_topics
from stream_dedup.log.headers import parse_log_place, text_of
from stream_dedup.serving import http_client, logs
from stream_dedup.serving.ports import PORT_OFFSETS, address_of, free_ports
from stream_dedup.serving.process import how_ended, stop_on_signals
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.properties import child_environment, environment_name
from stream_dedup.settings.settings import Settings

if TYPE_CHECKING:
    from stream_dedup.broker import LocalBroker

PARTITIONS = 3
RECALL_MIN = 0.95
_NUMBER_HEADER = "demo-page"
_ROLES_LOG = "roles.log"
_PAGES_PER_SECOND = 150
_WAIT_SECONDS = 600.0  # the first run compiles kernels; a process that ends is reported earlier
_CHECK_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
_METRICS_BYTES_MAX = 1 << 20
_SEARCH_WORDS = 16
_COMMAND_SETTINGS = ("kafka_bootstrap_servers", "topic_prefix", "group", "value_format", "id_field")
_SEARCH_CHARACTERS = 200


@dataclass(slots=True)
class DemoOutputs:
    """The output records of each topic. `latencies_ms`: the time from the timestamp of each page until
    the demo read its verdict; `first_seconds`, `last_seconds`: when the first and last verdict was
    read, by the monotonic clock.
    """

    unique: list[Message] = field(default_factory=list)
    duplicates: list[Message] = field(default_factory=list)
    dead: list[Message] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    first_seconds: float = 0.0
    last_seconds: float = 0.0

    @property
    def total(self) -> int:
        """Number of output records."""
        return len(self.unique) + len(self.duplicates) + len(self.dead)


class DemoProcesses:
    """The processes of the demo: `run all`, which writes to `log`, and the broker if the demo started
    one.
    """

    def __init__(
        self, roles: subprocess.Popen[bytes], log: Path, broker: LocalBroker | None = None
    ) -> None:
        self._roles = roles
        self._log = log
        self._broker = broker

    def check(self) -> None:
        """Check that all processes run.

        Raises:
            StreamDedupError: the broker or the roles ended unexpectedly; the message contains the
            end of their log.
        """
        if self._broker is not None:
            self._broker.check_alive()
        code = self._roles.poll()
        if code is not None:
            raise StreamDedupError(
                f"The roles ended unexpectedly ({how_ended(code)}), so the demo stops. "
                f"{self.log_end()}"
            )

    def log_end(self) -> str:
        """Return the end of the roles' log, with a heading."""
        return f"The end of their log:\n{self._log.read_text(errors='replace')[-3000:]}"

    def wait_until(self, stop: threading.Event) -> None:
        """Wait until `stop` is set.

        Raises:
            StreamDedupError: as for `check`.
        """
        while not stop.wait(_CHECK_SECONDS):
            self.check()


def run_demo(broker: str | None, *, serve: bool = False) -> int:
    """Run the demo on the Kafka at `broker`, or on one that it starts; return the exit code.

    With `serve`, keep everything running until Ctrl-C, with the console.

    Raises:
        ConfigurationError: `serve` is set, but the extra `search` is not installed.
        StreamDedupError: the broker or a role did not start, or the crawl was not processed in time.
    """
    if serve and (problem := missing_packages("search")):
        raise ConfigurationError(problem)
    out = console()
    logs.configure("error", "console")  # clients log warnings while a broker starts
    pages, pairs = read_crawl()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-dedup-demo-")))
        out.print(
            f"1  Apache Kafka: {'at ' + broker if broker else 'started here, stopped at the end'}"
        )
        local_broker = None if broker else stack.enter_context(_local_broker(folder, out))
        bootstrap = str(broker) if local_broker is None else local_broker.bootstrap
        settings = _make_settings(
            bootstrap, folder, free_ports(1 + max(PORT_OFFSETS.values()))[0] if serve else 0
        )
        names = settings.topic_names
        _create_topics(settings)
        out.print(
            f"2  topics {names.documents} -> {names.unique}, {names.duplicates}, "
            f"{names.dead_letters}"
        )
        options = ["--search" if serve else "--no-search"]
        processes = DemoProcesses(
            stack.enter_context(_run_roles(settings, folder, options)),
            folder / _ROLES_LOG,
            local_broker,
        )
        languages = ", ".join(sorted({page.language for page in pages}))
        roles = "index, worker and search" if serve else "index and worker"
        out.print(f"3  {roles} started; {len(pages)} pages in {languages}")
        seen = _run_crawl(settings, pages, processes, out)
        documents_read = filter(
            None, follow_topics(settings, [names.documents], from_beginning=True)
        )
        outcome = _Outcome(pages, pairs, seen, list(islice(documents_read, len(pages))))
        outcome.show(out, settings.judging_plan)
        out.print(_NOTE)
        out.print("Next: " + "\n      ".join(_NEXT[serve:]))
        for failure in outcome.failures:
            sys.stderr.write(failure + "\n")
        if serve:
            _wait_for_search(settings, len(seen.unique) + len(seen.duplicates), processes)
            _keep_running(settings, _search_text(outcome), processes, out)
    return 1 if outcome.failures else 0


@contextlib.contextmanager
def _local_broker(folder: Path, out: Console) -> Iterator[LocalBroker]:
    from stream_dedup.broker import LocalBroker  # noqa: PLC0415 - an optional extra, not needed with another Kafka

    with LocalBroker(folder / "kafka", log=lambda line: out.print(f"   {line}")) as broker:
        yield broker


def _wait_for_search(settings: Settings, records: int, processes: DemoProcesses) -> None:
    """Wait until the search has read all output records.

    Raises:
        StreamDedupError: the search has not read them in time.
    """
    address = address_of(settings, "search")
    deadline = time.monotonic() + _WAIT_SECONDS
    indexed = -1.0
    while indexed < records:
        processes.check()
        if time.monotonic() > deadline:
            raise StreamDedupError(
                f"The search at {address} did not read all outputs within {_WAIT_SECONDS:.0f} "
                "s, although all roles "
                f"run. {processes.log_end()}"
            )
        time.sleep(_CHECK_SECONDS)
        with contextlib.suppress(*http_client.NO_ANSWER):
            _, body = http_client.ask(address, "/metrics", _ANSWER_SECONDS, _METRICS_BYTES_MAX)
            families = {
                family.name: family for family in text_string_to_metric_families(body.decode())
            }
            indexed = families["stream_dedup_search_records"].samples[0].value


def _search_text(outcome: _Outcome) -> str:
    """Return some words of a page that has a duplicate, of an English one if possible."""
    duplicates = [outcome.pages[_number(message)] for message in outcome.seen.duplicates]
    choices = (
        [page for page in duplicates if not page.is_on_large_site] or duplicates or outcome.pages
    )
    words = next((page for page in choices if page.language == "en"), choices[0]).text.split()
    middle = len(words) // 2
    return re.sub(r"[^\w -]", "", " ".join(words[middle : middle + _SEARCH_WORDS]))[
        :_SEARCH_CHARACTERS
    ]


def _keep_running(
    settings: Settings, search_text: str, processes: DemoProcesses, out: Console
) -> None:
    """Print the console's address, and wait for Ctrl-C, SIGTERM or the unexpected end of a
    process.
    """
    address = address_of(settings, "search")
    with stop_on_signals() as stop:
        out.print(f"\nEverything keeps running until Ctrl-C. The console: {address}/")
        out.print(
            f"Paste a sentence of any page into {address}/find, or search in a terminal:",
            soft_wrap=True,
        )
        out.print(
            f'   stream-dedup find "{search_text}" --search {address}', soft_wrap=True, markup=False
        )
        out.print("The commands that the console shows need these settings:")
        exported = (
            f"{environment_name(name)}={getattr(settings, name)}" for name in _COMMAND_SETTINGS
        )
        out.print(
            f"   export {' '.join(exported)}",
            soft_wrap=True,
            markup=False,
        )
        out.file.flush()
        processes.wait_until(stop)


def _make_settings(bootstrap: str, folder: Path, port: int) -> Settings:
    # A random prefix separates the topics of the demo from others in the cluster.
    prefix = f"demo-{uuid.uuid4().hex[:6]}."
    overrides = {
        "kafka_bootstrap_servers": bootstrap,
        "topic_prefix": prefix,
        "group": f"{prefix}stream-dedup",
        "value_format": "json",
        "id_field": "url",
        "state_dir": str(folder / "state"),
        "http_port": port,
        "console_index": f"http://127.0.0.1:{port + PORT_OFFSETS['index']}" if port else None,
        "log_level": "info",
    }
    return load_settings(overrides, environ={})


def _create_topics(settings: Settings) -> None:
    admin = Admin(settings)
    declared = topics.with_partitions(topics.read_topics(settings.topic_names), PARTITIONS)
    topics.apply(topics.plan(topics.fit_to_brokers(declared, admin.broker_count()), {}), admin)


@contextlib.contextmanager
def _run_roles(
    settings: Settings, folder: Path, options: Sequence[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `stream-dedup run all` as a child process."""
    names = (*_COMMAND_SETTINGS, "state_dir", "http_port")
    environment = child_environment({name: getattr(settings, name) for name in names})
    with (folder / _ROLES_LOG).open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "stream_dedup",
                "run",
                "all",
                "--log-format",
                "console",
                *options,
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _send_page(producer: LoadProducer, topic: str, page: CrawledPage, number: int) -> None:
    """Send a page with its number in the crawl, and the current time as timestamp."""
    now_ms = int(time.time() * 1000)
    headers: list[tuple[str, bytes | None]] = [(_NUMBER_HEADER, b"%d" % number)]
    producer.send(topic, page.key, page.value, timestamp_ms=now_ms, headers=headers)


def _run_crawl(
    settings: Settings, pages: Sequence[CrawledPage], processes: DemoProcesses, out: Console
) -> DemoOutputs:
    """Send the crawl at `_PAGES_PER_SECOND`, and read the outputs meanwhile.

    Raises:
        StreamDedupError: the crawl was not processed in time, or a process ended.
    """
    names = settings.topic_names
    producer = LoadProducer(settings, linger_ms=LINGER_MS)
    outputs = DemoOutputs()
    messages_by_topic = {
        names.unique: outputs.unique,
        names.duplicates: outputs.duplicates,
        names.dead_letters: outputs.dead,
    }
    columns = (
        TextColumn("   {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tally]}"),
    )
    began = 0.0
    sent = 0
    with Progress(*columns, TimeElapsedColumn(), console=out, transient=True) as progress:
        task = progress.add_task("first verdict ...", total=len(pages), tally="")
        deadline, next_check = time.monotonic() + _WAIT_SECONDS, 0.0
        for message in follow_topics(settings, names.outputs, from_beginning=True):
            now = time.monotonic()
            if message is not None:
                messages_by_topic[message.topic].append(message)
                outputs.last_seconds = now
                if not began:
                    began = outputs.first_seconds = now
                    progress.update(task, description="pages filtered")
                elif message.timestamp_ms is not None and message.topic != names.dead_letters:
                    outputs.latencies_ms.append(time.time() * 1000 - message.timestamp_ms)
                tally = f"{len(outputs.unique)} unique, {len(outputs.duplicates)} duplicates, {len(outputs.dead)} dead letters"
                progress.update(task, completed=outputs.total, tally=tally)
            # The first page is sent alone, because the roles are still starting; its delay does not
            # count as latency.
            due = int((now - began) * _PAGES_PER_SECOND) + 1 if began else 1
            while sent < min(due, len(pages)):
                _send_page(producer, names.documents, pages[sent], sent)
                sent += 1
            if outputs.total >= len(pages):
                break
            if now > next_check:
                next_check = now + _CHECK_SECONDS
                processes.check()
            if now > deadline:
                raise StreamDedupError(
                    f"Only {outputs.total} of {len(pages)} pages were delivered within {_WAIT_SECONDS:.0f} "
                    "s, although all roles run. "
                    f"{processes.log_end()}"
                )
    if producer.flush():
        raise StreamDedupError(f"The crawl could not be written: {producer.first_failure}")
    return outputs


_NOTE: Final = """
Of two copies the filter keeps the first in the log. Across partitions this order varies, so another run may keep the other
one.
"""
# The first line is omitted with --serve.
_NEXT: Final = (
    "stream-dedup demo --serve    this demo with the console in a browser",
    "stream-dedup check FILE      your own documents, without Kafka",
    (
        'stream-dedup broker          a local Kafka for your own topic (see "Your own topic" '
        "in README)"
    ),
)


class _Outcome:
    """The outputs, compared with the crawl and its true copies."""

    def __init__(
        self,
        pages: Sequence[CrawledPage],
        pairs: Sequence[Pair],
        seen: DemoOutputs,
        source: Sequence[Message],
    ) -> None:
        self.pages = pages
        self.seen = seen
        self.number_at = {message.position: _number(message) for message in source}
        self.reasons = Counter(
            text_of(message.headers, "dedup.reason") for message in (*seen.unique, *seen.duplicates)
        )
        judged = sorted((*seen.unique, *seen.duplicates), key=_log_position)
        self.score = score_verdicts(pages, dict(map(self._judgement, judged)), pairs)
        self.jaccards = {
            numbers: pair.jaccard
            for pair in pairs
            for numbers in ((pair.earlier, pair.later), (pair.later, pair.earlier))
        }
        self.failures = list(self._find_failures())

    def _judgement(self, message: Message) -> tuple[int, TrueJudgement]:
        kept = self.number_at.get(text_of(message.headers, "dedup.of.position"))
        return _number(message), TrueJudgement(
            text_of(message.headers, "dedup.verdict") == "duplicate", kept
        )

    def _find_failures(self) -> Iterator[str]:
        numbers = Counter(
            _number(message)
            for message in (*self.seen.unique, *self.seen.duplicates, *self.seen.dead)
        )
        lost = [number for number in range(len(self.pages)) if not numbers[number]]
        twice = [number for number, count in numbers.items() if count > 1]
        if lost or twice:
            yield (
                f"{len(lost)} pages were lost, and {len(twice)} were delivered twice; please "
                "report this bug."
            )
        if self.score.misnamed:
            yield f"{len(self.score.misnamed)} duplicates name a page that was not kept; please report this bug."
        total = self.score.total
        if total.false_drops:
            yield f"{total.false_drops} pages were judged duplicates, but are not copies."
        if total.recall < RECALL_MIN:
            yield f"Recall is {total.recall:.3f}, but must be at least {RECALL_MIN}."

    @property
    def throughput(self) -> float:
        """Pages per second, from the first verdict to the last."""
        return (self.seen.total - 1) / max(1e-9, self.seen.last_seconds - self.seen.first_seconds)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the time from a record's timestamp until a consumer read its
        verdict.
        """
        return float(np.percentile(self.seen.latencies_ms or [0.0], percent))

    def show(self, out: Console, plan: Plan) -> None:
        """Print the tables, three duplicates, and a page that was kept only because of its title."""
        seen, total = self.seen, self.score.total
        out.print()
        explain.show_balance(
            out,
            len(self.pages),
            len(seen.unique),
            len(seen.duplicates),
            len(seen.dead),
            self.reasons,
        )
        out.print()
        out.print(
            f"{self.throughput:.0f} pages/s (sent at {_PAGES_PER_SECOND}/s); from record to "
            "committed verdict: "
            f"p50 {self.percentile_ms(50):.0f} ms, p99 {self.percentile_ms(99):.0f} ms"
        )
        out.print(
            f"measured by exact Jaccard: recall {total.recall:.3f} ({total.found} of "
            f"{total.positives} true duplicates; "
            f"{total.near_recall:.3f} without exact copies), false drops {total.false_drops} of "
            f"{total.negatives} other pages, "
            f"{total.grey} grey"
        )
        out.print(
            "grey: similarity 0.5 to 0.8 to an earlier page (to 0.97 on one site with different "
            "titles); counted neither as a copy nor as a different page"
        )
        out.print()
        explain.show_languages(out, self.score.by_language)
        chosen = explain.choose_duplicates(
            self.pages, seen.duplicates, self.number_at, self.jaccards
        )
        for message, page, original in chosen:
            out.print()
            explain.show_duplicate(
                out,
                message,
                self.pages[page],
                self.pages[original],
                self.jaccards[page, original],
                plan,
            )
        for message, page, sibling in explain.find_siblings(seen.unique, self.number_at)[:1]:
            out.print()
            explain.show_kept_sibling(out, message, self.pages[page], self.pages[sibling], plan)


def _number(message: Message) -> int:
    return int(text_of(message.headers, _NUMBER_HEADER))


def _log_position(message: Message) -> tuple[int, int]:
    """Return the log position of the decision. Pages that are not in the log come first, because
    they are similar to no page.
    """
    return parse_log_place(text_of(message.headers, "dedup.log")) or (-1, 0)
