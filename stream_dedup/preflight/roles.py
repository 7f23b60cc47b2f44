"""Check in Kafka whether the roles are running: members of the group, and answers to the log's
records.

Group, transactional ids and the state folder are named after the topics' prefix, so two filters of
one cluster share none of them, unless both have the same configured group. Then their workers would
fence each other by their transactional ids.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from stream_dedup.domain.printable import counted
from stream_dedup.domain.topics import TopicNames
from stream_dedup.kafka import Admin, read_partition
from stream_dedup.log import answers, epochs, records
from stream_dedup.log.record_frame import decode_unless_damaged
from stream_dedup.preflight.finding import CheckFinding, Problems, refused
from stream_dedup.settings.settings import Settings

_TAIL_RECORDS: Final = 200
# The answer to a more recent batch may still arrive.
_LATE_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """Facts about the roles.

    `workers`: members of the group. `waiting`: uncommitted records of `documents`.
    `request_ages_ms`: age in milliseconds by log offset, for the batches with uncommitted documents
    among the log's last records. All other batches were answered, but `verdicts` may have deleted the
    answers. `answered`: the log offsets of the last answers, complete from `answered_from`.
    `topics_read`: the topics that members of the group read.
    """

    workers: int
    waiting: int
    request_ages_ms: Mapping[int, int] = field(default_factory=dict)
    answered: frozenset[int] = frozenset()
    answered_from: int = 0
    topics_read: frozenset[str] = frozenset()

    @property
    def unanswered(self) -> tuple[int, int] | None:
        """(log offset, age in milliseconds) of the oldest late batch without an answer.

        None while no record waits: then missing answers are old, deleted after a day or with their
        topic.
        """
        if not self.waiting:
            return None
        unanswered = [
            offset
            for offset in self.request_ages_ms
            if offset >= self.answered_from and offset not in self.answered
        ]
        offset = min(unanswered, default=None)
        return (
            None
            if offset is None or self.request_ages_ms[offset] <= _LATE_MS
            else (offset, self.request_ages_ms[offset])
        )


def check_roles(settings: Settings, names: TopicNames, facts: RoleFacts) -> Iterator[CheckFinding]:
    """Check that a worker runs if records wait, and that an index answers the log's batches."""
    problems = Problems("roles")
    if facts.waiting and not facts.workers:
        problems.warn(
            f"{facts.waiting:,} records of {names.documents} wait, but no worker is a member of "
            f"the group {settings.group}. Start one with: stream-dedup run worker"
        )
    if (late := facts.unanswered) is not None:
        last = (
            f"the last answer is for offset {max(facts.answered)}"
            if facts.answered
            else "no answer was found"
        )
        problems.warn(
            f"Log offset {late[0]} of {names.fingerprints} has not been answered for "
            f"{late[1] / 1000:.0f} s ({last}), so workers wait. If no index runs, start one with: "
            "stream-dedup run index. A running index reports its state at /readyz. If "
            f"{names.verdicts} was deleted with the answer, workers request it again within "
            "seconds."
        )
    problems.findings += check_group(settings, names.documents, facts.topics_read)
    yield from problems.or_ok(
        f"The group has {counted(facts.workers, 'worker')}; the index has answered all records of "
        "the log."
    )


def read_roles(admin: Admin, settings: Settings, waiting: int) -> RoleFacts:
    """Read the facts about the roles from Kafka.

    Raises:
        BrokerError: Kafka does not answer.
        OtherFormatError: this version does not know the format of a record.
    """
    names, now_ms = settings.topic_names, int(time.time() * 1000)
    members, topics_read = admin.group_members(settings.group), admin.group_topics(settings.group)
    if not waiting:
        return RoleFacts(members, waiting, topics_read=topics_read)
    all_committed = admin.committed_or_last_known(settings.group)
    committed = {
        part: (offset, epochs.from_metadata(metadata) or 0)
        for (topic, part), (offset, metadata) in all_committed.items()
        if topic == names.documents
    }
    keys = [(names.fingerprints, 0), (names.verdicts, 0)]
    bounds = admin.bounds(keys)
    request_ages_ms = {
        message.offset: max(0, now_ms - (message.timestamp_ms or now_ms))
        for message in read_partition(
            settings, *keys[0], max(0, bounds[keys[0]].end - _TAIL_RECORDS)
        )
        if _has_uncommitted(message.value, names.documents, committed)
    }
    low, end = bounds[keys[1]]
    start = max(low, end - _TAIL_RECORDS)
    decoded = (
        decode_unless_damaged(answers.decode, message.value)
        for message in read_partition(settings, *keys[1], start)
    )
    answered = frozenset(
        answer.log_offset
        for answer in decoded
        if answer is not None and not isinstance(answer, answers.Announce)
    )
    # Each replica answers in the log's order, so only answers below the lowest offset can be missing.
    answered_from = min(answered, default=0) if start > 0 else 0
    return RoleFacts(members, waiting, request_ages_ms, answered, answered_from, topics_read)


def _has_uncommitted(
    raw: bytes | None, documents: str, committed: Mapping[int, tuple[int, int]]
) -> bool:
    """Return whether a log record is a batch with an uncommitted document; `committed` is (offset,
    epoch) by partition.
    """
    batch = decode_unless_damaged(records.decode, raw)
    if not isinstance(batch, records.Batch):
        return False
    for place, source in enumerate(batch.sources):
        offset, epoch = committed.get(source.partition, (0, 0))
        last = int(batch.offset[batch.source == place].max(initial=-1))
        if source.topic == documents and source.epoch >= epoch and last >= offset:
            return True
    return False


def check_group(
    settings: Settings, documents: str, topics_read: Collection[str]
) -> list[CheckFinding]:
    """Return a refusal if members of the group read another topic than `documents`."""
    others = sorted(set(topics_read) - {documents})
    if not others:
        return []
    return [
        refused(
            "group",
            f"Workers of the group {settings.group} read {', '.join(others)}, so another filter "
            f"uses this group. This filter would read {documents}, and the workers of both would "
            "stop each other. Set another STREAM_DEDUP_GROUP; or unset it, and the group is "
            "named after STREAM_DEDUP_TOPIC_PREFIX. If you changed the topic of this filter, "
            "first stop its other workers.",
        )
    ]
