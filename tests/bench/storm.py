"""How much a storm of questions at the search slows the path down that it stands beside.

    python -m tests.bench.storm [--documents 60000] [--rounds 3] [--broker HOST:PORT]

Three variants a round, each with index, worker and documents of its own: nothing beside them; a search that fills its engine;
the same search with a storm against it. What is shown is documents/s as a ratio to the first of the same round, the median of
the rounds, and how the storm was answered. All run on one machine, the storm too: it takes from the path what it takes.

The storm: a hundred readers that send a clue byte by byte or take their answer so, and eight that ask as fast as they are
answered: clues of 10 MB, of one letter, of operators and wildcards, of nothing, of 250 words, of frequent words; groups; wrong
methods.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.children import MeasuredChild
from bench.path import Bench, _own, kafka_of
from bench.path_report import PathOptions
from stream_dedup.settings.environment import child_environment
from stream_dedup.settings.settings import Settings

PLAN = "bands"
SLOW = 100
ASKERS = 8
WORDS = "the of and to in a is that it was for on are with as his they be at one have this from".split()  # noqa: SIM905
QUESTIONS: tuple[tuple[str, str, bytes], ...] = (
    ("POST", "/v1/find", b"word " * 2_000_000),
    ("POST", "/v1/find", b"a"),
    ("POST", "/v1/find", b'title:* AND (fox OR "brown~2") NOT /.*/ ^3 [a TO z] \\'),
    ("POST", "/v1/find?least=0.01&limit=100", " ".join(WORDS).encode()),
    ("POST", "/v1/find?limit=100", " ".join(f"{word} {number}" for number in range(125) for word in WORDS[:1]).encode()),
    ("POST", "/v1/find", b"*?"),
    ("POST", "/v1/find", b"\xff\xfe"),
    ("GET", "/v1/groups?order=largest&limit=1000", b""),
    ("DELETE", "/v1/find?q=fox", b""),
)
ALLOWED = frozenset({200, 400, 405, 413, 503})


class Storm:
    """Asks one server; `counts` are the answers by status, `wrong` what no answer may be."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.counts: Counter[int] = Counter()
        self.wrong: list[str] = []

    async def run(self, stopping: asyncio.Event) -> None:
        """Ask until told to stop."""
        tasks = [asyncio.create_task(self._slow(number)) for number in range(SLOW)]
        tasks += [asyncio.create_task(self._ask(number)) for number in range(ASKERS)]
        await stopping.wait()
        for one in tasks:
            one.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, BaseException) and not isinstance(found, asyncio.CancelledError):
                self.wrong.append(repr(found))

    async def _ask(self, number: int) -> None:
        turn = number
        while True:
            method, path, body = QUESTIONS[turn % len(QUESTIONS)]
            turn += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # cut off in the middle of 10 MB
                self._judge(path, *await self.ask(method, path, body))

    async def ask(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        """Ask once; return status, type and body of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            sending = asyncio.create_task(writer.drain())
            try:
                return await _answer(reader)
            finally:
                sending.cancel()
        finally:
            writer.close()

    async def _slow(self, number: int) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    if number % 2:
                        writer.write(b"POST /v1/find HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n")
                        for _ in range(200):
                            writer.write(b"w ")
                            await asyncio.sleep(0.1)
                    else:
                        writer.write(b"GET /v1/groups?limit=1000 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                        while await reader.read(1):
                            await asyncio.sleep(0.1)
                finally:
                    writer.close()

    def _judge(self, path: str, status: int, kind: str, body: bytes) -> None:
        self.counts[status] += 1
        if status not in ALLOWED or b"Traceback" in body:
            self.wrong.append(f"{path}: {status} {body[:300]!r}")
        elif status != 200:
            told = json.loads(body)
            if kind != "application/problem+json" or not told.get("detail") or told.get("status") != status:
                self.wrong.append(f"{path}: {status} without a sentence: {body[:300]!r}")


async def _answer(reader: asyncio.StreamReader) -> tuple[int, str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lines = head.split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:]) if value}
    body = await reader.readexactly(int(fields.get("content-length", 0)))
    return int(lines[0].split(" ")[1]), fields.get("content-type", ""), body


def storm_at(port: int, said: Connection) -> None:
    """Storm a server until something comes over the connection; then say how it answered.

    It says that it has begun once a question was answered and one was refused as too large.
    """

    async def run() -> Storm:
        storm, stopping = Storm(port), asyncio.Event()
        storming = asyncio.create_task(storm.run(stopping))
        while not {200, 413} <= storm.counts.keys():
            await asyncio.sleep(0.01)
        said.send("begun")
        asyncio.get_running_loop().add_reader(said.fileno(), stopping.set)
        await storming
        return storm

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # of sockets that were closed on us
    storm = asyncio.run(run())
    said.send((dict(storm.counts), storm.wrong))


class StormBench(Bench):
    """The bench of the path, with a search beside it and a storm against that."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.with_search = self.with_storm = False
        self.counts: Counter[int] = Counter()
        self.wrong: list[str] = []

    @contextlib.contextmanager
    def _running(
        self, variant: str, settings: Settings, folder: Path, more: Mapping[str, str] | None = None
    ) -> Iterator[list[MeasuredChild]]:
        with contextlib.ExitStack() as stack:
            beside: list[MeasuredChild] = []
            if self.with_search:
                command = [sys.executable, "-m", "stream_dedup", "run", "search", "--stop-with-parent"]
                search = MeasuredChild("search", command, child_environment(_own(variant, settings, folder)), folder)
                stack.callback(search.stop)
                beside.append(search)
                if self.with_storm:  # it blows before the first document comes
                    stack.enter_context(self._storm(search))
            children = stack.enter_context(super()._running(variant, settings, folder, more))
            yield [*children, *beside]

    @contextlib.contextmanager
    def _storm(self, search: MeasuredChild) -> Iterator[None]:
        waited = asyncio.run(_port_of(search))
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=storm_at, args=(waited, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            ours.recv()  # it has begun
            yield
        finally:
            ours.send("stop")
            counts, wrong = ours.recv()
            self.counts += Counter(counts)
            self.wrong += wrong
            process.join()


async def _port_of(search: MeasuredChild) -> int:
    while True:
        for line in search.log_lines():
            with contextlib.suppress(ValueError):
                said: Any = json.loads(line)
                if isinstance(said.get("port"), int):
                    return int(said["port"])
        search.check()
        await asyncio.sleep(0.05)


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--broker")
    given = parser.parse_args()
    options = PathOptions(documents=given.documents, rounds=given.rounds, broker=given.broker, rates=())
    rates: dict[str, list[float]] = {"alone": [], "a search beside it": [], "and a storm against that": []}
    cpu: dict[str, list[str]] = {name: [] for name in rates}
    with kafka_of(options, print) as (folder, broker):
        bench = StormBench(options, broker, folder, print)
        bench.warm_up()
        for number in range(given.rounds):
            names = list(rates) if number % 2 == 0 else list(rates)[::-1]
            for name in names:
                bench.with_search, bench.with_storm = name != "alone", name.endswith("that")
                sample = bench.throughput(PLAN, number + 1)
                rates[name].append(sample.documents / sample.seconds)
                cpu[name].append(", ".join(f"{role} {seconds:.1f}" for role, seconds in sample.cpu_seconds.items()))
                print(
                    f"round {number + 1}, {name}: {rates[name][-1]:,.0f} documents/s; seconds of CPU: {cpu[name][-1]}",
                    flush=True,
                )
    for name, own in rates.items():
        ratio = statistics.median(one / alone for one, alone in zip(own, rates["alone"], strict=True))
        print(f"{name}: {statistics.median(own):,.0f} documents/s, {ratio:.2f} of it alone")
    print("answers of the storm by status:", dict(sorted(bench.counts.items())))
    for one in bench.wrong[:20]:
        print("wrong:", one)
    return 1 if bench.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
