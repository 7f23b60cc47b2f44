"""The committed offsets of a group, asked by a client that is no member.

Invariant: a member's question waits behind its JoinGroup until all others have joined, so no member asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from stream_dedup.ground.document import TopicPartitionKey
from stream_dedup.kafka.client import Acl, ask_anew, is_denied, translate
from stream_dedup.kafka.patience import IMPATIENT, Patience

_QUESTION_SECONDS = 8.0
_QUESTIONS = 8


class OwnedOffset(NamedTuple):
    """A committed offset as the broker has it; offset None means that there is none."""

    offset: int | None
    metadata: str | None


def ask_committed(
    consumer: Consumer, wanted: list[TopicPartition], whose: str, needs: Acl = "", patience: Patience = IMPATIENT
) -> dict[TopicPartitionKey, OwnedOffset]:
    """Return the committed offset and metadata of each partition, once no transaction on them is open.

    Asked anew when no answer comes: after a broker's restart one question can hang while the next is answered. The consumer is
    of the group, and no member of it.

    Raises:
        BrokerError: the coordinator did not answer in time, or not for this user; `whose` stands in its sentence.
    """
    doing = f"reading the committed offsets {whose}, which a transaction that is left open can hold back"
    lasts = patience.begin(_QUESTIONS)
    while True:
        try:
            found = ask_anew(lambda seconds: consumer.committed(wanted, timeout=seconds), _QUESTION_SECONDS)
        except KafkaException as error:
            if is_denied(error) or not lasts():
                raise translate(error, doing, needs) from error
        else:
            return _owned_offsets(found, doing, needs)


def _owned_offsets(found: Iterable[TopicPartition], doing: str, needs: Acl) -> dict[TopicPartitionKey, OwnedOffset]:
    result = {}
    for one in found:
        if one.error is not None:
            raise translate(one.error, doing, needs)
        result[one.topic, one.partition] = OwnedOffset(one.offset if one.offset >= 0 else None, one.metadata)
    return result
