"""Replacements of brokers, volumes, clocks and threads for roles that run in the model.

All of it acts on the running world, `WORLD`, and most of it lets other processes run first
(`Scheduler.step`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from stream_dedup.domain.addresses import TextAddress
from stream_dedup.domain.document import DeadLetter, Message
from stream_dedup.domain.errors import BrokerError, FormatError, TextAwayError
from stream_dedup.domain.messages import Messages
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.topics import TopicNames, TopicState
from stream_dedup.fingerprinting.recipe import Prints
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.indexer.dependencies import IndexerDependencies
from stream_dedup.inputs.claim_checks import Fetched
from stream_dedup.inputs.decoder import Decoder, Documents
from stream_dedup.kafka import Bounds, ExistingTopic, client, transaction
from stream_dedup.log import records
from stream_dedup.orders import beginnings
from stream_dedup.orders.common import OrderDependencies
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import startup
from stream_dedup.worker.dependencies import IntakePace, WorkerDependencies
from tests.model import kafka
from tests.model.scheduler import Fiber

if TYPE_CHECKING:
    from tests.model.world import World

FLOOR = 3
RECIPE = SimpleNamespace(
    id="model:64:0",
    width=64,
    limbs=1,
    sketch_bytes=0,
    key=b"key",
    languages=SimpleNamespace(fold_han=False),
    floor=FLOOR,
    method=SimpleNamespace(takes_vectors=False, is_batched=False),
)

WORLD: World
"""The running world."""


def act_on(world: World) -> None:
    """Set the world that this module acts on."""
    global WORLD
    WORLD = world


class Silent:
    """Metrics, health and the like: each attribute and call returns the object itself."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


SILENT: Any = Silent()
ANSWERS: Any = SimpleNamespace(
    is_silent=bool, begin=lambda stop, make: make()
)  # Kafka is never away here


class Health(Silent):
    """Health that lets other processes run at each beat of a role's loop."""

    def beat(self) -> None:
        WORLD.scheduler.step()


class Prober:
    """A fingerprinter for texts that spell their fingerprint: `HEX FEATURES anything`."""

    def __init__(self, recipe: Any) -> None:
        self.recipe = recipe

    def fingerprint(self, texts: Sequence[str]) -> Prints:
        words = [text.split() or ["0", "0"] for text in texts]
        return Prints(
            np.array([[int(fields[0], 16)] for fields in words], np.uint64),
            np.zeros((len(words), 0), np.uint8),
            np.array([int(fields[1]) for fields in words], np.uint32),
            np.array(
                [list(hashlib.blake2b(text.encode(), digest_size=16).digest()) for text in texts],
                np.uint8,
            ),
            np.array([not text.strip() for text in texts], np.bool_),
        )


class Impatient(Decoder):
    """A decoder that gives half of the slow texts up, and fetches texts from two stores.

    One is slow, and by chance has a `FAR` text or not: a late text cuts the batch there. The other
    has every `AWAY` text, but does not answer for a while: that cuts the batch too, and a first
    text delays its partition.
    """

    @property
    def fetches(self) -> bool:
        return bool(WORLD.tuning.weights.get("far") or WORLD.tuning.weights.get("away"))

    def addresses(
        self, messages: Messages, skipped: Set[int] = frozenset()
    ) -> dict[int, TextAddress]:
        return {
            place: TextAddress(json.loads(value)["text"], "s3", "s3://far", "")
            for place, value in enumerate(messages.values)
            if place not in skipped and (b"FAR" in (value or b"") or b"AWAY" in (value or b""))
        }

    def fetch(
        self,
        addresses: Sequence[TextAddress],
        start: int,
        _stretch: int,
        _ahead: int,
        is_hurried: Callable[[], bool],
    ) -> list[Fetched]:
        found: list[Fetched] = []
        for address in addresses[start:]:
            if found and WORLD.patience.random() < 0.4:
                break
            if "AWAY" in address.url:
                if WORLD.broker.now_ms >= WORLD.away_until_ms and not is_hurried():
                    found.append(address.url.encode())
                    continue
                if found:
                    break
                raise TextAwayError(f"The text {address.url} is away.")
            missing = DeadLetter("fetch", "NotFound", "The text is not there.", can_vary=True)
            found.append(missing if WORLD.patience.random() < 0.5 else address.url.encode())
        return found

    def decode_all(
        self,
        messages: Messages,
        skipped: Set[int] = frozenset(),
        fetched: Mapping[int, Fetched] | None = None,
    ) -> Documents:
        missing = {
            place: outcome
            for place, outcome in (fetched or {}).items()
            if isinstance(outcome, DeadLetter)
        }
        given_up = missing | {
            place: DeadLetter(
                "fingerprint",
                "PageGivenUp",
                "The page took too long, so its text cannot be judged.",
                can_vary=True,
            )
            for place, value in enumerate(messages.values)
            if place not in skipped and b"SLOW" in (value or b"") and WORLD.patience.random() < 0.5
        }
        found = super().decode_all(messages, skipped | given_up.keys())
        found.outcomes.update(given_up)
        return found


