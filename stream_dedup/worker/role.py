"""Role one, the worker: how it is put together. Its loop, with the table of its states, is in
`worker.loop`.
"""

# ruff: noqa: PLW0108 - a part is given what the worker does, and the worker is made from its parts

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from stream_dedup.domain.document import NONCE_BYTES
from stream_dedup.domain.failpoints import Failpoints
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.kafka import LogAppender, Patience, TransactionalOutput, VerdictReader
from stream_dedup.orders.beginnings import Beginnings
from stream_dedup.serving.kept import KeptSource
from stream_dedup.serving.process import FreedMemory
from stream_dedup.serving.running import RoleFrame, RunningRole, run_role
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import identity
from stream_dedup.worker.allowance import Allowance, Amount
from stream_dedup.worker.assignment import Assignment
from stream_dedup.worker.awaited import Awaited
from stream_dedup.worker.budget import WorkerBudget, budget_of
from stream_dedup.worker.delivery import Delivery
from stream_dedup.worker.dependencies import WorkerContext, WorkerDependencies
from stream_dedup.worker.flow import BATCHES_IN_FLIGHT, Flow
from stream_dedup.worker.intake import Intake
from stream_dedup.worker.loop import Worker, WorkerParts
from stream_dedup.worker.metrics import WorkerMetrics
from stream_dedup.worker.outputs import OutputWriter, warm_up
from stream_dedup.worker.prepare import Preparer
from stream_dedup.worker.questions import Questions, WrittenFormat
from stream_dedup.worker.startup import SourceCluster


def run(
    settings: Settings, stop: threading.Event, dependencies: WorkerDependencies | None = None
) -> None:
    """Run a worker until `stop` is set; what is in flight is finished first.

    Raises:
        ConfigurationError: something must be changed by an operator (exit 78).
        StreamDedupError: the worker cannot go on; a restart begins at the committed offsets.
    """
    around = dependencies or WorkerDependencies.of_process()
    recipe = recipe_of(settings)
    metrics = WorkerMetrics(recipe.id)
    frame = RoleFrame(
        settings.topic_names.documents,
        "connecting",
        metrics.registry,
        around.logger,
        failpoint=around.failpoint,
        make_watch=around.make_watch,
        make_kept=lambda health: KeptSource(settings, health, metrics, around.logger),
    )
    run_role(
        settings, stop, frame, lambda running: build_worker(running, recipe, metrics, around).run
    )


