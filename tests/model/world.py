"""One schedule: both roles, operators and a crawler on a Kafka in memory, and everything that
happens to them.

A schedule is drawn from its seed before it runs: a list of `Happening`s, each at a turn. So it can
be made smaller by leaving some out (`__main__.shrink`), and what is left is what the violation
needs.

The roles are the product's own, with their loops (`worker.role`, `indexer`), their clients
(`stream_dedup.kafka`) and the commands `rewind` and `release`. Only what
talks to a broker is replaced (`kafka`), and the volume, clocks, threads and the fingerprinter
(`stand_ins`), for which a text spells its fingerprint.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import Mode
from stream_dedup.domain.errors import BrokerError, ConfigurationError, FirstStartError, InputError
from stream_dedup.domain.plan import parse as parse_plan
from stream_dedup.domain.topics import TopicNames
from stream_dedup.index.storage import layout
from stream_dedup.indexer import role as indexer
from stream_dedup.log import records
from stream_dedup.log.begun_partitions import encode_reading
from stream_dedup.orders.run_release import release
from stream_dedup.orders.run_rewind import rewind_group
from stream_dedup.preflight.declaration import reading_of
from stream_dedup.serving.kafka_role import RunningRole
from stream_dedup.serving.wait_reports import Waits
from stream_dedup.worker import role
from tests.model import kafka, stand_ins
from tests.model.scheduler import Process, Scheduler

START_MS = 1_790_000_000_000
# The tables of some of the plans fit into it, and those of others do not.
LITTLE_BYTES = 507 << 20
PLANS = ("64:4:0:3", "64:4:0:3", "64:0:0:6", "64:4:1:7", "64:8:0:4")
TURNS = 420
HEALING_TURNS = 6000

FAULTS: dict[str, int] = {
    "documents": 9,
    "crash": 5,
    "pause": 4,
    "replace": 3,
    "commit": 4,
    "abort": 2,
    "append": 1,
    "rebalance": 4,
    "worker": 1,
    "index": 4,
    "rebuild": 2,
    "restore": 2,
    "checkpoint": 2,
    "rewind": 2,
    "vanish": 1,
    "recreate": 1,
    # their topic is deleted and created again; two thirds of all worlds have it, and the next one
    "verdicts": 0,
    "outages": 0,  # ten times over, no step of a transaction comes back
    "forget": 1,
    "seed": 1,
    "release": 1,
    "plan": 1,
    "window": 1,
    "beyond": 0,  # an index has little memory, and the plan changes; a third of all worlds has it
    "time": 2,
    "refuse": 2,
    "calm": 2,
    "far": 0,  # it is chance what a store has
    # a store that has texts for sure, and does not answer for a while; a third of all worlds has it
    "away": 0,
    # which worker gives a text up is chance: the right outcome is known only without rewinds and
    # zombies
    "slow": 0,
}
"""What may happen, and how often beside the rest. A rule's test gives other weights to what it
needs."""
ANEW = {"verdicts": 3, "outages": 3}


@dataclass(frozen=True)
class Happening:
    """Something that happens at a turn; `seed` draws its particulars."""

    turn: int
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.turn}:{self.kind}"


@dataclass
class Tuning:
    """How a run of the model differs from the usual one: weights of what happens, and what else is
    needed."""

    weights: dict[str, int] = field(default_factory=dict)
    turns: int = TURNS
    happenings: int = 16
    settings: dict[str, Any] = field(default_factory=dict)
    window_ms: int | None = -1
    indexes: int = 2
    aside: bool = True
    """Whether a worker's transactions and what prepares its batches run beside its loop; or are
    over as soon as they begin, and what comes is read at once, as if Kafka took no time."""
    foreign: float = 0.2
    """How often the log's first sixty records are of no document."""
    gathers: bool = True
    """Whether what comes is gathered for as long as a worker gathers, or read at once, so that more
    is read ahead."""
    cuts: bool | None = None
    """Whether preparing is so slow that each batch is cut behind its first record; None lets the
    seed say."""


class Violation(Exception):  # noqa: N818 - it is what the model looks for, not an error of its own
    """A promise was broken; the text says which."""


