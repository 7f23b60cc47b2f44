"""The demo: the whole filter, as users run it, on a real Apache Kafka and a crawl whose truth is
known.

The steps: 1 a broker, 2 the topics, 3 both roles as processes of their own, 4 the crawl goes in, 5
the outputs are read as any consumer would, 6 the balance and the score, 7 three duplicates
explained.

Invariants: nothing here looks into the filter; what is shown is read from the topics. The truth is
computed from the texts alone. A record that is missing or doubled, a duplicate that should have been kept, or a recall below what is
promised makes the exit code 1; so does a broker or a role that ends by itself, which is said at
once.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stream_dedup.demo import explain, truth
from stream_dedup.demo.crawl import CrawledPage
from stream_dedup.demo.large_site import demo_crawl, is_of_site
from stream_dedup.domain import topics
from stream_dedup.domain.document import Message
from stream_dedup.domain.errors import ConfigurationError, StreamDedupError
from stream_dedup.domain.extras import lacking
from stream_dedup.domain.hosts import site_of
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.terminal import console, print_json
from stream_dedup.kafka import LINGER_MS, Admin, LoadProducer, reader
from stream_dedup.log.headers import place_of, text_of
from stream_dedup.serving import asking, logs
from stream_dedup.serving.health import Health
from stream_dedup.serving.http import HttpServer
from stream_dedup.serving.ports import AFTER, address_of, free_ports
from stream_dedup.serving.process import how_ended, stop_on_signals
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.properties import child_environment
from stream_dedup.settings.settings import Settings

if TYPE_CHECKING:
    from stream_dedup.broker import LocalBroker

PAGES = 600
PARTITIONS = 3
RECALL_PROMISED = 0.95
_NUMBER = "demo-page"
_ROLES_LOG = "roles.log"
_PAGES_PER_SECOND = 150
_WAIT_SECONDS = 600.0  # a first run compiles kernels; what ends by itself is told at once
_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
_METRICS_BYTES_MAX = 1 << 20
_CLUE_WORDS = 16
_CLUE_CHARACTERS = 200


@dataclass(slots=True)
class Seen:
    """What came out: the records of each topic, and when each page was first seen there, in ms
    after its timestamp.
    """

    unique: list[Message] = field(default_factory=list)
    duplicates: list[Message] = field(default_factory=list)
    dead: list[Message] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    first_seconds: float = 0.0
    last_seconds: float = 0.0

    @property
    def total(self) -> int:
        """How many records came out."""
        return len(self.unique) + len(self.duplicates) + len(self.dead)


class Beside:
    """What the demo runs beside itself: `run all` as a process, whose lines are in `said`, and a
    broker if it is its own.
    """

    def __init__(
        self, roles: subprocess.Popen[bytes], said: Path, broker: LocalBroker | None = None
    ) -> None:
        self._roles = roles
        self._said = said
        self._broker = broker

    def check(self) -> None:
        """Do nothing while all of it runs.

        Raises:
            StreamDedupError: the broker or the roles ended by themselves; with what they said last.
        """
        if self._broker is not None:
            self._broker.check_alive()
        code = self._roles.poll()
        if code is not None:
            raise StreamDedupError(
                f"The roles ended by themselves ({how_ended(code)}), so the demo ends. "
                f"{self.last_words()}"
            )

    def last_words(self) -> str:
        """Return what the roles said last, as a sentence."""
        return f"They said last:\n{self._said.read_text(errors='replace')[-3000:]}"

    def until(self, stop: threading.Event) -> None:
        """Wait until `stop` is set, or raise as `check`."""
        while not stop.wait(_LOOK_SECONDS):
            self.check()


def run_demo(
    documents: int | None, seed: int, broker: str | None, *, as_json: bool, serve: bool = False
) -> int:
    """Run the demo on `documents` pages of seed `seed`, on the Kafka at `broker` or one of its own;
    return the exit code.

    `serve`: then leave everything up until Ctrl-C, with the console; a search answers in it where
    its extra is installed.

    Raises:
        ConfigurationError: the console is to be served, and not even its own packages are
        installed. StreamDedupError: the broker or a role did not come up, or the crawl did not come
        through in time.
    """
    if serve and (lack := lacking("console")):
        raise ConfigurationError(lack)
    has_search = serve and not lacking("search")
    # With --json the progress goes to standard error, so that standard output is one JSON value.
    out = Console(stderr=True, highlight=False) if as_json else console()
    logs.configure("error", "console")  # a broker that is still coming up makes the clients talk
    pages = demo_crawl(seed, documents or PAGES)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-dedup-demo-")))
        out.print(
            "1  Apache Kafka: "
            f"{'the one at ' + broker if broker else 'one of our own, stopped at the end'}"
        )
        own = None if broker else stack.enter_context(_own_broker(folder, out))
        bootstrap = str(broker) if own is None else own.bootstrap
        settings = _settings(
            bootstrap, folder, free_ports(1 + max(AFTER.values()))[0] if serve else 0
        )
        names = settings.topic_names
        _make_topics(settings)
        out.print(
            f"2  topics {names.documents} -> {names.unique}, {names.duplicates}, "
            f"{names.dead_letters}"
        )
        options = ["--search" if has_search else "--no-search"]
        beside = Beside(
            stack.enter_context(_roles(settings, folder, options)), folder / _ROLES_LOG, own
        )
        languages = ", ".join(sorted({page.language for page in pages}))
        roles = "index, worker and search" if has_search else "index and worker"
        out.print(f"3  {roles} started; {len(pages)} pages in {languages}, seed {seed}")
        seen = _run_crawl(settings, pages, beside, out)
        came = filter(None, reader(settings, [names.documents], from_beginning=True))
        outcome = _Outcome(pages, seen, list(islice(came, len(pages))))
        if as_json:
            print_json(outcome.as_json(seed))
        else:
            outcome.show(out, settings.judging_plan)
            out.print(_ORDER)
            out.print("Next: " + "\n      ".join(_NEXT[serve:]))
        for complaint in outcome.complaints:
            sys.stderr.write(complaint + "\n")
        if has_search:
            _wait_for_search(settings, len(seen.unique) + len(seen.duplicates), beside)
            _leave_up(settings, _clue_of(outcome), beside, out)
        elif serve:
            _serve(settings, beside, out)
    return 1 if outcome.complaints else 0


@contextlib.contextmanager
def _own_broker(folder: Path, out: Console) -> Iterator[LocalBroker]:
    from stream_dedup.broker import LocalBroker  # noqa: PLC0415 - an extra, not needed on somebody's own Kafka

    with LocalBroker(folder / "kafka", log=lambda line: out.print(f"   {line}")) as broker:
        yield broker


def _wait_for_search(settings: Settings, records: int, beside: Beside) -> None:
    """Wait until the search has taken in all that came out."""
    address = address_of(settings, "search")
    until = time.monotonic() + _WAIT_SECONDS
    taken = -1.0
    while taken < records:
        beside.check()
        if time.monotonic() > until:
            raise StreamDedupError(
                f"The search at {address} did not take in what came out within {_WAIT_SECONDS:.0f} "
                "s, and the other roles are "
                f"up. {beside.last_words()}"
            )
        time.sleep(_LOOK_SECONDS)
        with contextlib.suppress(*asking.NO_ANSWER):
            _, body = asking.ask(address, "/metrics", _ANSWER_SECONDS, _METRICS_BYTES_MAX)
            families = {one.name: one for one in text_string_to_metric_families(body.decode())}
            taken = families["stream_dedup_search_records"].samples[0].value


def _clue_of(outcome: _Outcome) -> str:
    """Return some words of a page that came more than once, in English if there is one."""
    came = [outcome.pages[_number(one)] for one in outcome.seen.duplicates]
    again = [page for page in came if not is_of_site(page)] or came or outcome.pages
    words = next((page for page in again if page.language == "en"), again[0]).text.split()
    middle = len(words) // 2
    return re.sub(r"[^\w -]", "", " ".join(words[middle : middle + _CLUE_WORDS]))[:_CLUE_CHARACTERS]


def _leave_up(settings: Settings, clue: str, beside: Beside, out: Console) -> None:
    """Say where the console of the search is, and wait for Ctrl-C, or for SIGTERM, or until
    something ends by itself.
    """
    address = address_of(settings, "search")
    with stop_on_signals() as stop:
        out.print(f"\nEverything stays up. The console: {address}/   Ctrl-C ends it all.")
        out.print(
            f"Paste a sentence of any page into {address}/find, or ask in a terminal:",
            soft_wrap=True,
        )
        out.print(f'   stream-dedup find "{clue}" --search {address}', soft_wrap=True, markup=False)
        out.file.flush()
        beside.until(stop)


def _serve(settings: Settings, beside: Beside, out: Console) -> None:
    """Serve the console without a search until Ctrl-C, or until SIGTERM, or until something ends by
    itself.
    """
    from stream_dedup.console.mount import pages_of, sources_of  # noqa: PLC0415 - an extra

    with stop_on_signals() as stop:
        pages = pages_of(settings, sources_of(settings, stop))
        health = Health()
        health.startup(1.0, "The demo serves its console.")
        server = HttpServer("127.0.0.1", 0, health, CollectorRegistry(), pages.routes())
        server.start()
        try:
            out.print(
                f"\nEverything stays up. The console: http://127.0.0.1:{server.port}/   Ctrl-C "
                "ends it all."
            )
            out.print(
                f"Its page Find has nothing to ask. {lacking('search')}",
                soft_wrap=True,
                markup=False,
            )
            out.file.flush()
            beside.until(stop)
        finally:
            stop.set()  # for what reads the decisions
            server.stop()


def _settings(bootstrap: str, folder: Path, port: int) -> Settings:
    # On somebody's cluster the demo keeps to names that nobody else has.
    prefix = f"demo-{uuid.uuid4().hex[:6]}."
    overrides = {
        "kafka_bootstrap_servers": bootstrap,
        "topic_prefix": prefix,
        "group": f"{prefix}stream-dedup",
        "value_format": "json",
        "id_field": "url",
        "state_dir": str(folder / "state"),
        "http_port": port,
        "console_index": f"http://127.0.0.1:{port + AFTER['index']}" if port else None,
        "log_level": "info",
    }
    return load_settings(overrides, environ={})


def _make_topics(settings: Settings) -> None:
    admin = Admin(settings)
    declared = topics.with_partitions(topics.read_topics(settings.topic_names), PARTITIONS)
    topics.apply(topics.plan(topics.fit_to_brokers(declared, admin.broker_count()), {}), admin)


@contextlib.contextmanager
def _roles(
    settings: Settings, folder: Path, options: Sequence[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `stream-dedup run all` for as long as this lasts."""
    chosen = (
        "kafka_bootstrap_servers",
        "topic_prefix",
        "group",
        "value_format",
        "id_field",
        "state_dir",
        "http_port",
    )
    environment = child_environment({name: getattr(settings, name) for name in chosen})
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


