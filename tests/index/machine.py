"""The index beside a plain scan, for every kind of plan: insert, query, retract, forget, expire,
reopen, kill.

    python -m tests.index.machine --steps 10000              ten thousand steps for each kind of plan
    python -m tests.index.machine --steps 10000 --plan 64:4:0:3

The index runs on RocksDB in a child process that is closed and opened, or killed with SIGKILL: at
rest, while it opens, before a write, or after one. Its answers must equal those of a list that is
searched from its beginning; and at the end of each run, the whole log read again must give the same
answers byte for byte.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as set_seed
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stream_dedup.domain.document import Reason
from stream_dedup.domain.plan import Plan, parse
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.memory import MemoryStore
from tests.index.child import Child
from tests.index.logs import (
    APPEND_MS,
    FLOOR,
    Doc,
    batch,
    declare,
    random_sketch,
    read_judgements,
    retract,
)
from tests.index.oracle import BYTES, Text, near, siblings

KINDS = (
    "128:8:1:21:75%",
    "128:8:0:17:75%~0:0%:1000",  # blocks
    "64:4:0:3",  # classic
    "64:0:0:6",  # no blocks: a plain scan
    "128:0:0:18",
    "64:64:0:9",  # blocks of one bit
    "64:64:0:9~0:0%:5",  # half of all share each
    "64:3:0:3",  # blocks of 21 and 22 bits, longer than an address
    "32:4:1:7",
    "32:5/2:2:9",
    "64:5/2:0:3",  # Manku et al.: 10 tables
    "64:6/3:0:3",  # 20 tables
    "128:7/2:1:15",
    "64:4:2:11",
    "64:3:3:12",
    "128:8:1:24@5,21@40,17",
    "64:4:1:9:60%",
    "128:5/2:0:6@8,9@40,4:90%",
    "128:4:0:36~20:62,70,85,97%:64",  # bands
    "128:4:0:60~16:40,50,60,80%:6",
    "128:4:0:28~16:65%:3",
    "128:4:0:60~16:40%:6",
    "128:8:1:28~0:65%:0",  # blocks of the print find, both judge
    "64:0:0:20~8:0%:2",
    "32:5/2:0:9:60%~5:30%:2",
    "128:8:0:30~0:0%:4",
)
# What `make test` runs of them: `classic` and `bands`.
QUICK_KINDS = ("64:4:0:3", "128:4:0:36~20:62,70,85,97%:64")
FEATURES = (0, FLOOR - 1, FLOOR, 4, 5, 20, 39, 40, 41, 66, 100, 100)
SCOPES = (0, 0, 0, 1 << 32, 2**64 - 1)


@dataclass
class Entry:
    """A representative in the list."""

    doc: Doc
    last: (
        bytes  # the digest of the text that its id had last, as long as it is the latest of that id
    )


def text_of(doc: Doc) -> Text:
    """Return what is compared of a document, its id as a number without collisions."""
    return doc.print, doc.features, doc.sketch, (doc.site, doc.title, int.from_bytes(doc.id))


class AgainstAPlainScan(RuleBasedStateMachine):
    """One index under one plan, and a list."""

    plan: Plan
    steps: ClassVar[Counter[str]] = Counter()

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = tempfile.TemporaryDirectory()
        self.fields = self.plan.to_fields()
        self.limbs = self.plan.limbs if self.chance.random() < 0.5 else 2
        self.values = BYTES if self.plan.needs_sketch or self.chance.random() < 0.3 else 0
        self.log: list[tuple[int, int, bytes]] = []
        self.answers: list[tuple[int, bytes]] = []
        self.entries: list[Entry] = []
        self.decisions: dict[int, tuple[Doc, tuple[Reason, int, int | None]]] = {}
        self.now_ms = APPEND_MS
        self.bases = [self.chance.getrandbits(64 * self.limbs) for _ in range(3)]
        self.child = Child(Path(self.folder.name) / "volume")
        self.child.opened()
        self.append(declare(self.plan))

    # The index

    def append(self, record: bytes, dies: str | None = None) -> list[tuple[int, bytes]]:
        """Apply one record, again in a new process if the index dies while it does so; return
        the answers."""
        offset = len(self.log)
        self.log.append((offset, self.now_ms, record))
        try:
            answers = self.child.ask("apply", self.log[-1:], dies)
            assert dies is None
        except EOFError:
            assert dies is not None, "the index died by itself"
            self.restart(self.child.kill)
            self.child.opened()
            assert self.child.ask("applied") == offset + (dies == "after")
            answers = (
                self.child.ask("apply", self.log[-1:])
                if dies == "before"
                else self.child.ask("answers_since", offset)
            )
        self.answers += answers
        return answers

    def restart(self, end: Callable[[], None]) -> None:
        end()
        self.child = Child(Path(self.folder.name) / "volume")

    # The list

    def near(self, doc: Doc, of: Callable[..., Iterator[int]] = near, **fields: int) -> list[Doc]:
        peers = [
            entry.doc
            for entry in self.entries
            if entry.doc.scope == doc.scope and entry.doc.features >= FLOOR
        ]
        plan = self.fields | fields
        return [peers[place] for place in of(plan, text_of(doc), map(text_of, peers))]

    def find(self, doc: Doc) -> tuple[Reason, int, int | None]:
        """Return (reason, distance, offset of the representative), and hold the document if it is
        unique."""
        peers = [entry.doc for entry in self.entries if entry.doc.scope == doc.scope]
        for peer in peers:
            if peer.digest == doc.digest:
                again = Reason.RETURNED if self.had_another(doc) else Reason.UNCHANGED
                return again if doc.id and doc.id == peer.id else Reason.EXACT, 0, peer.offset
        for peer in self.near(doc) if doc.features >= FLOOR else []:
            self.had_another(doc)
            return (
                Reason.REVISED if doc.id and doc.id == peer.id else Reason.NEAR,
                self.plan.distance(peer.print, doc.print),
                peer.offset,
            )
        sibling = next(iter(self.near(doc, siblings)), None) if doc.features >= FLOOR else None
        self.entries.append(Entry(doc, doc.digest))
        reason = Reason.NEW if doc.features >= FLOOR else Reason.TOO_SHORT
        return reason, 0, None if sibling is None else sibling.offset

    def had_another(self, doc: Doc) -> bool:
        """Return whether the id of a duplicate had another text last; now it has this one."""
        same = [
            entry
            for entry in self.entries
            if doc.id and (entry.doc.id, entry.doc.scope) == (doc.id, doc.scope)
        ]
        if not same or same[-1].last == doc.digest:
            return False
        same[-1].last = doc.digest
        return True

    def document(self, offset: int) -> Doc:
        """A document some bits from one of a few prints: spread at random, or so that every block
        is about to miss."""
        chance, plan = self.chance, self.plan
        number = chance.choice(self.bases)
        if chance.random() < 0.5:
            for bit in chance.sample(
                range(plan.width), chance.randint(0, min(plan.width, plan.threshold_max + 2))
            ):
                number ^= 1 << bit
        else:
            for first, end in plan.bounds:
                for bit in chance.sample(
                    range(first, end),
                    min(end - first, chance.choice([0, plan.radius, plan.radius + 1])),
                ):
                    number ^= 1 << bit
        if chance.random() < 0.1:
            self.bases[chance.randrange(3)] = (
                number  # what is near wanders, so that there are chains
            )
        return Doc(
            partition=0,
            offset=offset,
            value=chance.getrandbits(64),
            digest=chance.choice([chance.randbytes(16), bytes([chance.randrange(20)] * 16)]),
            print=number,
            features=chance.choice(FEATURES),
            scope=chance.choice(SCOPES),
            site=chance.choice([0, 5, 5, 5, 6]),
            title=chance.choice([0, 8, 8, 9]),
            id=chance.choice([b"", b"a", b"b", b"c"]),
            sketch=random_sketch(chance) if self.values else b"",
        )

    # The rules

    @rule(count=st.integers(1, 20), dies=st.sampled_from([None] * 8 + ["before", "after"]))
    def insert(self, count: int, dies: str | None) -> None:
        self.steps["killed in a write" if dies else "insert"] += 1
        docs = [self.document(len(self.decisions) + place) for place in range(count)]
        ((_, raw),) = self.append(batch(docs, limbs=self.limbs), dies)
        expected = [self.find(doc) for doc in docs]
        self.decisions.update(
            (doc.offset, (doc, verdict)) for doc, verdict in zip(docs, expected, strict=True)
        )

        assert expected == verdicts(raw)

    @precondition(lambda self: self.decisions)
    @rule()
    def deliver_again(self) -> None:
        self.steps["deliver again"] += 1
        doc, verdict = self.decisions[self.chance.choice(sorted(self.decisions))]
        ((_, raw),) = self.append(batch([doc], limbs=self.limbs))

        assert [verdict] == verdicts(raw)

    @rule()
    def query(self) -> None:
        self.steps["query"] += 1
        doc = self.document(0)
        limbs = [doc.print >> (64 * limb) & (2**64 - 1) for limb in range(self.limbs)]
        without_sites = dict.fromkeys(("unsure", "same_site", "other_title"), 0)
        found = self.near(doc, **without_sites) if doc.features >= FLOOR else []
        expected = [
            (self.plan.distance(neighbour.print, doc.print), neighbour.offset)
            for neighbour in found
        ]

        assert sorted(expected) == sorted(
            self.child.ask("neighbours", limbs, doc.scope, doc.features, doc.sketch)
        )

    @precondition(lambda self: self.entries)
    @rule()
    def take_out(self) -> None:
        self.steps["retract"] += 1
        entry = self.chance.choice(self.entries)
        self.append(retract(entry.doc))
        self.entries.remove(entry)
        self.decisions = {
            offset: decision
            for offset, decision in self.decisions.items()
            if offset != entry.doc.offset
            and (decision[1][0] is Reason.NEW or decision[1][2] != entry.doc.offset)
        }

    @rule(how=st.sampled_from(["closed", "killed at rest", "killed while opening"]))
    def reopen(self, how: str) -> None:
        self.steps[how] += 1
        self.restart(self.child.close if how == "closed" else self.child.kill)
        if how == "killed while opening":
            self.child.kill(after=self.chance.random() * 0.02)
            self.child = Child(Path(self.folder.name) / "volume")
        self.child.opened()

    def teardown(self) -> None:
        if not hasattr(self, "child"):
            return
        try:
            found = self.child.ask("statistics")
            self.child.close()
        except BaseException:
            self.child.kill()
            raise
        finally:
            self.folder.cleanup()
        live = found["representatives_full"] + found["representatives_digest_only"]
        assert (live, found["applied"]) == (len(self.entries), len(self.log))
        assert self.answers == LogIndex(MemoryStore()).apply(self.log)


def verdicts(raw: bytes) -> list[tuple[Reason, int, int | None]]:
    """Return (reason, distance, offset of the representative) of each judgement in an answer."""
    return [
        (
            judgement.reason,
            judgement.distance,
            None if judgement.of is None else judgement.of.position.offset,
        )
        for judgement in read_judgements(raw)
    ]


def run(plan: Plan, steps: int, seed: int) -> Counter[str]:
    """Take at least `steps` steps under a plan, one insert among them; return the number of steps
    of each rule."""
    done: Counter[str] = Counter()
    while done.total() < steps or not done["insert"]:
        done += _run(plan, max(2, min(20, steps // 60)), 60, seed)
        seed += 1
    return done


def _run(plan: Plan, examples: int, steps: int, seed: int) -> Counter[str]:
    machine = type(f"Under {plan.id}", (AgainstAPlainScan,), {"plan": plan, "steps": Counter()})
    set_seed(seed)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
    done: Counter[str] = machine.steps
    return done


def main() -> int:
    """Run the machine until each kind of plan has taken its steps."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.index.machine", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--steps", type=int, default=10_000, help="for each kind of plan")
    parser.add_argument(
        "--plan", type=parse, action="append", help="only this plan; may be given several times"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=int(os.environ.get("TEST_SEED", random.SystemRandom().randrange(2**32))),
    )
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    for plan in given.plan or map(parse, KINDS):
        began = time.monotonic()
        done = run(plan, given.steps, given.seed)
        parts = ", ".join(f"{count} {name}" for name, count in sorted(done.items()))
        print(
            f"{plan.id}: {done.total()} steps in {time.monotonic() - began:.0f} s, no difference "
            f"({parts})",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