class World:
    """A broker, two indexes, two workers or three, and a plan of what happens. `run` raises
    `Violation`."""

    def __init__(
        self,
        seed: int,
        tuning: Tuning | None = None,
        plan: list[Happening] | None = None,
        *,
        traces: bool = False,
    ) -> None:
        self.seed = seed
        # A third of all worlds each, so that the others are what they were.
        usual = (
            Tuning(),
            Tuning(weights={"away": 6, "beyond": 2} | ANEW),
            Tuning(weights=ANEW),
        )
        self.tuning = tuning or usual[seed % 3]
        self.trace: list[str] | None = [] if traces else None
        self.turn = 0
        self.chance = random.Random(seed)
        self.patience = random.Random(seed + 4)
        self.cuts = seed % 8 == 5 if self.tuning.cuts is None else self.tuning.cuts
        self.scheduler = Scheduler(random.Random(seed + 3))
        self.names = TopicNames()
        self.broker = kafka.Broker(
            self.scheduler, random.Random(seed + 1), START_MS, "stream-dedup"
        )
        self.partitions = self.chance.choice([2, 3, 3])
        self.batch_documents = self.chance.choice([2, 3, 5, 8])
        self.plan = sorted(
            plan if plan is not None else self._draw(), key=lambda happening: happening.turn
        )
        self.processes: list[Process] = []
        self.volumes: dict[str, dict[bytes, bytes]] = {"index-0": {}, "index-1": {}}
        self.checkpoints: list[dict[bytes, bytes]] = []
        self.wanted = {"worker-0": True, "worker-1": True, "index-0": True, "index-1": True}
        if self.tuning.indexes == 1:
            self.volumes.pop("index-1")
            self.wanted.pop("index-1")
        self.restarts: dict[str, int] = {}
        self.little_memory: set[str] = set()
        self.doomed: list[tuple[Process, int, Callable[[Process], None]]] = []
        self.workers_may_run = True
        self.is_healing = False
        self.was_recreated = self.has_vanished = False
        self.rewinds: list[tuple[bytes, int, int, int]] = []
        self.vanished: dict[kafka.Key, tuple[int, str]] = {}
        self.earlier: dict[kafka.Key, int] = {}
        self.away_until_ms = 0
        self.written = 0
        self.texts: list[str] = []
        self.releases: list[tuple[bytes, str]] = []
        self.bases = [self.chance.getrandbits(64) for _ in range(3)]
        for name in (
            self.names.documents,
            self.names.unique,
            self.names.duplicates,
            self.names.dead_letters,
        ):
            self.broker.create(name, self.partitions)
        for name in (
            self.names.fingerprints,
            self.names.verdicts,
            self.names.begun,
        ):
            self.broker.create(name, 1)
        self._say_how_documents_are_read()
        self.broker.refuses = self._refuses
        window_ms = self.tuning.window_ms
        if window_ms == -1:
            window_ms = self.chance.choice([None, None, 1600, 4000])
        self.chosen = parse_plan(self.chance.choice(PLANS))
        window = (
            None
            if window_ms is None
            else {"length_ms": window_ms, "refresh": self.chance.random() < 0.3}
        )
        fields = {
            "recipe": stand_ins.RECIPE.id,
            "width": 64,
            "plan": self.chosen.to_fields(),
            "group": self.broker.group_name,
            "floor": stand_ins.FLOOR,
            "mode": 0,
            "count_copies": seed % 3 > 0,
            "better": random.Random(seed + 6).choice(list(BetterRule)).label,
        } | ({"window": window} if window else {})
        self._order(records.encode_control(records.Control("declare", fields)))
        if random.Random(seed + 5).random() < self.tuning.foreign:
            # Records of no document precede the first document, as after a large `seed`.
            for _ in range(60):
                self._order(
                    records.encode_control(records.Control("forget", {"ids": [b"nobody".hex()]}))
                )

    def _say_how_documents_are_read(self) -> None:
        """Write the input settings to `begun` before any worker does, so that no two workers race
        for it."""
        log = self.broker.topics[self.names.fingerprints].id
        reading = reading_of(stand_ins.settings_of("worker-0", 1, ()))
        self.broker.append(self.names.begun, 0, None, encode_reading(log, reading, changes=False))

    def _draw(self) -> list[Happening]:
        chance, tuning = random.Random(self.seed + 2), self.tuning
        weights = {**FAULTS, **tuning.weights}
        kinds = chance.choices(
            list(weights), list(weights.values()), k=chance.randint(6, tuning.happenings)
        )
        first = [Happening(0, "documents", chance.getrandbits(32))]
        return first + [
            Happening(chance.randrange(tuning.turns), kind, chance.getrandbits(32))
            for kind in kinds
        ]

    # -- the run

    def run(self) -> None:
        """Carry out the schedule, heal everything, and wait until all is at rest.

        `stand_ins.patched` must be in force.

        Raises:
            Violation: a role stopped with an alarm, or what was healed does not come to rest.
        """
        stand_ins.act_on(self)
        try:
            for slot in self.wanted:
                self.start(slot)
            left = list(self.plan)
            while left or self.turn < self.tuning.turns:
                while left and left[0].turn <= self.turn:
                    self._happen(left.pop(0))
                if not self._turn() and not self._find_unfinished():
                    if not left:
                        break
                    self.turn = max(self.turn, left[0].turn)
            self._heal()
        finally:
            for process in self.processes:
                if not process.has_ended:
                    self.scheduler.kill(process)

    def _turn(self) -> bool:
        """Let one thing happen; return whether anything was waiting to happen."""
        self.turn += 1
        broker, chance, version = self.broker, self.chance, self.scheduler.version
        broker.now_ms += chance.randint(0, 3)
        for slot in [slot for slot, turn in self.restarts.items() if turn <= self.turn]:
            if self.wanted.get(slot) and (self.workers_may_run or not slot.startswith("worker")):
                del self.restarts[slot]
                self.start(slot)
        if chance.random() < 0.04 or self.is_healing:
            self._pass()
        ready: list[Callable[[], None]] = [
            functools.partial(self._give, process)
            for process in self.processes
            if process.can_run and not process.is_idle(version)
        ]
        ready += [consumer.background for consumer in broker.consumers if consumer.has_work()]
        for appender in broker.appenders:
            if appender.network:
                ready.append(appender.deliver)
            if appender.acks and appender.process is not None and appender.process.can_run:
                ready.append(appender.acknowledge)
        if ready:
            chance.choice(ready)()
            return True
        idle = [process for process in self.processes if process.can_run]
        if idle:
            process = min(idle, key=lambda waiting: waiting.idle_ms + chance.random())
            passed = process.idle_ms
            broker.now_ms += passed
            for waiting in idle:
                waiting.pass_ms(passed)
            self._give(process)
        return False

    def _pass(self) -> None:
        """Let a time-out of the broker pass, or a delayed request arrive."""
        broker = self.broker
        events: list[Callable[[], None]] = [
            functools.partial(self._arrive, request) for request in broker.late
        ]
        events += [
            functools.partial(broker.time_out, name)
            for name, producing in broker.producing.items()
            if producing.txn is not None
            and (producing.process is None or not producing.process.can_run)
        ]
        events += [
            functools.partial(broker.group.leave, name)
            for name, member in broker.group.members.items()
            if member.consumer.process is None or not member.consumer.process.can_run
        ]
        if events:
            self.chance.choice(events)()
            broker.changed()

    def _arrive(self, late: Callable[[], None]) -> None:
        self.broker.late.remove(late)
        self.say("broker", "an EndTxn that was held up arrives")
        late()

    def _give(self, process: Process) -> None:
        for doomed in [
            entry for entry in self.doomed if entry[0] is process and process.steps >= entry[1]
        ]:
            self.doomed.remove(doomed)
            doomed[2](process)
            return
        self.scheduler.give(process)
        if process.has_ended:
            self._ended(process)
            return
        worker = getattr(process, "role", None)
        if worker is not None and process.slot.startswith("worker"):
            flow = worker._flow
            if not flow._has_answer and sum(len(batch.parts) for batch in flow._batches) > 1:
                raise Violation(
                    f"flood: {process.name} sent a second log record before it had an answer to "
                    "its first"
                )

    def _ended(self, process: Process) -> None:
        error = process.error
        self.say(process.name, f"ended: {'as asked' if error is None else repr(error)}")
        self._restart_within(30, process)
        if error is None or isinstance(error, BrokerError) or process.slot.startswith("operator"):
            if error is not None and not isinstance(
                error, BrokerError | InputError | ConfigurationError
            ):
                raise Violation(f"alarm: {process.name} ended with {error!r}") from error
            return
        if isinstance(error, FirstStartError) and self.has_vanished:
            if self.vanished and not any(
                other.slot == "operator-offsets" and not other.has_ended for other in self.processes
            ):
                texts = [f"{key[1]}@{offset}" for key, (offset, _) in sorted(self.vanished.items())]
                self._operate("offsets", functools.partial(self._repair, texts))
            return
        if (
            process.slot in self.little_memory
            and isinstance(error, ConfigurationError)
            and "STREAM_DEDUP_MEMORY" in str(error)
        ):
            self.say("operator", f"{process.slot} gets more memory")
            self.little_memory.remove(process.slot)
            return
        if self.was_recreated and (
            isinstance(error, FirstStartError)
            or "created again" in str(error)
            or "does not exist" in str(error)
        ):
            return  # it knew the topic of before; its next life knows the new one
        raise Violation(f"alarm: {process.name} ended with {error!r}") from error

    def _find_unfinished(self) -> str:
        """Return what is left to do; an empty text if nothing is."""
        broker = self.broker
        live = [process for process in self.processes if not process.has_ended]
        if (
            broker.late
            or self.restarts
            or {slot for slot, wanted in self.wanted.items() if wanted}
            - {process.slot for process in live}
        ):
            return "something is still to come"
        if any(
            appender.network or (appender.acks and appender.process in live)
            for appender in broker.appenders
        ):
            return "an append is on its way"
        if any(producing.txn is not None for producing in broker.producing.values()):
            return "a transaction is open"
        if any(
            consumer.has_work() or consumer.callbacks
            for consumer in broker.consumers
            if consumer.process in live
        ):
            return "the group does not settle"
        if any(process.slot.startswith("operator") or process.is_paused for process in live):
            return "an operator or a paused process"
        end = broker.end(self.names.fingerprints, 0)
        for process in live:
            found = getattr(process, "role", None)
            if found is None:
                return f"{process.name} does not start"
            if process.slot.startswith("index"):
                if getattr(process, "is_writing", False):
                    return f"{process.name} is writing"
                if found._index.applied != end or found._durable_by_offset:
                    return f"{process.name} applied {found._index.applied} of {end}, answered {found._index.answered_offset}"
            elif found._flow.in_flight or found._flow.stale():
                parts = [(part.number, part.log_offset) for _, part in found._flow._parts.values()]
                return f"{process.name} has {found._flow.in_flight} batches in flight, and waits for {parts}"
        offsets = {
            part: broker.group.offsets.get((self.names.documents, part), (0, ""))[0]
            for part in range(self.partitions)
        }
        ends = {part: broker.end(self.names.documents, part) for part in range(self.partitions)}
        return "" if offsets == ends else f"the group has committed {offsets} of {ends}"

    def _heal(self) -> None:
        self.say("world", "healing begins")
        self.is_healing = True
        self.away_until_ms = 0
        self.broker.faults.clear()
        self.doomed.clear()
        self.workers_may_run = True
        for process in self.processes:
            process.is_paused = False
        for turn in range(HEALING_TURNS):
            for slot, wanted in self.wanted.items():
                if wanted and slot not in self.restarts and not self._is_taken(slot):
                    self.restarts[slot] = self.turn
            self._turn()
            if turn % 10 == 0 and not self._find_unfinished():
                if not self.releases:
                    return
                self._operate("release", functools.partial(self._release, self.releases[0]))
        raise Violation(f"stuck: nothing comes to rest: {self._find_unfinished()}")

    # -- processes

    def start(self, slot: str) -> Process:
        life = sum(other.slot == slot for other in self.processes)
        process = Process(f"{slot}.{life}", slot, lambda: None)
        process.role, process.is_asked_to_stop, process.is_replaced = None, False, False  # type: ignore[attr-defined]
        # as the roles ask a threading.Event
        process.is_set = lambda: process.is_asked_to_stop  # type: ignore[attr-defined]
        more = dict(self.tuning.settings)
        settings = stand_ins.settings_of(slot, self.batch_documents, tuple(more.items()))
        if slot in self.little_memory:
            settings = settings.model_copy(update={"memory": LITTLE_BYTES})

        def body() -> None:
            if slot.startswith("worker"):
                waits = Waits(stand_ins.Health(), stand_ins.SILENT)
                running = RunningRole(
                    settings, stand_ins.Health(), waits, stand_ins.ANSWERS, process
                )  # type: ignore[arg-type]
                process.role = role.build_worker(  # type: ignore[attr-defined]
                    running, stand_ins.RECIPE, stand_ins.SILENT, stand_ins.dependencies_of_worker()
                )
                process.role.run()  # type: ignore[attr-defined]
            else:
                process.role = indexer.Indexer(
                    settings,
                    stand_ins.SILENT,
                    stand_ins.Health(),
                    stand_ins.SILENT,
                    stand_ins.dependencies_of_index(slot),
                )  # type: ignore[attr-defined, arg-type]
                process.role.run(process)  # type: ignore[attr-defined]

        process.body = body
        self.processes.append(process)
        self.scheduler.start(process)
        self.scheduler.version += 1
        self.say(process.name, "starts")
        return process

    def live(self, prefix: str) -> list[Process]:
        """Return the running processes whose slots begin so."""
        return [
            process
            for process in self.processes
            if process.can_run and process.slot.startswith(prefix)
        ]

    def _doom(self, process: Process, chance: random.Random, do: Callable[[Process], None]) -> None:
        self.doomed.append((process, process.steps + chance.randint(0, 25), do))

    def _crash(self, process: Process) -> None:
        self.say(process.name, "is killed")
        self.scheduler.kill(process)
        for appender in self.broker.appenders:
            if appender.process is process and self.chance.random() < 0.5:
                # what was on its way never arrives; else it may arrive whenever it likes
                appender.network.clear()
        self._restart_within(60, process)

    def _pause(self, process: Process, turns: int, *, is_replaced: bool) -> None:
        self.say(
            process.name,
            "stops in mid-air" + (", and another process takes its place" if is_replaced else ""),
        )
        process.is_paused = True
        if is_replaced:
            self._restart_within(20, process)
            process.is_replaced = True  # type: ignore[attr-defined]
        self.plan_later(turns, lambda: self._go_on(process))

    def _restart_within(self, turns: int, process: Process) -> None:
        """Let another process take its place soon, unless one has it already, or the place was
        taken away meanwhile."""
        is_wanted = self.wanted.get(process.slot) and not getattr(process, "is_replaced", False)
        if is_wanted and not self._is_taken(
            process.slot, besides=process
        ):  # wanted again while this one drained
            self.restarts.setdefault(process.slot, self.turn + self.chance.randint(1, turns))

    def _is_taken(self, slot: str, besides: Process | None = None) -> bool:
        """Return whether a process that was not replaced, other than `besides`, has this place."""
        return any(
            process.slot == slot
            and process is not besides
            and not process.has_ended
            and not getattr(process, "is_replaced", False)
            for process in self.processes
        )

    def _go_on(self, process: Process) -> None:
        if process.is_paused:
            self.say(process.name, "goes on")
            process.is_paused = False
            self.scheduler.version += 1

    def plan_later(self, turns: int, do: Callable[[], None]) -> None:
        """Do something some turns later, in a process of the world."""

        def wait() -> None:
            until = self.turn + turns
            while self.turn < until and not self.is_healing:
                self.scheduler.step()
            do()

        self._operate("waits", wait)

    def _operate(self, name: str, body: Callable[[], None]) -> None:
        process = Process(f"operator-{name}.{len(self.processes)}", f"operator-{name}", body)
        self.processes.append(process)
        self.scheduler.start(process)
        self.scheduler.version += 1

    # -- what happens

    def _happen(self, happening: Happening) -> None:
        chance = random.Random(happening.seed)
        self.say("world", f"{happening.kind}")
        getattr(self, f"_on_{happening.kind}")(chance)
        self.broker.changed()

    def _any(self, chance: random.Random, prefix: str) -> Process | None:
        found = self.live(prefix)
        return chance.choice(found) if found else None

    def _on_documents(self, chance: random.Random) -> None:
        for _ in range(chance.randint(2, 8)):
            part = chance.randrange(self.partitions)
            kind = chance.random()
            value: bytes | None
            if kind < 0.04:
                value = None
            elif kind < 0.09:
                value = b"{ no JSON %d" % self.written
            elif kind < 0.14:
                value = json.dumps({"text": " "}).encode()
            else:
                value = json.dumps({"text": self._text(chance)}).encode()
            self.written += 1
            key = chance.choice([b"a", b"b", b"c", b"doc-%d" % self.written])
            headers = (
                [("dedup.verdict", b"forged")]
                if chance.random() < 0.05
                else [("n", b"%d" % self.written)]
            )
            offset = self.broker.append(
                self.names.documents, part, key, value, START_MS + self.written, headers
            )
            self.say("crawler", f"{self.names.documents}-{part}@{offset} = {value!r}")

    def _text(self, chance: random.Random) -> str:
        if self.texts and chance.random() < 0.3:
            return chance.choice(self.texts)
        number, width = chance.choice(self.bases), self.chosen.width
        for bit in chance.sample(range(width), chance.choice([0, 1, 2, 3, 3, 4, 6, 7, 8])):
            number ^= 1 << bit
        if chance.random() < 0.1:
            self.bases[chance.randrange(len(self.bases))] = number
        mark = " REFUSED" if chance.random() < 0.06 else ""
        text = f"{number:x} {chance.choice([0, 2, 50, 50, 50, 60])} {chance.choice('ab')}{mark}"
        self.texts.append(text)
        return text

    def _refuses(self, topic: str, value: bytes | None) -> bool:
        return topic != self.names.dead_letters and b"REFUSED" in (value or b"")

    def _on_refuse(self, chance: random.Random) -> None:
        """Send a document that its output will refuse, and near copies."""
        self._send_marked(chance, " REFUSED")

    def _on_far(self, chance: random.Random) -> None:
        """Send a document whose text a store has or not, and near copies."""
        self._send_marked(chance, " FAR")

    def _on_away(self, chance: random.Random) -> None:
        """Send a document whose store does not answer for a while, and near copies."""
        self.away_until_ms = self.broker.now_ms + chance.choice([0, 30, 300, 3000, 20_000])
        self._send_marked(chance, " AWAY")

    def _on_slow(self, chance: random.Random) -> None:
        """Send a document that is so slow that a worker gives it up, or not, and near copies."""
        self._send_marked(chance, " SLOW")

    def _send_marked(self, chance: random.Random, mark: str) -> None:
        text = f"{chance.choice(self.bases):x} 50 a{mark}"
        for variant in (text, text.removesuffix(mark), text):
            self.broker.append(
                self.names.documents,
                chance.randrange(self.partitions),
                b"doc-%d" % self.written,
                json.dumps({"text": variant}).encode(),
                START_MS + self.written,
                [("n", b"%d" % self.written)],
            )
            self.written += 1

    def _on_calm(self, chance: random.Random) -> None:
        self.broker.now_ms += chance.randint(0, 500)

    def _on_crash(self, chance: random.Random) -> None:
        process = self._any(chance, chance.choice(["worker", "worker", "index", ""]))
        if process is not None and not process.slot.startswith("operator-waits"):
            self._doom(process, chance, self._crash)

    def _on_pause(self, chance: random.Random) -> None:
        process = self._any(chance, chance.choice(["worker", "worker", "worker", "index"]))
        if process is not None:
            turns, throws_out = chance.randint(5, 150), chance.random() < 0.7

            def pause(process: Process) -> None:
                self._pause(process, turns, is_replaced=False)
                if throws_out:
                    self._throw_out(process)

            self._doom(process, chance, pause)

    def _throw_out(self, process: Process) -> None:
        """End the session of a paused process."""
        for name, member in list(self.broker.group.members.items()):
            if member.consumer.process is process:
                self.say("broker", f"{process.name} is no member any more")
                self.broker.group.leave(name)

    def _on_replace(self, chance: random.Random) -> None:
        """A worker is paused, another one gets its name, and then both go on."""
        process = self._any(chance, "worker")
        if process is not None and not process.is_replaced:  # type: ignore[attr-defined]
            turns, throws_out = chance.randint(20, 200), chance.random() < 0.7

            def replace(process: Process) -> None:
                self._pause(process, turns, is_replaced=True)
                if throws_out:
                    self._throw_out(process)

            self._doom(process, chance, replace)

    def _on_commit(self, chance: random.Random) -> None:
        slot = f"worker-{chance.randrange(2)}"
        name = chance.choice(["commit", "commit", "commit", "offsets", "abort"])
        self.broker.faults.setdefault(f"{slot} {name}", []).append(
            chance.choice(["late", "resent", "unheard", "lost", "slow"])
        )

    def _on_abort(self, chance: random.Random) -> None:
        name = chance.choice(["commit", "offsets"])
        self.broker.faults.setdefault(f"worker-{chance.randrange(2)} {name}", []).append("abort")

    def _on_append(self, chance: random.Random) -> None:
        slot = chance.choice(["worker-0", "worker-1", "index-0"])
        self.broker.faults.setdefault(f"{slot} append", []).append(
            chance.choice(["never", "later"])
        )

    def _on_verdicts(self, _: random.Random) -> None:
        """The topic of answers is deleted and created again, with all its unread records."""
        self.say("broker", "verdicts is deleted and created again")
        self.broker.create(self.names.verdicts, 1)

    def _on_outages(self, chance: random.Random) -> None:
        """Ten times, Kafka goes away in mid-transaction, and the current step never returns."""
        for _ in range(10):
            slot, step = f"worker-{chance.randrange(2)}", chance.choice(["commit", "offsets"])
            self.broker.faults.setdefault(f"{slot} {step}", []).append(
                chance.choice(["late", "unheard", "lost"])
            )

    def _on_rebalance(self, chance: random.Random) -> None:
        self.broker.group.rebalance(chance.choice(["everything", "balance", "nothing"]))

    def _on_worker(self, chance: random.Random) -> None:
        """One worker more, or one less."""
        if not self.wanted.get("worker-2"):
            self.wanted["worker-2"] = True
            self.restarts["worker-2"] = self.turn
            return
        self.wanted["worker-2"] = False
        self.restarts.pop("worker-2", None)
        for process in self.live("worker-2"):
            process.is_asked_to_stop = True  # type: ignore[attr-defined]

    def _on_index(self, chance: random.Random) -> None:
        process = self._any(chance, "index")
        if process is not None:
            self._doom(process, chance, self._crash)

    def _on_rebuild(self, chance: random.Random) -> None:
        self._new_volume(chance, {})

    def _on_checkpoint(self, chance: random.Random) -> None:
        self.checkpoints.append(
            dict(self.volumes[f"index-{chance.randrange(self.tuning.indexes)}"])
        )

    def _on_restore(self, chance: random.Random) -> None:
        """An older volume comes back: as a snapshot that was restored, or as a bare copy of the
        directory."""
        if self.checkpoints:
            volume = dict(chance.choice(self.checkpoints))
            if volume and chance.random() < 0.5:
                volume = {
                    key: value
                    for key, value in volume.items()
                    if key[:1] != layout.answer_key(0)[:1]
                }
                volume[layout.KEY_RESTORED] = b""
            self._new_volume(chance, volume)

    def _new_volume(self, chance: random.Random, volume: dict[bytes, bytes]) -> None:
        slot = f"index-{chance.randrange(self.tuning.indexes)}"

        def lose(process: Process) -> None:
            self._crash(process)
            self.say(slot, f"its volume is another one now, of {len(volume)} keys")
            self.volumes[slot] = volume

        found = self.live(slot)
        if found:
            self._doom(found[0], chance, lose)

    def _on_time(self, chance: random.Random) -> None:
        if chance.random() < 0.5:
            self.broker.now_ms += chance.choice([50, 300, 2000, 20_000])
        else:
            self.broker.skew_ms = chance.choice([0, 0, -700, 900, 5000])

    # -- operators

    def _order(self, raw: bytes) -> int:
        return self.broker.append(self.names.fingerprints, 0, None, raw)

    def _on_forget(self, chance: random.Random) -> None:
        ids = [
            document_id.hex()
            for document_id in chance.sample([b"a", b"b", b"c"], chance.choice([1, 1, 2]))
        ]
        self._order(records.encode_control(records.Control("forget", {"ids": ids})))

    def _on_plan(self, chance: random.Random) -> None:
        plan = parse_plan(chance.choice(PLANS))
        better = {"better": chance.choice(list(BetterRule)).label} if chance.random() < 0.5 else {}
        self._order(
            records.encode_control(records.Control("plan", {"plan": plan.to_fields(), **better}))
        )

    def _on_beyond(self, chance: random.Random) -> None:
        """An index comes back with too little memory for some plans, and the plan changes."""
        slot = f"index-{chance.randrange(self.tuning.indexes)}"

        def limit(process: Process) -> None:
            self.little_memory.add(slot)
            self._crash(process)

        for process in self.live(slot):
            self._doom(process, chance, limit)
        self._on_plan(chance)

    def _on_window(self, chance: random.Random) -> None:
        window = chance.choice(
            [None, {"length_ms": chance.choice([1000, 2500]), "refresh": chance.random() < 0.5}]
        )
        self._order(records.encode_control(records.Control("plan", {"window": window})))

    def _on_seed(self, chance: random.Random) -> None:
        texts = [self._text(chance).removesuffix(" REFUSED") for _ in range(chance.randint(1, 2))]
        prints = stand_ins.Prober(stand_ins.RECIPE).fingerprint(texts)
        count, first = len(texts), self.written
        self.written += count
        batch = records.Batch(
            stand_ins.RECIPE.id,
            Mode.ENFORCE,
            bytes(16),
            0,
            (records.Source("elsewhere", b"e" * 16, 0, 0, 0),),
            np.zeros(count, np.uint16),
            np.arange(first, first + count, dtype=np.int64),
            np.arange(count).astype(np.uint64),
            prints.digests,
            prints.prints,
            prints.sketches,
            prints.features,
            *np.zeros((3, count), np.uint64),
            np.full(count, START_MS, np.int64),
            tuple(b"seed" for _ in texts),
        )
        self._order(records.encode_seed(batch))

    def _on_release(self, chance: random.Random) -> None:
        def run() -> None:
            found = [
                records.decode(log.value).position(int(place))  # type: ignore[union-attr]
                for part in range(self.partitions)
                for copy in self.broker.read(self.names.duplicates, part)
                for offset, _, place in [dict(copy.headers)["dedup.log"].decode().partition("/")]  # type: ignore[union-attr]
                for log in [self.broker.topics[self.names.fingerprints].partitions[0][int(offset)]]
            ]
            known = [
                position
                for position in found
                if position.topic_id == self.broker.topics[self.names.documents].id
            ]
            if known:
                position = chance.choice(known)
                self.say("operator", f"release {position}")
                self.releases.append((position.topic_id, f"{position.partition}@{position.offset}"))
                self._release(self.releases[-1])

        self._operate("release", run)

    def _release(self, wanted: tuple[bytes, str]) -> None:
        """Release a document; healing repeats the command if it was interrupted."""
        if wanted[0] == self.broker.topics[self.names.documents].id:
            settings = stand_ins.settings_of(
                "operator", self.batch_documents, tuple(self.tuning.settings.items())
            )
            release(settings, wanted[1], stand_ins.dependencies_of_operator(), dry_run=False)
        self.releases.remove(wanted)

    def _on_rewind(self, chance: random.Random) -> None:
        def run() -> None:
            self._stop_workers(chance)
            committed = {key[1]: offset for key, (offset, _) in self.broker.group.offsets.items()}
            if committed:
                parts = chance.sample(sorted(committed), chance.randint(1, len(committed)))
                self._set_back(
                    [
                        f"{part}@{chance.randint(0, committed[part] + (chance.random() < 0.2))}"
                        for part in parts
                    ]
                )
            self.workers_may_run = True

        if not self._is_stopped():
            self._operate("rewind", run)

    def _is_stopped(self) -> bool:
        """Return whether an operator has stopped the workers for another command."""
        slots = ("operator-rewind", "operator-vanish", "operator-recreate", "operator-offsets")
        return any(process.slot in slots and not process.has_ended for process in self.processes)

    def _stop_workers(self, chance: random.Random) -> None:
        """Stop the workers, kindly or not, and wait until the group is empty."""
        self.workers_may_run = False
        for process in self.live("worker"):
            if chance.random() < 0.5:
                process.is_asked_to_stop = True  # type: ignore[attr-defined]
            else:
                self._doom(process, chance, self._crash)
        while self.broker.group.members and not self.is_healing:
            self.scheduler.step()
            for process in self.live("worker"):  # one that was paused, or started a moment ago
                process.is_asked_to_stop = True  # type: ignore[attr-defined]
        for process in [
            process
            for process in self.processes
            if process.slot.startswith("worker") and not process.has_ended
        ]:
            if getattr(process, "role", None) is None:  # one that had not yet joined
                process.is_paused = False
                self.doomed.append((process, 0, self._crash))

    def _set_back(self, texts: list[str], *, is_repair: bool = False) -> None:
        settings = stand_ins.settings_of(
            "operator", self.batch_documents, tuple(self.tuning.settings.items())
        )
        self.say("operator", f"rewind {' '.join(texts)}")
        for _ in range(20):
            try:
                rewind_group(settings, texts, stand_ins.dependencies_of_operator(), dry_run=False)
            except (InputError, BrokerError, ConfigurationError) as error:
                self.say("operator", str(error))
                if not is_repair:
                    return
                self.scheduler.step(idle_ms=100)
            else:
                if is_repair:
                    self.vanished = {}
                return

    def _repair(self, texts: list[str]) -> None:
        """Stop the workers, as the handbook says, and restore the offsets that vanished."""
        self.workers_may_run = False
        looks = 0
        while self.broker.group.members or self.live("worker"):
            for process in self.live("worker"):
                process.is_asked_to_stop = True  # type: ignore[attr-defined]
            # Time passes only while all are idle: a worker that waits for lost answers drains until
            # its time is over.
            looks += 1
            self.scheduler.step(**({"idle_ms": 100} if looks > 500 else {}))
        self._set_back(texts, is_repair=True)
        self.workers_may_run = True

    def _on_vanish(self, chance: random.Random) -> None:
        """The group is idle for so long that Kafka forgets its offsets; now and then the topic
        `begun` is lost too."""

        def run() -> None:
            self._stop_workers(chance)
            has_offsets = bool(self.broker.group.offsets) and not self.vanished
            if (
                has_offsets
                and not self.broker.group.members
                and not self.broker.pending(list(self.broker.group.offsets))
            ):
                self.say("broker", "the group's offsets are forgotten")
                for process in [
                    process
                    for process in self.processes
                    if process.is_paused and process.slot.startswith("worker")
                ]:
                    self.doomed.append(
                        (process, 0, self._crash)
                    )  # no process is paused for seven days
                    process.is_paused = False
                self.vanished, self.has_vanished = dict(self.broker.group.offsets), True
                self.broker.group.offsets.clear()
                if chance.random() < 0.25 and self._log_has_documents():
                    self.say("broker", "what was begun is lost with them")
                    self.broker.create(self.names.begun, 1)
                    self._say_how_documents_are_read()
                    # Then every partition counts as begun, and is restored.
                    self.vanished = {
                        (self.names.documents, part): (0, "") for part in range(self.partitions)
                    } | self.vanished
            self.workers_may_run = True

        if not self._is_stopped():
            self._operate("vanish", run)

    def _log_has_documents(self) -> bool:
        topic_id = self.broker.topics[self.names.documents].id
        return any(
            isinstance(record, records.Batch)
            and any(source.topic_id == topic_id for source in record.sources)
            for entry in self.broker.read(self.names.fingerprints, 0)
            for record in [records.decode(entry.value)]
        )

    def _on_recreate(self, chance: random.Random) -> None:
        """The source topic is deleted and created again, with other documents at the same
        offsets."""

        def run() -> None:
            self._stop_workers(chance)
            while (
                any(getattr(worker, "role", None) is None for worker in self.live("worker"))
                and not self.is_healing
            ):
                self.scheduler.step()
            is_idle = (
                not self.is_healing
                and not self.broker.group.members
                and not self.broker.pending(list(self.broker.group.offsets))
            )
            if is_idle and not self.vanished:  # one repair at a time
                self.say("broker", "the topic is deleted and created again")
                self.was_recreated = True
                self.rewinds.clear()
                for name in (self.names.unique, self.names.duplicates, self.names.dead_letters):
                    for part in range(self.partitions):
                        self.earlier[name, part] = self.broker.end(name, part)
                self.broker.create(self.names.documents, self.partitions)
                self._on_documents(chance)
                self._on_documents(chance)
            self.workers_may_run = True

        if not self._is_stopped():
            self._operate("recreate", run)

    def say(self, who: str, what: str) -> None:
        if self.trace is not None:
            self.trace.append(
                f"{self.turn:5d} {self.broker.now_ms - START_MS:7d} ms  {who:14} {what}"
            )