class Volume(MemoryStore):
    """A store whose process may lose control before and after each write."""

    def write(self, puts: Any, deletes: Any, ranges: Any = ()) -> None:
        process = WORLD.scheduler.current
        if process is not None:
            process.is_writing = True  # type: ignore[attr-defined]
        WORLD.scheduler.step()
        super().write(puts, deletes, ranges)
        WORLD.scheduler.step()
        if process is not None:
            process.is_writing = False  # type: ignore[attr-defined]


@functools.cache
def settings_of(slot: str, batch_documents: int, more: tuple[tuple[str, Any], ...]) -> Settings:
    folder = Path(tempfile.gettempdir()) / "stream-dedup-model"
    (folder / "index").mkdir(parents=True, exist_ok=True)  # no store makes it here
    return Settings(
        worker_id=slot,
        state_dir=folder,
        value_format="json",
        batch_documents=batch_documents,
        **dict(more),
    )


class Admin:
    """The administrator's client."""

    def __init__(self, settings: Settings) -> None:
        self._broker = WORLD.broker

    def cluster_id(self) -> str:
        return "model"

    def topic_ids(self, names: Sequence[str]) -> dict[str, ExistingTopic]:
        WORLD.scheduler.step()
        return {
            name: ExistingTopic(
                self._broker.topics[name].id, len(self._broker.topics[name].partitions)
            )
            for name in names
        }

    def describe(self, names: Sequence[str]) -> dict[str, TopicState]:
        kept = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "message.timestamp.type": "LogAppendTime",
        }
        found = self.topic_ids(names)
        return {name: TopicState(name, *found[name], kept, 1) for name in names}

    def partitions_committed(self, group: str, topic: str) -> frozenset[int]:
        WORLD.scheduler.step()
        pending = {
            key
            for producing in self._broker.producing.values()
            if producing.txn is not None
            for key in producing.txn.offsets
        }
        return frozenset(
            part for name, part in self._broker.group.offsets.keys() | pending if name == topic
        )

    def group_members(self, group: str) -> int:
        return len(self._broker.group.members)

    def stable_committed(self, group: str) -> dict[kafka.Key, tuple[int, str]]:
        WORLD.scheduler.step()
        if self._broker.pending(list(self._broker.group.offsets)):
            raise BrokerError("A transaction is open.")
        return dict(self._broker.group.offsets)

    def write_committed(
        self, group: str, topic: str, changes: Mapping[int, tuple[int, str]]
    ) -> None:
        WORLD.scheduler.step()
        offsets = self._broker.group.offsets
        if self._broker.group.members:
            raise BrokerError("The group is not empty.")
        for partition, (offset, metadata) in changes.items():
            before = offsets.get(
                (topic, partition), WORLD.vanished.get((topic, partition), (offset, ""))
            )[0]
            WORLD.rewinds.append((self._broker.topics[topic].id, partition, before, offset))
            WORLD.say(
                "broker", f"{topic}-{partition} is rewound from {before} to {offset}: {metadata}"
            )
            offsets[topic, partition] = (offset, metadata)
        self._broker.changed()

    def bounds(self, keys: Sequence[kafka.Key]) -> dict[kafka.Key, Bounds]:
        WORLD.scheduler.step()
        return {key: Bounds(0, self._broker.end(*key)) for key in keys}

    def end_offset(self, topic: str, partition: int) -> int:
        WORLD.scheduler.step()
        return len(self._broker.topics[topic].partitions[partition])


class SideThread:
    """Replaces the thread in which a transaction or a step of it runs, or the clients close."""

    def __init__(self, _name: str = "") -> None:
        self._fiber: Fiber | None = None
        self._result: Any = None

    def call(self, function: Callable[[], Any], seconds: float) -> None:
        function()

    def leave(self) -> None: ...

    def start(self, function: Callable[[], Any]) -> None:
        if WORLD.tuning.aside:
            self._fiber = WORLD.scheduler.fork(function)
            return
        self._fiber = Fiber(function)
        self._fiber.has_ended = True
        try:
            self._fiber.result = function()
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            self._fiber.error = error

    def ended(self, seconds: float) -> bool:
        fiber = self._fiber
        assert fiber is not None
        if seconds and not fiber.has_ended:
            WORLD.scheduler.step(idle_ms=int(seconds * 1000))
        if not fiber.has_ended:
            return False
        self._fiber, self._result = None, fiber.result
        if fiber.error is not None:
            raise fiber.error
        return True

    def take_result(self) -> Any:
        return self._result


class Flag:
    """Replaces an event that another thread waits for."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        WORLD.scheduler.version += 1

    def clear(self) -> None:
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        until = WORLD.broker.now_ms + int(seconds * 1000)
        while not self._is_set and (left := until - WORLD.broker.now_ms) > 0:
            WORLD.scheduler.step(idle_ms=left)
        return self._is_set


class Time:
    """The world's clock."""

    def monotonic(self) -> float:
        return WORLD.broker.now_ms / 1000

    def time(self) -> float:
        return WORLD.broker.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        WORLD.scheduler.step(idle_ms=int(seconds * 1000))