def build_worker(
    running: RunningRole, recipe: Recipe, metrics: WorkerMetrics, around: WorkerDependencies
) -> Worker:
    """Look at the topics, load the recipe, make Kafka's clients and the parts that use them, and
    return the worker.

    Raises:
        ConfigurationError, BrokerError: the topics, the folder or a client are not as they must be.
    """
    settings, health, watch, stop, logger = (
        running.settings,
        running.health,
        running.watch,
        running.stop,
        around.logger,
    )
    names = settings.topic_names
    patience = Patience(watch.is_silent, stop, health.beat)
    cluster = watch.begin(stop, lambda: around.inspect(settings, names, recipe))
    beginnings = watch.begin(stop, lambda: _open_beginnings(settings, cluster, around))
    health.startup(0.3, "loading the recipe")
    fingerprinter = around.make_fingerprinter(recipe)
    budget = budget_of(settings, around.resident_bytes(), logger)
    allowance = Allowance(Amount(settings.batch_documents, budget.part_bytes))
    # The clients' queues are part of the budget.
    settings = budget.settings_for_clients(settings, cluster.record_bytes_max)
    health.startup(0.8, "joining the group")
    claimed = identity.claim(settings)
    client = claimed.name
    nonce = around.random_bytes(NONCE_BYTES)
    flow = Flow(BATCHES_IN_FLIGHT, settings.batch_documents, nonce, around.pace.record_documents)
    failpoints = Failpoints(around.failpoint)
    context = WorkerContext(
        flow, stop, health.beat, metrics, failpoints, around.clock, logger, patience
    )
    warm_up()

    clients = _open_clients(running, settings, client, around)
    worker: (
        Worker  # what more than one part must do is the worker's, which exists once its parts do
    )
    assignment = Assignment(
        context,
        settings,
        cluster,
        beginnings,
        lambda listener: around.make_source(settings, names.documents, client, listener, patience),
        around.make_admin,
        around.make_thread("asking"),
        lambda: worker.drain(),
        lambda: worker.hear_anew(),
    )
    delivers = settings.judging_mode.delivers
    delivery = Delivery(
        context,
        _make_writer(settings, recipe, cluster),
        clients.transactions,
        clients.appender,
        around.make_thread("committing"),
        allowance,
        lambda *, rereads: worker.abort(rereads=rereads),
        delivers=delivers,
    )
    written = WrittenFormat(cluster.format)
    intake = Intake(
        context,
        assignment,
        _make_preparer(settings, recipe, cluster, fingerprinter, nonce, budget, around, written),
        around.make_thread("preparing"),
        budget,
        allowance,
        lambda batch: worker.take_in(batch),
        around.pace,
        around.make_event(),
    )
    memory = FreedMemory(budget.limit_bytes, budget.part_bytes)
    fail_open = None if settings.fail_open is None else settings.fail_open.total_seconds()
    questions = Questions(
        context, clients.appender, clients.hear, clients.verdicts, memory, fail_open, written
    )
    parts = WorkerParts(
        assignment, intake, questions, delivery, allowance, Awaited(running.waits), claimed
    )
    worker = Worker(context, parts, running, around, delivers=delivers)
    what = {"topic": names.documents, "group": settings.group, "state": str(settings.state_dir)}
    logger.info("worker started", name=client, recipe=recipe.id, plan=cluster.plan.id, **what)
    return worker


class _Clients(NamedTuple):
    hear: Callable[[], VerdictReader]
    verdicts: VerdictReader
    appender: LogAppender
    transactions: TransactionalOutput


def _open_clients(
    running: RunningRole, settings: Settings, client: str, around: WorkerDependencies
) -> _Clients:
    """Make what asks the log, hears the index and writes the outputs; `client` is the worker's
    name.
    """
    names = settings.topic_names

    def hear() -> VerdictReader:
        return around.make_verdicts(settings, names.verdicts, f"{client}-verdicts")

    return _Clients(
        hear,
        running.watch.begin(
            running.stop, hear
        ),  # their end is read before anything is asked, so that no answer can be missed
        around.make_appender(settings, names.fingerprints, f"{client}-log"),
        around.make_transactions(
            settings,
            f"{settings.group}-{client}",
            f"{client}-outputs",
            in_turns=True,
            patience=Patience(running.watch.is_silent, running.stop),
        ),
    )


def _open_beginnings(
    settings: Settings, cluster: SourceCluster, around: WorkerDependencies
) -> Beginnings:
    """Read what was begun, and write down what stands there once; made again it is the same."""
    found = around.make_beginnings(settings, cluster.names, cluster.log_id, cluster.source_id)
    found.open(cluster.source_partitions)
    found.hold_reading()
    return found


def _make_preparer(
    settings: Settings,
    recipe: Recipe,
    cluster: SourceCluster,
    fingerprinter: Fingerprinter,
    nonce: bytes,
    budget: WorkerBudget,
    around: WorkerDependencies,
    written: WrittenFormat,
) -> Preparer:
    return Preparer(
        around.make_decoder(settings, takes_vectors=recipe.method.takes_vectors),
        fingerprinter,
        nonce,
        cluster.record_bytes_max,
        settings.judging_mode,
        digests_ids=settings.log_ids == "digest",
        encode=written.encode,
        slow_bytes=around.pace.slow_bytes,
        record_documents=around.pace.record_documents,
        ahead_bytes=budget.ahead_bytes,
    )


def _make_writer(settings: Settings, recipe: Recipe, cluster: SourceCluster) -> OutputWriter:
    names = settings.topic_names
    return OutputWriter(
        names.unique,
        names.duplicates,
        names.dead_letters,
        settings.group,
        recipe.id,
        cluster.dead_bytes_max,
        settings.judging_mode,
    )
