"""Whether the topic `decisions` is there, whole, and up to date: without it a rebuild looks up what
was decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from stream_dedup.checks.finding import CheckFinding, ok, warning
from stream_dedup.ground.topics import DECISIONS, TopicNames, TopicState, log_problems
from stream_dedup.kafka import Admin, read_partition
from stream_dedup.log import decisions
from stream_dedup.log.frame import unless_damaged
from stream_dedup.settings.settings import Settings

_LATE_RECORDS: Final = 1000
_ANEW: Final = "Delete the topic, create it again with stream-dedup topics apply, and have an index rebuilt, which writes it anew"


class DecisionSpan(NamedTuple):
    """What the topic holds: the Kafka offset of its first record, and the log offsets of its first
    and last decision.
    """

    low: int
    first: int
    last: int


def check_decisions(
    names: TopicNames, topic: TopicState | None, span: DecisionSpan | None, log_end: int
) -> Iterator[CheckFinding]:
    """Everything that was decided is there; `span` is None of an empty topic."""
    name, reached = names.decisions, 0 if span is None else span.last + 1
    problems = [
        warning("decisions", problem) for problem in _problems(name, topic, span, reached, log_end)
    ]
    yield from problems or [
        ok("decisions", f"{name} tells of the log's records up to {reached} of {log_end}.")
    ]


def _problems(
    name: str, topic: TopicState | None, span: DecisionSpan | None, reached: int, log_end: int
) -> Iterator[str]:
    """Yield what is not well; `reached`: up to which log record there are decisions."""
    if topic is None:
        yield (
            f"{name} does not exist: an index that is rebuilt looks up what was decided. Create it "
            "with: "
            "stream-dedup topics apply"
        )
        return
    if topic.partitions != 1:
        yield f"{name} has {topic.partitions} partitions, and the index uses the first one only. {_ANEW}."
        return
    yield from log_problems(name, topic, DECISIONS)
    if span is not None and span.low > 0:
        yield f"{name} begins at offset {span.low}: records of it were removed. {_ANEW}."
    elif span is not None and span.first > _LATE_RECORDS:
        yield f"{name} begins with log record {span.first}: a rebuild looks up what was decided before. {_ANEW}."
    if span is not None and span.last >= log_end:
        yield f"{name} tells of log record {span.last}, and the log ends at {log_end}: of another log. {_ANEW}."
    if log_end - reached > _LATE_RECORDS:
        yield f"{name} ends with log record {reached}, {log_end - reached:,} behind the log: is an index at work?"


def read_decisions(admin: Admin, settings: Settings) -> DecisionSpan | None:
    """Return what the topic holds; None if that is nothing.

    Raises:
        BrokerError: Kafka does not answer.
        OtherFormatError: a newer version wrote it.
    """
    key = (settings.topic_names.decisions, 0)
    low, end = admin.ends([key])[key]
    if low == end:
        return None
    found = []
    for start in (low, end - 1):
        for message in read_partition(settings, *key, start):
            if (decision := unless_damaged(decisions.decode, message.value)) is not None:
                found.append(decision.log_offset)
                break
    return DecisionSpan(low, found[0], found[-1]) if found else None