class Log:
    """A logger that writes into the trace."""

    def _say(self, event: str, **fields: Any) -> None:
        process = WORLD.scheduler.current
        if WORLD.trace is not None:
            more = " ".join(f"{name}={value}" for name, value in fields.items())
            WORLD.say("world" if process is None else process.name, f"{event} {more}")

    def warning(self, event: str, **fields: Any) -> None:
        self._say(event, **fields)
        assert "contradicts the log" not in event, event

    debug = info = error = exception = _say


def _inspect(settings: Settings, names: TopicNames, recipe: Any) -> startup.SourceCluster:
    broker = WORLD.broker
    WORLD.scheduler.step()
    topic = broker.topics[names.documents]
    log = broker.topics[names.fingerprints]
    first = records.decode(log.partitions[0][0].value)
    assert isinstance(first, records.Control)
    partitions = len(topic.partitions)
    plan = Plan.from_fields(first.fields["plan"])
    return startup.SourceCluster(
        names,
        log.id,
        topic.id,
        partitions,
        partitions,
        1 << 20,
        1 << 20,
        plan,
        broker.topics[names.verdicts].id,
    )


def _read_whole(
    settings: Settings, topic: str, advance: Any = None, *, records_max: int | None = None
) -> Iterator[Any]:
    WORLD.scheduler.step()
    for record in list(WORLD.broker.read(topic, 0))[:records_max]:
        try:
            yield record.offset, records.decode(record.value)
        except FormatError:
            yield record.offset, None


def _read_partition(
    settings: Settings,
    topic: str,
    partition: int,
    start: int = 0,
    *,
    since_ms: int | None = None,
    until: int = 0,
) -> Iterator[Message]:
    for _ in range(400):
        WORLD.scheduler.step(idle_ms=100 if WORLD.broker.end(topic, partition) < until else None)
        if WORLD.broker.end(topic, partition) >= until:
            break
    else:
        raise BrokerError("The end could not be read: a transaction is open.")
    for record in list(WORLD.broker.read(topic, partition, start)):
        yield Message(
            topic,
            partition,
            record.offset,
            record.key,
            record.value,
            record.timestamp_ms,
            record.headers,
        )


def dependencies_of_worker() -> WorkerDependencies:
    tuning = WORLD.tuning
    twins: dict[str, Any] = {
        "clock": Time(),
        "random_bytes": WORLD.chance.randbytes,
        "make_thread": SideThread,
        "make_event": Flag,
        "make_admin": Admin,
        "make_beginnings": functools.partial(
            beginnings.Beginnings, make_admin=Admin, read=_read_whole, logger=Log()
        ),
        "make_transactions": _transactions,
        "make_fingerprinter": Prober,
        "make_decoder": Impatient,
        "inspect": _inspect,
        "resident_bytes": lambda: 200 << 20,  # the process's memory does not depend on the seed
        "pace": IntakePace(
            gather_seconds=IntakePace().gather_seconds if tuning.aside and tuning.gathers else 0.0,
            quick_records=2 if tuning.aside else sys.maxsize,
            slice_seconds=0.0 if WORLD.cuts else IntakePace().slice_seconds,
            slow_bytes=1,
            record_documents=2,
        ),
        "logger": Log(),
    }
    return WorkerDependencies(**twins)


def dependencies_of_index(slot: str) -> IndexerDependencies:
    twins: dict[str, Any] = {
        "monotonic": Time().monotonic,
        "make_admin": Admin,
        "check_topics": lambda *_: {
            name: SimpleNamespace(topic_id=topic.id) for name, topic in WORLD.broker.topics.items()
        },
        "open_store": lambda _: Volume(WORLD.volumes[slot]),
        "table_folder": lambda _: None,  # a twin has no folder, and two replicas must not share one
        "make_thread": SideThread,
        "logger": Log(),
    }
    return IndexerDependencies(slot, None, **twins)


def _transactions(*given: Any, **more: Any) -> transaction.TransactionalOutput:
    return transaction.TransactionalOutput(
        *given, **more, monotonic=Time().monotonic, make_thread=SideThread
    )  # type: ignore[arg-type]


def dependencies_of_operator() -> OrderDependencies:
    twins: dict[str, Any] = {
        "make_admin": Admin,
        "make_transactions": _transactions,
        "read_whole_log": _read_whole,
        "read_partition": _read_partition,
        "recipe_of": lambda _: RECIPE,
        "progress": lambda *_: contextlib.nullcontext(lambda *_: None),
    }
    return OrderDependencies(**twins)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Replace Kafka's two clients where roles and commands make them."""
    twins: dict[str, Any] = {
        "Consumer": lambda config, **_: kafka.Consumer(WORLD.broker, config),
        "Producer": lambda config, **_: kafka.Producer(WORLD.broker, config),
    }
    # A role makes its clients in many places and threads, all of them by these two names: so the
    # product's own code around them (`readers`, `source`, `append`, `transaction`) runs in the
    # model too. Nothing else is patched.
    with mock.patch.multiple(client, **twins):
        yield
