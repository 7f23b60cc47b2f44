"""Assemble the worker. Its loop, with the table of its states, is in `worker.loop`."""

# ruff: noqa: PLW0108 - lambdas are necessary: parts call the worker, which is created after them

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from stream_dedup.domain.document import NONCE_BYTES
from stream_dedup.domain.failpoints import Failpoints
from stream_dedup.fingerprinting import Fingerprinter, Recipe
from stream_dedup.kafka import LogAppender, RetryPolicy, TransactionalOutput, VerdictReader
from stream_dedup.orders.beginnings import Beginnings
from stream_dedup.serving.kafka_role import RoleFrame, RunningRole, run_role
from stream_dedup.serving.process import FreedMemory
from stream_dedup.serving.retention import RetentionWatch
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings
from stream_dedup.worker import identity
from stream_dedup.worker.allowance import Allowance, Amount
from stream_dedup.worker.assignment import Assignment
from stream_dedup.worker.budget import WorkerBudget, budget_of
from stream_dedup.worker.delivery import Delivery
from stream_dedup.worker.dependencies import WorkerContext, WorkerDependencies
from stream_dedup.worker.flow import BATCHES_IN_FLIGHT, Flow
from stream_dedup.worker.intake import Intake
from stream_dedup.worker.loop import Worker
from stream_dedup.worker.metrics import WorkerMetrics
from stream_dedup.worker.outputs import OutputWriter, warm_up
from stream_dedup.worker.prepare import Preparer
from stream_dedup.worker.questions import Questions, WrittenFormat
from stream_dedup.worker.startup import SourceCluster


def run(
    settings: Settings, stop: threading.Event, dependencies: WorkerDependencies | None = None
) -> None:
    """Run a worker until `stop` is set, and then finish the batches in flight.

    Raises:
        ConfigurationError: an operator must change a setting (exit 78).
        StreamDedupError: the worker cannot continue; a restart begins at the committed offsets.
    """
    resolved = dependencies or WorkerDependencies.of_process()
    recipe = recipe_of(settings)
    metrics = WorkerMetrics(recipe.id)
    frame = RoleFrame(
        settings.topic_names.documents,
        "connecting",
        metrics.registry,
        resolved.logger,
        failpoint=resolved.failpoint,
        make_watch=resolved.make_watch,
        make_retention_watch=lambda health: RetentionWatch(
            settings, health, metrics, resolved.logger
        ),
    )
    run_role(
        settings, stop, frame, lambda running: build_worker(running, recipe, metrics, resolved).run
    )


def build_worker(
    running: RunningRole, recipe: Recipe, metrics: WorkerMetrics, dependencies: WorkerDependencies
) -> Worker:
    """Check the topics, load the recipe, create the Kafka clients and the parts, and return the
    worker.

    Raises:
        ConfigurationError: a topic, a setting or the state folder is unusable.
        BrokerError: Kafka does not answer.
    """
    settings, health, watch = running.settings, running.health, running.watch
    stop, logger = running.stop, dependencies.logger
    names = settings.topic_names
    retry_policy = RetryPolicy(watch.is_silent, stop, health.beat)
    cluster = watch.begin(stop, lambda: dependencies.inspect(settings, names, recipe))
    beginnings = watch.begin(stop, lambda: _open_beginnings(settings, cluster, dependencies))
    health.set_startup(0.3, "loading the recipe")
    fingerprinter = dependencies.make_fingerprinter(recipe)
    budget = budget_of(settings, dependencies.resident_bytes(), logger)
    # The clients' queues are part of the budget.
    settings = budget.settings_for_clients(settings, cluster.record_bytes_max)
    health.set_startup(0.8, "joining the group")
    claimed = identity.claim(settings)
    nonce = dependencies.random_bytes(NONCE_BYTES)
    flow = Flow(
        BATCHES_IN_FLIGHT, settings.batch_documents, nonce, dependencies.pace.record_documents
    )
    context = WorkerContext(
        flow,
        stop,
        health.beat,
        metrics,
        Failpoints(dependencies.failpoint),
        dependencies.clock,
        logger,
        retry_policy,
    )
    warm_up()
    clients = _open_clients(running, settings, claimed.name, dependencies)
    start = _Start(
        settings=settings,
        recipe=recipe,
        cluster=cluster,
        beginnings=beginnings,
        fingerprinter=fingerprinter,
        budget=budget,
        claimed=claimed,
        nonce=nonce,
        context=context,
        clients=clients,
    )
    worker = _assemble(start, running, dependencies)
    logger.info(
        "worker started",
        name=claimed.name,
        recipe=recipe.id,
        plan=cluster.plan.id,
        topic=names.documents,
        group=settings.group,
        state=str(settings.state_dir),
    )
    return worker


