"""Check the cluster's topics and offsets, as pure functions of the settings and `Facts`.

A topic outside of `Facts.requested_topics` is skipped: the ACLs of an index do not let it read a
worker's topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from stream_dedup.domain.document import ID_BYTES_MAX
from stream_dedup.domain.printable import counted
from stream_dedup.domain.topics import (
    BEGUN,
    HEADER_BUDGET_BYTES,
    TopicNames,
    TopicState,
    log_problems,
    removed_from_log,
)
from stream_dedup.log import epochs
from stream_dedup.log.records import DOCUMENTS_MAX, RECORD_BYTES_MAX
from stream_dedup.preflight.declaration import check_reading
from stream_dedup.preflight.finding import CheckFinding, Problems, ok, refused
from stream_dedup.settings.settings import Settings

# The broker compares a whole record batch with max.message.bytes; its header is 61 bytes, a
# record's framing less than 40.
FRAMING_BYTES: Final = 101
# For each document 14 bytes of columns, and for a duplicate its source (34, and a topic name of 255),
# its place and time (20) and its id.
ANSWER_BYTES_MAX: Final = DOCUMENTS_MAX * (14 + 34 + 255 + 20 + ID_BYTES_MAX)

_APPLY = "Run `stream-dedup topics apply`."
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the cluster. Times are milliseconds since 1970; partitions are numbers.

    `committed`: (offset, metadata) of the group, None if not requested; `source`: (first stored
    offset, end) of each partition of `documents`. `begun`: the partitions of `documents` that the
    filter has started to read, None if they are not recorded yet; `known`: the partitions with an
    offset that is committed, or in an open transaction. `now_ms`: this machine's clock.
    `oldest_ms`: the timestamp of the oldest record of `documents`. `reading`: how documents are
    read, if it is recorded. `waiting`: the number of records of `documents` that the group has not
    committed.
    """

    requested_topics: tuple[str, ...]
    topics: Mapping[str, TopicState]
    brokers: int = 1
    log: tuple[int, int] | None = None
    now_ms: int = 0
    oldest_ms: int | None = None
    committed: Mapping[int, tuple[int, str | None]] | None = None
    source: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    begun: frozenset[int] | None = None
    reading: Mapping[str, str | None] | None = None
    known: frozenset[int] = frozenset()
    waiting: int = 0


def check_topics_exist(
    settings: Settings, names: TopicNames, facts: Facts
) -> Iterator[CheckFinding]:
    """Check that all required topics exist."""
    del settings, names
    missing = [name for name in facts.requested_topics if name not in facts.topics]
    if len(missing) > 1:
        text = f"The topics {', '.join(missing)} do not exist; create them with: stream-dedup topics apply"
    elif missing:
        text = f"The topic {missing[0]} does not exist; create it with: stream-dedup topics apply"
    else:
        yield ok(
            "topics",
            f"The {len(facts.requested_topics)} topics of workers and index exist, on "
            f"{counted(facts.brokers, 'broker')}.",
        )
        return
    yield refused("topics", text)


def check_log_retention(
    settings: Settings, names: TopicNames, facts: Facts
) -> Iterator[CheckFinding]:
    """Check that Kafka neither trims, compacts nor splits the log, the only source of truth."""
    del settings
    log = facts.topics.get(names.fingerprints)
    if log is None:
        return
    problems = Problems("log")
    for sentence in log_problems(names.fingerprints, log):
        problems.refuse(sentence)
    begun = facts.topics.get(names.begun)
    for sentence in () if begun is None else log_problems(names.begun, begun, BEGUN):
        problems.refuse(sentence)
    if facts.log is not None and facts.log[0] > 0:
        # For an index only a warning: it compares the offset with its volume.
        report = problems.refuse if names.documents in facts.requested_topics else problems.warn
        report(removed_from_log(names.fingerprints, facts.log[0]))
    size = "" if facts.log is None else f"; it contains {counted(facts.log[1], 'record')}"
    yield from problems.or_ok(f"{names.fingerprints} has one partition and is kept forever{size}.")


