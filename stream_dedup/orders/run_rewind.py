"""Carry out `rewind`: set the committed offsets of an idle group back, and raise their epochs. The
rules are in `orders.rewind`.

The steps in this order: parse, check that the group has no members and no open transaction, read the
topic's bounds, read the log (only if an epoch is missing), plan, check that the committed offsets are
unchanged, write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stream_dedup.domain.errors import BrokerError, ConfigurationError, InputError
from stream_dedup.domain.printable import counted
from stream_dedup.kafka import Admin, require_topics
from stream_dedup.log import epochs
from stream_dedup.orders import rewind
from stream_dedup.orders.beginnings import read_log_watermarks
from stream_dedup.orders.common import OrderDependencies
from stream_dedup.orders.rewind import find_proven_end
from stream_dedup.settings.settings import Settings

# Records to read at the end of each output. Releases, which name old positions, are always fewer.
_TAIL_RECORDS = 2000


def rewind_group(
    settings: Settings,
    texts: Sequence[str] | None,
    dependencies: OrderDependencies,
    *,
    dry_run: bool,
) -> list[rewind.OffsetChange]:
    """Set the group's committed offsets to `texts` (`PARTITION@OFFSET`), and return the changes.

    If `texts` is None, lost offsets are restored to the point up to which outputs and log prove
    that documents were written.

    Raises:
        ConfigurationError: workers are running, a topic is missing, or the log belongs to another
        group.
        InputError: a text is not a position in the source topic, or an offset is not allowed; then
        nothing was written.
        BrokerError: Kafka failed, or a transaction is open; run the command again.
    """
    names = settings.topic_names
    new_offsets = rewind.parse(texts or (), names.documents)
    admin = dependencies.make_admin(settings)
    source = require_topics(admin, [names.documents])[names.documents]
    _check_is_empty(admin, settings.group)
    all_committed = admin.stable_committed(settings.group)
    committed = {
        partition: value
        for (topic, partition), value in all_committed.items()
        if topic == names.documents
    }
    partitions_to_set: Iterable[int] = range(source.partitions)
    if texts:
        partitions_to_set = [
            partition for partition in new_offsets if partition < source.partitions
        ]
    topic_bounds = admin.bounds([(names.documents, partition) for partition in partitions_to_set])
    bounds = {partition: span for (_, partition), span in topic_bounds.items()}
    cluster = rewind.RewindTarget(names.documents, source.partitions, committed, bounds)
    proven: dict[int, int] = {}
    watermarks = None
    if rewind.needs_log(bounds, committed):
        with dependencies.progress("reading the epochs in the log", None) as advance:
            watermarks = read_log_watermarks(
                settings, names, source.topic_id, advance, dependencies.read_whole_log
            )
    if not texts and watermarks is not None:
        if not watermarks.is_recreated:
            proven = _proven_ends(admin, settings, bounds, dependencies)
        new_offsets = rewind.find_restored_offsets(cluster, watermarks, proven)
    changes, refusals = rewind.plan(new_offsets, cluster, watermarks, proven)
    if refusals:
        raise InputError("\n".join([*refusals, "Nothing was written."]))
    if not dry_run:
        if admin.stable_committed(settings.group) != all_committed:
            raise BrokerError(
                f"The committed offsets of group {settings.group} changed during this command, so "
                "a worker was running. Nothing was written. Stop the workers, and run this "
                "command again."
            )
        needed = [change for change in changes if change.is_change]
        _write(admin, settings.group, names.documents, needed)
    return changes


def _check_is_empty(admin: Admin, group: str) -> None:
    members = admin.group_members(group)
    if members:
        raise ConfigurationError(
            f"The group {group} has {counted(members, 'member')}, but offsets can be set only "
            "while it has none: a running worker would overwrite them. Stop the workers, and run "
            "this command again. A killed worker leaves the group after its session timeout "
            "(default 10 s)."
        )


def _proven_ends(
    admin: Admin, settings: Settings, partitions: Iterable[int], dependencies: OrderDependencies
) -> dict[int, int]:
    """Return, for each source partition, the offset below which the outputs prove that every record
    was written.
    """
    names = settings.topic_names
    proven: dict[int, int] = {}
    for (topic, partition), (_, high) in admin.bounds(
        [(topic, partition) for partition in partitions for topic in names.outputs]
    ).items():
        tail = dependencies.read_partition(settings, topic, partition, high - _TAIL_RECORDS)
        end = find_proven_end(tail, names.documents, partition)
        if end is not None:
            proven[partition] = max(end, proven.get(partition, 0))
    return proven


def _write(admin: Admin, group: str, topic: str, changes: Sequence[rewind.OffsetChange]) -> None:
    new_offsets = {
        change.partition: (change.new_offset, epochs.to_metadata(change.new_epoch))
        for change in changes
    }
    if not new_offsets:
        return
    try:
        admin.write_committed(group, topic, new_offsets)
    except BrokerError as error:
        raise BrokerError(
            f"{error} Was a worker started during this command? Stop the workers, and run the "
            "same command again; rewinding twice is safe."
        ) from error