class _Start(NamedTuple):
    """The settings, clients and shared objects from which `_assemble` creates the parts."""

    settings: Settings
    recipe: Recipe
    cluster: SourceCluster
    beginnings: Beginnings
    fingerprinter: Fingerprinter
    budget: WorkerBudget
    claimed: identity.WorkerIdentity
    nonce: bytes
    context: WorkerContext
    clients: _Clients


def _assemble(start: _Start, running: RunningRole, dependencies: WorkerDependencies) -> Worker:
    """Create the parts of a worker, and the worker."""
    settings = start.settings
    context = start.context
    clients = start.clients
    budget = start.budget
    allowance = Allowance(Amount(settings.batch_documents, budget.part_bytes))
    delivers = settings.judging_mode.delivers
    written = WrittenFormat(start.cluster.format)
    worker: Worker  # assigned below, after the parts that call it
    assignment = Assignment(
        context,
        settings,
        start.cluster,
        start.beginnings,
        lambda listener: dependencies.make_source(
            settings,
            settings.topic_names.documents,
            start.claimed.name,
            listener,
            context.retry_policy,
        ),
        dependencies.make_admin,
        dependencies.make_thread("asking"),
        lambda: worker.drain(),
        lambda: worker.reopen_verdicts(),
    )
    delivery = Delivery(
        context,
        _make_writer(settings, start.recipe, start.cluster),
        clients.transactions,
        clients.appender,
        dependencies.make_thread("committing"),
        allowance,
        lambda *, rereads: worker.abort(rereads=rereads),
        delivers=delivers,
    )
    intake = Intake(
        context,
        assignment,
        _make_preparer(start, dependencies, written),
        dependencies.make_thread("preparing"),
        start.budget,
        allowance,
        lambda batch: worker.take_in(batch),
        dependencies.pace,
        dependencies.make_event(),
    )
    worker = Worker(
        context,
        running,
        dependencies,
        assignment=assignment,
        intake=intake,
        questions=_make_questions(start, written),
        delivery=delivery,
        allowance=allowance,
        identity=start.claimed,
        delivers=delivers,
    )
    return worker


def _make_questions(start: _Start, written: WrittenFormat) -> Questions:
    fail_open = start.settings.fail_open
    return Questions(
        start.context,
        start.clients.appender,
        start.clients.make_verdicts,
        start.clients.verdicts,
        FreedMemory(start.budget.limit_bytes, start.budget.part_bytes),
        None if fail_open is None else fail_open.total_seconds(),
        written,
    )


class _Clients(NamedTuple):
    make_verdicts: Callable[[], VerdictReader]
    verdicts: VerdictReader
    appender: LogAppender
    transactions: TransactionalOutput


def _open_clients(
    running: RunningRole, settings: Settings, client: str, dependencies: WorkerDependencies
) -> _Clients:
    """Create the clients of the log, the verdicts and the outputs; `client` is the worker's
    name.
    """
    names = settings.topic_names

    def make_verdicts() -> VerdictReader:
        return dependencies.make_verdicts(settings, names.verdicts, f"{client}-verdicts")

    return _Clients(
        make_verdicts,
        # Opened before the first question is sent, so that no answer is missed.
        running.watch.begin(running.stop, make_verdicts),
        dependencies.make_appender(settings, names.fingerprints, f"{client}-log"),
        dependencies.make_transactions(
            settings,
            f"{settings.group}-{client}",
            f"{client}-outputs",
            alternates=True,
            retry_policy=RetryPolicy(running.watch.is_silent, running.stop),
        ),
    )


def _open_beginnings(
    settings: Settings, cluster: SourceCluster, dependencies: WorkerDependencies
) -> Beginnings:
    """Read which partitions were begun, add those of an older version, and check that this worker
    has the input settings of the others. Idempotent.
    """
    beginnings = dependencies.make_beginnings(
        settings, cluster.names, cluster.log_id, cluster.source_id
    )
    beginnings.record_older_partitions(cluster.source_partitions)
    beginnings.ensure_reading()
    return beginnings


def _make_preparer(
    start: _Start, dependencies: WorkerDependencies, written: WrittenFormat
) -> Preparer:
    settings, recipe = start.settings, start.recipe
    return Preparer(
        dependencies.make_decoder(settings, takes_vectors=recipe.method.takes_vectors),
        start.fingerprinter,
        start.nonce,
        start.cluster.record_bytes_max,
        settings.judging_mode,
        digests_ids=settings.log_ids == "digest",
        encode=written.encode,
        slow_bytes=dependencies.pace.slow_bytes,
        record_documents=dependencies.pace.record_documents,
        ahead_bytes=start.budget.ahead_bytes,
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
