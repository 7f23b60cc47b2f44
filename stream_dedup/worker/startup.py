"""The worker's checks before its first read. A setting that endangers documents raises an error
with a remedy.

Invariant: no record is read or written before the topics, the log's settings and its declaration
(`declaration`) have passed their checks.
"""

from __future__ import annotations

from dataclasses import dataclass

from stream_dedup.domain.document import TopicPartitionKey
from stream_dedup.domain.errors import FirstStartError
from stream_dedup.domain.plan import Plan
from stream_dedup.domain.topics import TopicNames
from stream_dedup.fingerprinting import Recipe
from stream_dedup.kafka import Admin
from stream_dedup.log.record_frame import FIRST_FORMAT
from stream_dedup.orders import declaration
from stream_dedup.orders.beginnings import Beginnings
from stream_dedup.preflight.cluster import FRAMING_BYTES
from stream_dedup.preflight.declaration import check_declaration, check_key
from stream_dedup.preflight.roles import check_group
from stream_dedup.preflight.start import check_topics, report
from stream_dedup.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class SourceCluster:
    """The ids, partitions and limits of the cluster's topics at start; `format` is the log's
    declared format.
    """

    names: TopicNames
    log_id: bytes
    source_id: bytes
    source_partitions: int
    output_partitions: int
    record_bytes_max: int
    dead_bytes_max: int
    plan: Plan
    verdicts_id: bytes
    format: int = FIRST_FORMAT


def inspect(settings: Settings, names: TopicNames, recipe: Recipe) -> SourceCluster:
    """Read the topics' settings and the log's declaration; declare, if the log is empty.

    Raises:
        ConfigurationError: a topic is missing, a setting endangers documents, the log was begun
            with another recipe or for another group, or the group works for another filter.
        BrokerError: Kafka does not answer.
    """
    admin = Admin(settings)
    topics = check_topics("worker", settings, names, admin)
    report(
        [
            *check_key(recipe),
            *check_group(settings, names.documents, admin.group_topics(settings.group)),
        ]
    )
    outputs = names.outputs
    declared = declaration.read_or_declare(settings, names, recipe, begins=True)
    report(check_declaration(settings, recipe, declared))
    output_partitions = min(topics[name].partitions for name in outputs)
    record_bytes = [
        int(topics[name].config.get("max.message.bytes", 1_048_588)) - FRAMING_BYTES
        for name in outputs
    ]
    return SourceCluster(
        names=names,
        log_id=topics[names.fingerprints].topic_id,
        source_id=topics[names.documents].topic_id,
        source_partitions=topics[names.documents].partitions,
        output_partitions=output_partitions,
        record_bytes_max=min(record_bytes[:2]),
        dead_bytes_max=record_bytes[2],
        plan=Plan.from_fields(declared["plan"]),
        verdicts_id=topics[names.verdicts].topic_id,
        format=declared.get("format", FIRST_FORMAT),
    )


def first_epoch(
    settings: Settings,
    cluster: SourceCluster,
    beginnings: Beginnings,
    key: TopicPartitionKey,
) -> int:
    """Return the first epoch of a partition that has no committed offset.

    Raises:
        FirstStartError: the partition was begun before, so its offset was lost.
    """
    if not beginnings.is_begun(key[1]):
        return 0
    raise FirstStartError(
        f"The group {settings.group} has no committed offset for {key[0]}-{key[1]}, though "
        f"{cluster.names.begun} records that the filter has started to read this partition: the "
        "offset was deleted, by Kafka (after seven idle days) or by hand. Restore it with: "
        "stream-dedup rewind --from-outputs. To deliver again all documents that the topic still "
        f"contains, use: stream-dedup rewind {key[1]}@0"
    )