def check_replication(
    settings: Settings, names: TopicNames, facts: Facts
) -> Iterator[CheckFinding]:
    """Check that acknowledged records survive a broker: replicas, in-sync replicas, elections."""
    del settings
    problems = Problems("replicas")
    unsafe: list[str] = []
    for name in (names.fingerprints, names.verdicts, names.begun, *names.outputs):
        topic = facts.topics.get(name)
        if topic is None:
            continue
        in_sync = _number(topic, "min.insync.replicas", 1)
        if in_sync < 2:
            unsafe.append(name)
        if in_sync > topic.replicas:
            problems.refuse(
                f"The topic {name} has {counted(topic.replicas, 'replica')} and "
                f"min.insync.replicas={in_sync}, so nothing "
                "can be written to it. Add replicas, or lower min.insync.replicas."
            )
        elif name == names.fingerprints and topic.replicas == 1:
            problems.warn(
                f"The log {name} has one replica: if its broker loses its disk, the filter forgets "
                "all documents and keeps every later copy again. Use three replicas; one is for "
                "tests only."
            )
        elif name == names.fingerprints and in_sync < 2:
            problems.warn(
                f"The log {name} has min.insync.replicas={in_sync}: a record that only one broker "
                f"has acknowledged can be lost with that broker. Set 2. {_APPLY}"
            )
        if (
            name in (names.fingerprints, names.begun)
            and topic.replicas > 1
            and topic.config.get("unclean.leader.election.enable", "false") == "true"
        ):
            problems.refuse(
                f"The topic {name} has unclean.leader.election.enable=true: a broker that lags "
                f"could become its leader, and acknowledged records would be lost. {_APPLY}"
            )
    exception = f", except in {', '.join(unsafe)}, where one broker is enough" if unsafe else ""
    yield from problems.or_ok(
        f"Kafka acknowledges records after more than one broker has stored them{exception}."
    )


def check_log_sizes(settings: Settings, names: TopicNames, facts: Facts) -> Iterator[CheckFinding]:
    """Check that the largest batch fits into the log and its answer into the verdicts, and that
    answers are retained until they are read.
    """
    del settings
    problems = Problems("log sizes")
    for name, needed, what in (
        (names.fingerprints, RECORD_BYTES_MAX + FRAMING_BYTES, "a batch"),
        (names.verdicts, ANSWER_BYTES_MAX + FRAMING_BYTES, "an answer"),
    ):
        topic = facts.topics.get(name)
        if (
            topic is not None
            and (accepted := _number(topic, "max.message.bytes", 1_048_588)) < needed
        ):
            problems.refuse(
                f"The topic {name} accepts records of up to {accepted:,} bytes, but {what} can "
                f"have {needed:,}: the first such record would stop the filter. Raise its "
                f"max.message.bytes. {_APPLY}"
            )
    verdicts = facts.topics.get(names.verdicts)
    if verdicts is not None:
        if verdicts.is_compacted:
            problems.refuse(
                f"The topic {names.verdicts} is compacted, so Kafka would delete answers before "
                f"workers read them, and their documents would wait forever. {_APPLY}"
            )
        kept_ms = _number(verdicts, "retention.ms", -1)
        if 0 <= kept_ms < _HOUR_MS:
            problems.warn(
                f"The topic {names.verdicts} is kept for {_time(kept_ms)}: a worker that pauses "
                f"for longer requests all its answers again. Keep it for a day. {_APPLY}"
            )
    yield from problems.or_ok(
        "The log accepts the largest batch, and the verdicts accept its answer."
    )


