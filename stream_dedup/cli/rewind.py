"""`rewind`: the committed offsets of an idle group set back, with their epochs raised. The rules
are in `control.rewind`.

The steps, in this order: parse, no members, no open transaction, the topic's bounds, the log (only
where an epoch is missing), plan, committed offsets unchanged since, write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from stream_dedup.cli.options import DryRunOption, JsonOption, command
from stream_dedup.control import rewind
from stream_dedup.control.beginnings import read_marks
from stream_dedup.control.orders import OrderDependencies
from stream_dedup.control.rewind import left_up_to
from stream_dedup.ground.errors import BrokerError, ConfigurationError, InputError
from stream_dedup.ground.printable import counted
from stream_dedup.ground.terminal import note, print_json, print_table
from stream_dedup.kafka import Admin
from stream_dedup.log import epochs
from stream_dedup.settings.settings import Settings

# The end of each output. Among the last records may be some that were released and name old
# positions; never as many.
_OUTPUTS_LOOKED_AT = 2000


@command("rewind", example="stream-dedup rewind --dry-run documents-3@8812")
def rewind_command(
    settings: Settings,
    positions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PARTITION@OFFSET",
            help="Where to read on: 3@8812 or documents-3@8812; several at once.",
        ),
    ] = None,
    from_outputs: Annotated[
        bool,
        typer.Option(
            "--from-outputs",
            help="For lost offsets: read on behind what outputs and log prove to have left.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Have partitions of `documents` read again from an offset on, while no worker runs. What left
    already leaves again.

    Other tools must not set the group's offsets.
    """
    if bool(positions) == from_outputs:
        raise typer.BadParameter(
            "Give either positions or --from-outputs.", param_hint="PARTITION@OFFSET"
        )
    changes = rewind_group(settings, positions, OrderDependencies.of_process(), dry_run=dry_run)
    _print(settings.topic_names.documents, changes, is_written=not dry_run, as_json=as_json)
    return 0


def rewind_group(
    settings: Settings, texts: Sequence[str] | None, around: OrderDependencies, *, dry_run: bool
) -> list[rewind.OffsetChange]:
    """Set the group's committed offsets back as the texts (`PARTITION@OFFSET`) say, and return what
    was changed.

    Without texts those that are lost are restored, as far as outputs and log prove that documents
    have left.

    Raises:
        typer.BadParameter: a text is not a position in the source topic. ConfigurationError:
        workers are running, a topic is missing, or the log belongs to another group. InputError: an
        offset may not be written; then none was. BrokerError: Kafka failed, or a transaction is
        open; the same command may be run again.
    """
    names = settings.topic_names
    try:
        wanted = rewind.parse(texts or (), names.documents)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="PARTITION@OFFSET") from error
    admin = around.make_admin(settings)
    topics = admin.topic_ids([names.documents])
    if names.documents not in topics:
        raise ConfigurationError(
            f"The topic {names.documents} does not exist; create it with: stream-dedup topics apply"
        )
    topic_id, partitions = topics[names.documents]
    _check_is_empty(admin, settings.group)
    found = admin.stable_committed(settings.group)
    committed = {part: value for (topic, part), value in found.items() if topic == names.documents}
    looked_at = [part for part in wanted if part < partitions] if texts else range(partitions)
    ends = admin.ends([(names.documents, part) for part in looked_at])
    bounds = {part: span for (_, part), span in ends.items()}
    cluster = rewind.RewindTarget(names.documents, partitions, committed, bounds)
    left: dict[int, int] = {}
    marks = None
    if rewind.needs_log(bounds, committed):
        with around.progress("reading the log for its epochs", None) as advance:
            marks = read_marks(settings, names, topic_id, advance, around.read_whole)
    if not texts and marks is not None:
        if not marks.is_made_anew:
            left = _left(admin, settings, bounds, around)
        wanted = rewind.restored(cluster, marks, left)
    changes, refusals = rewind.plan(wanted, cluster, marks, left)
    if refusals:
        raise InputError("\n".join([*refusals, "Nothing was written."]))
    if not dry_run:
        if admin.stable_committed(settings.group) != found:
            raise BrokerError(
                f"The committed offsets of group {settings.group} changed meanwhile, so a worker "
                "was running. Nothing was "
                "written. Stop the workers and run this again."
            )
        _write(admin, settings.group, names.documents, [one for one in changes if one.is_one])
    return changes


def _check_is_empty(admin: Admin, group: str) -> None:
    members = admin.group_members(group)
    if members:
        raise ConfigurationError(
            f"The group {group} has {counted(members, 'member')}, and offsets can be set back only "
            "while it has none: a running worker would commit over them. Stop the workers and run "
            "this again; one that "
            "was killed leaves the group at the end of its session (10 s unless set otherwise)."
        )


def _left(
    admin: Admin, settings: Settings, partitions: Iterable[int], around: OrderDependencies
) -> dict[int, int]:
    """Return how far the outputs prove each source partition to have left: the offset behind."""
    names = settings.topic_names
    found: dict[int, int] = {}
    for (topic, part), (_, high) in admin.ends(
        [(topic, part) for part in partitions for topic in names.outputs]
    ).items():
        last = around.read_partition(settings, topic, part, high - _OUTPUTS_LOOKED_AT)
        end = left_up_to(last, names.documents, part)
        if end is not None:
            found[part] = max(end, found.get(part, 0))
    return found


def _write(admin: Admin, group: str, topic: str, changes: Sequence[rewind.OffsetChange]) -> None:
    wanted = {one.partition: (one.new_offset, epochs.to_metadata(one.new_epoch)) for one in changes}
    if not wanted:
        return
    try:
        admin.write_committed(group, topic, wanted)
    except BrokerError as error:
        raise BrokerError(
            f"{error} Was a worker started meanwhile? Stop the workers and run the same command "
            "again; rewinding twice does no "
            "harm."
        ) from error


def _print(
    topic: str, changes: Sequence[rewind.OffsetChange], *, is_written: bool, as_json: bool
) -> None:
    if as_json:
        print_json([_row(topic, one, is_written=is_written) for one in changes])
    elif not changes:
        note("No partition lacks its committed offset.")
    else:
        print_table(
            ["partition", "committed", "becomes", "epoch", "becomes", "offsets to read again"],
            [
                [
                    f"{topic}-{one.partition}",
                    _or_none(one.committed),
                    str(one.new_offset),
                    _or_none(one.epoch),
                    str(one.new_epoch),
                    _or_none(_again(one)),
                ]
                for one in changes
            ],
        )
    for one in changes:
        if one.warning:
            note(f"{topic}-{one.partition}: {one.warning}")
    if is_written and any(one.is_one for one in changes):
        note(
            "Written. The workers begin there; what they read again is delivered again, and a "
            "duplicate among it counts in "
            "dedup.copies once more."
        )
    elif is_written:
        note("Nothing was written.")
    else:
        note("Nothing was written (--dry-run).")


def _row(topic: str, one: rewind.OffsetChange, *, is_written: bool) -> dict[str, object]:
    return {
        "topic": topic,
        "partition": one.partition,
        "offset": {"now": one.committed, "wanted": one.new_offset},
        "epoch": {"now": one.epoch, "wanted": one.new_epoch},
        "offsets_again": _again(one),
        "warning": one.warning,
        "written": is_written and one.is_one,
    }


def _again(one: rewind.OffsetChange) -> int | None:
    return None if one.committed is None else max(0, one.committed - one.new_offset)


def _or_none(number: int | None) -> str:
    return "none" if number is None else str(number)
