"""`release`: a document wrongly dropped goes to `unique` after all. The steps and their order: `control.release`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from stream_dedup.cli.dropped import on_output, record_at, source_of
from stream_dedup.cli.options import DryRunOption, JsonOption, Settings, command
from stream_dedup.ground.document import LogPlace, Message, Reason
from stream_dedup.ground.errors import BrokerError, ConfigurationError, InputError
from stream_dedup.ground.failpoints import Failpoints
from stream_dedup.ground.terminal import note, print_json, print_table
from stream_dedup.ground.topics import TopicNames

if TYPE_CHECKING:
    from stream_dedup.cli.orders import OrderSurroundings
    from stream_dedup.control.release import Trace
    from stream_dedup.kafka import Output, TransactionalOutput

_ATTEMPTS = 3
_GONE = "Take the document from duplicates, and send it to whoever reads unique by other means."


@command("release", example="stream-dedup release documents-3@8812 --dry-run")
def release_command(
    settings: Settings,
    position: Annotated[
        str,
        typer.Argument(
            metavar="POSITION|ID",
            help="Where it lies in documents (documents-3@8812, 3@8812) or on duplicates (duplicates-3@17), or its id.",
        ),
    ],
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Send a document that was wrongly dropped to `unique` after all, once, however often this is run."""
    from stream_dedup.cli.orders import OrderSurroundings

    released = release(settings, position, OrderSurroundings.of_process(), dry_run=dry_run)
    _print(settings.topic_names, released, dry_run=dry_run, as_json=as_json)
    return 0


class Released(NamedTuple):
    """What was done: the document's position, the log offset of its release, and whether it was written to `unique` now."""

    position: str
    log_offset: int | None
    written: bool


def release(settings: Settings, text: str, around: OrderSurroundings, *, dry_run: bool) -> Released:
    """Release a document (`dropped` says how it may be named), once, however often it is asked.

    Raises:
        ConfigurationError: a topic is missing, or the log is another's.
        InputError: there is no such document any more, or it is not a duplicate; then nothing was written.
        BrokerError: Kafka failed; run it again, it goes on.
    """
    from stream_dedup.cli.orders import log_names
    from stream_dedup.control import declaration
    from stream_dedup.control.release import Trace
    from stream_dedup.worker.prepare import value_digest

    names = settings.topic_names
    if not settings.judging_mode.delivers:
        raise ConfigurationError("In shadow mode nothing leaves, so there is nothing to release. Nothing was written.")
    log_names(settings, [names.documents, names.unique, names.duplicates], around.make_admin)
    recipe = around.recipe_of(settings)
    declaration.follow(settings, names, recipe, begins=False, read=around.read_whole)
    admin = around.make_admin(settings)
    topic_id, _ = admin.topic_ids([names.documents])[names.documents]
    partition, offset = source_of(around, settings, text, topic_id, recipe.key)
    message = record_at(around, settings, names.documents, partition, offset, _GONE)
    failpoints = Failpoints(around.failpoint)
    transactions = None if dry_run else around.make_transactions(settings, f"{settings.group}-release", "release")  # 1
    try:
        trace = Trace(topic_id, partition, offset, value_digest(message.value), recipe.id)
        with around.progress("looking for it in the log", None) as advance:
            for log_offset, record in around.read_whole(settings, names.fingerprints, advance):  # 2
                trace.fold(log_offset, record)
        if not trace.releases:
            _check_was_dropped(around, settings, message, trace)
            if transactions is not None:
                _append_release(around, settings, message, trace)  # 3
                failpoints.hit("release.appended", 1)
        written = transactions is not None and _write(around, settings, message, trace, transactions, failpoints)
    finally:
        if transactions is not None:
            transactions.close()
    released_at = trace.releases[0][0] if trace.releases else None
    return Released(f"{names.documents}-{partition}@{offset}", released_at, written)