def check_output_sizes(
    settings: Settings, names: TopicNames, facts: Facts
) -> Iterator[CheckFinding]:
    """Check that the largest records of `documents` fit into the outputs with our headers, and that
    the outputs have as many partitions.
    """
    del settings
    source = facts.topics.get(names.documents)
    if source is None:
        return
    accepted = _number(source, "max.message.bytes", 1_048_588)
    problems = Problems("output sizes")
    for name in names.outputs:
        topic = facts.topics.get(name)
        if topic is None:
            continue
        is_dead_letters = name == names.dead_letters
        needed = accepted + HEADER_BUDGET_BYTES * (2 if is_dead_letters else 1)
        if (output_bytes := _number(topic, "max.message.bytes", 1_048_588)) < needed:
            consequence = (
                "larger records are truncated there"
                if is_dead_letters
                else "larger records become dead letters"
            )
            problems.warn(
                f"{names.documents} accepts records of {accepted:,} bytes, which have {needed:,} "
                f"on {name} with the dedup.* headers, but {name} accepts {output_bytes:,}: "
                f"{consequence}. {_remedy(names, name)}"
            )
        if topic.partitions < source.partitions:
            problems.warn(
                f"{names.documents} has {source.partitions} partitions, but {name} has "
                f"{topic.partitions}: documents of the additional partitions wait until {name} "
                f"has as many. {_remedy(names, name)}"
            )
    yield from problems.or_ok(
        f"The outputs accept all records of {names.documents} with the dedup.* headers."
    )


def check_retention(settings: Settings, names: TopicNames, facts: Facts) -> Iterator[CheckFinding]:
    """Check that the outputs keep documents with their original timestamps, and that inputs are
    retained long enough.
    """
    del settings
    problems = Problems("retention")
    for name in (names.unique, names.duplicates):
        if (topic := facts.topics.get(name)) is not None:
            for sentence in _losses_of_output(names, name, topic, facts):
                problems.warn(sentence)
    dead = facts.topics.get(names.dead_letters)
    if dead is not None and 0 <= _number(dead, "retention.ms", -1) < _DAY_MS:
        kept = _time(_number(dead, "retention.ms", -1))
        problems.warn(
            f"{names.dead_letters} is kept for only {kept}: dead letters may be deleted before "
            "anybody reads them. Keep it for 14 days."
        )
    source = facts.topics.get(names.documents)
    if source is not None:
        kept_ms = _number(source, "retention.ms", -1)
        if 0 <= kept_ms < _DAY_MS:
            problems.warn(
                f"{names.documents} is kept for {_time(kept_ms)}: documents that are not judged "
                "within that time are lost. Keep it for longer than the longest outage, such as a "
                "week."
            )
        if source.is_compacted:
            problems.warn(
                f"{names.documents} is compacted: Kafka may delete a document before it is judged, "
                "if a newer one has its key. Set cleanup.policy=delete."
            )
    if facts.topics.keys() & {names.unique, names.documents}:
        yield from problems.or_ok(
            "Documents keep their timestamps, and none is deleted because of its age."
        )


def _losses_of_output(
    names: TopicNames, name: str, topic: TopicState, facts: Facts
) -> Iterator[str]:
    """Yield a message for each setting by which an output loses documents or their timestamps."""
    age_ms = None if facts.oldest_ms is None else max(0, facts.now_ms - facts.oldest_ms)
    kept_ms = _number(topic, "retention.ms", 604_800_000)
    timestamp_type = topic.config.get("message.timestamp.type", "CreateTime")
    if kept_ms >= 0 and timestamp_type == "CreateTime" and (age_ms is None or age_ms > kept_ms):
        oldest = (
            ""
            if age_ms is None
            else f", and the oldest document in {names.documents} is {_time(age_ms)} old"
        )
        yield (
            f"{name} is kept for {_time(kept_ms)} by the documents' own timestamps{oldest}: Kafka "
            "deletes documents that are older when they arrive. Set retention.ms=-1, and limit "
            "the topic with retention.bytes."
        )
    if timestamp_type != "CreateTime":
        yield f"{name} replaces timestamps ({timestamp_type}), so documents lose their original ones. {_remedy(names, name)}"
    for bound in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
        if _number(topic, bound, 2**63 - 1) < 100 * 365 * _DAY_MS:
            yield (
                f"{name} has {bound}={topic.config[bound]}: it refuses documents whose timestamps "
                "differ more from the present, and they become dead letters. "
                f"{_remedy(names, name)}"
            )
    if topic.is_compacted:
        yield (
            f"{name} is compacted: of several documents with one key only the last is kept, and "
            f"documents without a key become dead letters. {_remedy(names, name)}"
        )


