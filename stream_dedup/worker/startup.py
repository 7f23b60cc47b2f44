"""What a worker checks before it reads its first record; whatever would endanger documents is a refusal with a remedy.

Invariant: nothing is read or written before the topics, the log's settings and its declaration (`declaration`) were found
to be what they must be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stream_dedup.checks.cluster import FRAMING_BYTES
from stream_dedup.checks.declaration import check_declaration
from stream_dedup.checks.recipe import check_key
from stream_dedup.checks.start import hold, report
from stream_dedup.document import TopicPartitionKey
from stream_dedup.errors import FirstStartError
from stream_dedup.fingerprint import Recipe
from stream_dedup.index.plan import Plan
from stream_dedup.log import records
from stream_dedup.log.kafka import Admin, read_whole
from stream_dedup.settings import Settings
from stream_dedup.topics import TopicNames
from stream_dedup.worker import declaration
from stream_dedup.worker.marks import read_marks

_FIRST_RECORDS = 50


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the cluster's topics allow, as read at start.

    `log_has_documents`: of this topic. Once true it stays so; while it is false it is asked again (`look_again`).
    """

    names: TopicNames
    source_id: bytes
    output_partitions: int
    record_bytes_max: int
    dead_bytes_max: int
    log_has_documents: bool
    plan: Plan


def inspect(settings: Settings, names: TopicNames, recipe: Recipe) -> Cluster:
    """Read the topics' settings and the log's declaration; declare, if the log is empty.

    Raises:
        ConfigurationError: a topic is missing, a setting endangers documents, or the log was begun with another recipe
            or for another group.
        BrokerError: Kafka does not answer.
    """
    topics = hold("worker", settings, names, Admin(settings))
    report([*check_key(recipe)])
    outputs = names.outputs
    declared, has_documents = _declaration(settings, names, recipe, topics[names.documents].topic_id)
    output_partitions = min(topics[name].partitions for name in outputs)
    limits = [int(topics[name].config.get("max.message.bytes", 1_048_588)) - FRAMING_BYTES for name in outputs]
    return Cluster(
        names,
        topics[names.documents].topic_id,
        output_partitions,
        min(limits[:2]),
        limits[2],
        has_documents,
        Plan.from_fields(declared["plan"]),
    )


def _declaration(settings: Settings, names: TopicNames, recipe: Recipe, source_id: bytes) -> tuple[dict[str, object], bool]:
    declared = declaration.follow(settings, names, recipe, begins=True)
    report(check_declaration(settings, recipe, declared))
    return declared, _log_has_documents(settings, names, source_id)


def _log_has_documents(settings: Settings, names: TopicNames, source_id: bytes) -> bool:
    return any(
        isinstance(record, records.Batch) and any(source.topic_id == source_id for source in record.sources)
        for _, record in read_whole(settings, names.fingerprints, most=_FIRST_RECORDS)
    )


def look_again(settings: Settings, cluster: Cluster) -> Cluster:
    """Return what is known of the cluster when a partition without a committed offset is met.

    A worker that began with the log may live for months. Were it to believe for so long that this is the first start, it would
    read everything again when the group's offsets vanish.
    """
    if cluster.log_has_documents:
        return cluster
    return replace(cluster, log_has_documents=_log_has_documents(settings, cluster.names, cluster.source_id))


def first_epoch(settings: Settings, cluster: Cluster, key: TopicPartitionKey) -> int:
    """Return the epoch with which a partition without a committed offset is read from its beginning.

    It is 0 if the log holds no document of this topic (then this is the first start), or if the group has committed offsets
    for other partitions of it (then this one is new: a group's offsets vanish together). If an operator said that all is to
    be read again, it is one more than the highest of the log: below the index's mark everything would be stale.

    Raises:
        FirstStartError: the group's offsets have vanished, and nobody said what to do.
    """
    if not cluster.log_has_documents:
        return 0
    if settings.first_start:
        # Asked before the group's offsets: another worker may have begun its own partitions a moment ago.
        marks = read_marks(settings, cluster.names, cluster.source_id).by_partition
        return marks[key[1]][0] + 1 if key[1] in marks else 0
    if not Admin(settings).has_committed(settings.group, key[0]):
        raise FirstStartError(
            f"The group {settings.group} has no committed offset for {key[0]}-{key[1]}, though the log holds documents of "
            "this topic: its offsets have vanished (Kafka forgets them after seven idle days), or were deleted. Reading from "
            "the beginning gives every document that the topic still holds to the outputs again. To do so, start once with "
            "STREAM_DEDUP_FIRST_START=true; to go on from a known place, restore the offsets with: stream-dedup rewind"
        )
    return 0