def _check_was_dropped(around: OrderSurroundings, settings: Settings, message: Message, trace: Trace) -> None:
    """Refuse what did not leave on `duplicates`, or has left on `unique` as well."""
    from stream_dedup.log import headers

    names = settings.topic_names
    name = f"{message.topic}-{message.partition}@{message.offset}"
    if not trace.judged:
        raise InputError(
            f"The log has no verdict on {name}, so it was not dropped: it has not been judged yet, or it was passed on or set "
            "aside unjudged. Nothing was written."
        )
    found = on_output(around, settings, names.unique, message, trace.verdicts_at)
    if found is not None:
        reason = headers.text_of(found.headers, headers.REASON)
        raise InputError(f"{name} was not dropped: it left on {names.unique}, as {reason}. Nothing was written.")
    if on_output(around, settings, names.duplicates, message, trace.verdicts_at) is None:
        raise InputError(
            f"{name} is not in {names.duplicates}: its verdict has not left yet, or that topic does not hold it any more. "
            "Nothing was written."
        )


def _append_release(around: OrderSurroundings, settings: Settings, message: Message, trace: Trace) -> None:
    from stream_dedup.cli.orders import append
    from stream_dedup.log.records import Release, encode_release

    names = settings.topic_names
    unique_from = around.make_admin(settings).end_offset(names.unique, message.partition)
    document = trace.judged[-1][2]
    log_offset = append(settings, names, encode_release(Release(document, unique_from)))
    trace.releases.append((log_offset, unique_from))


def _write(
    around: OrderSurroundings,
    settings: Settings,
    message: Message,
    trace: Trace,
    transactions: TransactionalOutput,
    failpoints: Failpoints,
) -> bool:
    """Write the document to `unique`, unless it is there; return whether it had to be written."""
    from stream_dedup.kafka import Outcome
    from stream_dedup.log import headers

    names, admin = settings.topic_names, around.make_admin(settings)
    first = min(unique_from for _, unique_from in trace.releases)
    low = _low(settings, names.unique, message.partition)
    if low > first:
        raise InputError(
            f"{names.unique}-{message.partition} holds nothing below {low} any more, and a release of {message.topic}-"
            f"{message.partition}@{message.offset} began at {first}: whether it left then cannot be told. Nothing was written."
        )
    output = _output(names, message, trace)
    why = ""
    for _ in range(_ATTEMPTS):
        end = admin.end_offset(names.unique, message.partition)
        for one in around.read_partition(settings, names.unique, message.partition, first, until=end):  # 4
            if headers.text_of(one.headers, headers.LOG) in trace.released_at:
                return False
        result = transactions.run(  # 5
            [output], [], b"", reached=lambda step: failpoints.hit(f"release.{step}", 1)
        )
        if result.outcome is Outcome.COMMITTED:
            failpoints.hit("release.after-commit", 1)
            return True
        why = result.why
        if result.refused:
            raise ConfigurationError(
                f"The topic {names.unique} refuses the record: {why} Correct the topic's settings with: stream-dedup topics "
                "apply; then run this again."
            )
    raise BrokerError(f"The document could not be written to {names.unique}: {why} Run the same command again; it goes on.")


def _low(settings: Settings, topic: str, partition: int) -> int:
    from stream_dedup.kafka import LogReader

    reader = LogReader(settings, topic, "release", partition)
    try:
        return reader.watermarks()[0]
    finally:
        reader.close()


def _output(names: TopicNames, message: Message, trace: Trace) -> Output:
    from stream_dedup.fingerprinting import format_prints, width_of
    from stream_dedup.kafka import Output
    from stream_dedup.log import headers

    document = trace.judged[-1][2]
    (fingerprint,) = format_prints(document.prints, width_of(document.recipe, document.prints.shape[1]))
    position = document.position(0)
    own = headers.of_verdict(position, Reason.RELEASED, trace.recipe, fingerprint, LogPlace(trace.releases[0][0], 0))
    passed = headers.passed_on(message.headers) + own
    return Output(names.unique, message.partition, message.key, message.value, message.timestamp_ms, passed)


def _print(names: TopicNames, released: Released, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(released._asdict())
    else:
        log_offset = "-" if released.log_offset is None else str(released.log_offset)
        print_table(["position", "released at log offset"], [[released.position, log_offset]])
    if released.written:
        note(f"Written to {names.unique}. It represents itself from now on.")
    elif dry_run:
        note("Nothing was written (--dry-run).")
    else:
        note(f"Nothing was written: it was released before, and is in {names.unique}.")
