"""`python -m bench.readers`: measure the latency of documents while people use a console, compared
with the latency without them.

Invariants: a round measures both, alternating which is first; a reader opens a page every
`PAUSE_SECONDS`, among them a decision with its texts, and a page without status 200 ends the
measurement.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.children import MeasuredChild
from bench.path import Bench, kafka_of
from bench.path_report import PathOptions
from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.domain.terminal import note
from stream_dedup.settings.properties import child_environment
from stream_dedup.settings.settings import Settings

PER_SECOND = 12.0  # a million a day
SECONDS = 40.0
ROUNDS = 4
READERS = 10
PAUSE_SECONDS = 3.0
PAGES = (
    "/",
    "/decisions",
    "decision",
    "/groups",
    "/hosts",
    "/decisions?reason=near",
    "decision",
    "/dead-letters",
    "/index",
)


class People:
    """Simulated users of a console that runs beside the roles; `seconds`: the time that each page
    took.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.failure = ""
        self._stop = threading.Event()

    @contextlib.contextmanager
    def beside(
        self, settings: Settings, folder: Path, children: Sequence[MeasuredChild]
    ) -> Iterator[None]:
        """Read while this lasts."""
        variables = {
            name: str(getattr(settings, name))
            for name in ("kafka_bootstrap_servers", "topic_prefix", "group")
        }
        variables |= {"value_format": "json", "id_field": "url", "http_port": "0"}
        variables["console_index"] = f"http://127.0.0.1:{_port(children[0])}"
        role = [sys.executable, "-m", "stream_dedup", "run", "console", "--stop-with-parent"]
        console = MeasuredChild("console", role, child_environment(variables), folder)
        self._stop.clear()
        threads = [
            threading.Thread(target=self._read, args=(_port(console), number))
            for number in range(READERS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            console.stop()
        if self.failure:
            raise StreamDedupError(self.failure)

    def _read(self, port: int, number: int) -> None:
        self._stop.wait(PAUSE_SECONDS * number / READERS)
        for page in itertools.islice(itertools.cycle(PAGES), number, None):
            began = time.monotonic()
            status = _open(port, _decision(port) if page == "decision" else page)[0]
            self.seconds.append(time.monotonic() - began)
            if status != http.client.OK:
                self.failure = f"The page {page} answered {status}."
            if self._stop.wait(PAUSE_SECONDS):
                return


def _decision(port: int) -> str:
    found = json.loads(_open(port, "/decisions.json?reason=near")[1])["decisions"]
    return f"/decision?at={found[0]['at']}" if found else "/decisions"


def _open(port: int, address: str) -> tuple[int, bytes]:
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    ) as connection:
        connection.request("GET", address)
        answer = connection.getresponse()
        return answer.status, answer.read()


def _port(child: MeasuredChild) -> int:
    while True:
        child.check()
        with contextlib.suppress(StreamDedupError):
            return child.http_port()
        time.sleep(0.1)


def main() -> int:
    """Measure, and print a line for each way."""
    options = PathOptions(rates=(PER_SECOND,), partitions=1)
    people = People()
    found: dict[str, list[Sequence[float]]] = {"nobody": [], f"{READERS} readers": []}
    with kafka_of(options, note) as (folder, broker):
        bench = Bench(options, broker, folder, note)
        for number in range(ROUNDS):
            for name in list(found)[:: -1 if number % 2 else 1]:
                beside = () if name == "nobody" else (people.beside,)
                (latency,) = bench.latency("bands", SECONDS, *beside)
                found[name].append(np.percentile(latency.ages_ms, (50, 99)).tolist())
    for name, rounds in found.items():
        p50, p99 = np.median(rounds, axis=0)
        each = ", ".join(f"{latency[0]:.0f}/{latency[1]:.0f}" for latency in rounds)
        print(
            f"{name}: verdicts after {p50:.1f} ms (p50), {p99:.1f} ms (p99), medians of {ROUNDS} "
            f"rounds ({each})"
        )
    if people.seconds:
        p50, p99 = np.percentile(people.seconds, (50, 99)) * 1000
        print(f"{len(people.seconds):,} pages, each after {p50:.0f} ms (p50), {p99:.0f} ms (p99)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