def _run_crawl(
    settings: Settings, pages: Sequence[CrawledPage], beside: Beside, out: Console
) -> Seen:
    """Send the crawl at a crawler's pace and read what comes out meanwhile."""
    names = settings.topic_names
    producer = LoadProducer(settings, linger_ms=LINGER_MS)
    seen = Seen()
    waiting_for = {
        names.unique: seen.unique,
        names.duplicates: seen.duplicates,
        names.dead_letters: seen.dead,
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
        until, look = time.monotonic() + _WAIT_SECONDS, 0.0
        for message in reader(settings, names.outputs, from_beginning=True):
            now = time.monotonic()
            if message is not None:
                waiting_for[message.topic].append(message)
                seen.last_seconds = now
                if not began:
                    began = seen.first_seconds = now
                    progress.update(task, description="pages come in ")
                elif message.timestamp_ms is not None and message.topic != names.dead_letters:
                    seen.latencies_ms.append(time.time() * 1000 - message.timestamp_ms)
                tally = f"{len(seen.unique)} unique, {len(seen.duplicates)} duplicates, {len(seen.dead)} dead letters"
                progress.update(task, completed=seen.total, tally=tally)
            # The first page goes alone: the roles are still starting, and its wait is not the
            # filter's latency.
            due = int((now - began) * _PAGES_PER_SECOND) + 1 if began else 1
            while sent < min(due, len(pages)):
                page = pages[sent]
                headers: list[tuple[str, bytes | None]] = [(_NUMBER, b"%d" % sent)]
                producer.send(
                    names.documents,
                    page.key,
                    page.value,
                    timestamp_ms=int(time.time() * 1000),
                    headers=headers,
                )
                sent += 1
            if seen.total >= len(pages):
                break
            if now > look:
                look = now + _LOOK_SECONDS
                beside.check()
            if now > until:
                raise StreamDedupError(
                    f"Only {seen.total} of {len(pages)} pages came out within {_WAIT_SECONDS:.0f} "
                    "s, and all roles are up. "
                    f"{beside.last_words()}"
                )
    if producer.flush():
        raise StreamDedupError(f"The crawl could not be written: {producer.first_failure}")
    return seen


_ORDER: Final = """
Of two copies the one is kept that came onto the log first. Between partitions that is a matter of moments, so another run may
name a pair the other way round.
"""
# The first is for those who did not do it already.
_NEXT: Final = (
    "stream-dedup demo --serve    the same, to look into with a browser",
    "stream-dedup check FILE      your own documents, without Kafka",
    (
        'stream-dedup broker          a Kafka to play with, for a topic of your own (see "Your own '
        'topic" in README)'
    ),
)


class _Outcome:
    """What came out, beside what went in and what is true."""

    def __init__(
        self,
        pages: Sequence[CrawledPage],
        seen: Seen,
        source: Sequence[Message],
    ) -> None:
        self.pages = pages
        self.seen = seen
        self.number_at = {one.at: _number(one) for one in source}
        self.reasons = Counter(
            text_of(one.headers, "dedup.reason") for one in (*seen.unique, *seen.duplicates)
        )
        self.stages = Counter(text_of(one.headers, "dedup.error.stage") for one in seen.dead)
        judged = sorted((*seen.unique, *seen.duplicates), key=_decided)
        self.score = truth.judge(
            pages,
            dict(map(self._judgement, judged)),
            [_number(one) for one in judged],
            truth.pairs(pages, [(site_of(page.key), page.title) for page in pages]),
        )
        self.complaints = list(self._complaints())

    def _judgement(self, one: Message) -> tuple[int, truth.TrueJudgement]:
        of = self.number_at.get(text_of(one.headers, "dedup.of.position"))
        return _number(one), truth.TrueJudgement(
            text_of(one.headers, "dedup.verdict") == "duplicate", of
        )

    def _complaints(self) -> Iterator[str]:
        numbers = Counter(
            _number(one) for one in (*self.seen.unique, *self.seen.duplicates, *self.seen.dead)
        )
        lost = [number for number in range(len(self.pages)) if not numbers[number]]
        twice = [number for number, count in numbers.items() if count > 1]
        if lost or twice:
            yield f"{len(lost)} pages were lost and {len(twice)} came out twice; please report it."
        if self.score.misnamed:
            yield f"{len(self.score.misnamed)} duplicates name a page that was not kept; please report it."
        total = self.score.total
        if total.false_drops:
            yield f"{total.false_drops} pages were called duplicates and are not."
        if total.recall < RECALL_PROMISED:
            yield f"Recall is {total.recall:.3f}, and at least {RECALL_PROMISED} is promised."

    @property
    def throughput(self) -> float:
        """Pages per second, from the first verdict to the last."""
        return (self.seen.total - 1) / max(1e-9, self.seen.last_seconds - self.seen.first_seconds)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the time from a record's timestamp until a consumer had its
        verdict.
        """
        return float(np.percentile(self.seen.latencies_ms or [0.0], percent))

    def as_json(self, seed: int) -> Mapping[str, object]:
        """Return everything that `show` shows."""
        total = self.score.total
        return {
            "seed": seed,
            "in": len(self.pages),
            "unique": len(self.seen.unique),
            "duplicates": len(self.seen.duplicates),
            "dead_letters": len(self.seen.dead),
            "reasons": dict(self.reasons),
            "dead_letter_stages": dict(self.stages),
            "pages_per_second": round(self.throughput, 1),
            "latency_ms": {
                "p50": round(self.percentile_ms(50), 1),
                "p99": round(self.percentile_ms(99), 1),
            },
            "recall": round(total.recall, 4),
            "recall_without_exact": round(total.near_recall, 4),
            "true_duplicates": total.positives,
            "grey": total.grey,
            "false_drops": total.false_drops,
            "complaints": self.complaints,
        }

    def show(self, out: Console, plan: Plan) -> None:
        """Print the tables, three duplicates, and a page that only its title kept."""
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
            "grey: .5 to .8 like a page before it (to .97 with another title on its site), so neither "
            "called a copy nor counted as another page"
        )
        out.print()
        explain.show_languages(out, self.score.by_language)
        chosen = explain.choose(
            self.pages, seen.duplicates, self.number_at, ("edit", "re-crawl", "mirror")
        )
        for one, page, kept in chosen:
            out.print()
            explain.show_duplicate(out, one, self.pages[page], self.pages[kept], plan)
        for one, page, sibling in explain.siblings(seen.unique, self.number_at)[:1]:
            out.print()
            explain.show_kept(out, one, self.pages[page], self.pages[sibling], plan)


def _number(one: Message) -> int:
    return int(text_of(one.headers, _NUMBER))


def _decided(one: Message) -> tuple[int, int]:
    """Return where in the log the verdict fell; pages that never went there come first, they
    resemble nothing.
    """
    return place_of(text_of(one.headers, "dedup.log")) or (-1, 0)
