"""Kafka clients; the only package that imports confluent_kafka.

Invariants: every client reads `read_committed`; no client commits automatically; a role never
starts at the end because an offset is missing (`auto.offset.reset=error`); `client.translate` turns
each error of the library into a subclass of `errors.BrokerError` that states what failed and how to
fix it.
"""

from stream_dedup.kafka.admin import Admin, Bounds, ExistingTopic, ReusedAdmin
from stream_dedup.kafka.append import (
    LINGER_MS,
    LoadProducer,
    LogAppender,
    LostTopicError,
)
from stream_dedup.kafka.bulk import RecordColumns, warm_up_writer
from stream_dedup.kafka.readers import (
    LogReader,
    PartitionsReader,
    VerdictReader,
    follow_topics,
)
from stream_dedup.kafka.retries import CommittedOffset, RetryPolicy
from stream_dedup.kafka.source import RebalanceListener, SourceConsumer
from stream_dedup.kafka.spans import (
    BoundsReader,
    GroupMetadataReader,
    count_records,
    group_offsets,
    read_log,
    read_partition,
    read_spans,
    read_stored,
    read_whole_log,
    topic_bounds,
    unread_spans,
)
from stream_dedup.kafka.topic_ids import TopicIds, TopicIdWatcher, is_recreated, require_topics
from stream_dedup.kafka.transaction import (
    Outcome,
    Output,
    PackedOutputs,
    Result,
    TransactionalOutput,
)

__all__ = [
    "LINGER_MS",
    "Admin",
    "Bounds",
    "BoundsReader",
    "CommittedOffset",
    "ExistingTopic",
    "GroupMetadataReader",
    "LoadProducer",
    "LogAppender",
    "LogReader",
    "LostTopicError",
    "Outcome",
    "Output",
    "PackedOutputs",
    "PartitionsReader",
    "RebalanceListener",
    "RecordColumns",
    "Result",
    "RetryPolicy",
    "ReusedAdmin",
    "SourceConsumer",
    "TopicIdWatcher",
    "TopicIds",
    "TransactionalOutput",
    "VerdictReader",
    "count_records",
    "follow_topics",
    "group_offsets",
    "is_recreated",
    "read_log",
    "read_partition",
    "read_spans",
    "read_stored",
    "read_whole_log",
    "require_topics",
    "topic_bounds",
    "unread_spans",
    "warm_up_writer",
]