def check_offsets(settings: Settings, names: TopicNames, facts: Facts) -> Iterator[CheckFinding]:
    """Check that committed offsets are inside the topic and have an epoch, and that none is missing
    for a begun partition.
    """
    if facts.committed is None:
        return
    problems = Problems("offsets")
    for partition, (offset, metadata) in sorted(facts.committed.items()):
        where = f"{names.documents}-{partition}"
        low, end = facts.source.get(partition, (0, offset))
        if epochs.from_metadata(metadata) is None:
            problems.refuse(
                f"The committed offset {offset} of group {settings.group} for {where} has no "
                "epoch, so another program wrote it. Stop the workers and set it with: "
                f"stream-dedup rewind {where}@{offset}"
            )
        elif offset < low:
            problems.refuse(
                f"{where} begins at offset {low}, but the group has committed only up to "
                f"{offset}: Kafka deleted {counted(low - offset, 'record')} unread. If they are "
                f"permanently lost, continue after them with: stream-dedup rewind {where}@{low}"
            )
        elif offset > end:
            problems.refuse(
                f"The group's committed offset {offset} is above the end of {where} ({end}): the "
                "topic was created again, or records of it were lost. Restore it, or set another "
                'offset (handbook, "Read documents again").'
            )
    log_end = 0 if facts.log is None else facts.log[1]
    vanished = sorted((facts.begun or frozenset()) - facts.known)
    if vanished:
        partition_names = ", ".join(f"{names.documents}-{part}" for part in vanished)
        problems.refuse(
            f"The group {settings.group} has no committed offset for {partition_names}, though "
            f"{names.begun} records that the filter has started to read there: the offset was "
            "deleted, by Kafka (after seven idle days) or by hand. A worker exits there with code "
            "78. Restore the offsets with: stream-dedup rewind --from-outputs"
        )
    if facts.begun is None and not facts.committed and log_end > 1:
        problems.warn(
            f"The group {settings.group} has no committed offsets, though the log is not empty. If "
            "it had any, Kafka has deleted them (it does so after seven idle days), and a worker "
            "exits with code 78 and reports what to do."
        )
    yield from problems.or_ok(
        f"The group has offsets for {counted(len(facts.committed), 'partition')}; "
        f"{counted(facts.waiting, 'record')} not read yet."
    )


def check_reading_in_force(
    settings: Settings, names: TopicNames, facts: Facts
) -> Iterator[CheckFinding]:
    """Check that documents are read as the log's other workers read them."""
    del names
    if facts.committed is not None:
        yield check_reading(settings, facts.reading)


CLUSTER_CHECKS: Final[
    tuple[Callable[[Settings, TopicNames, Facts], Iterator[CheckFinding]], ...]
] = (
    check_topics_exist,
    check_log_retention,
    check_replication,
    check_log_sizes,
    check_output_sizes,
    check_retention,
    check_offsets,
    check_reading_in_force,
)


def check_cluster(settings: Settings, names: TopicNames, facts: Facts) -> list[CheckFinding]:
    """Return the findings of all these checks."""
    return [finding for check in CLUSTER_CHECKS for finding in check(settings, names, facts)]


def _remedy(names: TopicNames, name: str) -> str:
    """Return the remedy for a topic: `topics apply`, or a manual change of a topic with a configured
    name.
    """
    setting = names.setting_of(name)
    return (
        _APPLY
        if setting is None
        else (
            f"`topics apply` does not change the topic that STREAM_DEDUP_{setting.upper()} names; "
            "change it yourself."
        )
    )


def _number(topic: TopicState, setting: str, default: int) -> int:
    text = topic.config.get(setting, "")
    return int(text) if text.lstrip("-").isdigit() else default


def _time(milliseconds: int) -> str:
    for unit, size in (("days", _DAY_MS), ("hours", _HOUR_MS), ("minutes", 60_000)):
        if milliseconds >= 2 * size:
            return f"{milliseconds / size:.0f} {unit}"
    return f"{milliseconds / 1000:.0f} seconds"
