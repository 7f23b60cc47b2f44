"""Random faults for as long as asked, then healing, then every invariant: `make torture MINUTES=10`.

Faults rotate every few seconds: a worker or an index is killed, stopped and continued, or told to end; an index comes
back with an empty volume; the broker is killed and restarted; a second worker comes and goes. The seed is printed; the
order of faults is a function of it, the moments at which they strike are not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from stream_dedup.broker import LocalBroker
from tests.broker.harness import Filter, Outcome, Role, synthetic, wait_until

STEP_DOCUMENTS = 2000


class Nemesis:
    """One filter, two workers and two index replicas at most, and the faults that befall them."""

    def __init__(self, broker: LocalBroker, crawl: Filter, seed: int) -> None:
        self.broker = broker
        self.crawl = crawl
        self.dice = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.volumes = 2
        self.index = [self._start_index(0), self._start_index(1)]
        self.workers = [crawl.start("worker"), crawl.start("worker")]

    def strike(self) -> str:
        """Let one fault happen, and undo what must be undone."""
        fault = self.dice.choice(
            ["kill worker", "kill worker", "kill index", "kill index", "kill both", "stop worker", "stop index",
             "end worker", "end index", "new volume", "kill broker", "nothing"]
        )  # fmt: skip
        self.faults[fault] += 1
        at = self.dice.randrange(2)
        if fault in ("kill worker", "kill both"):
            self.workers[at].kill()
        if fault in ("kill index", "kill both", "new volume"):
            self.index[at].kill()
        if fault == "new volume":
            self.volumes += 1
            self._volume(at).rename(self.crawl.folder / f"old-{self.volumes}")
        if fault == "end worker":
            self.workers[at].stop()
        if fault == "end index":
            self.index[at].stop()
        if fault in ("stop worker", "stop index"):
            # Longer than the session: the group moves on without it, and it comes back as a zombie.
            process = (self.workers if fault == "stop worker" else self.index)[at].process
            process.send_signal(signal.SIGSTOP)
            time.sleep(8)
            process.send_signal(signal.SIGCONT)
        if fault == "kill broker":
            self.broker.kill()
            self.broker.start()
        self.mend()
        return fault

    def mend(self) -> None:
        """Start again what ended; a role may have ended by itself too, when the broker was away."""
        for at in range(2):
            if self.workers[at].process.poll() is not None:
                self.workers[at] = self.crawl.start("worker")
            if self.index[at].process.poll() is not None:
                self.index[at] = self._start_index(at)

    def _volume(self, at: int) -> Path:
        return self.crawl.folder / f"volume-{at}"

    def _start_index(self, at: int) -> Role:
        return self.crawl.start("index", STREAM_DEDUP_INDEX_DIR=str(self._volume(at)))


def main() -> int:
    """Run the torture; return 0 when every invariant held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--documents-max", type=int, default=120_000, help="the plain-scan oracle is quadratic")
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.minutes} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder, LocalBroker(Path(folder) / "kafka") as broker:
        crawl = Filter(broker.bootstrap, Path(folder), partitions=4, batch_documents=500)
        crawl.create_topics()
        try:
            return _run(broker, crawl, asked)
        except BaseException:
            crawl.stop()
            raise


def _run(broker: LocalBroker, crawl: Filter, asked: argparse.Namespace) -> int:
    documents = synthetic(asked.documents_max, asked.seed, partitions=4)
    nemesis = Nemesis(broker, crawl, asked.seed)
    pace = asked.documents_max / max(1.0, asked.minutes * 60)
    began = time.monotonic()
    sent = 0
    while (passed := time.monotonic() - began) < asked.minutes * 60:
        due = min(len(documents), int(passed * pace) + STEP_DOCUMENTS)
        if due > sent:
            sent += crawl.produce(documents[sent:due])
        fault = nemesis.strike()
        print(f"{passed:7.1f} s  {sent:8d} sent  {crawl.committed():8d} committed  {fault}", flush=True)
        time.sleep(nemesis.dice.uniform(0.5, 4.0))
    sent += crawl.produce(documents[sent:])

    def healed() -> bool:
        nemesis.mend()
        return crawl.committed() >= sent

    wait_until(healed, f"all {sent} records are committed after healing", 300)
    ended = [role.process.returncode for role in crawl.roles]
    for role in crawl.roles:
        role.stop()
    Outcome(crawl).check()
    kills = sum(code == -signal.SIGKILL for code in ended)
    print(f"{sent} documents, {kills} roles killed, faults {dict(nemesis.faults)}: nothing lost, nothing twice, nothing wrong")
    return 0


if __name__ == "__main__":
    os.chdir(Path(__file__).parent.parent.parent)
    sys.exit(main())
