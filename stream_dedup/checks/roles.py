"""Whether the roles are at work, as far as Kafka knows it: members of the workers' group, and answers to what the log asks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stream_dedup.checks.finding import CheckFinding, ok, warning
from stream_dedup.checks.group import check_group
from stream_dedup.ground.errors import FormatError
from stream_dedup.ground.topics import TopicNames
from stream_dedup.kafka import Admin, read_partition
from stream_dedup.log import answers, records
from stream_dedup.settings.settings import Settings

_TAIL_RECORDS: Final = 200
# A question that is younger may have its answer on the way.
_LATE_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """`workers`: members of the group. `waiting`: records of `documents` that the group has not committed past.

    `asked`: (log offset, age in milliseconds) of the last batch among the log's last records; `answered`: the highest log
    offset among the last answers; None where there is none. `reads`: the topics that members of the group read.
    """

    workers: int
    waiting: int
    asked: tuple[int, int] | None
    answered: int | None
    reads: frozenset[str] = frozenset()


def check_roles(settings: Settings, names: TopicNames, facts: RoleFacts) -> Iterator[CheckFinding]:
    """What waits has somebody who works on it."""
    problems = []
    if facts.waiting and not facts.workers:
        problems.append(
            warning(
                "roles",
                f"{facts.waiting:,} records of {names.documents} wait, and no worker is a member of the group "
                f"{settings.group}. Start one with: stream-dedup run worker",
            )
        )
    if facts.asked is not None and facts.asked[1] > _LATE_MS and (facts.answered is None or facts.answered < facts.asked[0]):
        last = "none" if facts.answered is None else f"the last one is for offset {facts.answered}"
        problems.append(
            warning(
                "roles",
                f"No index has answered the batch at offset {facts.asked[0]} of {names.fingerprints} for "
                f"{facts.asked[1] / 1000:,.0f} s ({last}), so workers wait. Start one with: stream-dedup run index. One that "
                "runs says at /readyz what it does.",
            )
        )
    workers = f"{facts.workers} worker{'' if facts.workers == 1 else 's'}"
    problems += check_group(settings, names.documents, facts.reads)
    yield from problems or [ok("roles", f"The group has {workers}; whatever was asked of the index has its answer.")]


def read_roles(admin: Admin, settings: Settings, waiting: int) -> RoleFacts:
    """Return what Kafka knows of the roles.

    Raises:
        BrokerError: Kafka does not answer.
    """
    names, now_ms = settings.topic_names, int(time.time() * 1000)
    keys = [(names.fingerprints, 0), (names.verdicts, 0)]
    ends = admin.ends(keys)
    asked: tuple[int, int] | None = None
    for message in read_partition(settings, *keys[0], max(0, ends[keys[0]][1] - _TAIL_RECORDS)):
        if _is_batch(message.value):
            asked = message.offset, max(0, now_ms - (message.timestamp_ms or now_ms))
    answered: int | None = None
    for message in read_partition(settings, *keys[1], max(0, ends[keys[1]][1] - _TAIL_RECORDS)):
        offset = _answers(message.value)
        if offset is not None:
            answered = max(offset, -1 if answered is None else answered)
    return RoleFacts(admin.group_members(settings.group), waiting, asked, answered, admin.group_topics(settings.group))


def _is_batch(raw: bytes | None) -> bool:
    try:
        return isinstance(records.decode(raw, "a record of the log"), records.Batch)
    except FormatError:
        return False


def _answers(raw: bytes | None) -> int | None:
    try:
        answer = answers.decode(raw)
    except FormatError:
        return None
    return None if isinstance(answer, answers.Announce) else answer.log_offset
