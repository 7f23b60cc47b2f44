"""The work of `rewind`: the committed offsets of an idle group set back, with their epochs raised.
The rules: `control.rewind`.

The steps, in this order: parse, no members, no open transaction, the topic's bounds, the log (only
where an epoch is missing), plan, committed offsets unchanged since, write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stream_dedup.domain.errors import BrokerError, ConfigurationError, InputError
from stream_dedup.domain.printable import counted
from stream_dedup.kafka import Admin
from stream_dedup.log import epochs
from stream_dedup.orders import rewind
from stream_dedup.orders.beginnings import read_marks
from stream_dedup.orders.orders import OrderDependencies
from stream_dedup.orders.rewind import left_up_to
from stream_dedup.settings.settings import Settings

# The end of each output. Among the last records may be some that were released and name old
# positions; never as many.
_OUTPUTS_LOOKED_AT = 2000


def rewind_group(
    settings: Settings, texts: Sequence[str] | None, around: OrderDependencies, *, dry_run: bool
) -> list[rewind.OffsetChange]:
    """Set the group's committed offsets back as the texts (`PARTITION@OFFSET`) say, and return what
    was changed.

    Without texts those that are lost are restored, as far as outputs and log prove that documents
    have left.

    Raises:
        ConfigurationError: workers are running, a topic is missing, or the log belongs to another
        group. InputError: a text is not a position in the source topic, or an offset may not be
        written; then none was. BrokerError: Kafka failed, or a transaction is
        open; the same command may be run again.
    """
    names = settings.topic_names
    wanted = rewind.parse(texts or (), names.documents)
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
